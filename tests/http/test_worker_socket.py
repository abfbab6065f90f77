"""The door of remote workers, over a real socket: who gets in, and what a connection may do."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import httpx
import pytest

from cortex_plane.client.transport import Plane
from cortex_plane.client.worker_link import SocketLink, open_link
from cortex_plane.db.database import Database
from cortex_plane.http.metrics import Metrics
from cortex_plane.http.worker_socket import WorkerSocket, worker_socket
from cortex_plane.jobs.model.remote_work import MAX_MESSAGE_BYTES, LinkClosed
from cortex_plane.kernel import frames
from cortex_plane.kernel.errors import CortexError, Unavailable
from cortex_plane.main.api_process import create_app
from cortex_plane.tenancy.model.access import KeyDraft
from cortex_plane.tenancy.verbs import keys
from cortex_plane.worker.remote.host import HostParts, RemoteWorkers
from tests.fixtures.people import World
from tests.fixtures.sockets import served
from tests.fixtures.workers import FAST, KEY
from tests.http.test_http_routes import OPEN, Stage, document, documented_routes, examples
from tests.worker.test_remote_workers import hello, next_of, tool_app


@contextlib.asynccontextmanager
async def door(db: Database) -> AsyncIterator[str]:
    """The address of a plane that takes remote workers."""
    hosts = RemoteWorkers(HostParts(db=db, master_key=KEY, settings=FAST))
    metrics = Metrics()
    app = create_app(db, metrics)
    socket = worker_socket(app, lambda: hosts)
    async with served(db, ws=socket) as (url, _, _):
        yield url
        await hosts.close()
        await asyncio.gather(*socket.tasks, return_exceptions=True)
    metrics.close()


async def secret_of(world: World, *apps: str) -> str:
    new = await keys.create_key(world.db, world.admin.actor, KeyDraft(name="remote", apps=list(apps)))
    assert new.secret is not None
    return new.secret


def plane(url: str, secret: str) -> Plane:
    return Plane(url, {"Authorization": f"Bearer {secret}"})


@pytest.mark.proves("D.1077")
async def test_a_worker_key_opens_a_link_and_no_other_key_does(world: World) -> None:
    async with door(world.db) as url:
        for headers, code in (
            (world.admin.headers, "forbidden"),
            (world.service.headers, "forbidden"),
            ({"Authorization": "Bearer cortex_key_" + "x" * 43}, "key_unknown"),
            ({}, "key_missing"),
        ):
            with pytest.raises(CortexError) as refused:
                async with open_link(Plane(url, headers)):
                    pass
            assert refused.value.code == code
        async with open_link(plane(url, await secret_of(world, "tests"))) as link:
            await link.send(hello(tool_app([])))
            await next_of(link, "welcome")  # type: ignore[arg-type]


@pytest.mark.proves("D.1073")
async def test_the_link_ends_when_its_key_is_revoked(world: World) -> None:
    new = await keys.create_key(world.db, world.admin.actor, KeyDraft(name="remote", apps=["tests"]))
    async with door(world.db) as url, open_link(plane(url, str(new.secret))) as link:
        await link.send(hello(tool_app([])))
        await next_of(link, "welcome")  # type: ignore[arg-type]
        await keys.revoke_key(world.db, world.admin.actor, new.key.id)
        assert (await next_of(link, "refusal"))["code"] == "key_revoked"  # type: ignore[arg-type]
        with pytest.raises(LinkClosed):
            await next_of(link, "welcome")  # type: ignore[arg-type]


@pytest.mark.proves("D.1073")
async def test_a_refusal_is_read_although_the_connection_ends_in_the_same_packet() -> None:
    stream = asyncio.StreamReader()
    packet = frames.encode_frame(b'{"kind": "refusal"}', masked=False) + frames.encode_frame(
        b"", frames.CLOSE, masked=False
    )
    stream.feed_data(packet)
    link = SocketLink(stream)
    assert await link.receive() == b'{"kind": "refusal"}'
    with pytest.raises(LinkClosed):
        await link.receive()


@pytest.mark.proves("D.1077")
async def test_a_worker_key_may_call_no_route(http: httpx.AsyncClient, world: World) -> None:
    headers = {"Authorization": f"Bearer {await secret_of(world, 'tests')}"}
    routes, wrong = documented_routes(await document(http)), list[str]()
    for example in examples(await Stage.build(world)):
        permission = routes[example.route].get("x-permission")
        if permission is None or example.path in OPEN:
            continue
        answer = await example.send(http, headers)
        if answer.status_code != 403:
            wrong.append(f"{example.route} ({permission}): {answer.status_code}")
    assert wrong == []
    assert (await http.get("/v1/me", headers=headers)).status_code == 403


@pytest.mark.parametrize(
    "frame",
    [
        frames.encode_frame(b"{}", masked=False),
        b"\xf2" + frames.encode_frame(b"{}", masked=True)[1:],
        b"\x82\xff" + (MAX_MESSAGE_BYTES + 1).to_bytes(8, "big"),
        frames.encode_frame(b"x", frames.CONTINUATION, masked=True),
        frames.encode_frame(b"", frames.CLOSE, masked=True),
    ],
    ids=["not masked", "reserved bits", "too large", "no beginning", "close"],
)
@pytest.mark.proves("D.1075")
async def test_broken_frames_end_the_connection(world: World, frame: bytes) -> None:
    async with door(world.db) as url, open_link(plane(url, await secret_of(world, "tests"))) as link:
        await link._write(frame)
        with pytest.raises(LinkClosed):
            await next_of(link, "welcome")  # type: ignore[arg-type]


@pytest.mark.proves("D.1075")
async def test_other_paths_and_planes_without_a_host_say_so(world: World) -> None:
    def no_host() -> RemoteWorkers:
        raise Unavailable("none", code="worker_extra_missing", hint="Install it.")

    metrics = Metrics()
    app = create_app(world.db, metrics)
    secret = await secret_of(world, "tests")
    async with served(world.db, ws=worker_socket(app, no_host)) as (url, _, _):
        with pytest.raises(Unavailable) as refused:
            async with open_link(plane(url, secret)):
                pass
        assert refused.value.code == "worker_extra_missing"
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 404")
        writer.close()
        await writer.wait_closed()
    metrics.close()


def test_frames_arrive_whole_however_they_are_cut() -> None:
    messages = [os.urandom(size) for size in (0, 1, 125, 126, 65535, 65536, 200_000)]
    for masked in (True, False):
        stream = b"".join(frames.encode_frame(message, masked=masked) for message in messages)
        for step in (1, 7, 1000, len(stream)):
            if step == 1:
                stream_part, wanted = stream[: 2 + 4 * masked + 200], None
            else:
                stream_part, wanted = stream, messages
            reader = frames.FrameReader(masked=masked, max_bytes=1 << 20)
            arrived = [
                payload
                for at in range(0, len(stream_part), step)
                for _, payload in reader.feed(stream_part[at : at + step])
            ]
            assert arrived == wanted if wanted else arrived == messages[: len(arrived)]
    parts = frames.encode_frame(b"ab", masked=False)
    begun = bytes([parts[0] & 0x7F]) + parts[1:]
    last = frames.encode_frame(b"cd", frames.CONTINUATION, masked=False)
    ping = frames.encode_frame(b"?", frames.PING, masked=False)
    reader = frames.FrameReader(masked=False, max_bytes=100)
    assert list(reader.feed(begun + ping + last)) == [(frames.PING, b"?"), (frames.BINARY, b"abcd")]


async def answer_once(status: int) -> AsyncIterator[str]:
    """The address of a proxy that gives each request this answer."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d No\r\ncontent-length: 4\r\nconnection: close\r\n\r\nnope" % status)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("status", "is_passing"), [(502, True), (504, True), (500, True), (408, True), (404, False), (403, False)]
)
@pytest.mark.proves("D.1110")
async def test_answers_of_proxies_are_tried_again_and_refusals_are_not(status: int, is_passing: bool) -> None:
    async with contextlib.asynccontextmanager(answer_once)(status) as url:
        with pytest.raises(CortexError) as refused:
            async with open_link(plane(url, "x")):
                pass
    assert isinstance(refused.value, Unavailable) is is_passing
    assert f"HTTP {status}" in refused.value.message


@pytest.mark.proves("D.1112")
async def test_what_nobody_reads_is_bounded() -> None:
    """Neither answers to pings nor messages pile up in the process."""

    class Wire(asyncio.Transport):
        def __init__(self) -> None:
            super().__init__()
            self.written, self.is_paused = 0, False

        def write(self, data: bytes | bytearray | memoryview) -> None:
            self.written += len(data)

        def pause_reading(self) -> None:
            self.is_paused = True

        def resume_reading(self) -> None:
            self.is_paused = False

    socket, wire = WorkerSocket(), Wire()
    socket.connection_made(wire)
    socket._head, socket._is_open = b"x", True
    ping = frames.encode_frame(b"?", frames.PING, masked=True)
    socket.data_received(ping)
    pong = wire.written
    assert pong > 0
    socket.pause_writing()
    socket.data_received(ping * 100)
    assert wire.written == pong
    message = frames.encode_frame(bytes(12 * 1024 * 1024), masked=True)
    for _ in range(3):
        socket.data_received(message)
    assert wire.is_paused
    for _ in range(3):
        await socket.receive()
    assert not wire.is_paused


@pytest.mark.proves("D.1110")
async def test_who_has_no_key_does_not_make_the_process_look_for_its_host(world: World) -> None:
    looked: list[bool] = []

    def find_host() -> RemoteWorkers:
        looked.append(True)
        raise Unavailable("none")

    metrics = Metrics()
    async with served(world.db, ws=worker_socket(create_app(world.db, metrics), find_host)) as (url, _, _):
        with pytest.raises(CortexError) as refused:
            async with open_link(plane(url, "wrong")):
                pass
    metrics.close()
    assert (refused.value.http_status, looked) == (401, [])
