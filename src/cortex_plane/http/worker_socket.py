"""The door of remote workers: a request with a worker key that becomes a WebSocket.

One connection carries both directions, so it belongs to one process, whatever stands before it; and the worker opened it, so nothing has
to reach the worker. uvicorn hands a connection over once a request asks for the upgrade.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio import Transport
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

import structlog
from starlette.requests import Request

from cortex_plane.http.app import SAFE_HEADERS, Api
from cortex_plane.http.exchange import key_holder
from cortex_plane.http.problems import problem
from cortex_plane.jobs.model.remote_work import LINK_PATH, MAX_MESSAGE_BYTES, LinkClosed
from cortex_plane.kernel import frames
from cortex_plane.kernel.errors import CortexError, NotFound
from cortex_plane.tenancy.model.access import Actor, Permission

if TYPE_CHECKING:
    from cortex_plane.jobs.verbs.remote_workers import RemoteWorkerHost

log = structlog.get_logger()

MOST_UNREAD, MOST_UNREAD_BYTES = 64, 32 * 1024 * 1024
"""Messages that wait to be read, and their size. With more of them nothing is read from the connection."""
SEND_SECONDS = 30.0
"""How long a worker may take nothing of what it is sent."""
_END = b"\r\n\r\n"


class WorkerSocket(asyncio.Protocol):
    """A connection after its upgrade. It is also the `WorkerLink` that the host gets."""

    app: ClassVar[Api]
    find_host: ClassVar[Callable[[], RemoteWorkerHost]]
    """Raises ``Unavailable`` where attempts cannot run in this process."""
    tasks: ClassVar[set[asyncio.Task[None]]]

    def __init__(self, **_: Any) -> None:
        """As uvicorn makes it."""
        self._transport: Transport | None = None
        self._reader = frames.FrameReader(masked=True, max_bytes=MAX_MESSAGE_BYTES)
        self._messages: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._unread_bytes = 0
        self._head = b""
        self._is_open = self._is_lost = False
        self._writable = asyncio.Event()
        self._writable.set()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._head:
            # uvicorn has read the head, and hands it over whole.
            self._head = data
            task = asyncio.get_running_loop().create_task(self._respond())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        elif self._is_open:
            self._receive_frames(data)
        else:
            self._abort()  # nobody may send frames before the upgrade is answered

    def _receive_frames(self, data: bytes) -> None:
        try:
            for opcode, payload in self._reader.feed(data):
                if opcode == frames.BINARY:
                    self._messages.put_nowait(payload)
                    self._unread_bytes += len(payload)
                elif (
                    opcode == frames.PING and self._writable.is_set()
                ):  # who does not read what it gets needs no answer
                    self._write(frames.encode_frame(payload, frames.PONG, masked=False))
                elif opcode == frames.CLOSE:
                    self._abort()
        except frames.BrokenFrame as error:
            log.warning("remote worker broke the rules", reason=str(error))
            self._abort()
        is_full = self._messages.qsize() > MOST_UNREAD or self._unread_bytes > MOST_UNREAD_BYTES
        if is_full and self._transport is not None:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._is_lost = True
        self._writable.set()
        self._messages.put_nowait(None)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    async def send(self, content: bytes) -> None:
        self._write(frames.encode_frame(content, masked=False))
        if not self._writable.is_set():
            try:
                async with asyncio.timeout(SEND_SECONDS):
                    await self._writable.wait()
            except TimeoutError:
                self._abort()
        if self._is_lost:
            raise LinkClosed("the connection is closed")

    async def receive(self) -> bytes:
        message = await self._messages.get()
        self._unread_bytes -= len(message or b"")
        if self._transport is not None and self._messages.empty():
            with contextlib.suppress(RuntimeError):
                self._transport.resume_reading()
        if message is None:
            self._messages.put_nowait(None)
            raise LinkClosed("the connection is closed")
        return message

    async def close(self) -> None:
        if self._transport is not None and not self._is_lost:
            self._write(frames.encode_frame(b"", frames.CLOSE, masked=False))
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._is_lost or self._transport is None:
            raise LinkClosed("the connection is closed")
        self._transport.write(data)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def _respond(self) -> None:
        try:
            request = _request_of(self._head, self.app)
            _require_link_path(request)
            actor = await self._authenticate(request)
            actor.require(Permission.WORKER_RUN)
            host = type(self).find_host()
            with host.place(actor.org_id):
                self._write(_upgrade_answer(request))
                self._is_open = True

                async def check_key() -> None:
                    await self._authenticate(request)

                await host.serve(self, actor, check_key)
        except CortexError as error:
            answer = problem(request, error.http_status, error.code, error.message, error.hint)
            with contextlib.suppress(LinkClosed):
                self._write(_plain_answer(answer.status_code, answer.body))
        except LinkClosed:
            pass
        except Exception:
            log.exception("link failed")
        finally:
            if self._transport is not None:
                self._transport.close()

    async def _authenticate(self, request: Request) -> Actor:
        actor = await key_holder(request, None)
        if not self._is_open:
            await self.app.state.rates.take(self.app.state.db, actor)
        return actor


def _require_link_path(request: Request) -> None:
    if request.scope["path"] != LINK_PATH or "sec-websocket-key" not in request.headers:
        raise NotFound("Nothing here becomes a WebSocket.", code="not_found", hint=f"Workers connect to {LINK_PATH}.")


def worker_socket(app: Api, find_host: Callable[[], RemoteWorkerHost]) -> type[WorkerSocket]:
    """What uvicorn makes of each connection that is upgraded."""
    parts = {"app": app, "find_host": staticmethod(find_host), "tasks": set[asyncio.Task[None]]()}
    return type("BoundWorkerSocket", (WorkerSocket,), parts)


def _request_of(head: bytes, app: Api) -> Request:
    """The request that asked for the upgrade. Its head was parsed, and written again, by the server."""
    first, *lines = head.split(_END)[0].split(b"\r\n")
    method, target, _ = first.split(b" ")
    path, _, query = target.partition(b"?")
    headers = [(name.lower(), value) for name, _, value in (line.partition(b": ") for line in lines)]
    return Request({
        "type": "http", "method": method.decode(), "path": path.decode("latin-1"), "raw_path": path, "query_string": query,
        "headers": headers, "app": app, "state": {}, "scheme": "http", "server": None, "root_path": "",
    })  # fmt: skip


def _upgrade_answer(request: Request) -> bytes:
    accept = frames.accept_key(request.headers["sec-websocket-key"])
    lines = (
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {accept}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _plain_answer(status: int, content: bytes | memoryview[int]) -> bytes:
    headers = (
        *SAFE_HEADERS, (b"content-type", b"application/problem+json"), (b"content-length", str(len(content)).encode()),
        (b"connection", b"close"),
    )  # fmt: skip
    lines = [f"HTTP/1.1 {status} Refused".encode(), *(name + b": " + value for name, value in headers)]
    return b"\r\n".join([*lines, b"", bytes(content)])
