"""Tools, their MCP servers and what is confirmed about them, from the command line."""

from __future__ import annotations

from datetime import timedelta

import pytest

from cortex_plane.agents import store as agents_store
from cortex_plane.jobs import store as jobs_store
from cortex_plane.kernel.ids import new_id
from tests.cli.test_cli_absences import live
from tests.cli.test_cli_jobs import Live
from tests.fixtures.hostile import HOSTILE, INVISIBLE
from tests.fixtures.tool_confirmations import DIGEST, offered, publish

__all__ = ["live"]

OTHER = "cd" * 32


def words_of(text: str) -> str:
    """However wide the window is."""
    return " ".join(text.split())


@pytest.mark.proves("D.266", "D.263")
def test_confirm_look_and_take_back(live: Live) -> None:
    shell, db = live.shell, live.world.db
    live.begin(publish(db))()
    assert "nothing yet" in shell.run("tool", "confirmations").stdout
    listed = words_of(shell.run("tool", "list").stdout)
    assert f"files.read_query {DIGEST[:12]} " in listed
    assert '{"read_only_hint":true}' in listed
    said = words_of(shell.run("tool", "confirm", "files.read_query", "--read-only", "--risk", "low").stdout)
    assert said == (
        "tool files.read_query of the app office, offered by files server says sqlite 1 description Read."
        f" hints read_only_hint=true (the server's own words) digest {DIGEST}"
        f" files.read_query ({DIGEST[:12]}) is read-only, of low risk for your org, until it changes"
    )
    (held,) = shell.many("tool", "confirmations")
    assert (held["tool_name"], held["read_only"], held["current"]) == ("files.read_query", True, True)
    live.begin(publish(db, offered(digest=OTHER, description=HOSTILE)))()
    (held,) = shell.many("tool", "confirmations")
    assert held["current"] is False
    versions = shell.many("tool", "list", "--app", "office")
    assert [(each["digest"], each["newest"], each["changed"]) for each in versions] == [
        (OTHER, True, True),
        (DIGEST, False, False),
    ]
    table = shell.run("tool", "list", "--app", "office").stdout
    assert not INVISIBLE & set(table)
    assert "again" in shell.run("tool", "unconfirm", "files.read_query").stdout
    assert shell.many("tool", "confirmations") == []
    assert len(shell.many("tool", "confirmations", "--all")) == 1


@pytest.mark.proves("D.266")
def test_what_cannot_be_confirmed_says_what_to_do(live: Live) -> None:
    shell = live.shell
    live.begin(publish(live.world.db))()
    for words, code, said in (
        (["confirm", "files.read_query"], 2, "read_only"),
        (["confirm", "files.nothing", "--read-only"], 3, "cortex tool list"),
        (["confirm", "files.read_query", "--read-only", "--digest", OTHER], 4, "has changed"),
        (["confirm", "files.read_query", "--read-only", "--digest", DIGEST[:4]], 4, "has changed"),
        (["confirm", "files.read_query", "--risk", "none"], 2, "risk"),
        (["unconfirm", "files.read_query"], 3, "Nothing is confirmed"),
    ):
        assert said in words_of(shell.run("tool", *words, expect=code).stderr), words
    assert shell.many("tool", "confirmations", "--all") == []


@pytest.mark.proves("D.266")
def test_a_version_is_confirmed_by_the_digest_that_was_shown(live: Live) -> None:
    shell, db = live.shell, live.world.db
    live.begin(publish(db, offered(description=HOSTILE)))()
    words = ["tool", "confirm", "files.read_query", "--idempotent", "--digest", DIGEST[:12]]
    assert not INVISIBLE & set(shell.run(*words).stdout)
    live.begin(publish(db, offered(digest=OTHER)))()
    assert "has changed" in words_of(shell.run(*words, expect=4).stderr)
    assert [held["digest"] for held in shell.many("tool", "confirmations", "--all")] == [DIGEST]


@pytest.mark.proves("D.265")
def test_a_server_that_is_down_is_told_about(live: Live) -> None:
    shell, db = live.shell, live.world.db
    id = new_id()

    async def fall() -> None:
        await jobs_store.register_worker(db, id, "worker-1", "here", 1, ["office"], 1, timedelta(hours=1))
        await agents_store.record_tool_server(db, "office", "files", id, "down", "it ended with exit code 3", 0)

    live.begin(publish(db))()
    live.begin(fall())()
    (server,) = shell.many("tool", "servers")
    assert (server["name"], server["state"], server["worker"]) == ("files", "down", "worker-1")
    for words in (["tool", "list"], ["tool", "list", "--app", "office"]):
        said = words_of(shell.run(*words).stdout)
        assert "server files of office on worker-1: down, since " in said
        assert "it ended with exit code 3" in said
    assert "server files" not in shell.run("tool", "list", "--app", "another").stdout
    live.begin(agents_store.record_tool_server(db, "office", "files", id, "up", None, 3))()
    assert "server files" not in shell.run("tool", "list").stdout
    live.begin(jobs_store.stop_worker(db, id))()
    assert shell.many("tool", "servers") == []
