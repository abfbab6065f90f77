"""Sockets that answer without delay, and uvicorn servers that stop at once."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import uvicorn.server


def listen(port: int = 0) -> socket.socket:
    """A listening socket on the loopback.

    asyncio turns Nagle's algorithm off only where a socket names its protocol, which ``socket.create_server`` does not:
    each answer that is sent in two pieces would take 40 ms.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    return listener


class _ShortSleeps:
    """asyncio as uvicorn sees it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    @staticmethod
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(seconds / 10)


# uvicorn sleeps 0.1 s at a time until it shall stop, and then until its connections are closed: 0.2 s for each test.
uvicorn.server.asyncio = _ShortSleeps()  # type: ignore[assignment, attr-defined]
