"""A scheduler: keeps the plane's deadlines and does its chores.

Any number of schedulers may run; each deadline is kept once, at most a second late, and a chore that another process has done
changes nothing. The first chore is due half a minute after a process has started; its modules are imported then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

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
    do: Callable[[Database], Awaitable[None]]


async def _partitions(db: Database) -> None:
    """The event table has its months ahead, however long the plane runs."""
    await db.call("prepare_event_partitions", None, EVENT_MONTHS_AHEAD)


async def _chunks(db: Database) -> None:
    """Text that an attempt left behind when it died."""
    from cortex_plane.sessions.verbs import events

    await events.forget_chunks(db)


async def _callback_secrets(db: Database) -> None:
    from cortex_plane.approvals.verbs import credentials

    await credentials.keep(db)


async def _webhooks(db: Database) -> None:
    from cortex_plane.notify.verbs import webhooks

    await webhooks.keep(db)


async def _old_signals(db: Database) -> None:
    from cortex_plane.jobs.verbs import steering

    await steering.forget_signals(db)


async def _untold_signals(db: Database) -> None:
    from cortex_plane.jobs.verbs import steering

    await steering.deliver_waiting_signals(db)


async def _resolutions(db: Database) -> None:
    from cortex_plane.calls.verbs import resolutions

    await resolutions.forget_resolutions(db)


async def _atlas_minutes(db: Database) -> None:
    from cortex_plane.gates.verbs import atlas_cache

    await atlas_cache.forget_minutes(db)


async def _request_budgets(db: Database) -> None:

    from cortex_plane.tenancy.verbs import keys

    await keys.forget_request_budgets(db)


async def _roots(db: Database) -> None:
    from cortex_plane.proof.verbs import roots

    await roots.keep_roots(db)


async def _root_copies(db: Database) -> None:
    from cortex_plane.proof.verbs import roots

    await roots.copy_all_roots(db)


CHORES = (
    Chore("event partitions", HOUR, _partitions),
    Chore("forgotten chunks", HOUR, _chunks),
    Chore("callback secrets", HOUR, _callback_secrets),
    Chore("failing webhooks", HOUR, _webhooks),
    Chore("old signals", HOUR, _old_signals),
    Chore("old resolutions", HOUR, _resolutions),
    Chore("old minutes of atlases", HOUR, _atlas_minutes),
    Chore("full request budgets", HOUR, _request_budgets),
    Chore("untold signals", MINUTE, _untold_signals),
    Chore("signed roots", MINUTE, _roots),
    Chore("copies of signed roots", HOUR, _root_copies),
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
        self._poll = poll_seconds
        self._chores = chores
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
async def scheduling(scheduler: Scheduler) -> AsyncIterator[None]:
    task = asyncio.create_task(scheduler.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
