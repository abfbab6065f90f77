"""Steering jobs: pause, resume, cancel, and answers about what nobody knows.

Each gives a receipt, and asking twice changes nothing. A job that a worker runs stops at its next boundary, so that no
call is left without its outcome; until then the receipt says ``pending``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.effects import IN_DOUBT, CallStatus, Question, question
from cortex_plane.jobs.model.jobs import (
    TERMINAL,
    Cancellation,
    Hold,
    JobStatus,
    Pause,
    Resumption,
    SessionReceipt,
    SteeringResult,
    Step,
)
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.meters import meters
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import SessionStatus
from cortex_plane.sessions.verbs.sessions import end_approvals
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb

LIFTED = (
    Hold.OPERATOR,
    Hold.OWNER,
    Hold.CODE_CHANGED,
    Hold.PROMPT_CHANGED,
    Hold.GATES_UNREADABLE,
    Hold.POLICIES_UNREADABLE,
)
"""What a resume lifts. A session's hold ends with the session's, an uncertain effect with its answer."""


def _may_lift(actor: Actor) -> tuple[Hold, ...]:
    """Whoever sees only their own lifts only their own: an operator's pause is an operator's to end."""
    return LIFTED if actor.sees is None else (Hold.OWNER,)


@verb(Permission.JOB_STEER)
async def cancel(db: Database, actor: Actor, id: UUID, cancellation: Cancellation) -> SteeringResult:
    """Cancelling a cancelled job changes nothing; a job that ended otherwise is a conflict."""
    async with db.transaction(actor.org_id) as tx:
        locked = require_found(await jobs_store.lock_job(tx, id, actor.sees), "job")
        if locked["status"] in TERMINAL - {JobStatus.CANCELLED}:
            raise Conflict(f"This job is {locked['status']} already.", code="job_finished")
        why = cancellation.reason or f"cancelled by {actor.name}"
        changed = False
        if await jobs_store.cancel_job(tx, id, why):
            changed = True
            await end_approvals(tx, locked["session_id"], [id], actor, why)
            await _say(tx, locked, id, actor, "job_cancelled", {"reason": why}, JobStatus.CANCELLED)
        elif await jobs_store.request_cancel(tx, id, why):
            changed = True
            await append_fact(
                tx, locked, id, actor, "job_cancel_requested", {"reason": why},
                [("status", id, {"pending_cancel": True, "reason": why})],
            )  # fmt: skip
        return await receipt_of(tx, id, changed)


@verb(Permission.JOB_STEER)
async def pause(db: Database, actor: Actor, id: UUID, pause: Pause) -> SteeringResult:
    """Hold a job until somebody resumes it. Pausing a paused one changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        locked = require_found(await jobs_store.lock_job(tx, id, actor.sees), "job")
        require_open(locked)
        hold = Hold.OPERATOR if actor.sees is None else Hold.OWNER
        changed = await _hold(tx, id, locked, hold, actor, pause.reason)
        receipt = await receipt_of(tx, id, changed)
    _count_pause(actor, changed, receipt.pending)
    return receipt


@verb(Permission.JOB_STEER)
async def resume(db: Database, actor: Actor, id: UUID, resumption: Resumption) -> SteeringResult:
    """Lift what an operator may lift. Resuming what is not held changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        locked = require_found(await jobs_store.lock_job(tx, id, actor.sees), "job")
        require_open(locked)
        changed = await lift_holds(tx, id, locked, _may_lift(actor), actor, resumption.note)
        receipt = await receipt_of(tx, id, changed)
    if changed:
        db.hints.work()
        meters().resumed(actor.org_id, "operator")
    left = [hold for hold in receipt.job.holds if hold not in _may_lift(actor)]
    if left and not changed:
        raise Conflict(
            f"This job is held by {', '.join(left)}, which a resume does not lift.",
            code="still_held",
            hint="Answer its question with `cortex job settle`, resume its session, or ask an operator.",
        )
    return receipt


@verb(Permission.SESSION_HOLD)
async def pause_session(db: Database, actor: Actor, id: UUID, pause: Pause) -> SessionReceipt:
    """Hold a session: its open jobs, and whatever it is asked to do until it is resumed."""
    async with db.transaction(actor.org_id) as tx:
        locked = require_found(await sessions_store.lock_session(tx, id, actor.sees), "session")
        if locked["status"] == SessionStatus.TERMINATED:
            raise Conflict("This session has ended.", code="session_terminated", hint="Open a new session.")
        changed = await sessions_store.hold_session(tx, id, pause.reason or f"paused by {actor.name}")
        if changed:
            for job_id in await jobs_store.lock_open_job(tx, id):
                job = require_found(await jobs_store.lock_job(tx, job_id, None), "job")
                await _hold(tx, job_id, job, Hold.SESSION, actor, pause.reason)
            await proof_store.append_to_session(
                tx, id, [Fact.of(actor, "session_held", reason=pause.reason)],
                [("session_paused", None, {"reason": pause.reason, "by": actor.name})],
            )  # fmt: skip
        receipt = await _session_receipt(tx, id, changed)
    _count_pause(actor, changed, receipt.pending)
    return receipt


def _count_pause(actor: Actor, changed: bool, pending: bool) -> None:
    if changed:
        meters().paused(actor.org_id, "operator")
        if not pending:
            meters().suspended(actor.org_id, 0.0)


@verb(Permission.SESSION_HOLD)
async def resume_session(db: Database, actor: Actor, id: UUID, resumption: Resumption) -> SessionReceipt:
    async with db.transaction(actor.org_id) as tx:
        require_found(await sessions_store.lock_session(tx, id, actor.sees), "session")
        changed = await sessions_store.release_session(tx, id)
        if changed:
            for job_id in await jobs_store.lock_open_job(tx, id):
                job = require_found(await jobs_store.lock_job(tx, job_id, None), "job")
                await lift_holds(tx, job_id, job, (Hold.SESSION,), actor, resumption.note)
            await proof_store.append_to_session(
                tx, id, [Fact.of(actor, "session_resumed", note=resumption.note)],
                [("session_resumed", None, {"by": actor.name})],
            )  # fmt: skip
        receipt = await _session_receipt(tx, id, changed)
    if changed:
        db.hints.work()
        meters().resumed(actor.org_id, "operator")
    return receipt


# What happened, and what nobody knows ----------------------------------------------------------------------------


@verb(Permission.JOB_READ)
async def list_steps(db: Database, actor: Actor, id: UUID, above: int, limit: int) -> list[Step]:
    async with db.transaction(actor.org_id) as tx:
        require_found(await jobs_store.get_job(tx, id, actor.sees), "job")
        return await jobs_store.list_steps(tx, id, above, limit)


@verb(Permission.JOB_READ)
async def stored_result(db: Database, actor: Actor, id: UUID, result_id: UUID) -> bytes:
    """A result that was too large for its step."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await jobs_store.get_job(tx, id, actor.sees), "job")
        return require_found(await jobs_store.stored_result(tx, id, result_id), "result")


@verb(Permission.JOB_READ)
async def checkpoint(db: Database, actor: Actor, id: UUID) -> dict[str, Any]:
    """The job's durable state, as it would be resumed from."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await jobs_store.get_job(tx, id, actor.sees), "job")
        return require_found(await jobs_store.get_checkpoint(tx, id), "checkpoint")


@verb(Permission.JOB_READ)
async def questions(db: Database, actor: Actor, id: UUID) -> list[Question]:
    """Calls of a job of which nobody knows whether they happened."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await jobs_store.get_job(tx, id, actor.sees), "job")
        calls = await jobs_store.open_calls(tx, id)
    return [question(call) for call in calls if call.status is CallStatus.UNCERTAIN]


# Shared ----------------------------------------------------------------------------------------------------------


def require_open(locked: Row) -> None:
    if locked["status"] in TERMINAL:
        raise Conflict(
            f"This job is {locked['status']} already.",
            code="job_finished",
            hint="Submit it again with `cortex job resubmit`.",
        )


async def _hold(tx: Transaction, id: UUID, locked: Row, hold: Hold, actor: Actor, reason: str | None) -> bool:
    pause_now = await jobs_store.hold_job(tx, id, hold)
    if pause_now is None:
        return False
    if pause_now:
        await jobs_store.pause_job(tx, id)
        await _say(tx, locked, id, actor, "job_paused", {"reason": reason, "hold": hold}, JobStatus.PAUSED)
    else:
        pending = bool(locked["leased"])
        await append_fact(
            tx, locked, id, actor, "job_held", {"reason": reason, "hold": hold},
            [("status", id, {"status": locked["status"], "pending_pause": pending, "hold": hold})],
        )  # fmt: skip
    return True


async def lift_holds(
    tx: Transaction, id: UUID, locked: Row, holds: Sequence[Hold], actor: Actor, note: str | None
) -> bool:
    said = {"holds": [hold for hold in holds if hold in locked["holds"]], "note": note}
    if locked["status"] == JobStatus.PAUSED:
        status = await jobs_store.wake_job(tx, id, holds)
        if status is None:
            return False
        await _say(tx, locked, id, actor, "job_resumed", said, JobStatus(status))
        return True
    if not await jobs_store.lift_job_hold(tx, id, holds):
        return False
    await append_fact(
        tx, locked, id, actor, "job_released", said,
        [("status", id, {"status": locked["status"], "pending_pause": False})],
    )  # fmt: skip
    return True


async def _say(
    tx: Transaction, locked: Row, id: UUID, actor: Actor, action: str, data: dict[str, Any], status: JobStatus
) -> None:
    await append_fact(tx, locked, id, actor, action, data, [("status", id, {"status": status, **data})])


async def append_fact(
    tx: Transaction,
    locked: Row,
    id: UUID,
    actor: Actor,
    action: str,
    data: dict[str, Any],
    events: Sequence[tuple[str, UUID | None, dict[str, Any]]],
) -> None:
    await proof_store.append_to_session(
        tx, locked["session_id"], [Fact.of(actor, action, job=str(id), **data)], events
    )


async def complete_session(tx: Transaction, actor: Actor, session_id: UUID, id: UUID) -> None:
    """The session ends with its one job, which is completed. Under the locks of both."""
    await end_approvals(tx, session_id, [id], actor, "its session was completed")
    await sessions_store.set_session_status(tx, session_id, SessionStatus.TERMINATED)


async def fail_job(
    tx: Transaction, actor: Actor, session_id: UUID, id: UUID, error: str, *, ends_session: bool = False
) -> None:
    """Under the lock of the job: it fails, and nobody is asked about it any more. ``ends_session``: under the lock of both."""
    await jobs_store.fail_job(tx, id, error)
    if ends_session:
        await sessions_store.set_session_status(tx, session_id, SessionStatus.TERMINATED)
    await end_approvals(tx, session_id, [id], actor, error)
    events: list[tuple[str, UUID | None, dict[str, Any]]] = [
        ("error", id, {"message": error[:500]}),
        ("status", id, {"status": JobStatus.FAILED, "error": error[:500]}),
    ]
    fact = Fact.of(actor, "job_failed", job=str(id), error=error)
    await proof_store.append_to_session(tx, session_id, [fact], events)


async def receipt_of(tx: Transaction, id: UUID, changed: bool) -> SteeringResult:
    job = require_found(await jobs_store.get_job(tx, id, None), "job")
    calls = await jobs_store.last_calls(tx, id)
    return SteeringResult(
        job=job,
        changed=changed,
        pending=job.pending_pause or job.pending_cancel,
        settled=[call.id for call in calls if call.finished_at is not None],
        uncertain=[call.id for call in calls if call.status in IN_DOUBT],
    )


async def _session_receipt(tx: Transaction, id: UUID, changed: bool) -> SessionReceipt:
    session = require_found(await sessions_store.get_session(tx, id, None), "session")
    held = [
        require_found(await jobs_store.get_job(tx, job_id, None), "job")
        for job_id in await jobs_store.lock_open_job(tx, id)
    ]
    return SessionReceipt(
        session=session, changed=changed, pending=any(job.pending_pause for job in held), jobs=held
    )
