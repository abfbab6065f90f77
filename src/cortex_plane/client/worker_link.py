"""The worker's end of its link to a plane: one HTTP request over httpx that becomes a WebSocket. Nothing has to reach the worker."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx

from cortex_plane.client.transport import Plane, problem
from cortex_plane.jobs.model.remote_work import LINK_PATH, MAX_MESSAGE_BYTES, LinkClosed
from cortex_plane.kernel import frames
from cortex_plane.kernel.errors import Unavailable

CONNECT_SECONDS = 10.0
SEND_SECONDS = 30.0
"""How long the plane may take nothing of what is sent."""
READ_BYTES = 256 * 1024
_REQUEST_TIMEOUT = 408


class SocketLink:
    """A `WorkerLink` over the stream of an upgraded request."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._reader = frames.FrameReader(masked=False, max_bytes=MAX_MESSAGE_BYTES)
        self._messages: list[bytes] = []
        self._sending = asyncio.Lock()
        self._is_over = False

    async def send(self, content: bytes) -> None:
        await self._write(frames.encode_frame(content, masked=True))

    async def _write(self, data: bytes) -> None:
        async with self._sending:
            try:
                await self._stream.write(data, timeout=SEND_SECONDS)
            except Exception as error:  # of httpcore, or of what it runs on
                raise LinkClosed(f"{type(error).__name__}: {error}") from error

    async def receive(self) -> bytes:
        while not self._messages:
            if self._is_over:
                raise LinkClosed("the plane closed the connection")
            try:
                data = await self._stream.read(READ_BYTES)
                if not data:
                    raise LinkClosed("the plane closed the connection")
                parts = list(self._reader.feed(data))
            except LinkClosed:
                raise
            except Exception as error:
                raise LinkClosed(f"{type(error).__name__}: {error}") from error
            for opcode, payload in parts:
                if opcode == frames.CLOSE:
                    # What came before it, such as a refusal, is read first.
                    self._is_over = True
                    break
                if opcode == frames.PING:
                    await self._write(frames.encode_frame(payload, frames.PONG, masked=True))
                elif opcode == frames.BINARY:
                    self._messages.append(payload)
        return self._messages.pop(0)

    async def close(self) -> None:
        with contextlib.suppress(Exception):
            await self._stream.aclose()


@contextlib.asynccontextmanager
async def open_link(plane: Plane) -> AsyncIterator[SocketLink]:
    """Raises `CortexError`: the plane's own refusal, or ``Unavailable`` where it cannot be reached."""
    key = frames.new_handshake_key()
    request = httpx.Request(
        "GET", plane.url.rstrip("/") + LINK_PATH,
        headers={
            "User-Agent": "cortex-plane", "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key, **plane.headers,
        },
        extensions={"timeout": dict.fromkeys(("connect", "read", "write", "pool"), CONNECT_SECONDS)},
    )  # fmt: skip
    async with contextlib.AsyncExitStack() as stack:
        try:
            transport = await stack.enter_async_context(plane.streams())
            answer = await transport.handle_async_request(request)
            stack.push_async_callback(answer.aclose)
            if answer.status_code != 101:
                await answer.aread()
        except httpx.HTTPError as error:
            raise Unavailable(
                f"The plane at {plane.url} cannot be reached: {type(error).__name__}: {error}",
                hint="Check the address, and whether this machine may connect to it.",
            ) from error
        if answer.status_code != 101:
            answer.request = request
            refusal = problem(answer)
            if answer.status_code >= 500 or answer.status_code == _REQUEST_TIMEOUT:
                # Of a proxy, or of a plane that is about to start or stop: it is there again soon.
                raise Unavailable(refusal.message, code=refusal.code, hint=refusal.hint)
            raise refusal
        if answer.headers.get("sec-websocket-accept") != frames.accept_key(key):
            raise Unavailable(
                f"What answers at {plane.url} is no plane.",
                hint="Check the address, and proxies between: WebSocket must pass.",
            )
        yield SocketLink(answer.extensions["network_stream"])
