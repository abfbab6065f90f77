"""A server as a child process: JSON-RPC by lines over its pipes, nothing of it unbounded, and no process left behind.

Not the ``mcp`` package's own client: that keeps a line of any length in memory, and passes the server's stderr on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import structlog

from cortex_plane.kernel.errors import SetupError
from cortex_plane.worker.clock import ticks
from cortex_plane.worker.tools.mcp.bounds import MAX_MESSAGE_BYTES, Line
from cortex_plane.worker.tools.mcp.redaction import Redaction
from cortex_plane.worker.tools.mcp.servers import McpServer

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from mcp.client._transport import TransportStreams

log = structlog.get_logger()

_SCRIPT = Path(__file__).with_name("child.py")
_CHUNK = 64 * 1024
LEAVE_SECONDS, TERM_SECONDS, KILL_SECONDS = 2.0, 1.0, 5.0
LOGGED_LINE, LOGGED_LINES, LOG_SECONDS = 500, 20, 10.0


@dataclass(frozen=True, slots=True)
class Child:
    process: Process
    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader


@contextlib.asynccontextmanager
async def stdio(server: McpServer, line: Line, redaction: Redaction) -> AsyncIterator[TransportStreams]:
    child = await _started(server)
    to_session, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_session = anyio.create_memory_object_stream[Any](0)
    loops = [
        asyncio.create_task(_read(child, to_session, line)),
        asyncio.create_task(_write(child, from_session, line)),
        asyncio.create_task(_hear(child, server, redaction)),
    ]
    try:
        yield from_server, to_server
    finally:
        # Whoever is cancelled here still leaves no process behind.
        ending = asyncio.ensure_future(_end(child, loops))
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await ending
            raise
        finally:
            for stream in (to_session, from_server, to_server, from_session):
                stream.close()


async def _started(server: McpServer) -> Child:
    environment = server.environment()
    program = shutil.which(server.command[0], path=environment.get("PATH"))
    if program is None:
        raise SetupError(
            f"The program `{server.command[0]}` of the MCP server `{server.name}` is not there.",
            code="mcp_server_missing",
            hint="Install it where the worker's PATH finds it, or write its whole path.",
        )
    if server.cwd is not None and not Path(server.cwd).is_dir():  # noqa: ASYNC240 -- one look at a local directory
        raise SetupError(
            f"The directory `{server.cwd}` of the MCP server `{server.name}` is not there.",
            code="mcp_server_missing",
            hint="Make it, or correct `cwd=`.",
        )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(_SCRIPT), str(os.getpid()), program, *server.command[1:],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=server.cwd,
        start_new_session=True,
        limit=_CHUNK,
    )  # fmt: skip
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise AssertionError("all three are pipes")
    return Child(process, process.stdin, process.stdout, process.stderr)


async def _read(child: Child, to_session: Any, line: Line) -> None:
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    buffer = bytearray()
    try:
        while chunk := await child.stdout.read(_CHUNK):
            *whole, rest = chunk.split(b"\n")
            for part in whole:
                buffer += part
                text, buffer = bytes(buffer), bytearray()
                if not text.strip():
                    continue
                try:
                    message: Any = SessionMessage(jsonrpc_message_adapter.validate_json(text, by_name=False))
                except ValueError as error:
                    message = error
                await to_session.send(message)
            buffer += rest
            if len(buffer) > MAX_MESSAGE_BYTES:
                line.end(f"it sent a line of more than {MAX_MESSAGE_BYTES} bytes")
                return
        line.end(await _said_at_its_end(child))
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        line.end("it closed its output")
    finally:
        to_session.close()


async def _said_at_its_end(child: Child) -> str:
    code = await _exit_code(child, 1.0)
    if code is None:
        return "it closed its output"
    return f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}"


async def _write(child: Child, from_session: Any, line: Line) -> None:
    try:
        async for message in from_session:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            child.stdin.write(text.encode() + b"\n")
            await child.stdin.drain()
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError, OSError):
        line.end("it does not read its input any more")


async def _hear(child: Child, server: McpServer, redaction: Redaction) -> None:
    """Its stderr, for the log: every line while they are few, and never more than a part of a long one."""
    since, shown, dropped = ticks(), 0, 0
    rest = b""
    while chunk := await child.stderr.read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[: 4 * LOGGED_LINE]
        for each in lines:
            if ticks() - since > LOG_SECONDS:
                if dropped:
                    log.info("mcp server said more", server=server.name, lines=dropped)
                since, shown, dropped = ticks(), 0, 0
            if shown >= LOGGED_LINES:
                dropped += 1
                continue
            shown += 1
            said = redaction.text(each[: 4 * LOGGED_LINE].decode("utf-8", "replace"))
            log.info("mcp server said", server=server.name, line=said[:LOGGED_LINE])
        # Whoever floods must not keep everybody else from their turn.
        await asyncio.sleep(0)


async def _end(child: Child, loops: list[asyncio.Task[None]]) -> None:
    """Close its input, wait, then end the whole group: a server may have started others."""
    with contextlib.suppress(OSError, RuntimeError):
        child.stdin.close()
    draining = asyncio.create_task(_drain(child, loops[0]))
    if await _exit_code(child, LEAVE_SECONDS) is None:
        _signal(child, signal.SIGTERM)
        await _exit_code(child, TERM_SECONDS)
    _signal(child, signal.SIGKILL)
    if await _exit_code(child, KILL_SECONDS) is None:
        log.error("mcp server cannot be killed", pid=child.process.pid)
    for task in (*loops, draining):
        task.cancel()
    await asyncio.gather(*loops, draining, return_exceptions=True)
    transport = getattr(child.process, "_transport", None)
    if transport is not None:  # a child of the server may still hold the pipes
        transport.close()


async def _drain(child: Child, reading: asyncio.Task[None]) -> None:
    """A server that is stuck writing cannot read that it should leave."""
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    while await child.stdout.read(_CHUNK):
        pass


async def _exit_code(child: Child, seconds: float) -> int | None:
    """Not ``process.wait()``, which also waits for whoever inherited the pipes."""
    deadline = ticks() + seconds
    while child.process.returncode is None and ticks() < deadline:  # noqa: ASYNC110 -- nothing else tells
        await asyncio.sleep(0.01)
    return child.process.returncode


def _signal(child: Child, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, number)
