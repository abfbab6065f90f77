"""Requests to people: a job whose calls need approval gives up its lease and waits.

All calls of a response that need approval are requested together, in the commit that records the response; nothing of
that response runs before all of them are decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.completions import AssistantTurn, UserTurn
from cortex_plane.approvals.model.approvals import NewRequest
from cortex_plane.approvals.verbs.approval_requests import SETTLERS, Possible, feasible_terms, nobody_can, require_terms
from cortex_plane.calls.rules import call_request
from cortex_plane.calls.verbs.authorization import people_card
from cortex_plane.jobs.model.checkpoints import CheckpointStatus
from cortex_plane.jobs.model.effects import CallStatus, doubt
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.rules.attempts import StepWrite
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

    async def feasible_terms(self, call: Call, due: StepWrite) -> Possible | None:
        """The terms by which people can decide a call; None where nobody can, and then the call is refused at once."""
        lease, decision, times = self._lease, call.decision, self._limits.skills.approval
        again = call.id if call.asked_before else None
        possible = await feasible_terms(
            lease.db, lease.assignment, decision, times, lease.progress.message_seq, again=again
        )
        if possible.terms is not None:
            return possible
        message = nobody_can(call.name, decision, possible.excluded)
        if require_terms(decision).on_deny is OnDeny.FAIL:
            raise Ended(
                JobFailed(
                    message,
                    "Make somebody an approver with `cortex member update`, or correct the policy with `cortex policy apply`;"
                    " then `cortex job resubmit` it.",
                    StepWrite(step=due.step, facts=due.facts, events=due.events),
                )
            )
        call.status, call.error = CallStatus.REJECTED, f"{message} Do not send it again; go another way."
        return None

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
        agent, demand = self._lease.assignment.agent, self._demands.get(call.id)
        summary = f"{agent} wants to call {call.name}" if demand is None else f"{agent} asks: {demand.action}"
        return self._request(
            call, summary=summary, rule=call.rule, terms=possible.terms, question=people_card(call.ruling),
            changed_by=possible.changed_by,
        )  # fmt: skip

    def uncertain_effect(self, call: Call) -> NewRequest:
        """The card that asks whether a call happened."""
        request = self._request(
            call, summary=f"Nobody knows whether {call.name} of {self._lease.assignment.agent} happened",
            rule="on_uncertain", terms=SETTLERS, question=doubt(call.name, call.error), is_doubt=True,
        )  # fmt: skip
        return replace(request, tool_digest=call.sent_digest or call.digest, risk=call.code.risk)

    def _request(self, call: Call, **card: Any) -> NewRequest:
        turns, policies = self._conversation.turns, call.policies or self._lease.policies_version
        says, asked_for = _last_text(turns, AssistantTurn), _last_text(turns, UserTurn)
        return call_request(new_id(), call, call.step, policies=policies, says=says, asked_for=asked_for, **card)


def _last_text(turns: Thread, kind: type[AssistantTurn | UserTurn]) -> str | None:
    turn = next((turn for turn in reversed(turns) if isinstance(turn, kind)), None)
    return storable(turn.text)[:SHOWN_TEXT] if turn is not None and turn.text else None
