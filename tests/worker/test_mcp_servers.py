"""MCP servers as this process has them: started, kept, bounded, restarted, and gone when it is."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from cortex_plane.agents.model.tools import (
    Confirmed,
    InvalidApp,
    InvalidArguments,
    ToolError,
    UncertainOutcome,
    trouble,
)
from cortex_plane.kernel.errors import SetupError
from cortex_plane.kernel.fields import Risk
from cortex_plane.mcp_client import connection as links
from cortex_plane.mcp_client import transports
from cortex_plane.mcp_client import transports as pipes
from cortex_plane.mcp_client.servers import Secret
from cortex_plane.worker.mcp import connection as connections
from cortex_plane.worker.tools.app import App
from tests.mcp_servers.hostile import default_tools
from tests.mcp_servers.lines import BIN, hostile, log_of, spoken, sqlite

SECRET = "hunter2-and-a-half"


async def until(seen: Callable[[], bool], seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while not seen():  # noqa: ASYNC110 -- another process does it
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Neither gone nor a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def started(folder: Path) -> list[int]:
    return [int(line.split()[1]) for line in log_of(folder) if line.startswith("started ")]


# Real servers --------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.260")
async def test_a_server_of_the_registry_is_asked_the_time() -> None:
    app = App("tests")
    app.mcp_server("time", command=[str(BIN / "mcp-server-time")], tools=["get_current_time", "no_such"])
    async with spoken(app, "time") as line:
        assert (line.connection.state, [*line.tools]) == ("up", ["get_current_time"])
        tool = line.tools["get_current_time"]
        assert (tool.name, tool.provider_name) == ("time.get_current_time", "time_get_current_time")
        answer = await line.call("get_current_time", timezone="Europe/Berlin")
        assert answer["timezone"] == "Europe/Berlin"
        with pytest.raises(InvalidArguments, match="timezone"):
            tool.parse({})
        with pytest.raises(InvalidArguments, match="zone"):
            tool.parse({"timezone": "UTC", "zone": "made up"})
        with pytest.raises(InvalidArguments, match="not of type"):
            tool.parse('{"timezone": 3}')
        with pytest.raises(ToolError, match="No time zone"):
            await line.call("get_current_time", timezone="Mars/Olympus")


@pytest.mark.proves("D.260")
async def test_a_database_server_of_the_registry_reads_and_writes(tmp_path: Path) -> None:
    app = App("tests")
    sqlite(app, tmp_path / "world.db")
    async with spoken(app, "files") as line:
        assert {"read_query", "write_query", "list_tables"} <= line.tools.keys()
        assert await line.call("create_table", query="create table t (x text)")
        assert await line.call("write_query", query="insert into t values ('a')") == "[{'affected_rows': 1}]"
        assert await line.call("read_query", query="select x from t") == "[{'x': 'a'}]"


# What is declared ----------------------------------------------------------------------------------------------


@pytest.mark.proves("D.261")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"name": "Files"}, "name"),
        ({"name": "a.b"}, "name"),
        ({}, "either a `command` or a `url`"),
        ({"command": ["x"], "url": "http://x"}, "either a `command` or a `url`"),
        ({"command": "rm -rf"}, "list of texts"),
        ({"command": []}, "list of texts"),
        ({"url": "ftp://x/"}, "web address"),
        ({"url": "https://me:secret@x/"}, "password"),
        ({"url": "https://x/", "secrets": ["TOKEN"]}, "headers"),
        ({"command": ["x"], "headers": {"A": "b"}}, "headers"),
        ({"command": ["x"], "secrets": "TOKEN"}, "one text"),
        ({"command": ["x"], "secrets": ["ghp_1234-5678"]}, "never its value"),
        ({"command": ["x"], "timeout": 0}, "timeout"),
        ({"command": ["x"], "timeout": float("nan")}, "timeout"),
        ({"command": ["x"], "risk": "none"}, "risk"),
        ({"command": ["x"], "on_uncertain": "probe"}, "on_uncertain"),
        ({"url": "https://x/", "headers": {"A b": "c"}}, "header"),
        ({"url": "https://x/", "headers": {"A": "c\r\nB: d"}}, "line breaks"),
        ({"name": "plane", "command": ["x"]}, "plane's own"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_written(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidApp) as refused:
        App("tests").mcp_server(wrong.pop("name", "files"), **wrong)
    assert said in str(refused.value)


@pytest.mark.proves("D.261")
def test_names_that_models_would_mix_up_are_refused() -> None:
    app = App("tests")
    app.mcp_server("files", command=["x"])
    for rival in ("files", "files_more"):
        with pytest.raises(InvalidApp, match="files"):
            app.mcp_server(rival, command=["x"])

    def read() -> None: ...

    with pytest.raises(InvalidApp, match="MCP server `files`"):
        app.tool(name="files.read")(read)
    with pytest.raises(InvalidApp, match="MCP server `files`"):
        app.tool(name="files_read")(read)
    app.tool(name="other.read")(read)
    with pytest.raises(InvalidApp, match=r"other\.read"):
        app.mcp_server("other", command=["x"])
    assert [*app.tools] == ["other.read"]


@pytest.mark.proves("D.261")
async def test_a_missing_secret_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app = App("tests")
    hostile(app, tmp_path, secrets=["HOSTILE_TOKEN"])
    monkeypatch.delenv("HOSTILE_TOKEN", raising=False)
    for value in (None, "", "abc", "two\nlines"):
        if value is not None:
            monkeypatch.setenv("HOSTILE_TOKEN", value)
        with pytest.raises(SetupError, match="HOSTILE_TOKEN") as refused:
            async with spoken(app):
                pass
        assert refused.value.code == "missing_secret"
    assert log_of(tmp_path) == []


@pytest.mark.proves("D.261")
async def test_secrets_reach_the_server_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOSTILE_TOKEN", SECRET)
    monkeypatch.setenv("CORTEX_MASTER_KEY", "not for servers")
    app = App("tests")
    hostile(app, tmp_path, secrets=["HOSTILE_TOKEN"], env={"PLAIN": "seen"})
    with structlog.testing.capture_logs() as logged:
        async with spoken(app) as line:
            answer = await line.call("leak")
            with pytest.raises(ToolError, match=r"no, not with \[redacted\]") as refused:
                await line.call("refuse")
            await until(lambda: any("my token is" in str(entry) for entry in logged))
    environment = answer["environment"]
    assert environment.keys() - {"LC_CTYPE"} == {"PATH", "HOME", "PLAIN", "HOSTILE_TOKEN"}
    assert (environment["PLAIN"], environment["HOSTILE_TOKEN"]) == ("seen", "[redacted]")
    assert answer["[redacted]"] == 1
    everything = json.dumps(answer) + str(refused.value) + str(logged)
    assert SECRET not in everything
    assert "not for servers" not in everything


@pytest.mark.proves("D.262")
async def test_what_cannot_be_offered_is_left_out_and_said(tmp_path: Path) -> None:
    fine = {"type": "object", "properties": {}}
    listed = [
        {"name": "Read-File", "inputSchema": fine, "description": "x" * 9000},
        {"name": "read_file", "inputSchema": fine},
        {"name": "9lives", "inputSchema": fine},
        {"name": "n" * 80, "inputSchema": fine},
        {"name": "far", "inputSchema": {**fine, "$ref": "http://127.0.0.1:9/x"}},
        {"name": "large", "inputSchema": {**fine, "description": "x" * 70_000}},
        {"name": "wrong", "inputSchema": {"type": "object", "properties": {"a": {"type": "nothing"}}}},
        {"name": "a.b", "inputSchema": fine, "description": "y" * 9000},
        {"name": "x.y", "inputSchema": fine},
        {"name": "x_y", "inputSchema": fine},
        {"name": "open", "inputSchema": {**fine, "additionalProperties": True}},
    ]
    (tmp_path / "tools.json").write_text(json.dumps(listed))
    app = App("tests")
    hostile(app, tmp_path)
    with structlog.testing.capture_logs() as logged:
        async with spoken(app) as line:
            assert sorted(line.tools) == ["a.b", "open"]
            assert line.tools["a.b"].name == "hostile.a.b"
            assert len(line.tools["a.b"].description) == 4001
            app.offer("hostile", [*line.tools.values()])
            assert sorted(app.tools) == ["hostile.a.b", "hostile.open"]
            line.tools["open"].parse({"anything": 1})
    skipped = {entry["tool"].partition(":")[0] for entry in logged if entry["event"] == "mcp tool skipped"}
    assert skipped == {"Read-File", "read_file", "9lives", "n" * 80, "far", "large", "wrong", "x.y", "x_y"}


# What a server may do ------------------------------------------------------------------------------------------


@pytest.mark.proves("D.264")
@pytest.mark.parametrize("way", ["die", "die_first", "huge", "flood", "endless", "broken"])
async def test_a_call_that_ends_badly_is_uncertain_and_the_server_comes_back(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipes, "LEAVE_SECONDS", 0.2)
    app = App("tests")
    hostile(app, tmp_path)
    async with spoken(app) as line:
        with pytest.raises(UncertainOutcome):
            await line.call(way)
        if way != "broken":  # which answered, and goes on
            await until(lambda: line.connection.state == "up" and len(started(tmp_path)) == 2)
            assert not alive(started(tmp_path)[0])
        assert await line.call("note", text="again") == "noted"
    assert not any(alive(pid) for pid in started(tmp_path))


@pytest.mark.proves("D.264")
async def test_what_a_server_says_itself_is_known(tmp_path: Path) -> None:
    app = App("tests")
    hostile(app, tmp_path)
    async with spoken(app) as line:
        with pytest.raises(ToolError, match="may have acted in part: no, not with None") as failed:
            await line.call("refuse")
        assert "othing was changed" not in str(failed.value)
        confirmed = line.tools["refuse"].trusted(Confirmed(idempotent=True, risk=Risk.LOW))
        assert (line.tools["refuse"].declares_risk, confirmed.declares_risk) == (False, True)
        reading = line.tools["refuse"].trusted(Confirmed(read_only=True))
        with pytest.raises(ToolError) as only_read:
            await line.connection.call(reading, {}, "key-2")
        assert "may have acted" not in str(only_read.value)
        with pytest.raises(ToolError, match="unknown tool more"):
            await line.call("more")
        text, small, large, link, held = await line.call("picture")
        assert text == {"type": "text", "text": "a\ufffdb"}
        assert small == {"type": "image", "mime_type": "image/png", "data": "aGVsbG8="}
        assert "left_out" in large
        assert "data" not in large
        assert (link["type"], link["uri"]) == ("resource_link", "http://169.254.169.254/latest")
        assert held["text"] == "held"
    assert len(started(tmp_path)) == 1


@pytest.mark.proves("D.264")
async def test_a_text_that_only_a_transport_should_say_is_an_answer_like_any_other(tmp_path: Path) -> None:
    app = App("tests")
    hostile(app, tmp_path)
    async with spoken(app) as line:
        with pytest.raises(UncertainOutcome, match="Session terminated"):
            await line.call("lie")
        assert (log_of(tmp_path).count("lie"), line.connection.state) == (1, "up")


@pytest.mark.proves("D.264")
async def test_noise_and_stray_lines_are_borne_and_bounded(tmp_path: Path) -> None:
    app = App("tests")
    hostile(app, tmp_path)
    with structlog.testing.capture_logs() as logged:
        async with spoken(app) as line:
            assert await line.call("noise") == "heard"
            assert await line.call("garbage") == "after all"
            assert await line.call("garbage") == "after all"
            with pytest.raises(UncertainOutcome, match="it broke the rules"):
                await line.call("garbage")
            await until(lambda: any("messages that are none" in str(entry) for entry in logged))
    said = [entry for entry in logged if entry["event"] == "mcp server said"]
    assert 0 < len(said) < 1000
    assert all(len(entry["line"]) <= 500 for entry in said)


@pytest.mark.proves("D.264")
async def test_a_server_that_forgets_a_call_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "READ_SECONDS", 0.01)
    app = App("tests")
    hostile(app, tmp_path)
    async with spoken(app) as line:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await line.call("hang")
        assert await line.call("note", text="still here") == "noted"
    assert len(started(tmp_path)) == 1


@pytest.mark.proves("D.264")
async def test_a_server_that_hangs_is_killed_and_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "READ_SECONDS", 0.01)
    monkeypatch.setattr(links, "ANSWER_SECONDS", 0.1)
    monkeypatch.setattr(pipes, "LEAVE_SECONDS", 0.1)
    app = App("tests")
    hostile(app, tmp_path)
    async with spoken(app) as line:
        stuck = asyncio.create_task(line.call("stuck"))
        await until(lambda: "stuck" in log_of(tmp_path))
        stuck.cancel()
        await asyncio.gather(stuck, return_exceptions=True)
        await until(lambda: line.connection.state == "up" and len(started(tmp_path)) == 2)
        assert await line.call("note", text="back") == "noted"
    assert not any(alive(pid) for pid in started(tmp_path))


@pytest.mark.proves("D.263")
async def test_a_list_that_changes_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transports, "READ_SECONDS", 0.01)
    app = App("tests")
    hostile(app, tmp_path)
    async with spoken(app) as line:
        before = dict(line.tools)
        assert (before["note"].hints, before["note"].read_only) == (
            {"read_only_hint": True, "idempotent_hint": True},
            False,
        )
        listed = default_tools()
        listed[0]["description"] = "Write a line, and tell the world."
        del listed[-1]
        (tmp_path / "tools.json").write_text(json.dumps(listed))
        await line.call("announce")
        await until(lambda: line.lists == 2)
        assert line.tools["note"].digest != before["note"].digest
        assert line.tools["die"].digest == before["die"].digest
        assert before.keys() - line.tools.keys() == {"more"}
        with pytest.raises(ToolError, match="not sent"):
            await line.connection.call(before["note"], {"text": "old"}, "key")
        with pytest.raises(ToolError, match="not sent"):
            await line.connection.call(before["more"], {}, "key")
    assert not any(entry.startswith("note") for entry in log_of(tmp_path))


@pytest.mark.proves("D.263", "D.264")
async def test_a_list_that_never_rests_is_not_published_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transports, "READ_SECONDS", 0.001)
    monkeypatch.setattr(transports, "MAX_CHANGES", 3)
    monkeypatch.setattr(connections, "WAIT_SECONDS", 0.0)
    app = App("tests")
    hostile(app, tmp_path)
    (tmp_path / "restless.txt").touch()
    with structlog.testing.capture_logs() as logged:
        async with spoken(app) as line:
            # Also after it was started again: it is the same server.
            await until(lambda: sum(entry["event"] == "mcp server down" for entry in logged) == 2)
            assert line.lists == 1 + 3
            with pytest.raises(ToolError, match="not sent"):
                await line.call("note", text="no")
    reasons = {entry["reason"] for entry in logged if entry["event"] == "mcp server down"}
    assert reasons == {"it changed its list of tools more than 3 times within an hour"}


def test_each_change_of_a_list_makes_the_next_reading_later() -> None:
    changes = transports.Changes()
    pauses = [changes.pause(0.0)]
    for second in range(transports.MAX_CHANGES):
        assert changes.add(float(second))
        pauses.append(changes.pause(float(second)))
    assert pauses[:5] == [1.0, 1.0, 2.0, 4.0, 8.0]
    assert pauses[-1] == transports.LONGEST_READ_PAUSE
    assert not changes.add(100.0)
    assert changes.add(transports.CHANGES_SECONDS)
    assert not changes.add(transports.CHANGES_SECONDS)


@pytest.mark.proves("D.265")
@pytest.mark.parametrize("how", ["mute", "leave"])
async def test_a_server_that_does_not_start_is_tried_again(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "START_SECONDS", 1.0)
    app = App("tests")
    hostile(app, tmp_path)
    (tmp_path / "start.txt").write_text(how)
    async with spoken(app) as line:
        said = {"mute": "did not answer within 1 s", "leave": "exit code 3"}
        assert (line.connection.state, said[how] in line.connection.reason) == ("down", True)
        (tmp_path / "start.txt").write_text("")
        await until(lambda: line.connection.state == "up")
        assert await line.call("note", text="late") == "noted"
    assert not any(alive(pid) for pid in started(tmp_path))


@pytest.mark.proves("D.265")
@pytest.mark.parametrize("command", [["no-such-program-here"], ["false"], ["cat"]])
async def test_programs_that_are_no_servers(command: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "START_SECONDS", 1.0)
    app = App("tests")
    app.mcp_server("odd", command=command)
    async with spoken(app, "odd") as line:
        assert line.connection.state != "up"
        assert line.connection.reason or line.connection.state == "starting"
        assert line.tools == {}


@pytest.mark.proves("D.265")
async def test_a_killed_server_is_started_again(tmp_path: Path) -> None:
    app = App("tests")
    hostile(app, tmp_path)
    async with spoken(app) as line:
        os.kill(int(await line.call("pid")), signal.SIGKILL)
        await until(lambda: line.connection.state == "up" and len(started(tmp_path)) == 2)
        assert await line.call("note", text="again") == "noted"


def test_a_header_may_hold_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOTE_TOKEN", SECRET)
    app = App("tests")
    headers: dict[str, str | Secret] = {"Authorization": Secret("REMOTE_TOKEN", prefix="Bearer "), "X-Plain": "yes"}
    app.mcp_server("remote", url="https://example.com/mcp", headers=headers)
    server = app.mcp_servers["remote"]
    assert server.sent_headers() == {"Authorization": f"Bearer {SECRET}", "X-Plain": "yes"}
    assert SECRET not in repr(server)
    assert server.redaction().text(f"Bearer {SECRET}") == "Bearer [redacted]"


@pytest.mark.proves("D.261")
def test_what_stands_in_the_code_is_redacted_too() -> None:
    app = App("tests")
    headers: dict[str, str | Secret] = {"Authorization": "Bearer written-in-code-1", "X-Plain": "true"}
    app.mcp_server("remote", url="https://example.com/mcp?tenant=x&api_key=abc%20def-4711", headers=headers)
    redaction = app.mcp_servers["remote"].redaction()
    for said in (
        "got Bearer written-in-code-1",
        "token written-in-code-1",
        "key abc def-4711",
        "for url 'https://example.com/mcp?tenant=x&api_key=abc%20def-4711'",
    ):
        shown = redaction.text(said)
        assert "[redacted]" in shown
        assert not any(secret in shown for secret in ("written-in-code-1", "def-4711")), shown
    assert redaction.text("that is true") == "that is true"


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("it did not answer within 30 s", "it does not answer"),
        ("it refuses this worker with status 401: look at its headers", "it refuses the worker"),
        ("it ended with exit code 3", "it ended"),
        ("it changed its list of tools more than 20 times within an hour", "it broke the rules"),
        ("ConnectError: 10.0.0.7 refused", "it cannot be started or reached"),
        ("The directory `/srv/secret` of the MCP server `x` is not there.", "it cannot be started or reached"),
        ("", None),
    ],
)
def test_tenants_are_told_the_kind_of_a_reason(reason: str, kind: str | None) -> None:
    assert trouble(reason) == kind
