"""Requests that do not arrive: half a head, half a body, a byte at a time. Through a real socket, as `cortex api` serves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from cortex_plane.http.read_deadlines import DeadlineProtocol
from tests.fixtures.people import World
from tests.fixtures.sockets import served


class Impatient(DeadlineProtocol):
    head_seconds = 0.3
    body_seconds = 0.5
    answer_seconds = 0.3


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Streams]:
    address = httpx.URL(url)
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], dict[str, object]]:
    """Up to the end of the connection, which must come."""
    raw = await asyncio.wait_for(reader.read(), 30)
    head, _, body = raw.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, json.loads(body)


HALF_HEAD = b"POST /v1/teams HTTP/1.1\r\nHost: plane\r\nX-Slow: "
HALF_BODY = (
    b"POST /v1/approvals/decide HTTP/1.1\r\nHost: plane\r\nContent-Type: application/json\r\n"
    b'Content-Length: 1000\r\n\r\n{"token": "'
)


@pytest.mark.proves("D.593")
@pytest.mark.parametrize("sent", [HALF_HEAD, HALF_BODY, b"\r\n", b"P"], ids=["head", "body", "blank", "letter"])
async def test_half_a_request_is_ended_with_a_reason(world: World, sent: bytes) -> None:
    async with served(world.db, http=Impatient) as (url, server, _), connected(url) as (reader, writer):
        writer.write(sent)
        status, headers, problem = await answer(reader)
        assert (status, problem["code"]) == (408, "read_timeout")
        assert headers["content-type"] == "application/problem+json"
        assert headers["connection"] == "close"
        assert problem["hint"]
        assert not server.server_state.connections


@pytest.mark.proves("D.593")
@pytest.mark.parametrize("sent", [HALF_HEAD, HALF_BODY], ids=["head", "body"])
async def test_trickle_of_bytes_does_not_prolong_it(world: World, sent: bytes) -> None:
    async with served(world.db, http=Impatient) as (url, _, _), connected(url) as (reader, writer):
        writer.write(sent)
        reading = asyncio.create_task(answer(reader))
        while not reading.done():
            with contextlib.suppress(OSError):
                writer.write(b"x")
                await writer.drain()
            await asyncio.wait([reading], timeout=0.05)
        status, _, problem = await reading
        assert (status, problem["code"]) == (408, "read_timeout")


@pytest.mark.proves("D.593")
async def test_many_half_sent_requests_do_not_stay_open(world: World) -> None:
    async with served(world.db, http=Impatient) as (url, server, _), contextlib.AsyncExitStack() as stack:
        halves = [await stack.enter_async_context(connected(url)) for _ in range(200)]
        for number, (_, writer) in enumerate(halves):
            writer.write(HALF_HEAD if number % 2 else HALF_BODY)
        for reader, _ in halves:
            assert (await answer(reader))[0] == 408
        assert not server.server_state.connections
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            assert (await http.get("/healthz")).status_code == 200


@pytest.mark.proves("D.593")
async def test_endless_trailers_are_refused_before_they_fill_memory(world: World) -> None:
    """What follows the last chunk is headers too, and no part of the body that its route bounds."""
    async with served(world.db) as (url, _, _), connected(url) as (reader, writer):
        writer.write(
            b"POST /v1/approvals/decide HTTP/1.1\r\nHost: plane\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Trailer: "
        )
        for _ in range(10):
            writer.write(b"x" * 8192)
            await writer.drain()
            await asyncio.sleep(0.01)
        status, _, problem = await answer(reader)
        assert (status, problem["code"]) == (431, "head_too_large")


@pytest.mark.proves("D.593")
async def test_body_in_tiny_chunks_arrives(world: World) -> None:
    """However many bytes of its framing there are."""
    text = b'{"slug": "ops", "name": "Ops"' + b" " * 20_000 + b"}"

    async def pieces() -> AsyncIterator[bytes]:
        for at in range(len(text)):
            yield text[at : at + 1]

    headers = {**world.admin.headers, "Content-Type": "application/json"}
    async with served(world.db) as (url, _, _), httpx.AsyncClient(base_url=url, trust_env=False) as http:
        assert (await http.post("/v1/teams", content=pieces(), headers=headers)).status_code == 201


@pytest.mark.proves("D.593")
async def test_reader_that_takes_nothing_does_not_stay(world: World) -> None:
    """Its answers would be kept for it, and its requests would hold their places."""
    lost = asyncio.Event()

    class Watched(Impatient):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    async with served(world.db, http=Watched) as (url, server, _):
        address = httpx.URL(url)
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            await asyncio.get_running_loop().sock_connect(deaf, (address.host, address.port))
            ask = b"GET /openapi.json HTTP/1.1\r\nHost: plane\r\n\r\n" * 100
            await asyncio.get_running_loop().sock_sendall(deaf, ask)
            await asyncio.wait_for(lost.wait(), 30)
            assert not server.server_state.connections


@pytest.mark.proves("D.593")
async def test_reader_that_takes_its_time_gets_all_of_it(world: World) -> None:
    """Several times as long as a reader may take nothing."""
    async with (
        served(world.db, http=Impatient) as (url, _, _),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=30) as http,
    ):
        whole = (await http.get("/openapi.json")).content
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            slow.setblocking(False)
            loop, address = asyncio.get_running_loop(), httpx.URL(url)
            await loop.sock_connect(slow, (address.host, address.port))
            await loop.sock_sendall(slow, b"GET /openapi.json HTTP/1.1\r\nHost: plane\r\nConnection: close\r\n\r\n")
            heard = bytearray()
            while piece := await loop.sock_recv(slow, 65536):
                heard += piece
                if len(heard) % 5 == 0:
                    await asyncio.sleep(0.01)
        assert bytes(heard).endswith(whole)


@pytest.mark.proves("D.593")
async def test_slow_and_steady_body_arrives(world: World) -> None:
    """Twice as long as the deadline, and fast enough all the while."""
    text = b'{"slug": "ops", "name": "Ops"' + b" " * 20_000 + b"}"

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(text), 2_000):
            yield text[start : start + 2_000]
            await asyncio.sleep(0.1)

    headers = {**world.admin.headers, "Content-Type": "application/json"}
    async with (
        served(world.db, http=Impatient) as (url, _, _),
        httpx.AsyncClient(base_url=url, trust_env=False) as http,
    ):
        made = await http.post("/v1/teams", content=pieces(), headers=headers)
        assert made.status_code == 201, made.text
        # And what is held open by the plane is not the caller's delay.
        assert (await http.get("/v1/me", headers=world.admin.headers)).status_code == 200


async def test_idle_connection_ends_as_keep_alive_does(world: World) -> None:
    async with served(world.db, http=Impatient, timeout_keep_alive=1) as (url, server, _):
        async with connected(url) as (reader, _):
            assert await asyncio.wait_for(reader.read(), 30) == b""
        assert not server.server_state.connections


@pytest.mark.proves("D.593")
async def test_head_without_an_end_is_refused(world: World) -> None:
    async with served(world.db) as (url, _, _), connected(url) as (reader, writer):
        for _ in range(10):  # in parts of 8 KiB, as a network delivers them
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: plane\r\nX-Long: ".ljust(8192, b"x"))
            await writer.drain()
            await asyncio.sleep(0.01)
        status, _, problem = await answer(reader)
        assert (status, problem["code"]) == (431, "head_too_large")


async def test_pipelined_requests_are_answered(world: World) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: plane\r\n\r\n"
    async with served(world.db, http=Impatient) as (url, _, _), connected(url) as (reader, writer):
        writer.write(one * 3 + one[:20])
        await asyncio.sleep(0.1)
        writer.write(one[20:])
        seen = b""
        while seen.count(b'{"status":"ok"}') < 4:
            seen += await asyncio.wait_for(reader.read(65536), 30)
        assert seen.count(b"HTTP/1.1 200") == 4
