"""Steering jobs: pause, resume, cancel, and answers about what nobody knows.

Each gives a receipt, and asking twice changes nothing. A job that a worker runs stops at its next boundary, so that no
call is left without its outcome; until then the receipt says ``pending``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from cortex_plane.domain import deciding
from cortex_plane.domain.access import Actor, Permission
from cortex_plane.domain.approvals import ApprovalStatus, Channel, Choice
from cortex_plane.domain.audit import Fact
from cortex_plane.domain.canonical import canonical
from cortex_plane.domain.deciding import Opened
from cortex_plane.domain.effects import (
    IN_DOUBT,
    MAX_REPEATS,
    Answer,
    CallStatus,
    Question,
    ToolCall,
    Verdict,
    question,
    repeats_used_up,
)
from cortex_plane.domain.errors import Conflict, CortexError
from cortex_plane.domain.gates import Missed
from cortex_plane.domain.jobs import (
    TERMINAL,
    Cancellation,
    Hold,
    JobKind,
    JobStatus,
    Pause,
    Receipt,
    Resumption,
    SessionReceipt,
    Step,
)
from cortex_plane.domain.sessions import SessionStatus
from cortex_plane.operations import decisions, gates
from cortex_plane.operations.meters import meters
from cortex_plane.operations.sessions import end_approvals
from cortex_plane.operations.verbs import found, verb
from cortex_plane.storage import approvals, audit, jobs, journal, sessions, steps
from cortex_plane.storage.database import Database, Row, Transaction
from cortex_plane.storage.pool import Purpose

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
async def cancel(db: Database, actor: Actor, id: UUID, cancellation: Cancellation) -> Receipt:
    """Cancelling a cancelled job changes nothing; a job that ended otherwise is a conflict."""
    async with db.transaction(actor.org_id) as tx:
        locked = found(await jobs.lock(tx, id, actor.sees), "job")
        if locked["status"] in TERMINAL - {JobStatus.CANCELLED}:
            raise Conflict(f"This job is {locked['status']} already.", code="job_finished")
        why = cancellation.reason or f"cancelled by {actor.name}"
        changed = False
        if await jobs.cancel(tx, id, why):
            changed = True
            await end_approvals(tx, locked["session_id"], [id], actor, why)
            await _say(tx, locked, id, actor, "job_cancelled", {"reason": why}, JobStatus.CANCELLED)
        elif await jobs.request_cancel(tx, id, why):
            changed = True
            await _append(
                tx, locked, id, actor, "job_cancel_requested", {"reason": why},
                [("status", id, {"pending_cancel": True, "reason": why})],
            )  # fmt: skip
        return await _receipt(tx, id, changed)


@verb(Permission.JOB_STEER)
async def pause(db: Database, actor: Actor, id: UUID, pause: Pause) -> Receipt:
    """Hold a job until somebody resumes it. Pausing a paused one changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        locked = found(await jobs.lock(tx, id, actor.sees), "job")
        _require_open(locked)
        hold = Hold.OPERATOR if actor.sees is None else Hold.OWNER
        changed = await _hold(tx, id, locked, hold, actor, pause.reason)
        receipt = await _receipt(tx, id, changed)
    _count_pause(actor, changed, receipt.pending)
    return receipt


@verb(Permission.JOB_STEER)
async def resume(db: Database, actor: Actor, id: UUID, resumption: Resumption) -> Receipt:
    """Lift what an operator may lift. Resuming what is not held changes nothing."""
    async with db.transaction(actor.org_id) as tx:
        locked = found(await jobs.lock(tx, id, actor.sees), "job")
        _require_open(locked)
        changed = await _lift(tx, id, locked, _may_lift(actor), actor, resumption.note)
        receipt = await _receipt(tx, id, changed)
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
        locked = found(await sessions.lock(tx, id, actor.sees), "session")
        if locked["status"] == SessionStatus.TERMINATED:
            raise Conflict("This session has ended.", code="session_terminated", hint="Open a new session.")
        changed = await sessions.hold(tx, id, pause.reason or f"paused by {actor.name}")
        if changed:
            for job_id in await jobs.lock_open(tx, id):
                job = found(await jobs.lock(tx, job_id, None), "job")
                await _hold(tx, job_id, job, Hold.SESSION, actor, pause.reason)
            await audit.append_to_session(
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
        found(await sessions.lock(tx, id, actor.sees), "session")
        changed = await sessions.release(tx, id)
        if changed:
            for job_id in await jobs.lock_open(tx, id):
                job = found(await jobs.lock(tx, job_id, None), "job")
                await _lift(tx, job_id, job, (Hold.SESSION,), actor, resumption.note)
            await audit.append_to_session(
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
        found(await jobs.get(tx, id, actor.sees), "job")
        return await steps.list_steps(tx, id, above, limit)


@verb(Permission.JOB_READ)
async def stored_result(db: Database, actor: Actor, id: UUID, result_id: UUID) -> bytes:
    """A result that was too large for its step."""
    async with db.transaction(actor.org_id) as tx:
        found(await jobs.get(tx, id, actor.sees), "job")
        return found(await steps.stored_result(tx, id, result_id), "result")


@verb(Permission.JOB_READ)
async def checkpoint(db: Database, actor: Actor, id: UUID) -> dict[str, Any]:
    """The job's durable state, as it would be resumed from."""
    async with db.transaction(actor.org_id) as tx:
        found(await jobs.get(tx, id, actor.sees), "job")
        return found(await jobs.checkpoint(tx, id), "checkpoint")


@verb(Permission.JOB_READ)
async def questions(db: Database, actor: Actor, id: UUID) -> list[Question]:
    """Calls of a job of which nobody knows whether they happened."""
    async with db.transaction(actor.org_id) as tx:
        found(await jobs.get(tx, id, actor.sees), "job")
        calls = await steps.open_calls(tx, id)
    return [question(call) for call in calls if call.status is CallStatus.UNCERTAIN]


@verb(Permission.JOB_SETTLE)
async def settle(db: Database, actor: Actor, id: UUID, call_id: UUID, answer: Answer) -> Receipt:
    """A person's answer about an uncertain call. With the last one that is needed the job goes on, unless something else holds it."""
    db = db.own(Purpose.DECISIONS)

    async def once(unread: CortexError | None) -> tuple[Receipt, CortexError | None]:
        async with db.transaction(actor.org_id) as tx:
            refused = await settled(tx, actor, id, call_id, answer, Channel.API, unread)
            return await _receipt(tx, id, refused is None), refused

    receipt, refused = await gates.recording(db, actor.org_id, once)
    if refused is not None:
        raise refused
    db.hints.work()
    return receipt


async def settled(
    tx: Transaction, actor: Actor, id: UUID, call_id: UUID, answer: Answer, channel: Channel,
    unread: CortexError | None = None, *, by_card: bool = False,
) -> CortexError | None:  # fmt: skip
    """The answer and what follows from it, through whatever door it came; its card ends with the last answer that is needed. Returns
    why it was refused, which is on the trail then. ``unread``: why the gates of its session cannot look on. ``by_card``: whoever sees the card may answer
    it, also where they do not see the job."""
    locked = found(await jobs.lock(tx, id, None if by_card else actor.sees), "job")
    call = found(await steps.get_call(tx, id, call_id), "call")
    if call.status is not CallStatus.UNCERTAIN:
        raise Conflict(
            f"This call is {call.status}; there is nothing to settle.",
            code="call_settled",
            hint="Read its step with `cortex job steps`.",
        )
    _require_open(locked)
    card = await approvals.of_uncertain(tx, id, call_id)
    if card is None and locked["kind"] == JobKind.EXTERNAL and await approvals.is_unasked(tx, id, call_id):
        raise Conflict(
            "Those who let this call be sent are not asked about it yet.",
            code="not_asked_yet",
            hint="Send the answer again.",
        )
    if card is not None:
        opened = found(await approvals.open_one(tx, card, actor, channel), "approval")
        refused = await _refusal(tx, opened, actor, call_id, answer)
        if refused is not None:
            await decisions.note(tx, opened, actor, channel, answer.verdict, opened.approval.version, refused)
            return refused
        if answer.verdict is not Verdict.FAIL and not deciding.agrees(opened, actor, _said(answer)):
            await approvals.vote_answer(
                tx, opened, actor, answer.note, channel, _said(answer), answer.verdict
            )
            voted = {
                "call": str(call_id),
                "tool": call.tool_name,
                "verdict": answer.verdict,
                "approval": str(card),
                "answer": _said(answer),
            }
            shown = [("approval_voted", id, {"approval_id": str(card), "by": actor.name})]
            await _append(tx, locked, id, actor, "approval_vote", voted, shown)
            return None
        ends_as = ApprovalStatus.DENIED if answer.verdict is Verdict.FAIL else ApprovalStatus.APPROVED
        await approvals.answer(tx, card, ends_as, actor, answer.note, channel, answer.verdict)
    status = {
        Verdict.HAPPENED: CallStatus.COMPLETED,
        Verdict.DID_NOT_HAPPEN: CallStatus.CLEARED,
        Verdict.FAIL: CallStatus.FAILED,
    }[answer.verdict]
    result = await steps.answer(tx, call_id, status, answer, actor.name)
    digest = None if result is None else hashlib.sha256(canonical(result)).hexdigest()
    said = {"call": str(call_id), "tool": call.tool_name, "verdict": answer.verdict, "note": answer.note}
    over = await _over(tx, locked, id, call, status, answer)
    by_gates = await gates.ended(tx, actor, locked["session_id"], over, unread)
    proof = {**said, "approval": str(card) if card is not None else None, "result_hash": digest}
    await _append(tx, locked, id, actor, "effect_settled", proof, [("effect_settled", id, said)])
    if by_gates.facts:
        events = [(kind, id, data) for kind, data in by_gates.events]
        await audit.append_to_session(tx, locked["session_id"], by_gates.facts, events, job=id)
    if answer.verdict is Verdict.FAIL and locked["kind"] != JobKind.EXTERNAL:
        error = f"`{call.tool_name}` of step {call.step_index} was given up by {actor.name}: {answer.note or 'no reason'}"
        await jobs.fail(tx, id, error)
        await end_approvals(tx, locked["session_id"], [id], actor, error)
        told = [
            ("error", id, {"message": error[:500]}),
            ("status", id, {"status": JobStatus.FAILED, "error": error[:500]}),
        ]
        await _append(tx, locked, id, actor, "job_failed", {"error": error}, told)
    elif not [c for c in await steps.open_calls(tx, id) if c.status is CallStatus.UNCERTAIN]:
        await _lift(tx, id, locked, (Hold.UNCERTAIN_EFFECT,), actor, answer.note)
    return None


async def _refusal(
    tx: Transaction, opened: Opened, actor: Actor, call_id: UUID, answer: Answer
) -> CortexError | None:
    choice = Choice.DENIED if answer.verdict is Verdict.FAIL else Choice.APPROVED
    refused = deciding.may_settle(opened, actor, choice)
    if refused is not None or answer.verdict is not Verdict.DID_NOT_HAPPEN:
        return refused
    return repeats_used_up() if await approvals.repeats(tx, call_id) >= MAX_REPEATS else None


def _said(answer: Answer) -> str:
    """Answers count together where verdict and result are the same."""
    result = hashlib.sha256(canonical(answer.result)).hexdigest() if answer.result is not None else ""
    return f"{answer.verdict}:{result}"


async def _over(
    tx: Transaction, locked: Row, id: UUID, call: ToolCall, status: CallStatus, answer: Answer
) -> list[Missed]:
    """The call, where it ends here. What a worker goes on with it tells gates of itself; where its job ends, or code only reads
    in its journal what it came to, that is never. What ran before it in the same response was told before it was sent."""
    if status is CallStatus.CLEARED:
        return []
    if status is CallStatus.COMPLETED and locked["kind"] != JobKind.EXTERNAL:
        known = await journal.list_page(tx, id, call.step_index - 1, 1)
        if not any(entry.position == call.step_index for entry in known):
            return []
    given_up = f"`{call.tool_name}` was given up: {answer.note or 'no reason'}"
    return [Missed(action=call.tool_name, error=given_up if status is CallStatus.FAILED else None)]


# Shared ----------------------------------------------------------------------------------------------------------


def _require_open(locked: Row) -> None:
    if locked["status"] in TERMINAL:
        raise Conflict(
            f"This job is {locked['status']} already.",
            code="job_finished",
            hint="Submit it again with `cortex job resubmit`.",
        )


async def _hold(tx: Transaction, id: UUID, locked: Row, hold: Hold, actor: Actor, reason: str | None) -> bool:
    pause_now = await jobs.hold(tx, id, hold)
    if pause_now is None:
        return False
    if pause_now:
        await jobs.pause(tx, id)
        await _say(tx, locked, id, actor, "job_paused", {"reason": reason, "hold": hold}, JobStatus.PAUSED)
    else:
        pending = bool(locked["leased"])
        await _append(
            tx, locked, id, actor, "job_held", {"reason": reason, "hold": hold},
            [("status", id, {"status": locked["status"], "pending_pause": pending, "hold": hold})],
        )  # fmt: skip
    return True


async def _lift(
    tx: Transaction, id: UUID, locked: Row, holds: Sequence[Hold], actor: Actor, note: str | None
) -> bool:
    said = {"holds": [hold for hold in holds if hold in locked["holds"]], "note": note}
    if locked["status"] == JobStatus.PAUSED:
        status = await jobs.wake(tx, id, holds)
        if status is None:
            return False
        await _say(tx, locked, id, actor, "job_resumed", said, JobStatus(status))
        return True
    if not await jobs.lift(tx, id, holds):
        return False
    await _append(
        tx, locked, id, actor, "job_released", said,
        [("status", id, {"status": locked["status"], "pending_pause": False})],
    )  # fmt: skip
    return True


async def _say(
    tx: Transaction, locked: Row, id: UUID, actor: Actor, action: str, data: dict[str, Any], status: JobStatus
) -> None:
    await _append(tx, locked, id, actor, action, data, [("status", id, {"status": status, **data})])


async def _append(
    tx: Transaction,
    locked: Row,
    id: UUID,
    actor: Actor,
    action: str,
    data: dict[str, Any],
    events: Sequence[tuple[str, UUID | None, dict[str, Any]]],
) -> None:
    await audit.append_to_session(
        tx, locked["session_id"], [Fact.of(actor, action, job=str(id), **data)], events
    )


async def _receipt(tx: Transaction, id: UUID, changed: bool) -> Receipt:
    job = found(await jobs.get(tx, id, None), "job")
    calls = await steps.last_calls(tx, id)
    return Receipt(
        job=job,
        changed=changed,
        pending=job.pending_pause or job.pending_cancel,
        settled=[call.id for call in calls if call.finished_at is not None],
        uncertain=[call.id for call in calls if call.status in IN_DOUBT],
    )


async def _session_receipt(tx: Transaction, id: UUID, changed: bool) -> SessionReceipt:
    session = found(await sessions.get(tx, id, None), "session")
    held = [found(await jobs.get(tx, job_id, None), "job") for job_id in await jobs.lock_open(tx, id)]
    return SessionReceipt(
        session=session, changed=changed, pending=any(job.pending_pause for job in held), jobs=held
    )
