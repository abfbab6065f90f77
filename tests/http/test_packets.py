"""What a server writes within one turn of the event loop leaves in one piece."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest_asyncio

from cortex_plane.http.packets import MOST_BYTES, PacketTransport


class Connection:
    """A transport over a real socket, and the other end of it. A datagram of a sequenced socket is what one system call sent."""

    def __init__(self, transport: asyncio.Transport, other: socket.socket) -> None:
        self.transport, self.other = transport, other
        self.packets = PacketTransport(transport, asyncio.get_running_loop())

    async def sent(self) -> list[int]:
        """How many bytes each system call sent since."""
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        sizes = list[int]()
        while True:
            try:
                data = self.other.recv(1 << 20)
            except BlockingIOError:
                return sizes
            if not data:
                return sizes
            sizes.append(len(data))


@pytest_asyncio.fixture
async def connection() -> AsyncIterator[Connection]:
    ours, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    other.setblocking(False)
    loop = asyncio.get_running_loop()
    # The loop makes transports of streams alone; to send, any connected socket will do.
    transport = loop._make_socket_transport(ours, asyncio.Protocol())  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    yield Connection(transport, other)
    transport.abort()
    other.close()
    await asyncio.sleep(0)


async def test_head_and_body_are_one_packet(connection: Connection) -> None:
    connection.packets.write(b"head")
    connection.packets.write(b"body")
    assert connection.packets.get_write_buffer_size() == 8
    assert await connection.sent() == [8]
    assert connection.packets.get_write_buffer_size() == 0


async def test_what_is_large_is_sent_at_once(connection: Connection) -> None:
    connection.packets.write(b"x" * MOST_BYTES)
    connection.packets.write(b"y")
    connection.packets.write(b"z")
    assert await connection.sent() == [MOST_BYTES + 1, 1]


async def test_nothing_is_lost_where_the_server_closes(connection: Connection) -> None:
    connection.packets.write(b"bye")
    connection.packets.close()
    assert connection.transport.is_closing()
    assert (await connection.sent())[0] == 3


async def test_the_rest_is_the_transports_own(connection: Connection) -> None:
    assert not connection.packets.is_closing()
    connection.packets.abort()
    assert connection.packets.is_closing()
