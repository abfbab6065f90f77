"""Events: read again from any number on, of a session or of one job; and what a worker adds while a model speaks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.jobs.model.jobs import TERMINAL, JobStatus
from cortex_plane.jobs.rules.attempts import Assignment
from cortex_plane.jobs.store import jobs
from cortex_plane.sessions.model.events import Event
from cortex_plane.sessions.store import events, sessions
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.verbs import require_found, verb

PAGE = 200
LOOKED_AT = 20_000
"""Events of a session among which those of its gates are looked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """Events after a number, and what a stream needs to go on from there."""

    org_id: UUID
    session_id: UUID
    job_id: UUID | None
    """Only what this job did; None for the whole session."""
    events: list[Event]
    latest: int
    """How far the session's events go."""
    more: bool
    """There may be more after the last one."""
    over: JobStatus | None
    """How the job ended, once it has: nothing of it comes any more."""


@verb(Permission.SESSION_READ)
async def of_session(db: Database, actor: Actor, session_id: UUID, after: int, limit: int = PAGE) -> Replay:
    """Everything that happened in a session after number ``after``."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await sessions.get(tx, session_id, actor.sees), "session")
        return await _replay(tx, session_id, None, after, limit, over=None)


@verb(Permission.JOB_READ)
async def of_job(db: Database, actor: Actor, job_id: UUID, after: int, limit: int = PAGE) -> Replay:
    """What one job did after number ``after``. Numbers are the session's, so they have gaps."""
    async with db.transaction(actor.org_id) as tx:
        # The job first: whatever it says of its end, the events of that are there by then.
        job = require_found(await jobs.get(tx, job_id, actor.sees), "job")
        return await _replay(
            tx, job.session_id, job_id, after, limit, over=job.status if job.status in TERMINAL else None
        )


@verb(Permission.JOB_READ)
async def of_jobs_session(db: Database, actor: Actor, job_id: UUID, after: int, limit: int = PAGE) -> Replay:
    """Everything in the session that a job belongs to, whatever becomes of the job."""
    async with db.transaction(actor.org_id) as tx:
        job = require_found(await jobs.get(tx, job_id, actor.sees), "job")
        return await _replay(tx, job.session_id, None, after, limit, over=None)


@verb(Permission.JOB_READ)
async def of_gates(db: Database, actor: Actor, job_id: UUID, limit: int = PAGE) -> list[Event]:
    """What gates did in a job: the newest of it, in order."""
    async with db.transaction(actor.org_id) as tx:
        job = require_found(await jobs.get(tx, job_id, actor.sees), "job")
        latest = await events.latest(tx, job.session_id)
        return await events.of_gates(tx, job.session_id, job_id, latest - LOOKED_AT, limit)


async def _replay(
    tx: Transaction, session_id: UUID, job_id: UUID | None, after: int, limit: int, *, over: JobStatus | None
) -> Replay:
    # Before the events: whoever follows from there on misses nothing.
    latest = await events.latest(tx, session_id)
    read = await events.list_after(tx, session_id, job_id, after, limit)
    return Replay(
        org_id=tx.org,
        session_id=session_id,
        job_id=job_id,
        events=read,
        latest=latest,
        more=len(read) >= limit,
        over=over,
    )


# The plane's own verbs -------------------------------------------------------------------------------------------


async def append_chunks(
    db: Database, given: Assignment, worker_id: UUID, step: int, texts: Sequence[str]
) -> bool:
    """What the model of a step is saying; False where nobody may hear it from this worker any more."""
    return await events.append_chunks(
        db, given.org_id, given.job_id, worker_id, given.epoch, step, list(texts)
    )


async def void_chunks(db: Database, given: Assignment, step: int) -> None:
    """The answer of a step broke off: nobody should go on showing what there is of it."""
    await events.void_chunks(db, given.org_id, given.job_id, given.epoch, step)


async def forget_chunks(db: Database, limit: int = 10_000) -> int:
    """Forget what was left behind of answers that nobody will finish, in any org; how much it was."""
    return await events.forget_chunks(db, limit)


async def drop_chunks(db: Database, given: Assignment, step: int) -> bool:
    """Forget chunks of steps that are durable; whether none of this step are left."""
    return await events.drop_chunks(db, given.org_id, given.job_id, step)
