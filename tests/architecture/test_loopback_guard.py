"""Tests stay on this machine."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest

from tests.fixtures import loopback_guard

ELSEWHERE = "203.0.113.7"
"""An address that is nobody's, should the guard fail."""


def _connect(kind: socket.SocketKind, act: Callable[[socket.socket], Any]) -> None:
    with socket.socket(socket.AF_INET, kind) as place:
        place.settimeout(0.1)
        act(place)


@pytest.mark.parametrize(
    "leave",
    [
        lambda: _connect(socket.SOCK_STREAM, lambda place: place.connect((ELSEWHERE, 9))),
        lambda: _connect(socket.SOCK_STREAM, lambda place: place.connect_ex((ELSEWHERE, 9))),
        lambda: _connect(socket.SOCK_DGRAM, lambda place: place.sendto(b"x", (ELSEWHERE, 9))),
        lambda: socket.getaddrinfo("name.invalid", 443),
        lambda: socket.getaddrinfo(b"name.invalid", 443),
        lambda: socket.gethostbyname("name.invalid"),
        lambda: asyncio.run(asyncio.open_connection(ELSEWHERE, 9)),
        lambda: asyncio.run(asyncio.open_connection("name.invalid", 9)),
    ],
)
def test_nothing_leaves_this_machine_and_it_is_noted(leave: Callable[[], Any]) -> None:
    with pytest.raises(PermissionError, match="Tests stay on this machine"):
        leave()
    assert len(loopback_guard.take_refusals()) == 1


def test_this_machine_is_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1])).close()
        socket.create_connection(("::ffff:127.0.0.1", server.getsockname()[1])).close()
    assert socket.getaddrinfo("10.0.0.1", 80)
    assert loopback_guard.take_refusals() == []
