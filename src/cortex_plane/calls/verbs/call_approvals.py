"""What people say about a call that runs elsewhere: the request that asks them, and the grant that they gave."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.verbs import approval_requests
from cortex_plane.approvals.verbs.approval_requests import SETTLERS, Possible, RequestOutcome
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import ExternalCall, RequestedCall
from cortex_plane.calls.rules.pipeline import CallVerdict, call_request
from cortex_plane.calls.store import CallContext
from cortex_plane.calls.verbs.earlier_approvals import receipt_fault
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.jobs.model.effects import PARKS_OF_A_GRANT, REPEATS_OF_A_GRANT, CallStatus
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import OnDeny
from cortex_plane.tenancy.model.access import Actor

Asked = tuple[RequestOutcome, list[tuple[str, dict[str, Any]]]]
"""What became of a request, and the events of it."""


async def terms_of(db: Database, context: CallContext, verdict: CallVerdict, again: UUID | None = None) -> Possible:
    """The terms as far as people can fulfil them. A no ends the call and not the session: its agent goes on."""
    decision, times = verdict.answer.decision, context.skills.approval
    possible = await approval_requests.feasible_terms(db, context, decision, times, 0, context.askers, again=again)
    if possible.terms is None:
        return possible
    return replace(possible, terms=replace(possible.terms, on_deny=OnDeny.CONTINUE))


async def ask_people(
    tx: Transaction, actor: Actor, context: CallContext, call: RequestedCall, verdict: CallVerdict, possible: Possible,
    step_index: int | None = None,
) -> Asked:  # fmt: skip
    """Under the lock of the session's job; with the events of it. ``step_index``: of a call that has one."""
    if possible.terms is None:
        raise AssertionError("a request needs somebody who can decide it")
    job = await calls_store.lock_asking(tx, context.job_id, is_open=True, askers=context.askers)
    decision = verdict.answer.decision
    request = call_request(
        new_id(), verdict.with_risk(call), job["step_index"] if step_index is None else step_index,
        summary=f"{context.agent} wants to call {call.name}, elsewhere", rule=decision.rule, reason=decision.reason,
        policies=context.policies, terms=possible.terms, ruling=verdict.ruling, says=call.says,
        changed_by=possible.changed_by,
    )  # fmt: skip
    outcome = await approval_requests.request(tx, actor, context, job, request)
    events = [outcome.event]
    if job["status"] == JobStatus.RUNNING:
        events.append(("status", {"status": JobStatus.WAITING_FOR_APPROVAL}))
    return outcome, events


async def ask_about_doubt(
    tx: Transaction, actor: Actor, context: CallContext, call: ExternalCall, job: Row, question: str
) -> RequestOutcome:
    """The card that asks whether a call happened. ``job`` is locked."""
    request = call_request(
        new_id(), RequestedCall.of(call).with_risk(context.known_risk), call.step_index, rule="on_uncertain",
        summary=f"Nobody knows whether {call.tool} of {context.agent} happened", policies=context.policies,
        terms=SETTLERS, question=question, is_doubt=True,
    )  # fmt: skip
    return await approval_requests.request(tx, actor, context, job, request)


async def was_granted(db: Database, actor: Actor, call: ExternalCall) -> bool:
    async with db.transaction(actor.org_id) as tx:
        grant = await calls_store.get_grant(tx, call.id)
        if call.status is CallStatus.CLEARED and await approvals_store.count_repeats(tx, call.id) > REPEATS_OF_A_GRANT:
            return False
    if grant is None or grant.consumed_at is None or grant.input_hash != call.input_hash:
        return False
    if call.status is CallStatus.PARKED and (grant.expires_at <= call.now or grant.parks > PARKS_OF_A_GRANT):
        return False  # it holds for as long as one that was not used yet, and not for any number of attempts
    return receipt_fault(db.vault, actor.org_id, RequestedCall.of(call), grant.stamp, None) is None
