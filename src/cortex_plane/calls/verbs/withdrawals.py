"""A call that its agent takes back before it began: nobody is asked about it any more."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.verbs import decisions
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import OutcomeDraft, OutcomeReceipt, RequestedCall
from cortex_plane.calls.rules.pipeline import MAX_ERROR, call_fact, facts_by, outcome_row, result_event
from cortex_plane.calls.verbs.external import RETRY, call_sight, lock_call
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.proof import store as proof_store
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs.frame import require_found

_WITHDRAWABLE = frozenset({
    CallStatus.AWAITING, CallStatus.ALLOWED, CallStatus.APPROVED, CallStatus.CLEARED, CallStatus.PARKED,
})  # fmt: skip


async def withdraw(db: Database, actor: Actor, id: UUID, draft: OutcomeDraft) -> OutcomeReceipt:
    """Under the locks that a decision takes: of both only one counts."""
    if draft.result is not None or draft.probed:
        raise InvalidInput("What is withdrawn did nothing.", field="result", hint="Leave `result` and `probed` out.")
    error = (draft.error or "its agent withdrew it")[:MAX_ERROR]

    async def once() -> OutcomeReceipt:
        async with db.transaction(actor.org_id) as tx:
            seen = require_found(await calls_store.get_call(tx, id, call_sight(actor)), "call").call
            await calls_store.require_its_agent(tx, id, actor.identity)
            row = None
            if seen.status is CallStatus.AWAITING and seen.approval_id is not None:
                row = await approvals_store.open_approval(tx, seen.approval_id)
            call, _ = await lock_call(tx, actor, seen)
            if call.is_withdrawn:
                return OutcomeReceipt(id=id, status=call.status)
            if call.status not in _WITHDRAWABLE:
                raise Conflict(
                    f"This call is {call.status}: it cannot be withdrawn.",
                    code="call_settled" if call.finished_at else "call_in_doubt",
                    hint="Read it with `cortex call show`.",
                )
            if call.status is CallStatus.AWAITING and (row is None or row.approval.id != call.approval_id):
                raise Conflict("People are asked anew about this call.", code=RETRY, hint="Send it again.")
            await calls_store.end_call(tx, outcome_row(id, CallStatus.REJECTED, error=error, settled_by=draft.status))
            if row is not None and call.status is CallStatus.AWAITING:
                await decisions.withdraw_call(tx, row, id, actor, error)
            fact = call_fact(facts_by(actor), "call_withdrawn", RequestedCall.of(call), error=error)
            event = result_event(call.step_index, id, call.tool, CallStatus.REJECTED, error)
            await proof_store.append_to_session(
                tx, call.session_id, [fact], [(event[0], call.job_id, event[1])], job=call.job_id
            )
        return OutcomeReceipt(id=id, status=CallStatus.REJECTED)

    return await decisions.retry_on_conflict(once)
