"""What a server may send: messages of a bounded size, in a bounded number, and little that is no message at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

import anyio

from cortex_plane.worker.clock import ticks

if TYPE_CHECKING:
    from mcp.client._transport import Transport, TransportStreams

MAX_MESSAGE_BYTES = 4 * 1024 * 1024
MAX_GARBAGE = 100
"""Lines that are no messages, for as long as a connection lasts: banners and stray prints are forgiven."""
WINDOW_SECONDS, MAX_IN_WINDOW = 10.0, 2_000
"""Notifications and requests that nobody asked for."""
READ_SECONDS, LONGEST_READ_PAUSE = 1.0, 60.0
"""Between two readings of a list of tools: longer with each change of it."""
CHANGES_SECONDS, MAX_CHANGES = 3600.0, 20
"""Each change of a list is published for everybody, and outgrows what was approved."""


class Line:
    """Whether a connection lasts, and why it does not any more. The first reason counts."""

    def __init__(self, ended: Callable[[], None] = lambda: None) -> None:
        """``ended`` is called at once: nobody may be told that it lasts any more."""
        self.over = asyncio.Event()
        self.reason = ""
        self.begun = False
        """It was up: from then on what one call is answered is no reason to end it for the others."""
        self.turned_away: set[str] = set()
        """Keys of calls that came to a session which the server does not have: nothing of them was begun."""
        self._ended = ended

    def end(self, reason: str) -> None:
        if not self.over.is_set():
            self.reason = reason
            self.over.set()
            self._ended()


class Flood:
    def __init__(self) -> None:
        self._since = ticks()
        self._seen = self._garbage = 0

    def fault(self, message: Any) -> str | None:
        """Why this message is one too many."""
        if isinstance(message, Exception):
            self._garbage += 1
            if self._garbage > MAX_GARBAGE:
                return f"it sent more than {MAX_GARBAGE} messages that are none"
            return None
        if not hasattr(message.message, "method"):
            return None  # an answer to what was asked
        now = ticks()
        if now - self._since > WINDOW_SECONDS:
            self._since, self._seen = now, 0
        self._seen += 1
        if self._seen > MAX_IN_WINDOW:
            return f"it sent more than {MAX_IN_WINDOW} notifications within {WINDOW_SECONDS:g} s"
        return None


class Changes:
    """How often a list of tools has changed lately, through every restart of its server."""

    def __init__(self) -> None:
        self._at: list[float] = []

    def add(self, now: float) -> bool:
        """Whether it may change now; one too many does not count."""
        self._at = [at for at in self._at if now - at < CHANGES_SECONDS]
        if len(self._at) >= MAX_CHANGES:
            return False
        self._at.append(now)
        return True

    def pause(self, now: float) -> float:
        recent = sum(now - at < CHANGES_SECONDS for at in self._at)
        return min(LONGEST_READ_PAUSE, READ_SECONDS * 2.0 ** max(0, recent - 1))


@contextlib.asynccontextmanager
async def bounded(transport: Transport, line: Line) -> AsyncIterator[TransportStreams]:
    """The same transport, until it ends or says too much."""
    async with transport as (inner, write):
        send, receive = anyio.create_memory_object_stream[Any](0)
        pumping = asyncio.create_task(_pump(inner, send, line))
        try:
            yield receive, write
        finally:
            pumping.cancel()
            await asyncio.gather(pumping, return_exceptions=True)
            send.close()
            receive.close()


async def _pump(inner: Any, send: Any, line: Line) -> None:
    flood = Flood()
    with contextlib.suppress(anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream):
        async for message in inner:
            fault = flood.fault(message)
            if fault is not None:
                line.end(fault)
                break
            if not isinstance(message, Exception):
                await send.send(message)
    line.end("it closed the connection")
    send.close()
