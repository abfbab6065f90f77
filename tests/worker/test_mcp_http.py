"""MCP servers elsewhere, over streamable HTTP."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import structlog

from cortex_plane.agents.model.tools import ToolError, UncertainOutcome
from cortex_plane.mcp_client import connection as links
from cortex_plane.mcp_client import transports
from cortex_plane.mcp_client.servers import Secret
from cortex_plane.worker.mcp import connection as connections
from cortex_plane.worker.tools.app import App
from tests.mcp_servers.lines import HERE, log_of, spoken
from tests.mcp_servers.rpc_http import rpc_server
from tests.worker.test_mcp_servers import until

TOKEN = "open-sesame-4711"


@contextmanager
def remote(folder: Path, port: int = 0) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, str(HERE / "http_server.py"), str(port), str(folder), TOKEN],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def plain(url: str) -> App:
    app = App("tests")
    app.mcp_server("remote", url=url, timeout=60)
    return app


def declared(port: int) -> App:
    app = App("tests")
    headers = {"Authorization": Secret("REMOTE_TOKEN", prefix="Bearer ")}
    app.mcp_server("remote", url=f"http://127.0.0.1:{port}/mcp", headers=headers, timeout=20)
    return app


@pytest.mark.proves("D.268")
async def test_a_server_elsewhere_is_called_with_its_header_and_refuses_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMOTE_TOKEN", TOKEN)
    with remote(tmp_path) as port:
        async with spoken(declared(port), "remote") as line:
            assert line.connection.state == "up", line.connection.reason
            assert await line.call("note", text="a") == {"result": "noted"}
            assert await line.call("leak") == {"result": "my token is [redacted]"}
            with pytest.raises(ToolError, match="Error executing tool fail"):
                await line.call("fail")
            with pytest.raises(UncertainOutcome):
                await line.call("huge")
            await until(lambda: line.connection.state == "up")
            assert await line.call("note", text="b") == {"result": "noted"}
        # Another server to start would be most of the test.
        await _refused(port, monkeypatch)
    assert log_of(tmp_path) == ["note a", "huge", "note b"]


async def _refused(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOTE_TOKEN", "a-wrong-token-4712")
    with structlog.testing.capture_logs() as logged:
        async with spoken(declared(port), "remote") as line:
            assert line.connection.state == "down"
            assert "status 401" in line.connection.reason
    assert logged
    assert "a-wrong-token-4712" not in str(logged)


@pytest.mark.proves("D.268")
async def test_a_server_elsewhere_that_dies_in_a_call_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMOTE_TOKEN", TOKEN)
    monkeypatch.setattr(connections, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(links, "LONGEST_PAUSE", 0.5)
    with remote(tmp_path) as port:
        app = declared(port)
        async with spoken(app, "remote") as line:
            with pytest.raises(UncertainOutcome):
                await line.call("die")
            await until(lambda: line.connection.state == "down")
            with pytest.raises(ToolError, match="was not sent"):
                await line.call("note", text="too early")
            with remote(tmp_path, port):
                await until(lambda: line.connection.state == "up")
                monkeypatch.setattr(connections, "WAIT_SECONDS", 20.0)
                assert await line.call("note", text="late") == {"result": "noted"}
    assert log_of(tmp_path) == ["die", "note late"]


@pytest.mark.proves("D.268")
async def test_a_server_elsewhere_that_is_not_there_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMOTE_TOKEN", TOKEN)
    with structlog.testing.capture_logs() as logged, socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
        nobody.close()
        async with spoken(declared(port), "remote") as line:
            assert (line.connection.state, line.tools) == ("down", {})
            assert "connect" in line.connection.reason.lower()
    assert TOKEN not in str(logged)


@pytest.mark.proves("D.268", "D.264")
async def test_an_answer_that_speaks_of_a_lost_session_is_not_believed() -> None:
    async with rpc_server() as remote, spoken(plain(remote.url), "remote") as line:
        with pytest.raises(UncertainOutcome, match="Session terminated"):
            await line.call("lie")
        assert (remote.acts, remote.sessions) == (["lie"], 1)


@pytest.mark.proves("D.268", "D.264")
async def test_a_call_to_a_lost_session_goes_to_a_new_one_and_only_once() -> None:
    async with rpc_server() as remote, spoken(plain(remote.url), "remote") as line:
        remote.forgets = 1
        assert await line.call("forget") == "done"
        assert (remote.acts, remote.sessions) == (["forget"], 2)
        remote.forgets = 2
        with pytest.raises(UncertainOutcome, match="does not know the session"):
            await line.call("forget")
        assert (remote.acts, remote.forgets) == (["forget"], 0)
        await until(lambda: line.connection.state == "up")


@pytest.mark.proves("D.268", "D.264")
async def test_an_error_that_one_call_is_answered_leaves_the_calls_of_others_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transports, "READ_SECONDS", 0.01)
    async with rpc_server() as remote, spoken(plain(remote.url), "remote") as line:
        slow = asyncio.create_task(line.call("slow"))
        await remote.entered.wait()
        for name in ("bad", "gone", "closed"):
            with pytest.raises(UncertainOutcome):
                await line.call(name)
            assert await line.call("note") == "done"
        remote.opened.set()
        assert await slow == "done"
        assert (line.connection.state, remote.sessions) == ("up", 1)
