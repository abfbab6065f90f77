"""What a worker does with the jobs it leases. These verbs are the plane's own: no person or program calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.domain.access import worker_actor
from cortex_plane.domain.attempts import Assignment, Leased, Orphan, Write, Written, adoption
from cortex_plane.domain.audit import Fact
from cortex_plane.domain.conversations import Said, StepRow
from cortex_plane.domain.effects import ToolCall
from cortex_plane.domain.jobs import JobKind
from cortex_plane.storage import attempts, steps
from cortex_plane.storage.database import Database

ORPHANS_AT_ONCE = 100


async def claim(
    db: Database, worker_id: UUID, apps: Sequence[str], wanted: int, after: UUID
) -> tuple[list[Assignment], bool]:
    return await attempts.claim_jobs(db, worker_id, apps, wanted, after)


async def advance(
    db: Database, given: Assignment, worker_id: UUID, number: int, write: Write, dispatch_seconds: float
) -> Written | None:
    """One commit of an attempt; None where the job is not this worker's any more."""
    return await attempts.advance_job(
        db, given.org_id, given.job_id, worker_id, given.epoch, number, write, dispatch_seconds
    )


async def adopt(db: Database, worker_id: UUID, worker_name: str, poison_deaths: int) -> list[Orphan]:
    """Take dead workers' jobs from them, so that whoever is free can claim them."""
    adopted = []
    for orphan in await attempts.find_orphans(db, ORPHANS_AT_ONCE):
        if orphan.worker_id == worker_id:
            continue  # our own lease ran out: the next beat renews it
        decided = adoption(orphan, poison_deaths)
        fact = Fact.of(
            worker_actor(orphan.org_id, worker_id, worker_name),
            decided.action,
            job=str(orphan.id),
            lost_worker=orphan.worker,
            epoch=orphan.epoch,
            reason=decided.error,
        )
        if await attempts.adopt_job(db, orphan, decided, fact):
            adopted.append(orphan)
    return adopted


@dataclass(frozen=True, slots=True)
class Past:
    """What a job has said and done so far."""

    said: list[Said]
    steps: list[StepRow]
    calls: list[ToolCall]


async def past(db: Database, given: Assignment, read_to: int) -> Past:
    """Everything a resume needs; a task that has not begun needs nothing."""
    fresh = given.checkpoint is None
    if fresh and given.kind is JobKind.TASK:
        return Past([], [], [])
    async with db.transaction(given.org_id) as tx:
        said = (
            await steps.said(tx, given.session_id, 0, read_to) if given.kind is JobKind.CONVERSATION else []
        )
        if fresh:
            return Past(said, [], [])
        return Past(said, await steps.responses(tx, given.job_id), await steps.calls(tx, given.job_id))


async def messages_between(db: Database, given: Assignment, above: int, up_to: int) -> list[Said]:
    async with db.transaction(given.org_id) as tx:
        return await steps.said(tx, given.session_id, above, up_to)


async def leased(db: Database, worker_id: UUID) -> list[Leased]:
    return await attempts.find_leased(db, worker_id)


async def release(db: Database, job: Leased, worker_id: UUID, worker_name: str) -> bool:
    """Hand back a job that its worker does not run; False where it is somebody else's by now."""
    actor = worker_actor(job.org_id, worker_id, worker_name)
    fact = Fact.of(actor, "job_handed_back", job=str(job.id), reason="its attempt ended without a write")
    return await attempts.release_job(db, job.org_id, job.id, worker_id, job.epoch, fact)
