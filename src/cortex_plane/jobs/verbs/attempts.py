"""What a worker does with the jobs it leases. These verbs are the plane's own: no person or program calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.gates.store import gates
from cortex_plane.jobs.model.jobs import JobKind
from cortex_plane.jobs.rules.attempts import (
    HAND_BACK_REMEDY,
    UNSHARED,
    Assignment,
    HandBack,
    Leased,
    Orphan,
    SlotShares,
    adoption,
    hand_back,
)
from cortex_plane.jobs.store import attempts, steps
from cortex_plane.jobs.store.steps import Past
from cortex_plane.proof.model.audit import Fact
from cortex_plane.sessions.rules.conversations import SessionMessage
from cortex_plane.tenancy.model.access import worker_actor

ORPHANS_AT_ONCE = 100


async def claim(
    db: Database,
    worker_id: UUID,
    apps: Sequence[str],
    wanted: int,
    after: UUID,
    held: Sequence[UUID] = (),
    shares: SlotShares = UNSHARED,
) -> tuple[list[Assignment], bool]:
    """``held`` names the org of each job that the worker runs now: its free slots are shared accordingly."""
    return await attempts.claim_jobs(db, worker_id, apps, wanted, after, held, shares)


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


async def past(
    db: Database, given: Assignment, read_to: int, window_step: int = 0, window_seq: int = 0
) -> Past:
    """Everything a resume needs, in one round trip; a task that has not begun needs nothing."""
    fresh = given.checkpoint is None
    if fresh and given.kind is JobKind.TASK:
        return Past()
    heard = read_to if given.kind is JobKind.CONVERSATION else None
    return await steps.past(
        db, given.org_id, given.job_id, given.session_id, heard, fresh, window_step, window_seq
    )


async def messages_between(db: Database, given: Assignment, above: int, up_to: int) -> list[SessionMessage]:
    async with db.transaction(given.org_id) as tx:
        return await steps.said(tx, given.session_id, above, up_to)


async def bound(db: Database, given: Assignment) -> dict[str, Any] | None:
    """The atlases of its session and what their gates remember, read again."""
    async with db.transaction(given.org_id) as tx:
        return (await gates.bound(tx, given.session_id))[0]


async def leased(db: Database, worker_id: UUID) -> list[Leased]:
    return await attempts.find_leased(db, worker_id)


async def release(
    db: Database, job: Leased, worker_id: UUID, worker_name: str, *, counted: bool = True
) -> bool:
    """Hand back a job that its worker does not run; False where it is somebody else's by now.

    ``counted``: it counts as a hand-back without progress. That of a worker that stops does not.
    """
    reason = "Its attempt ended without a write."
    handed = HandBack(count=job.hand_backs, delay_seconds=0.0)
    if counted:
        handed = hand_back(job.hand_backs, reason)
    actor = worker_actor(job.org_id, worker_id, worker_name)
    fact = Fact.of(actor, "job_handed_back", job=str(job.id), reason=reason)
    if handed.error is not None:
        error = f"Job {job.id}: {handed.error} {HAND_BACK_REMEDY}"
        handed, fact = (
            replace(handed, error=error),
            Fact.of(actor, "job_failed", job=str(job.id), error=error),
        )
    return await attempts.release_job(db, job.org_id, job.id, worker_id, job.epoch, fact, handed)
