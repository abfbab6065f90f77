"""Requests to people: a job whose calls need approval gives up its lease and waits.

All calls of a response that need approval are requested together, in the commit that records the response; nothing of
that response runs before all of them are decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from cortex_plane.agents.model.completions import AssistantTurn, UserTurn
from cortex_plane.approvals.model.approvals import ApprovalKind, Cause, NewRequest
from cortex_plane.approvals.verbs.approval_requests import SETTLERS, Possible, bounded, feasible_terms, nobody_can
from cortex_plane.calls.verbs.authorization import asked_of_people
from cortex_plane.jobs.model.checkpoints import CheckpointStatus
from cortex_plane.jobs.model.effects import CallStatus, doubt
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import OnDeny, PolicyRow
from cortex_plane.sessions.rules import Thread
from cortex_plane.worker.calls import Call, PendingWrite, storable
from cortex_plane.worker.ends import Ended, JobFailed
from cortex_plane.worker.lease import Lease
from cortex_plane.worker.limits import AttemptLimits
from cortex_plane.worker.model_calls import ModelConversation
from cortex_plane.worker.session_gates import SessionGates

SHOWN_TEXT = 4000


def awaiting_calls(calls: Sequence[Call]) -> list[Call]:
    return [call for call in calls if call.status is CallStatus.AWAITING]


async def request_terms(lease: Lease, call: Call, due: StepWrite) -> Possible | None:
    """The terms by which people can decide a call; None where nobody can, and then the call is refused."""
    again = call.id if call.asked_before else None
    possible = await feasible_terms(lease.db, lease.assignment, call.terms, lease.progress.message_seq, again=again)
    if possible.terms is None:
        _refuse(call, due, possible.excluded)
        return None
    return possible


def _refuse(call: Call, due: StepWrite, causes: Sequence[Cause]) -> None:
    """Nobody could ever decide the call: it is refused at once, not when its time is over."""
    terms = call.terms
    message = nobody_can(call.name, call.rule, terms, causes)
    if terms.on_deny is OnDeny.FAIL:
        raise Ended(
            JobFailed(
                message,
                "Make somebody an approver with `cortex member update`, or correct the policy with `cortex policy apply`;"
                " then `cortex job resubmit` it.",
                StepWrite(step=due.step, facts=due.facts, events=due.events),
            )
        )
    call.status, call.error = CallStatus.REJECTED, f"{message} Do not send it again; go another way."


class RequestCards:
    """The cards by which people are asked about the calls of one attempt."""

    def __init__(
        self,
        lease: Lease,
        limits: AttemptLimits,
        gates: SessionGates,
        conversation: ModelConversation,
        demands: Mapping[UUID, PolicyRow],
    ) -> None:
        self._lease, self._limits, self._gates = lease, limits, gates
        self._conversation, self._demands = conversation, demands

    def suspend(self, calls: Sequence[Call], terms: Mapping[UUID, Possible], due: StepWrite) -> StepWrite:
        """The write that asks: the job gives up its lease until all of the calls are decided."""
        progress, awaiting = self._lease.progress, awaiting_calls(calls)
        progress.status, progress.invocation = CheckpointStatus.AWAITING_APPROVAL, awaiting[0].id
        pending = PendingWrite(due)
        pending.new(*(call for call in calls if call.status is not None and not call.has_row))
        write = pending.take()
        if self._gates.bound is not None:
            for call in awaiting:
                self._gates.bound.add_request(call)
        write.requests = tuple(self._approval(call, terms[call.id]) for call in awaiting)
        write.status = JobStatus.WAITING_FOR_APPROVAL
        # Of several versions at most one holds: no version has the name of all of them, so they are judged again.
        write.policies = " ".join(sorted({call.policies for call in awaiting if call.policies is not None})) or None
        ids = [str(call.id) for call in awaiting]
        write.events = [
            *write.events,
            ("status", {"status": JobStatus.WAITING_FOR_APPROVAL, "open_approvals": len(awaiting)}),
            ("session_paused", {"reason": "approval", "pause_source": "approval", "calls": ids}),
        ]
        write.facts = [*write.facts, self._lease.fact("session_suspended", calls=ids)]
        return write

    def _approval(self, call: Call, possible: Possible) -> NewRequest:
        if possible.terms is None:
            raise AssertionError("a request needs somebody who can decide it")
        return NewRequest(
            id=new_id(),
            kind=ApprovalKind.CALL,
            call_id=call.id,
            step_index=call.step,
            tool_name=call.name,
            tool_digest=call.digest,
            arguments=call.arguments,
            input_hash=call.input_hash,
            risk=call.risk,
            summary=self._summary(call),
            agent_says=_agent_says(self._conversation.turns),
            asked_for=_asked_for(self._conversation.turns),
            question=asked_of_people(call.ruling.people) if call.ruling is not None else None,
            rule=call.rule,
            policy_version=call.policies or self._lease.policies_version,
            terms=bounded(possible.terms, call.rule, self._limits.skills.approval),
            changed_by=possible.changed_by,
        )

    def _summary(self, call: Call) -> str:
        agent, demand = self._lease.assignment.agent, self._demands.get(call.id)
        return f"{agent} wants to call {call.name}" if demand is None else f"{agent} asks: {demand.action}"

    def uncertain_effect(self, call: Call) -> NewRequest:
        """The card that asks whether a call happened."""
        return NewRequest(
            id=new_id(),
            kind=ApprovalKind.UNCERTAIN_EFFECT,
            call_id=call.id,
            step_index=call.step,
            tool_name=call.name,
            tool_digest=call.sent_digest or call.digest,
            arguments=call.arguments,
            input_hash=call.input_hash,
            risk=call.code.risk,
            summary=f"Nobody knows whether {call.name} of {self._lease.assignment.agent} happened",
            agent_says=_agent_says(self._conversation.turns),
            asked_for=_asked_for(self._conversation.turns),
            question=doubt(call.name, call.error),
            rule="on_uncertain",
            policy_version=call.policies or self._lease.policies_version,
            terms=SETTLERS,
        )


def _agent_says(turns: Thread) -> str | None:
    turn = next((turn for turn in reversed(turns) if isinstance(turn, AssistantTurn)), None)
    return storable(turn.text)[:SHOWN_TEXT] if turn is not None and turn.text else None


def _asked_for(turns: Thread) -> str | None:
    turn = next((turn for turn in reversed(turns) if isinstance(turn, UserTurn)), None)
    return storable(turn.text)[:SHOWN_TEXT] if turn is not None else None
