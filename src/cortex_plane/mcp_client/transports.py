"""Transports to MCP servers: a child process (JSON-RPC by lines over its pipes) or streamable HTTP, both bounded.

Not the ``mcp`` package's own stdio client: that keeps a line of any length in memory, and passes the server's stderr on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import anyio
import orjson
import structlog

from cortex_plane.kernel.addresses import Allowed, literal
from cortex_plane.kernel.child_process import bound_to_parent
from cortex_plane.kernel.errors import SetupError
from cortex_plane.mcp_client.servers import McpServer, Redaction

if TYPE_CHECKING:
    from asyncio.subprocess import Process

    from mcp.client._transport import Transport, TransportStreams


log = structlog.get_logger()

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
    child = await _start_child(server)
    to_session, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_session = anyio.create_memory_object_stream[Any](0)
    loops = [
        asyncio.create_task(_read(child, to_session, line)),
        asyncio.create_task(_write(child, from_session, line)),
        asyncio.create_task(_log_stderr(child, server, redaction)),
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


async def _start_child(server: McpServer) -> Child:
    environment = server.environment()
    program = shutil.which(server.command[0], path=environment.get("PATH"))
    if program is None:
        hint = "Install it where the worker's PATH finds it, or write its whole path."
        raise _missing(server, f"program `{server.command[0]}`", hint)
    if server.cwd is not None and not Path(server.cwd).is_dir():  # noqa: ASYNC240 -- one look at a local directory
        raise _missing(server, f"directory `{server.cwd}`", "Make it, or correct `cwd=`.")
    process = await asyncio.create_subprocess_exec(
        *bound_to_parent([program, *server.command[1:]], signal.SIGKILL),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
        cwd=server.cwd,
        start_new_session=True,
        limit=_CHUNK,
    )
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise AssertionError("all three are pipes")
    return Child(process, process.stdin, process.stdout, process.stderr)


def _missing(server: McpServer, what: str, hint: str) -> SetupError:
    message = f"The {what} of the MCP server `{server.name}` is not there."
    return SetupError(message, code="mcp_server_missing", hint=hint)


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
        if (code := await _exit_code(child, 1.0)) is not None:
            line.end(f"it was killed by signal {-code}" if code < 0 else f"it ended with exit code {code}")
        line.end("it closed its output")
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
        line.end("it closed its output")
    finally:
        to_session.close()


async def _write(child: Child, from_session: Any, line: Line) -> None:
    try:
        async for message in from_session:
            child.stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await child.stdin.drain()
    except (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError, OSError):
        line.end("it does not read its input any more")


async def _log_stderr(child: Child, server: McpServer, redaction: Redaction) -> None:
    """Its stderr, for the log: every line while they are few, and never more than a part of a long one."""
    since, count, omissions = monotonic(), 0, 0
    rest = b""
    while chunk := await child.stderr.read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        rest = rest[: 4 * LOGGED_LINE]
        for line in lines:
            if monotonic() - since > LOG_SECONDS:
                if omissions:
                    log.info("mcp server said more", server=server.name, lines=omissions)
                since, count, omissions = monotonic(), 0, 0
            if count >= LOGGED_LINES:
                omissions += 1
                continue
            count += 1
            text = redaction.text(line[: 4 * LOGGED_LINE].decode("utf-8", "replace"))
            log.info("mcp server said", server=server.name, line=text[:LOGGED_LINE])
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
    if (transport := getattr(child.process, "_transport", None)) is not None:
        transport.close()


async def _drain(child: Child, reading: asyncio.Task[None]) -> None:
    """A server that is stuck writing cannot read that it should leave."""
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    while await child.stdout.read(_CHUNK):
        pass


async def _exit_code(child: Child, seconds: float) -> int | None:
    """Not ``process.wait()``, which also waits for whoever inherited the pipes."""
    deadline = monotonic() + seconds
    while child.process.returncode is None and monotonic() < deadline:  # noqa: ASYNC110 -- nothing else tells
        await asyncio.sleep(0.01)
    return child.process.returncode


def _signal(child: Child, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.process.pid, number)


KEY = "cortex-plane/idempotency-key"
CONNECT_SECONDS = 15.0
QUIET_SECONDS = 300.0


@contextlib.asynccontextmanager
async def http(server: McpServer, line: Line) -> AsyncIterator[TransportStreams]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    class BoundedStream(httpx2.AsyncByteStream):
        """One body. An event stream lasts, and its events are bounded one by one."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def __aiter__(self) -> AsyncIterator[bytes]:
            seen = 0
            async for chunk in self._inner:
                seen += len(chunk)
                if seen > MAX_MESSAGE_BYTES:
                    line.end(f"it answered with more than {MAX_MESSAGE_BYTES} bytes")
                    raise httpx2.StreamError(line.reason)
                yield chunk

        async def aclose(self) -> None:
            await self._inner.aclose()

    async def look(response: Any) -> None:
        if response.status_code in (401, 403) and not line.begun:
            line.end(f"it refuses this worker with status {response.status_code}: look at its headers")
        if response.status_code == 404:
            line.turned_away |= _session_keys(response.request)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = BoundedStream(response.stream)

    class PinnedTransport(httpx2.AsyncHTTPTransport):
        """Connects to exactly the address that was checked; host, server name and certificate stay those of the name."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            if server.reach is not None:
                host = request.url.host
                address = await _reachable(host, request.url.port or _PORTS[request.url.scheme], server.reach)
                request.extensions = {**request.extensions, "sni_hostname": host}
                request.url = request.url.copy_with(host=address)
            return await super().handle_async_request(request)

    timeout = httpx2.Timeout(CONNECT_SECONDS, read=max(QUIET_SECONDS, server.timeout_seconds + 30))
    async with (
        httpx2.AsyncClient(
            headers=server.sent_headers(),
            timeout=timeout,
            transport=None if server.reach is None else PinnedTransport(trust_env=False),
            event_hooks={"response": [look]},
        ) as client,
        streamable_http_client(server.url or "", http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES) as streams,
    ):
        yield streams


_PORTS = {"http": 80, "https": 443}


async def _reachable(host: str, port: int, allowed: Allowed) -> str:
    """An address of the host, if all that it has may be reached. Raises ``SetupError``."""
    addresses = [host]
    if literal(host) is None:
        lookup = asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        try:
            addresses = [str(entry[4][0]) for entry in await lookup]
        except OSError as error:
            raise SetupError(f"{host} cannot be resolved: {error.strerror}.", code="mcp_server_missing") from None
    for text in addresses:
        address = literal(text)
        if address is None or not allowed.reach(host, port, address):
            raise SetupError(
                f"{host} has an address that is not public.",
                code="address_not_allowed",
                hint="If it is meant, list it in `allow` of the gateway's file.",
            )
    return addresses[0]


def _session_keys(request: Any) -> set[str]:
    """The key of the call that this request is. The status alone says that its session is over, never an answer's text."""
    if request.method != "POST" or "mcp-session-id" not in request.headers:
        return set()
    try:
        return {orjson.loads(request.content)["params"]["_meta"][KEY]}
    except (ValueError, KeyError, TypeError):
        return set()  # no call of a tool


MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_GARBAGE = 100
"""Lines that are no messages, for as long as a connection lasts: banners and stray prints are forgiven."""
WINDOW_SECONDS, MAX_IN_WINDOW = 10.0, 2_000
"""Notifications and requests that nobody asked for."""
READ_SECONDS, LONGEST_READ_PAUSE = 1.0, 60.0
"""Between two readings of a list of tools: longer with each change of it."""
CHANGES_SECONDS, MAX_CHANGES = 3600.0, 20
"""Each change of a list is published for everybody, and outgrows what was approved."""


class Line:
    """Whether a connection lasts, and why it does not any more. The first reason counts."""

    def __init__(self, on_end: Callable[[], None] = lambda: None) -> None:
        """``on_end`` is called at once, so that the connection no longer counts as up."""
        self.over = asyncio.Event()
        self.reason = ""
        self.begun = False
        """It was up: from then on what one call is answered is no reason to end it for the others."""
        self.turned_away: set[str] = set()
        """Keys of calls that came to a session which the server does not have: nothing of them was begun."""
        self._on_end = on_end

    def end(self, reason: str) -> None:
        if not self.over.is_set():
            self.reason = reason
            self.over.set()
            self._on_end()


class Changes:
    """How often a list of tools has changed lately, through every restart of its server."""

    def __init__(self) -> None:
        self._at: list[float] = []

    def add(self, now: float) -> bool:
        """Whether it may change now; one too many does not count."""
        self._at = [at for at in self._at if now - at < CHANGES_SECONDS]
        if len(self._at) >= MAX_CHANGES:
            return False
        self._at.append(now)
        return True

    def pause(self, now: float) -> float:
        recent = sum(now - at < CHANGES_SECONDS for at in self._at)
        return min(LONGEST_READ_PAUSE, READ_SECONDS * 2.0 ** max(0, recent - 1))


@contextlib.asynccontextmanager
async def bounded(transport: Transport, line: Line) -> AsyncIterator[TransportStreams]:
    """The same transport, until it ends or says too much."""
    async with transport as (inner, write):
        send, receive = anyio.create_memory_object_stream[Any](0)
        pumping = asyncio.create_task(_pump(inner, send, line))
        try:
            yield receive, write
        finally:
            pumping.cancel()
            await asyncio.gather(pumping, return_exceptions=True)
            send.close()
            receive.close()


async def _pump(inner: Any, send: Any, line: Line) -> None:
    since, unrequested, garbage = monotonic(), 0, 0
    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream):
        async for message in inner:
            if isinstance(message, Exception):
                garbage += 1
                if garbage > MAX_GARBAGE:
                    line.end(f"it sent more than {MAX_GARBAGE} messages that are none")
                    break
                continue
            if hasattr(message.message, "method"):  # no answer to a request of ours
                if monotonic() - since > WINDOW_SECONDS:
                    since, unrequested = monotonic(), 0
                unrequested += 1
                if unrequested > MAX_IN_WINDOW:
                    line.end(f"it sent more than {MAX_IN_WINDOW} notifications within {WINDOW_SECONDS:g} s")
                    break
            await send.send(message)
    line.end("it closed the connection")
    send.close()
