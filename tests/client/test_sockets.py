"""Requests over connections that are kept: what an answer may look like, and what ends a connection."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import httpx
import pytest

from cortex_plane.client import sockets
from cortex_plane.client.sockets import SocketTransport
from tests.fixtures.receivers import certified

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CUT = b""
"""In the place of an answer: the connection ends."""


class Listener:
    """Answers the requests of each connection from a script, piece by piece."""

    def __init__(self, *scripts: Sequence[bytes]) -> None:
        self.scripts = list(scripts)
        self.requests: list[bytes] = []
        self.connections = 0
        self.heard = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
                self.requests.append(head + await reader.readexactly(int(length or 0)))
                self.heard.set()
                for piece in self.scripts.pop(0):
                    if piece == CUT:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def listening(
    *scripts: Sequence[bytes], tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Listener, SocketTransport]]:
    listener = Listener(*scripts)
    server = await asyncio.start_server(listener.serve, "127.0.0.1", 0, ssl=tls)
    port = server.sockets[0].getsockname()[1]
    transport = SocketTransport(f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}")
    try:
        yield listener, transport
    finally:
        await transport.aclose()
        server.close()


async def get(transport: SocketTransport, path: str = "/v1/me", seconds: float | None = 10) -> httpx.Response:
    url = transport._url.join(path)
    request = httpx.Request("POST", url, content=b"{}", extensions={"timeout": {"read": seconds}})
    return await transport.handle_async_request(request)


@pytest.mark.parametrize(
    ("pieces", "content"),
    [
        ([OK], b"ok"),
        ([OK[:9], OK[9:20], OK[20:-1], OK[-1:]], b"ok"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], b""),
        ([b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK], b"ok"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"], b"ok"),
        (
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\no\r", b"\n1\r\nk", b"\r\n0\r\nA: b\r\n", b"\r\n"],
            b"ok",
        ),
        ([b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 22\r\n\r\n" + gzip.compress(b"ok")], b"ok"),
    ],
)  # fmt: skip
async def test_an_answer_is_read_whole_and_its_connection_used_again(pieces: list[bytes], content: bytes) -> None:
    async with listening(pieces, [OK]) as (listener, transport):
        assert (await get(transport)).content == content
        assert (await get(transport, "/v1/orgs?limit=2")).content == b"ok"
        assert listener.connections == 1
        assert listener.requests[1].startswith(b"POST /v1/orgs?limit=2 HTTP/1.1\r\n")
        assert listener.requests[1].endswith(b"\r\n\r\n{}")


@pytest.mark.parametrize(
    "pieces",
    [
        [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok"],
        [b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"],
        [b"HTTP/1.1 200 OK\r\n\r\no", b"k", CUT],
        [OK + OK],
    ],
    ids=["close", "old", "until-the-end", "too-much"],
)
async def test_a_connection_that_cannot_be_kept_is_not_used_again(pieces: list[bytes]) -> None:
    async with listening(pieces, [OK]) as (listener, transport):
        assert (await get(transport)).content == b"ok"
        assert (await get(transport)).content == b"ok"
        assert listener.connections == 2


@pytest.mark.parametrize(
    ("pieces", "error"),
    [
        ([CUT], httpx.ReadError),
        ([OK[:-1], CUT], httpx.ReadError),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n", CUT], httpx.ReadError),
        ([b"SSH-2.0-OpenSSH\r\n\r\n"], httpx.RemoteProtocolError),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], httpx.RemoteProtocolError),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n"], httpx.RemoteProtocolError),
        ([b"HTTP/1.1 200 OK\r\n" + 9 * (b"A: " + 8_000 * b"x" + b"\r\n")], httpx.RemoteProtocolError),
        ([b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok"], httpx.DecodingError),
    ],
)  # fmt: skip
async def test_incomplete_answer_is_an_error_and_ends_the_connection(
    pieces: list[bytes], error: type[Exception]
) -> None:
    async with listening(pieces, [OK]) as (listener, transport):
        with pytest.raises(error):
            await get(transport)
        assert (await get(transport)).content == b"ok"
        assert listener.connections == 2


async def test_a_connection_that_the_server_closed_meanwhile_is_not_used() -> None:
    async with listening([OK, CUT], [OK]) as (listener, transport):
        assert (await get(transport)).content == b"ok"
        assert (await get(transport)).content == b"ok"
        assert listener.connections == 2


async def test_an_answer_that_does_not_come_in_time_is_an_error() -> None:
    async with listening([OK[:10]], [OK]) as (_, transport):
        with pytest.raises(httpx.ReadTimeout):
            await get(transport, seconds=0.05)
        assert (await get(transport)).content == b"ok"


async def test_a_request_that_is_cancelled_ends_its_connection() -> None:
    async with listening([OK[:10]], [OK]) as (listener, transport):
        running = asyncio.create_task(get(transport))
        await listener.heard.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await get(transport)).content == b"ok"
        assert listener.connections == 2


async def test_requests_wait_while_too_many_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sockets, "MAX_CONNECTIONS", 2)
    async with listening(*([OK] for _ in range(6))) as (listener, transport):
        answers = await asyncio.gather(*(get(transport) for _ in range(6)))
        assert [answer.content for answer in answers] == [b"ok"] * 6
        assert listener.connections == 2
    async with listening([OK[:10]], [OK[:10]]) as (_, transport):
        stuck = [asyncio.create_task(get(transport)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(httpx.PoolTimeout):
            await get(transport, seconds=0.05)
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)


async def test_refused_connection_is_an_error() -> None:
    async with listening() as (_, transport):
        pass
    with pytest.raises(httpx.ConnectError):
        await get(transport)


async def test_a_server_is_trusted_by_its_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    server, client = certified("localhost")
    async with listening([OK], [OK], tls=server) as (listener, transport):
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await get(transport)
        monkeypatch.setattr(httpx, "create_ssl_context", lambda **_: client)
        trusting = SocketTransport(str(transport._url))
        assert [(await get(trusting)).content for _ in range(2)] == [b"ok"] * 2
        assert listener.connections == 1
        await trusting.aclose()


def test_a_client_may_be_used_in_one_event_loop_after_the_other() -> None:
    transports: list[SocketTransport] = []

    async def use() -> bytes:
        async with listening([OK]) as (_, transport):
            if transports:
                transports[0]._url = transport._url
            else:
                transports.append(transport)
            return (await get(transports[0])).content

    assert asyncio.run(use()) == b"ok"
    assert asyncio.run(use()) == b"ok"


@pytest.mark.parametrize("value", ["a\r\nX: b", "a\nX: b", "a\r\n\r\nGET /v1/x HTTP/1.1\r\nHost: a", "a\0b"])
async def test_header_with_a_line_end_is_refused(value: str) -> None:
    async with listening([OK]) as (listener, transport):
        request = httpx.Request(
            "POST",
            transport._url.join("/v1/me"),
            headers={"Idempotency-Key": value},
            extensions={"timeout": {"read": 10}},
        )
        with pytest.raises(httpx.LocalProtocolError, match="line end"):
            await transport.handle_async_request(request)
        assert listener.requests == []


class Lingering(asyncio.Protocol):
    """Answers one request, with more than an answer, and waits for the client to close."""

    def __init__(self, answer: bytes) -> None:
        self.answer, self.closed = answer, asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self.transport, asyncio.WriteTransport)
        self.transport.write(self.answer)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed.set()


@pytest.mark.parametrize("answer", [OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), OK + b"more"])
async def test_connection_that_may_not_be_kept_is_closed(answer: bytes) -> None:
    lingering = Lingering(answer)
    server = await asyncio.get_running_loop().create_server(lambda: lingering, "127.0.0.1", 0)
    transport = SocketTransport(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert (await get(transport)).content == b"ok"
    await asyncio.wait_for(lingering.closed.wait(), 5)
    server.close()


async def test_connection_of_a_closed_transport_is_closed_after_its_request() -> None:
    async with listening([OK[:20], OK[20:]]) as (listener, transport):
        request = asyncio.create_task(get(transport))
        await listener.heard.wait()
        await transport.aclose()
        assert (await request).content == b"ok"
        assert transport._idle == []
