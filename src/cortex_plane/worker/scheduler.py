"""A scheduler: keeps the plane's deadlines. Any number of them may run; each deadline is kept once, at most a second late."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Sequence

import structlog

from cortex_plane.calls.verbs import deadlines
from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import meters
from cortex_plane.worker.chores import CHORES, Chore
from cortex_plane.worker.clock import ticks

log = structlog.get_logger()

POLL_SECONDS = 0.5


class Scheduler:
    """``run`` until cancelled. Nothing of it is needed again after a crash: deadlines are in the database."""

    def __init__(
        self,
        db: Database,
        *,
        poll_seconds: float = POLL_SECONDS,
        name: str | None = None,
        chores: Sequence[Chore] = CHORES,
    ) -> None:
        self.db = db
        self.id = new_id()
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._poll = poll_seconds
        self._chores = chores
        # Not all processes at the same moment, and none of it before the plane serves.
        self._due = {c.name: ticks() + c.every_seconds * random.uniform(0.5, 1.0) for c in chores}  # noqa: S311

    async def run(self) -> None:
        while True:  # noqa: ASYNC110 -- it rests between two looks, it does not wait for anything
            await asyncio.sleep(await self._turn())

    async def _turn(self) -> float:
        """One look at the clock; returns how long to rest."""
        started = ticks()
        try:
            looked = await deadlines.tick(self.db, self.id, self.name)
            meters().ticked(ticks() - started)
            await self._do_chores()
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

    async def _do_chores(self) -> None:
        for chore in self._chores:
            if ticks() < self._due[chore.name]:
                continue
            self._due[chore.name] = ticks() + chore.every_seconds
            try:
                await chore.do(self.db)
            except (CortexError, TimeoutError) as error:
                log.warning("chore not done yet", chore=chore.name, error=str(error))
            except Exception:
                # A defect of ours: loud, and no harm to deadlines.
                log.exception("chore failed", chore=chore.name)


@contextlib.asynccontextmanager
async def scheduling(scheduler: Scheduler) -> AsyncIterator[None]:
    task = asyncio.create_task(scheduler.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
