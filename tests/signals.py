"""Jobs that wait for signals, parked as a code agent parks: one fenced write that lets go of the job."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import asyncpg

from cortex_plane.calls.verbs import steps
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.model.journal import SignalDraft, SignalReceipt, WaitDraft
from cortex_plane.jobs.rules.attempts import StepWrite
from cortex_plane.jobs.verbs import steering
from tests.people import Person, World
from tests.storage.leases import Held, make_worker, queue


def wait(entry: str = "paid#0", name: str = "payment.received", key: str = "order-1") -> dict[str, str]:
    return WaitDraft.of(entry, name, key).as_row()


async def park(held: Held, *waits: dict[str, str], seconds: float | None = None) -> JobStatus:
    """Through the operation that a worker calls; what became of the job."""
    write = StepWrite(status=JobStatus.SLEEPING, delay_seconds=seconds, more={"waits": list(waits)})
    written = await steps.advance(held.db, held.given, held.worker, held.number + 1, write, 2.0)
    assert written is not None
    held.number += 1
    return written.status


async def parked(
    admin: asyncpg.Connection, world: World, *waits: dict[str, str], seconds: float | None = None
) -> UUID:
    """A job that sleeps until one of these signals comes, or so many seconds."""
    (id,) = await queue(admin, world)
    held = await Held.claim(world.db, await make_worker(world.db))
    assert held.given.job_id == id
    assert await park(held, *(waits or (wait(),)), seconds=seconds) is JobStatus.SLEEPING
    return id


async def send(
    db: Database,
    person: Person,
    key: str = "order-1",
    payload: Any = None,
    name: str = "payment.received",
    **more: Any,
) -> SignalReceipt:
    return await steering.send_signal(
        db, person.actor, SignalDraft(name=name, key=key, payload=payload), **more
    )
