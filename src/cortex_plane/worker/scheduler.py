"""A scheduler: keeps the plane's deadlines and does its chores.

Any number of schedulers may run; each deadline is kept once, at most a second late, and a chore that another process has done
changes nothing. The first chore is due half a minute after a process has started; its modules are imported then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pkgutil
import random
import socket
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from cortex_plane.calls.verbs import deadlines
from cortex_plane.db.database import Database
from cortex_plane.db.schema import EVENT_MONTHS_AHEAD
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import meters
from cortex_plane.worker.limits import ticks

log = structlog.get_logger()

POLL_SECONDS = 0.5
MINUTE, HOUR = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Chore:
    name: str
    every_seconds: float
    verb: str
    """Where the function is; it takes the database."""

    async def do(self, db: Database) -> None:
        await pkgutil.resolve_name(f"cortex_plane.{self.verb}")(db)


async def prepare_partitions(db: Database) -> None:
    """The event table has its months ahead, however long the plane runs."""
    await db.call("prepare_event_partitions", None, EVENT_MONTHS_AHEAD)


async def gather_statistics(db: Database) -> None:
    """A new plane plans well within seconds: autovacuum comes later."""
    await db.call("analyze_grown_tables", None)


CHORES = (
    Chore("statistics of grown tables", 5.0, "worker.scheduler:gather_statistics"),
    Chore("event partitions", HOUR, "worker.scheduler:prepare_partitions"),
    Chore("forgotten chunks", HOUR, "sessions.verbs.events:forget_chunks"),
    Chore("callback secrets", HOUR, "approvals.verbs.credentials:keep"),
    Chore("failing webhooks", HOUR, "notify.verbs.webhooks:keep"),
    Chore("old events of channels", HOUR, "notify.verbs.channel_events:forget_events"),
    Chore("old signals", HOUR, "jobs.verbs.steering:forget_signals"),
    Chore("old resolutions", HOUR, "calls.verbs.resolutions:forget_resolutions"),
    Chore("old minutes of atlases", HOUR, "gates.verbs.atlas_cache:forget_minutes"),
    Chore("full request budgets", HOUR, "tenancy.verbs.keys:forget_request_budgets"),
    Chore("untold signals", MINUTE, "jobs.verbs.steering:deliver_waiting_signals"),
    Chore("paused sessions", MINUTE, "gates.verbs.session_lifecycle:end_long_paused"),
    Chore("signed roots", MINUTE, "proof.verbs.audit:keep_roots"),
    Chore("copies of signed roots", HOUR, "proof.verbs.audit:copy_all_roots"),
)


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
        self._poll, self._chores = poll_seconds, chores
        # Not all processes at the same moment, and none of it before the plane serves.
        self._due = {c.name: ticks() + c.every_seconds * random.uniform(0.5, 1.0) for c in chores}  # noqa: S311

    async def run(self) -> None:
        while True:  # noqa: ASYNC110 -- it rests between two looks, it does not wait for anything
            await asyncio.sleep(await self._turn())

    async def _turn(self) -> float:
        """One look at the clock; returns how long to rest."""
        start = ticks()
        try:
            turn = await deadlines.tick(self.db, self.id, self.name)
            meters().ticked(ticks() - start)
            await self._do_chores()
            if turn.full:
                return 0.0
            seconds = await deadlines.seconds_to_next(self.db)
        except (CortexError, TimeoutError) as error:
            log.warning("scheduler cannot look", error=str(error))
            seconds = None
        except Exception:
            # Deadlines that nobody keeps would be worse than a loud one.
            log.exception("scheduler failed")
            seconds = None
        rest = self._poll * random.uniform(0.8, 1.2)  # noqa: S311 -- jitter
        # What is overdue now could not be done a moment ago: it is tried again, but not at full speed.
        return rest if seconds is None or seconds <= 0 else min(rest, seconds)

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
async def in_background(work: Coroutine[Any, Any, object]) -> AsyncIterator[None]:
    """``work`` in a task for as long as the block runs; then it is cancelled, and waited for."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
