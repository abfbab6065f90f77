"""One reader of a stream of events: it catches up from where it stopped, then follows live without a gap."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from cortex_plane.jobs.model.jobs import TERMINAL, JobStatus
from cortex_plane.kernel.errors import Unavailable
from cortex_plane.sessions.model.events import Event, EventType
from cortex_plane.sessions.verbs.events import EventFeed, EventReplay

T = TypeVar("T")

HEARTBEAT_SECONDS = 15.0

ReadEvents = Callable[[int], Awaitable[EventReplay]]
"""Reads events after a number, as the reader may see them."""
CheckAccess = Callable[[], Awaitable[object]]
"""Raises once the reader has no access any more."""


class EventReader:
    """How far a reader has come, and after its last batch why there are no more."""

    def __init__(
        self, feed: EventFeed, read: ReadEvents, check_access: CheckAccess, after: int, heartbeat: float | None = None
    ) -> None:
        heartbeat = heartbeat or HEARTBEAT_SECONDS
        self._feed = feed
        self._read = read
        self._check_access = check_access
        self.cursor = after
        self.dropped: str | None = None
        """The stream is not over: the reader was too slow, or the process ends."""
        self.over: JobStatus | None = None
        """How its job ended."""
        self._heartbeat = heartbeat
        # Streams that were opened together, as after a restart, do not ask for their access together.
        self._due = time.monotonic() + heartbeat * random.random()  # noqa: S311 -- jitter
        self._ended = False
        """The job's last status was sent."""

    async def batches(self, page: EventReplay) -> AsyncGenerator[list[Event], None]:
        """Events that are new to the reader, in order. An empty list is a heartbeat. ``page``: what it read first."""
        # Far behind: no queue is filled for somebody who is not there yet.
        while page.more and not self._feed.closed:
            if events := self._new(page.events, page.job_id):
                yield events
            await self._require_access()
            page = await finish(self._read(self.cursor))
        with self._feed.watch(page.org_id, page.session_id, page.latest) as live:
            # Read again now that nothing new can be missed; what comes twice is known by its number.
            while True:
                if events := self._new(page.events, page.job_id):
                    yield events
                await self._require_access()
                page = await finish(self._read(self.cursor))
                if not page.events or self._feed.closed:
                    break
            is_over = page.over is not None
            while not is_over and not live.closed and not live.overflowed:
                new = await live.take(max(0.0, self._due - time.monotonic()))
                if events := self._new(new, page.job_id):
                    yield events
                is_over = self._ended
                if not is_over and time.monotonic() >= self._due:
                    await self._require_access()
                    yield []
        if not is_over:
            self.dropped = "slow_reader" if live.overflowed else "shutdown"
            return
        # The other events of its last commit.
        page = await finish(self._read(self.cursor))
        if events := self._new(page.events, page.job_id):
            yield events
        self.over = page.over

    def _new(self, events: list[Event], job_id: UUID | None) -> list[Event]:
        new = []
        for event in events:
            if event.seq <= self.cursor or (job_id is not None and event.job_id != job_id):
                continue
            self.cursor = event.seq
            if job_id is not None and event.type == EventType.STATUS and event.data.get("status") in TERMINAL:
                self._ended = True
            new.append(event)
        return new

    async def _require_access(self) -> None:
        """Asked once in a heartbeat, also of somebody who is still catching up."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._heartbeat
            with contextlib.suppress(Unavailable):  # nobody can tell now: the next heartbeat asks again
                await finish(self._check_access())


async def finish(query: Awaitable[T]) -> T:
    """Let a query end although its reader has left."""
    task = asyncio.ensure_future(query)
    task.add_done_callback(lambda task: task.cancelled() or task.exception())
    return await asyncio.shield(task)
