"""Requests that do not arrive: half a head, half a body, a byte at a time. Through a real socket, as `cortex api` serves."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from cortex_plane.adapters.http.read_deadlines import DeadlineProtocol
from tests.adapters.sockets import served
from tests.people import World


class Impatient(DeadlineProtocol):
    head_seconds = 0.3
    body_seconds = 0.5


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
@pytest.mark.parametrize(
    "sent", [HALF_HEAD, HALF_BODY, b"\r\n", b"P"], ids=["head", "body", "blank", "letter"]
)
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
