"""Calls that run elsewhere and whose outcome nobody knows: the agent said so, or its time is over.

Never a blind re-run: what was declared says how it is settled, and after several uncertain ends a person is asked anyway.
"""

from __future__ import annotations

from uuid import UUID

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.approvals.model.approvals import ApprovalKind, ApprovalStatus
from cortex_plane.approvals.store import approvals
from cortex_plane.approvals.verbs import approval_requests, settlements
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import MAX_SENDS, ExternalCall, OutcomeReceipt
from cortex_plane.calls.store import CallContext
from cortex_plane.calls.verbs.authorization import RequestedCall, context_of, new_request, sight
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.gates.model.gates import UnseenCall
from cortex_plane.gates.verbs import gates
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.effects import Answer, CallStatus, doubt
from cortex_plane.jobs.model.jobs import TERMINAL, JobKind, SteeringResult
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb

SILENT = "its agent began and reported no outcome"


async def reported(
    db: Database, actor: Actor, id: UUID, attempt: int | None, error: str | None
) -> OutcomeReceipt:
    """Whoever ran it does not know. Told twice, nothing changes."""
    seen, given = await _context(db, actor, id)

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
            elif call.status is not CallStatus.UNCERTAIN and not _given_up(call):
                raise Conflict(
                    f"This call is {call.status}.",
                    code="call_settled" if call.finished_at else "call_not_begun",
                    hint="Read it with `cortex call show`.",
                )
        return _receipt(call)

    return await gates.with_gate_record(db, actor.org_id, once)


async def settle_due(db: Database, actor: Actor, id: UUID) -> str | None:
    """For schedulers: an intent whose time is over; None where somebody else was faster."""
    seen, given = await _context(db, actor, id)

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

    return await gates.with_gate_record(db, actor.org_id, once)


@verb(Permission.JOB_SETTLE)
async def answer(db: Database, actor: Actor, job_id: UUID, call_id: UUID, answer: Answer) -> SteeringResult:
    """A person's answer about an uncertain call. Where its agent was to find out, and people had let it be sent, those people are
    asked first: nobody else answers, and answers are counted on the card."""
    async with db.transaction(actor.org_id) as tx:
        job = require_found(await jobs_store.get_job(tx, job_id, actor.sees), "job")
        unasked = job.kind is JobKind.EXTERNAL and await approvals.is_unasked(tx, job_id, call_id)
    if unasked:
        await ask_human(db, actor, call_id)
    return await settlements.settle(db, actor, job_id, call_id, answer)


async def ask_human(db: Database, actor: Actor, id: UUID) -> bool:
    """Returns False: it did not begin. It may not be sent again, and nobody knows whether it happened."""
    seen, given = await _context(db, actor, id)

    async def once(unread: CortexError | None) -> None:
        async with db.transaction(actor.org_id) as tx:
            call, job = await _locked(tx, actor, seen)
            if call.status in (CallStatus.INTENDED, CallStatus.UNCERTAIN) and not _is_asked(call):
                await _settle(tx, actor, given, call, job, call.error or SILENT, unread, human=True)

    await gates.with_gate_record(db, actor.org_id, once)
    return False


async def _context(db: Database, actor: Actor, id: UUID) -> tuple[ExternalCall, CallContext]:
    async with db.transaction(actor.org_id) as tx:
        call = require_found(await calls_store.get_call(tx, id, sight(actor)), "call").call
    return call, await context_of(db, actor, call.session_id, None, call.tool, call.input_hash)


async def _locked(tx: Transaction, actor: Actor, call: ExternalCall) -> tuple[ExternalCall, Row]:
    job = await calls_store.lock_asking(tx, call.job_id, is_open=False)
    return require_found(await calls_store.get_call(tx, call.id, sight(actor)), "call").call, job


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
    told = await gates.record_ended_calls(tx, actor, call.session_id, over, unread)
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


def _given_up(call: ExternalCall) -> bool:
    return call.status is CallStatus.FAILED and call.settled_by == "fail"


def _receipt(call: ExternalCall) -> OutcomeReceipt:
    return OutcomeReceipt(
        id=call.id, status=call.status, approval_id=call.approval_id if _is_asked(call) else None
    )
