"""Attempts in SQL: every hot verb of a worker is one function, one round trip, one commit."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.jobs.model.jobs import JobKind, JobStatus
from cortex_plane.jobs.rules.attempts import (
    UNCOUNTED,
    UNSHARED,
    Adoption,
    Assignment,
    HandBack,
    Leased,
    Orphan,
    SlotShares,
    StepWrite,
    WriteResult,
)
from cortex_plane.kernel.values import parse
from cortex_plane.proof.model.audit import Fact


async def claim_jobs(
    db: Database,
    worker_id: UUID,
    apps: Sequence[str],
    wanted: int,
    after: UUID,
    held: Sequence[UUID] = (),
    shares: SlotShares = UNSHARED,
) -> tuple[list[Assignment], bool]:
    """Leased jobs, and whether others were claiming at the same moment, so that there may be more."""
    rows = await db.call(
        "claim_jobs", None, worker_id, list(apps), wanted, after, list(held), shares.share, shares.reserve,
        shares.org_jobs,
    )  # fmt: skip
    claimed = [
        Assignment(**{**row, "kind": JobKind(row["kind"])}) for row in rows if row["job_id"] is not None
    ]
    return claimed, len(claimed) < len(rows)


async def advance_job(
    db: Database | Transaction,
    org_id: UUID,
    job_id: UUID,
    worker_id: UUID,
    epoch: int,
    number: int,
    write: StepWrite,
    dispatch_seconds: float,
    open_approvals: int = 0,
) -> WriteResult | None:
    """None: the job is not this worker's any more."""
    step = write.step
    rows = await db.call(
        "advance_job", org_id, job_id, worker_id, epoch, number,
        write.checkpoint, write.mac,
        step.index if step else None, step.message_seq if step else write.message_seq,
        step.response.decode() if step else None, step.prompt_tokens if step else None,
        step.completion_tokens if step else None, step.seconds if step else None,
        write.done_step, write.calls.decode() if write.calls else None, write.arguments or None,
        write.outcomes.decode() if write.outcomes else None, write.results or None, write.again or None,
        dispatch_seconds if write.dispatches else None,
        [id for id, _ in write.stored] or None, [content for _, content in write.stored] or None,
        write.reply, write.status, write.error, write.delay_seconds, write.hold,
        write.result.decode() if write.result else None,
        write.granted.decode() if write.granted else None, write.policies, open_approvals,
        write.more or None,
        [kind for kind, _ in write.events], [data for _, data in write.events],
        [fact.action for fact in write.facts], [fact.body for fact in write.facts],
    )  # fmt: skip
    if not rows:
        return None
    return WriteResult(**{**rows[0], "status": JobStatus(rows[0]["status"])})


async def find_orphans(db: Database, limit: int) -> list[Orphan]:
    return [parse(Orphan, row) for row in await db.call("find_orphans", None, limit)]


async def adopt_job(db: Database, orphan: Orphan, adoption: Adoption, fact: Fact) -> bool:
    """False: somebody else has it, or what it was decided from has changed."""
    rows = await db.call(
        "adopt_job", orphan.org_id, orphan.id, orphan.worker_id, orphan.epoch, orphan.cancelled, orphan.held,
        adoption.status, adoption.error, fact.action, fact.body,
    )  # fmt: skip
    return bool(rows[0]["adopt_job"])


async def find_leased(db: Database, worker_id: UUID) -> list[Leased]:
    return [parse(Leased, row) for row in await db.call("find_leased", None, worker_id)]


async def release_job(
    db: Database,
    org_id: UUID,
    job_id: UUID,
    worker_id: UUID,
    epoch: int,
    fact: Fact,
    handed: HandBack = UNCOUNTED,
) -> bool:
    rows = await db.call(
        "release_job", org_id, job_id, worker_id, epoch, handed.count, handed.delay_seconds, handed.error, fact.action,
        fact.body,
    )  # fmt: skip
    return bool(rows[0]["release_job"])
