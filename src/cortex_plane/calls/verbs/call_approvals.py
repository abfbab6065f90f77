"""What people say about a call: the request that asks them, and the grant that they gave."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import NewRequest
from cortex_plane.approvals.verbs import approval_requests
from cortex_plane.approvals.verbs.approval_requests import Possible, RequestOutcome
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import ExternalCall
from cortex_plane.calls.store import CallContext, Grant
from cortex_plane.calls.verbs.authorization import CallVerdict
from cortex_plane.calls.verbs.context import RequestedCall, new_request, skills_of
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.jobs.model.effects import REPEATS_OF_A_GRANT, CallStatus
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.policies.model.policies import OnDeny
from cortex_plane.proof.model import Fact
from cortex_plane.proof.verbs import receipts
from cortex_plane.tenancy.model.access import Actor


async def terms_of(db: Database, context: CallContext, verdict: CallVerdict, again: UUID | None = None) -> Possible:
    """The terms as far as people can fulfil them. A no ends the call and not the session: its agent hears it and goes on."""
    decision = verdict.answer.decision
    if decision.terms is None:
        raise AssertionError("who is to decide says the policy")
    possible = await approval_requests.feasible_terms(db, context, decision.terms, 0, context.askers, again=again)
    if possible.terms is None:
        return possible
    terms = approval_requests.bounded(possible.terms, decision.rule, skills_of(context).approval)
    return replace(possible, terms=replace(terms, on_deny=OnDeny.CONTINUE))


def nobody_can_approve(call: RequestedCall, verdict: CallVerdict, possible: Possible) -> str:
    """Why a call is refused that needs a person's yes which nobody can give."""
    decision = verdict.answer.decision
    return approval_requests.nobody_can(
        call.tool, decision.rule, decision.terms or approval_requests.SETTLERS, possible.excluded
    )


@dataclass(frozen=True, slots=True)
class CallApprovalRequest:
    """The request that a call waits for."""

    id: UUID
    request: NewRequest
    joined: bool
    facts: list[Fact]
    events: list[tuple[str, dict[str, Any]]]

    def count(self, org_id: UUID) -> None:
        approval_requests.count(org_id, [(self.request, self.joined)])


async def ask_people(
    tx: Transaction, actor: Actor, context: CallContext, call: RequestedCall, verdict: CallVerdict, possible: Possible,
    step_index: int | None = None,
) -> CallApprovalRequest:  # fmt: skip
    """Under the lock of the session's job. ``step_index``: of a call that has one."""
    if possible.terms is None:
        raise AssertionError("whoever asks knows whom")
    job = await calls_store.lock_asking(tx, context.job_id, is_open=True, askers=context.askers)
    request = new_request(
        context, verdict.as_seen(call), job["step_index"] if step_index is None else step_index,
        verdict.answer.decision.rule, possible.terms, gate=verdict.people,
    )  # fmt: skip
    request = replace(request, changed_by=possible.changed_by)
    outcome = await approval_requests.request(tx, actor, context, job, request)
    events = [outcome.event]
    if job["status"] == JobStatus.RUNNING:
        events.append(("status", {"status": JobStatus.WAITING_FOR_APPROVAL}))
    return CallApprovalRequest(outcome.id, request, outcome.joined, outcome.facts, events)


async def ask_about_doubt(
    tx: Transaction, actor: Actor, context: CallContext, call: ExternalCall, job: Row, question: str
) -> RequestOutcome:
    """The card that asks whether a call happened. ``job`` is locked."""
    request = new_request(
        context, RequestedCall.of(call).known(context), call.step_index, "on_uncertain", approval_requests.SETTLERS,
        question=question,
    )  # fmt: skip
    return await approval_requests.request(tx, actor, context, job, request)


async def was_granted(db: Database, actor: Actor, call: ExternalCall) -> bool:
    async with db.transaction(actor.org_id) as tx:
        grant = await calls_store.get_grant(tx, call.id)
        if call.status is CallStatus.CLEARED and await approvals_store.count_repeats(tx, call.id) > REPEATS_OF_A_GRANT:
            return False
    if grant is None or grant.consumed_at is None or grant.input_hash != call.input_hash:
        return False
    return receipt_fault(db, actor, call, grant, None) is None


def receipt_fault(db: Database, actor: Actor, call: ExternalCall, grant: Grant, now: datetime | None) -> str | None:
    """Why the receipt of a grant does not vouch for this call; ``now`` is None where its time does not matter."""
    return receipts.receipt_fault(
        db.vault, grant.stamp, org_id=actor.org_id, call_id=call.id, tool_name=call.tool,
        tool_digest=call.tool_digest, input_hash=call.input_hash, now=now,
    )  # fmt: skip
