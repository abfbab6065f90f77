"""The routes of spec 3 that ask for a job to go on, and decide a call by its own id."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.approvals.model.approvals import (
    ApprovalStatus,
    Channel,
    Choice,
    Decision,
    DecisionReceipt,
    ToolDecision,
)
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import TERMINAL, Job, JobStatus, Resumption
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import Conflict, Stale
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import verb

MOST_NAMED = 20


@verb(Permission.JOB_STEER)
async def execute(db: Database, actor: Actor, id: UUID) -> Job:
    """The job, which the plane runs; a paused one is resumed. What waits for a decision goes on with that alone."""
    job = await jobs.get(db, actor, id)
    if job.status in TERMINAL:
        raise Conflict(
            f"This request is {job.status} already.",
            code="job_finished",
            hint="Submit it again with `cortex job resubmit`.",
        )
    if job.status is JobStatus.WAITING_FOR_APPROVAL:
        raise await _pending(db, actor, job)
    if job.holds:
        return (await steering.resume(db, actor, id, Resumption())).job
    return job


async def _pending(db: Database, actor: Actor, job: Job) -> Conflict:
    page = await approvals.list_approvals(db, actor, None, MOST_NAMED, status=ApprovalStatus.PENDING, job_id=job.id)
    names = "; ".join(f"`{approval.tool_name}` (approval {approval.id})" for approval in page.items)
    return Conflict(
        f"This request waits for {job.open_approvals} decision{'s' if job.open_approvals > 1 else ''}: {names}.",
        code="approval_pending",
        hint="Decide with `cortex approval approve` or `deny`, or at /v1/approve-tool; it then goes on by itself.",
    )


@verb(Permission.APPROVAL_DECIDE)
async def approve_tool(
    db: Database, actor: Actor, call_id: UUID, decision: ToolDecision, once: IdempotencyKey | None = None
) -> DecisionReceipt:
    """Decide the approval that a call belongs to, as it stands now. Identical calls that joined it go with it."""
    approval = await approvals.approval_for_call(db, actor, call_id)
    if decision.version is None and approval.version > 1:
        raise Stale(
            f"This call's approval is at version {approval.version} by now.",
            code="approval_changed",
            hint="Look at it with `cortex approval show`, then send its `version` with your decision.",
        )
    choice = Decision(
        decision=Choice.APPROVED if decision.approved else Choice.DENIED,
        version=decision.version or approval.version,
        input_hash=approval.input_hash,
        reason=decision.reason,
    )
    return await decisions.decide(db, actor, approval.id, choice, Channel.API, once)
