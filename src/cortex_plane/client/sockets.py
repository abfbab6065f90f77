"""HTTP/1.1 requests to one plane over persistent connections. Responses are read whole.

For each request httpx's own transport looks at every connection of its pool. If a program makes many requests at a time, that is more
work than the requests themselves.
"""

from __future__ import annotations

import asyncio
import re
import select
from typing import Any, cast

import httpx

MAX_CONNECTIONS = 100
"""Open at a time; further requests wait."""
IDLE_SECONDS = 5.0
"""A connection that was idle for longer is not used again: the server may be about to close it."""
MAX_HEAD_BYTES = 64 * 1024
_LINE_END = re.compile(rb"[\r\n\0]")
_NEXT_ADDRESS_SECONDS = 0.25
"""After this time the next address of a host name is tried in parallel (RFC 8305)."""


class SocketTransport(httpx.AsyncBaseTransport):
    """A pool of connections. Raises `httpx.HTTPError`, as httpx's transport does."""

    def __init__(self, url: str) -> None:
        self._url = httpx.URL(url)
        self._idle: list[_Connection] = []
        """The most recently used one is the last."""
        self._places = asyncio.Semaphore(MAX_CONNECTIONS)
        self._is_closed = False
        self._options: dict[str, Any] | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        seconds: float | None = request.extensions["timeout"]["read"]
        if self._places.locked():
            await self._wait_for_place(seconds)
        else:
            await self._places.acquire()
        try:
            connection = self._take_idle() or await self._connect(seconds)
            try:
                answer = await connection.exchange(_head_of(request) + request.content, seconds)
            except BaseException:
                connection.abort()
                raise
            if connection.keep and not self._is_closed:
                self._idle.append(connection)
            else:
                connection.abort()
            return answer
        finally:
            self._places.release()

    async def aclose(self) -> None:
        self._is_closed = True
        while self._idle:
            self._idle.pop().abort()

    async def _wait_for_place(self, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._places.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout("too many requests are under way") from None

    def _take_idle(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_fresh():
                return connection
            connection.abort()
        return None

    async def _connect(self, seconds: float | None) -> _Connection:
        url, loop = self._url, asyncio.get_running_loop()
        if self._options is None:
            # Reading the certificate authorities takes 30 ms: in a thread.
            self._options = {} if url.scheme != "https" else {"ssl": await asyncio.to_thread(_tls_context)}
        port = url.port or (443 if url.scheme == "https" else 80)
        try:
            async with asyncio.timeout(seconds):
                _, connection = await loop.create_connection(
                    _Connection,
                    url.raw_host.decode("ascii"),
                    port,
                    happy_eyeballs_delay=_NEXT_ADDRESS_SECONDS,
                    **self._options,
                )
        except TimeoutError:
            raise httpx.ConnectTimeout("no connection in time") from None
        except OSError as error:
            raise httpx.ConnectError(str(error)) from error
        return connection


def _tls_context() -> Any:
    context = httpx.create_ssl_context(trust_env=False)
    context.set_alpn_protocols(["http/1.1"])
    return context


def _head_of(request: httpx.Request) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode("ascii"), request.url.raw_path)]
    for name, value in request.headers.raw:
        if _LINE_END.search(name) or _LINE_END.search(value):
            # What follows it would be read as further headers, or as another request.
            raise httpx.LocalProtocolError(f"The header {name[:50]!r} contains a line end.")
        lines.append(b"%s: %s" % (name, value))
    return b"\r\n".join([*lines, b"", b""])


class _Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._answer: _Answer | None = None
        self._end: asyncio.Future[None] | None = None
        self._active_at = 0.0
        self._is_lost = False
        self.keep = False
        """Whether another request may follow."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    async def exchange(self, request: bytes, seconds: float | None) -> httpx.Response:
        if self._is_lost:
            raise _closed(None)
        answer, end = _Answer(), self._loop.create_future()
        self._answer, self._end, self.keep = answer, end, False
        self._transport.write(request)
        self._active_at = self._loop.time()
        self._timer = (
            None if seconds is None else self._loop.call_later(seconds, self._check_time, seconds, len(request))
        )
        try:
            await end
        finally:
            self._answer = self._end = None
            if self._timer is not None:
                self._timer.cancel()
        self.keep = answer.keeps_connection and not self._is_lost and not self._transport.get_write_buffer_size()
        return httpx.Response(answer.status, headers=answer.headers, content=answer.body())

    def is_fresh(self) -> bool:
        """Whether it may be used again: it belongs to this loop, and nothing was received since, not even its end."""
        loop = asyncio.get_running_loop()
        if self._is_lost or self._loop is not loop or loop.time() > self._active_at + IDLE_SECONDS:
            return False
        socket = self._transport.get_extra_info("socket")
        if not hasattr(select, "poll"):  # Windows
            return not select.select([socket], [], [], 0)[0]
        poll = select.poll()
        poll.register(socket, select.POLLIN)
        return not poll.poll(0)

    def abort(self) -> None:
        if not self._loop.is_closed():
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._active_at = self._loop.time()
        if self._answer is None:
            self._transport.abort()  # no request is under way
            return
        try:
            is_whole = self._answer.add(data)
        except ValueError as error:
            self._set_end(httpx.RemoteProtocolError(f"the answer is not HTTP: {error}"))
        else:
            if is_whole:
                self._set_end()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_lost = True
        is_whole = self._answer is not None and self._answer.ends_with_connection and error is None
        self._set_end(None if is_whole else _closed(error))

    def _set_end(self, error: httpx.HTTPError | None = None) -> None:
        if self._end is None or self._end.done():
            return
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)

    def _check_time(self, seconds: float, unsent_before: int) -> None:
        """Fail if nothing came for too long, unless the request is still being sent."""
        unsent = self._transport.get_write_buffer_size()
        if unsent < unsent_before and unsent:
            self._active_at = self._loop.time()
        rest = self._active_at + seconds - self._loop.time()
        if rest > 0:
            self._timer = self._loop.call_later(rest, self._check_time, seconds, unsent)
        else:
            self._set_end(httpx.ReadTimeout("no answer in time"))


def _closed(error: Exception | None) -> httpx.ReadError:
    return httpx.ReadError(str(error) if error else "the connection was closed without an answer")


class _Answer:
    """A response, parsed from the bytes that come."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._rest = bytearray()
        self._size: int | None = None
        self._pieces: list[bytes] | None = None
        """The chunks of a chunked body."""
        self._may_keep = False

    @property
    def ends_with_connection(self) -> bool:
        return self.status > 0 and self._size is None and self._pieces is None

    @property
    def keeps_connection(self) -> bool:
        """Not if more came than the response."""
        return self._may_keep and len(self._rest) == (self._size or 0)

    def body(self) -> bytes:
        return bytes(self._rest[: self._size]) if self._pieces is None else b"".join(self._pieces)

    def add(self, data: bytes) -> bool:
        """Add bytes, and say whether it is whole now. Raises ``ValueError`` if they are not HTTP."""
        self._rest += data
        while not self.status:
            end = self._rest.find(b"\r\n\r\n")
            if end < 0:
                if len(self._rest) > MAX_HEAD_BYTES:
                    raise ValueError("its head is too large")
                return False
            head = bytes(self._rest[:end])
            del self._rest[: end + 4]
            self._read_head(head)
        if self._pieces is not None:
            return self._read_chunks(self._pieces)
        return self._size is not None and len(self._rest) >= self._size

    def _read_head(self, head: bytes) -> None:
        first, *lines = head.split(b"\r\n")
        version, _, status = first.partition(b" ")
        if not version.startswith(b"HTTP/1.") or not status[:3].isdigit():
            raise ValueError(f"it begins with {first[:50]!r}")
        if status[:1] == b"1":
            return  # informational: the response itself follows
        self.status = int(status[:3])
        self.headers = [(name, value.strip()) for name, _, value in (line.partition(b":") for line in lines)]
        fields = {name.lower(): value.lower() for name, value in self.headers}
        self._may_keep = version == b"HTTP/1.1" and b"close" not in fields.get(b"connection", b"")
        if self.status in (204, 304):
            self._size = 0
        elif fields.get(b"transfer-encoding", b"").endswith(b"chunked"):
            self._pieces = []
        elif b"content-length" in fields:
            self._size = int(fields[b"content-length"])

    def _read_chunks(self, pieces: list[bytes]) -> bool:
        while (end := self._rest.find(b"\r\n")) >= 0:
            size = int(self._rest[:end].partition(b";")[0], 16)
            if size == 0:  # what follows up to an empty line are trailers
                last = self._rest.find(b"\r\n\r\n", end)
                del self._rest[: last + 4 if last >= 0 else 0]
                return last >= 0
            if len(self._rest) < end + size + 4:
                return False
            pieces.append(bytes(self._rest[end + 2 : end + 2 + size]))
            del self._rest[: end + size + 4]
        return False
