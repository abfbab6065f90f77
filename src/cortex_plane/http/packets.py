"""Sends what a server writes within one turn of the event loop together: head and body of a short answer are one packet and one system
call instead of two, and wake the client once."""

from __future__ import annotations

import asyncio
from typing import Any

MOST_BYTES = 16 * 1024
"""What is written beyond it is sent at once, so that the server notices a reader who does not keep up."""


class PacketTransport:
    """In the place of the transport of a connection."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._unsent: list[bytes] = []
        self._size = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._unsent:
            self._loop.call_soon(self.flush)
        self._unsent.append(data)
        self._size += len(data)
        if self._size > MOST_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._unsent:
            data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
            self._unsent, self._size = [], 0
            self._transport.write(data)

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        return self._size + self._transport.get_write_buffer_size()
