"""What happens when time passes: reminders, escalation, expiry, and calls whose outcome nobody reported."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import ApprovalKind, ApprovalStatus
from cortex_plane.approvals.rules import deciders
from cortex_plane.approvals.rules.deciders import LockedApproval
from cortex_plane.approvals.verbs import approval_requests, settlements
from cortex_plane.approvals.verbs.decisions import hop_fact, retry_on_conflict, write_end
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import MAX_SENDS, ExternalCall, OutcomeReceipt
from cortex_plane.calls.store import CallContext
from cortex_plane.calls.verbs.authorization import RequestedCall, call_context, call_sight, new_request
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.gates.model.gates import UnseenCall
from cortex_plane.gates.verbs import session_gates
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.effects import Answer, CallStatus, doubt
from cortex_plane.jobs.model.jobs import TERMINAL, JobKind, SteeringResult
from cortex_plane.kernel.errors import Conflict, CortexError, Unavailable
from cortex_plane.kernel.meters import meters
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import SessionStatus
from cortex_plane.tenancy.model.access import Actor, Permission, scheduler_actor
from cortex_plane.tenancy.verbs.frame import require_found, verb

log = structlog.get_logger()

AT_ONCE = 200


@dataclass(slots=True)
class Tick:
    """What one look at the clock did."""

    done: list[str] = field(default_factory=list)
    full: bool = False
    """There may be more that is due already, and something could be done about it."""


async def tick(db: Database, id: UUID, name: str) -> Tick:
    """Act on everything that is due, the oldest deadline first."""
    looked = Tick()
    due = await approvals_store.list_due(db, AT_ONCE)
    idle = await sessions_store.idle_session(db, AT_ONCE)
    silent = await calls_store.due_calls(db, AT_ONCE)
    for org_id, approval_id, _ in due:
        actor = scheduler_actor(org_id, id, name)
        await _each(looked, functools.partial(_approval, db, actor, approval_id))
    for org_id, session_id, _ in idle:
        actor = scheduler_actor(org_id, id, name)
        await _each(looked, functools.partial(_idle_session, db, actor, session_id))
    for org_id, call_id, _ in silent:
        actor = scheduler_actor(org_id, id, name)
        await _each(looked, functools.partial(settle_due, db, actor, call_id))
    looked.full = AT_ONCE in (len(due), len(idle), len(silent)) and bool(looked.done)
    return looked


async def _each(looked: Tick, act: Callable[[], Awaitable[str | None]]) -> None:
    """One that fails must not keep the others from their time."""
    try:
        done = await act()
    except Unavailable:
        raise
    except CortexError as error:
        log.warning("deadline not kept yet", error=str(error))
        return
    except Exception:
        # A defect of ours, or a row that nobody foresaw: loud, and no harm to what is due after it.
        log.exception("deadline not kept")
        return
    if done is not None:
        looked.done.append(done)


@dataclass(frozen=True, slots=True)
class Acted:
    """What a scheduler did to an approval."""

    what: str
    template: str
    level: int


async def _approval(db: Database, actor: Actor, id: UUID) -> str | None:
    acted = await act_when_due(db, actor, id)
    return acted.what if acted else None


async def act_when_due(db: Database, actor: Actor, id: UUID) -> Acted | None:
    """Remind, escalate or expire, whichever is due; None where somebody else was faster."""
    acted = await retry_on_conflict(lambda: _act_when_due(db, actor, id))
    if acted is not None and acted.what == "expired":
        db.hints.work()
        meters().expired(actor.org_id, acted.template)
    if acted is not None and acted.what == "escalated":
        meters().escalated(actor.org_id, acted.template, acted.level)
    return acted


async def _act_when_due(db: Database, actor: Actor, id: UUID) -> Acted | None:
    async with db.transaction(actor.org_id) as tx:
        if not await approvals_store.take_due(tx, id):
            return None
        opened = await approvals_store.open_approval(tx, id)
        if opened is None or opened.approval.status is not ApprovalStatus.PENDING:
            return None
        request, level = opened.approval, opened.approval.escalation_level
        if request.deadline is not None and request.deadline <= opened.now:
            await _expire(tx, opened, actor)
            return Acted("expired", request.template, level)
        if level < len(opened.level_times) and opened.level_times[level] <= opened.now:
            return Acted("escalated", request.template, await _escalate(tx, opened, actor))
        if (
            opened.remind_at is None
            or opened.remind_at > opened.now
            or not await approvals_store.remind_approvers(tx, id)
        ):
            return None
        await _reminded(tx, opened, actor)
        return Acted("reminded", request.template, level)


async def _reminded(tx: Transaction, opened: LockedApproval, actor: Actor) -> None:
    """Whoever became somebody who may decide, or can be reached, since the request was made hears of it now."""
    request = opened.approval
    hops = await approvals_store.record_reach(tx, request.id)
    facts = [
        Fact.of(actor, "approval_reminded", approval=str(request.id)),
        *(hop_fact(actor, request.id, hop) for hop in hops),
    ]
    told = {"approval_id": str(request.id)}
    await proof_store.append_to_session(
        tx, request.session_id, facts, [("approval_reminded", request.job_id, told)], job=request.job_id
    )


async def _expire(tx: Transaction, opened: LockedApproval, actor: Actor) -> None:
    request = opened.approval
    closing = deciders.expired(opened)
    deadline = request.deadline.isoformat() if request.deadline else None
    told = {"approval": str(request.id), "tool": request.tool_name, "deadline": deadline}
    await write_end(
        tx, opened, closing, actor, [{"approval": str(request.id), "type": "expired"}],
        Fact.of(actor, "approval_expired", **told),
        ("approval_expired", request.job_id, {"approval_id": str(request.id)}), version=request.version,
    )  # fmt: skip


async def _escalate(tx: Transaction, opened: LockedApproval, actor: Actor) -> int:
    """One level up: more people may decide. The deadline stays."""
    request = opened.approval
    added = opened.levels[request.escalation_level]
    level = await approvals_store.escalate_approval(tx, request.id, deciders.joined(request.approvers, added))
    hops = await approvals_store.record_reach(tx, request.id)
    facts = [
        Fact.of(
            actor,
            "approval_escalated",
            approval=str(request.id),
            level=level,
            to=deciders.describe_approvers(added),
        ),
        *(hop_fact(actor, request.id, hop) for hop in hops),
    ]
    told = {"approval_id": str(request.id), "level": level}
    await proof_store.append_to_session(
        tx, request.session_id, facts, [("approval_escalated", request.job_id, told)], job=request.job_id
    )
    return level


async def _idle_session(db: Database, actor: Actor, id: UUID) -> str | None:
    """A conversation in which nobody says anything is paused; the next message makes it active again."""
    async with db.transaction(actor.org_id) as tx:
        locked = await sessions_store.lock_session(tx, id, None)
        if locked is None or not await sessions_store.went_idle(tx, id):
            return None
        await sessions_store.set_session_status(tx, id, SessionStatus.PAUSED)
        await proof_store.append_to_session(
            tx, id, [Fact.of(actor, "session_paused", reason="idle")],
            [("session_paused", None, {"reason": "idle", "pause_source": "idle"})],
        )  # fmt: skip
    return "idle"


async def seconds_to_next(db: Database) -> float | None:
    """Until the next deadline; None where there is none."""
    rows = await db.call("next_deadline", None)
    seconds: float | None = rows[0]["next_deadline"]
    return seconds


SILENT = "its agent began and reported no outcome"


async def record_reported(
    db: Database, actor: Actor, id: UUID, attempt: int | None, error: str | None
) -> OutcomeReceipt:
    """Whoever ran it does not know. Told twice, nothing changes."""
    seen, given = await _doubt_context(db, actor, id)

    async def once(unread: CortexError | None) -> OutcomeReceipt:
        async with db.transaction(actor.org_id) as tx:
            call, job = await _locked(tx, actor, seen)
            await calls_store.require_its_agent(tx, id, actor.identity)
            if attempt is not None and call.attempt != attempt:
                raise Conflict(
                    f"This is the outcome of attempt {attempt}, and the call is at attempt {call.attempt}.",
                    code="attempt_over",
                    hint="Whoever began the last attempt reports its outcome.",
                )
            if call.status is CallStatus.INTENDED:
                call = await _settle(tx, actor, given, call, job, error or "it may have happened", unread)
            elif call.status is not CallStatus.UNCERTAIN and not _give_up(call):
                raise Conflict(
                    f"This call is {call.status}.",
                    code="call_settled" if call.finished_at else "call_not_begun",
                    hint="Read it with `cortex call show`.",
                )
        return _settled_receipt(call)

    return await session_gates.with_gate_record(db, actor.org_id, once)


async def settle_due(db: Database, actor: Actor, id: UUID) -> str | None:
    """For schedulers: an intent whose time is over; None where somebody else was faster."""
    seen, given = await _doubt_context(db, actor, id)

    async def once(unread: CortexError | None) -> str | None:
        async with db.transaction(actor.org_id) as tx:
            call, job = await _locked(tx, actor, seen)
            if (
                call.status is not CallStatus.INTENDED
                or call.settle_after is None
                or call.now < call.settle_after
            ):
                return None
            await _settle(tx, actor, given, call, job, SILENT, unread)
        return "doubted"

    return await session_gates.with_gate_record(db, actor.org_id, once)


@verb(Permission.JOB_SETTLE)
async def answer_doubt(
    db: Database, actor: Actor, job_id: UUID, call_id: UUID, answer: Answer
) -> SteeringResult:
    """A person's answer about an uncertain call. Where its agent was to find out, and people had let it be sent, those people are
    asked first: nobody else answers, and answers are counted on the card."""
    async with db.transaction(actor.org_id) as tx:
        job = require_found(await jobs_store.get_job(tx, job_id, actor.sees), "job")
        unasked = job.kind is JobKind.EXTERNAL and await approvals_store.is_unasked(tx, job_id, call_id)
    if unasked:
        await ask_human(db, actor, call_id)
    return await settlements.settle(db, actor, job_id, call_id, answer)


async def ask_human(db: Database, actor: Actor, id: UUID) -> bool:
    """Returns False: it did not begin. It may not be sent again, and nobody knows whether it happened."""
    seen, given = await _doubt_context(db, actor, id)

    async def once(unread: CortexError | None) -> None:
        async with db.transaction(actor.org_id) as tx:
            call, job = await _locked(tx, actor, seen)
            if call.status in (CallStatus.INTENDED, CallStatus.UNCERTAIN) and not _is_asked(call):
                await _settle(tx, actor, given, call, job, call.error or SILENT, unread, human=True)

    await session_gates.with_gate_record(db, actor.org_id, once)
    return False


async def _doubt_context(db: Database, actor: Actor, id: UUID) -> tuple[ExternalCall, CallContext]:
    async with db.transaction(actor.org_id) as tx:
        call = require_found(await calls_store.get_call(tx, id, call_sight(actor)), "call").call
    return call, await call_context(db, actor, call.session_id, None, call.tool, call.input_hash)


async def _locked(tx: Transaction, actor: Actor, call: ExternalCall) -> tuple[ExternalCall, Row]:
    job = await calls_store.lock_asking(tx, call.job_id, is_open=False)
    return require_found(await calls_store.get_call(tx, call.id, call_sight(actor)), "call").call, job


async def _settle(
    tx: Transaction, actor: Actor, given: CallContext, call: ExternalCall, job: Row, error: str,
    unread: CortexError | None, *, human: bool = False,
) -> ExternalCall:  # fmt: skip
    gives_up = call.on_uncertain is OnUncertain.FAIL or job["status"] in TERMINAL
    asks = human or call.on_uncertain is OnUncertain.ASK_HUMAN or call.attempt >= MAX_SENDS
    status = CallStatus.FAILED if gives_up else CallStatus.UNCERTAIN
    if gives_up:
        error = f"Nobody knows whether it happened, and nobody is asked: {error}"
    error = error[:4000]
    said = {
        "call": str(call.id),
        "tool": call.tool,
        "status": status,
        "attempt": call.attempt,
        "error": error,
    }
    facts = [Fact.of(actor, "call_settled" if gives_up else "call_uncertain", **said)]
    events = [
        ("tool_result", call.job_id, {
            "step": call.step_index, "id": str(call.id), "tool": call.tool, "status": status, "error": error[:500]})
    ]  # fmt: skip
    if asks and not gives_up:
        request = new_request(
            given, RequestedCall.of(call).known(given), call.step_index, "on_uncertain", approval_requests.SETTLERS, question=_question(call, error)
        )  # fmt: skip
        made = await approval_requests.request(tx, actor, given, job, request)
        facts += made.facts
        events.append((made.event[0], call.job_id, made.event[1]))
    await calls_store.doubt_call(tx, call.id, status, error)
    over = [UnseenCall(action=call.tool, error=error)] if gives_up else []
    told = await session_gates.record_ended_calls(tx, actor, call.session_id, over, unread)
    by_gates = [(kind, call.job_id, data) for kind, data in told.events]
    await proof_store.append_to_session(
        tx, call.session_id, [*facts, *told.facts], [*events, *by_gates], job=call.job_id
    )
    return require_found(await calls_store.get_call(tx, call.id, None), "call").call


def _question(call: ExternalCall, error: str) -> str:
    if error != SILENT:
        return doubt(call.tool, error)
    return (
        f"`{call.tool}` began elsewhere and its agent reported no outcome, so the plane cannot tell whether it happened."
        " Look at the outside world, then answer: happened, did_not_happen or fail."
    )


def _is_asked(call: ExternalCall) -> bool:
    return (
        call.approval_kind is ApprovalKind.UNCERTAIN_EFFECT and call.approval_status is ApprovalStatus.PENDING
    )


def _give_up(call: ExternalCall) -> bool:
    return call.status is CallStatus.FAILED and call.settled_by == "fail"


def _settled_receipt(call: ExternalCall) -> OutcomeReceipt:
    return OutcomeReceipt(
        id=call.id, status=call.status, approval_id=call.approval_id if _is_asked(call) else None
    )
