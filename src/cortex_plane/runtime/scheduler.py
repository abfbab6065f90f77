"""A scheduler: keeps the plane's deadlines. Any number of them may run; each deadline is kept once, at most a second late."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator

import structlog

from cortex_plane.domain.errors import CortexError
from cortex_plane.operations import deadlines, events
from cortex_plane.operations.meters import meters
from cortex_plane.operations.verbs import new_id
from cortex_plane.runtime.clock import ticks
from cortex_plane.storage.database import Database
from cortex_plane.storage.migrate import EVENT_MONTHS_AHEAD

log = structlog.get_logger()

POLL_SECONDS = 0.5
PARTITIONS_SECONDS = 3600.0


class Scheduler:
    """``run`` until cancelled. Nothing of it is needed again after a crash: deadlines are in the database."""

    def __init__(
        self,
        db: Database,
        *,
        poll_seconds: float = POLL_SECONDS,
        name: str | None = None,
    ) -> None:
        self.db = db
        self.id = new_id()
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._poll = poll_seconds
        self._partitions_at = ticks() + PARTITIONS_SECONDS

    async def run(self) -> None:
        while True:  # noqa: ASYNC110 -- it rests between two looks, it does not wait for anything
            await asyncio.sleep(await self._turn())

    async def _turn(self) -> float:
        """One look at the clock; returns how long to rest."""
        started = ticks()
        try:
            looked = await deadlines.tick(self.db, self.id, self.name)
            meters().ticked(ticks() - started)
            await self._keep_partitions()
            if looked.full:
                return 0.0
            left = await deadlines.seconds_to_next(self.db)
        except (CortexError, TimeoutError) as error:
            log.warning("scheduler cannot look", error=str(error))
            left = None
        except Exception:
            # Deadlines that nobody keeps would be worse than a loud one.
            log.exception("scheduler failed")
            left = None
        rest = self._poll * random.uniform(0.8, 1.2)  # noqa: S311 -- jitter
        # What is overdue now could not be done a moment ago: it is tried again, but not at full speed.
        return rest if left is None or left <= 0 else min(rest, left)

    async def _keep_partitions(self) -> None:
        """The event table has its months ahead, however long the plane runs, and no chunks of the dead."""
        if ticks() >= self._partitions_at:
            self._partitions_at = ticks() + PARTITIONS_SECONDS
            await self.db.call("prepare_event_partitions", None, EVENT_MONTHS_AHEAD)
            await events.forget_chunks(self.db)


@contextlib.asynccontextmanager
async def scheduling(scheduler: Scheduler) -> AsyncIterator[None]:
    task = asyncio.create_task(scheduler.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
