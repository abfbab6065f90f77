"""What became of a call: its outcome as its agent reports it, and what follows where nobody knows it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from uuid import UUID

from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import ExternalCall, OutcomeDraft, OutcomeReceipt, OutcomeStatus, RequestedCall
from cortex_plane.calls.rules.pipeline import MAX_ERROR, call_fact, facts_by, outcome_row, result_event
from cortex_plane.calls.store import CallContext, EndedGatedCall
from cortex_plane.calls.verbs import withdrawals
from cortex_plane.calls.verbs.call_approvals import ask_about_doubt
from cortex_plane.calls.verbs.external import call_context, call_sight, lock_call, retry_under_session_lock
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.gates.model.gates import GateRecord, UnseenCall
from cortex_plane.gates.verbs import session_gates
from cortex_plane.jobs.model.effects import CallStatus, Settlement, doubt, settlement
from cortex_plane.jobs.model.jobs import TERMINAL
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError, InvalidInput
from cortex_plane.proof import store as proof_store
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb


@verb(Permission.JOB_SUBMIT)
async def settle_call(db: Database, actor: Actor, id: UUID, draft: OutcomeDraft) -> OutcomeReceipt:
    """What became of it. Told twice the same, nothing changes."""
    if draft.status is OutcomeStatus.UNKNOWN:
        if draft.result is not None or draft.probed:
            raise InvalidInput(
                "Whoever knows a result knows what happened.", field="result", hint="Send `completed` with it."
            )
        return await record_reported(db, actor, id, draft.attempt, draft.error)
    if draft.status is OutcomeStatus.PARKED:
        return await _park(db, actor, id, draft)
    if draft.status is OutcomeStatus.WITHDRAWN:
        return await withdrawals.withdraw(db, actor, id, draft)
    return await _settle(db, actor, id, draft)


async def _park(db: Database, actor: Actor, id: UUID, draft: OutcomeDraft) -> OutcomeReceipt:
    if draft.result is not None or draft.probed:
        raise InvalidInput("What is parked did nothing.", field="result", hint="Leave `result` and `probed` out.")
    if draft.attempt is None:
        # Sent late, it would let the next attempt begin a second time while that one is under way.
        raise InvalidInput(
            "`parked` needs the attempt that it is about.",
            field="attempt",
            hint="Send the `attempt` of the call that ran.",
        )
    try:
        return await _settle(db, actor, id, draft)
    except Conflict as error:
        if error.code != "external_over":
            raise
    # Nobody begins it again: it did nothing, and that is how it ends.
    ending = replace(draft, status=OutcomeStatus.FAILED, error=draft.error or "it was parked when its session was over")
    return await _settle(db, actor, id, ending)


async def _settle(db: Database, actor: Actor, id: UUID, draft: OutcomeDraft) -> OutcomeReceipt:
    if draft.status is OutcomeStatus.FAILED and draft.result is not None:
        raise InvalidInput("What failed has no result.", field="result", hint="Say what went wrong in `error`.")
    if draft.status is OutcomeStatus.COMPLETED and draft.error is not None:
        raise InvalidInput("What is completed has no error.", field="error", hint="Leave `error` out.")
    status = CallStatus(draft.status.value)
    is_parked = status is CallStatus.PARKED
    result = canonical(draft.result) if status is CallStatus.COMPLETED else None
    error = (draft.error or "it failed, and nothing happened") if status is CallStatus.FAILED else None
    error = draft.error if is_parked else error
    by = "probe" if draft.probed else None
    outcome = outcome_row(id, status, result=1 if result is not None else None, error=error, settled_by=by)
    digest = hashlib.sha256(result).hexdigest() if result is not None else None
    fact = facts_by(actor)(
        "call_parked" if is_parked else "call_settled", call=str(id), status=status, attempt=draft.attempt, result_hash=digest, error=error,
        settled_by=by,
    )  # fmt: skip

    async def written(db: Database, record: GateRecord | None) -> EndedGatedCall | None:
        events, facts = (record.events, record.facts) if record is not None else ((), ())
        more = None if record is None else {"gates": record.written} if record.written else {}
        return await calls_store.settle_call(
            db, actor, id, draft.attempt, outcome, result, [result_event(None, id, None, status, error), *events],
            [fact, *facts], more,
        )  # fmt: skip

    # Gates look at what is over, and this goes on.
    if (ended_call := await written(db, GateRecord() if is_parked else None)) is not None:
        # Only a session that has gates pays for the look at them.
        first = [ended_call]

        async def once(db: Database) -> None:
            seen = first.pop() if first else await written(db, None)
            if seen is not None:
                over = [UnseenCall(action=seen.tool, error=error)]
                await written(db, await session_gates.after(db, actor, seen.bound, seen.at, over))

        await retry_under_session_lock(db, actor, once, session=ended_call.session_id)
    return OutcomeReceipt(id=id, status=status)


SILENT = "its agent began and reported no outcome"


async def record_reported(
    db: Database, actor: Actor, id: UUID, attempt: int | None, error: str | None
) -> OutcomeReceipt:
    """Whoever ran it does not know. Told twice, nothing changes."""
    seen, context = await doubt_context(db, actor, id)

    async def once(unread: CortexError | None) -> OutcomeReceipt:
        async with db.transaction(actor.org_id) as tx:
            call, job = await lock_call(tx, actor, seen)
            await calls_store.require_its_agent(tx, id, actor.identity)
            if attempt is not None and call.attempt != attempt:
                raise Conflict(
                    f"This is the outcome of attempt {attempt}, and the call is at attempt {call.attempt}.",
                    code="attempt_over",
                    hint="Whoever began the last attempt reports its outcome.",
                )
            if call.status is CallStatus.INTENDED:
                error_text = error or "it may have happened"
                call = await settle_doubt(tx, actor, context, call, job, error_text, unread, is_reported=True)
            elif call.status is CallStatus.UNCERTAIN:
                # From now on it is more than its silence: only the answer of a person, or a known outcome, ends the doubt.
                row = outcome_row(call.id, call.status, error=call.error, is_reported=True)
                await calls_store.end_call(tx, row)
            elif not (call.status is CallStatus.FAILED and call.settled_by == "fail"):
                raise Conflict(
                    f"This call is {call.status}.",
                    code="call_settled" if call.finished_at else "call_not_begun",
                    hint="Read it with `cortex call show`.",
                )
        return OutcomeReceipt(id=call.id, status=call.status, approval_id=call.approval_id if call.is_asked else None)

    return await session_gates.with_gate_record(db, actor.org_id, once)


async def doubt_context(db: Database, actor: Actor, id: UUID) -> tuple[ExternalCall, CallContext]:
    async with db.transaction(actor.org_id) as tx:
        call = require_found(await calls_store.get_call(tx, id, call_sight(actor)), "call").call
    return call, await call_context(db, actor, call.session_id, None, call.tool, call.input_hash)


async def settle_doubt(
    tx: Transaction, actor: Actor, context: CallContext, call: ExternalCall, job: Row, error: str,
    unread: CortexError | None, *, human: bool = False, is_reported: bool = False,
) -> ExternalCall:  # fmt: skip
    """``is_reported``: its agent itself says that nobody knows; else it is silent."""
    choice = settlement(call.on_uncertain, call.now, call.now, call.attempt)
    is_over = job["status"] in TERMINAL
    gives_up = choice is Settlement.FAIL or (is_over and not await calls_store.outlives_session(tx, call.id))
    # In a session that is over its agent does not find out.
    asks = human or is_over or choice is Settlement.ASK_HUMAN
    status = CallStatus.FAILED if gives_up else CallStatus.UNCERTAIN
    if gives_up:
        error = f"Nobody knows whether it happened, and nobody is asked: {error}"
    error = error[:MAX_ERROR]
    requested_call, action = RequestedCall.of(call), "call_settled" if gives_up else "call_uncertain"
    facts = [call_fact(facts_by(actor), action, requested_call, status=status, attempt=call.attempt, error=error)]
    events = [result_event(call.step_index, call.id, call.tool, status, error)]
    if asks and not gives_up:
        request = await ask_about_doubt(tx, actor, context, call, job, _question(call, error))
        facts += request.facts
        events.append(request.event)
    settled_by = "fail" if gives_up else None
    await calls_store.end_call(
        tx, outcome_row(call.id, status, error=error, settled_by=settled_by, is_reported=is_reported)
    )
    record = GateRecord()
    if gives_up:
        record = await session_gates.record_ended_call(tx, actor, call.session_id, call.tool, error, unread)
    entries = [(kind, call.job_id, data) for kind, data in (*events, *record.events)]
    await proof_store.append_to_session(tx, call.session_id, [*facts, *record.facts], entries, job=call.job_id)
    return require_found(await calls_store.get_call(tx, call.id, None), "call").call


async def end_cleared(db: Database, actor: Actor, seen: ExternalCall) -> None:
    """A call that did not happen ends with its session, which is over: whoever comes with its key asks for a new call."""
    async with db.transaction(actor.org_id) as tx:
        call, job = await lock_call(tx, actor, seen)
        if call.status is not CallStatus.CLEARED or job["status"] not in TERMINAL:
            return
        error = "It did not happen, and its session is over."
        row = outcome_row(call.id, CallStatus.FAILED, error=error, settled_by=call.settled_by)
        await calls_store.end_call(tx, row)
        await calls_store.release_keys(tx, call.id)
        fact = call_fact(
            facts_by(actor), "call_settled", RequestedCall.of(call), status=CallStatus.FAILED, attempt=call.attempt,
            error=error,
        )  # fmt: skip
        kind, data = result_event(call.step_index, call.id, call.tool, CallStatus.FAILED, error)
        await proof_store.append_to_session(tx, call.session_id, [fact], [(kind, call.job_id, data)], job=call.job_id)


def _question(call: ExternalCall, error: str) -> str:
    if error != SILENT:
        return doubt(call.tool, error)
    return (
        f"`{call.tool}` began elsewhere and its agent reported no outcome, so the plane cannot tell whether it happened."
        " Look at the outside world, then answer: happened, did_not_happen or fail."
    )
