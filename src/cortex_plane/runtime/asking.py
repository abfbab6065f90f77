"""Asking people: a job whose calls need approval lets go of everything and waits.

All calls of a response that need approval are asked for together, in the commit that records the response; nothing of
that response runs before all of them are decided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

from cortex_plane.domain.approvals import ApprovalKind, NewRequest
from cortex_plane.domain.attempts import Write
from cortex_plane.domain.checkpoints import CheckpointStatus
from cortex_plane.domain.deciding import said
from cortex_plane.domain.effects import CallStatus, doubt
from cortex_plane.domain.jobs import JobStatus
from cortex_plane.domain.members import Role
from cortex_plane.domain.models import AssistantTurn, UserTurn
from cortex_plane.domain.policies import (
    DEFAULT_TIMEOUT_SECONDS,
    ONE_VOTE,
    OWNER_DECIDES,
    Approvers,
    OnDeny,
    Terms,
)
from cortex_plane.domain.quorums import quorum_said
from cortex_plane.operations import attempts
from cortex_plane.operations.verbs import new_id
from cortex_plane.runtime.calls import Call, Pending, storable
from cortex_plane.runtime.lease import Ended

if TYPE_CHECKING:
    from cortex_plane.runtime.executor import Attempt

SHOWN_TEXT = 4000
SETTLERS = replace(OWNER_DECIDES, approvers=Approvers(roles=(Role.ADMIN, Role.OPERATOR, Role.APPROVER)))
"""Who is asked about an uncertain effect."""


async def ask(attempt: Attempt, calls: Sequence[Call], due: Write) -> None:
    """Ends the attempt; returns only where nobody is left to be asked and the model must be told."""
    terms: dict[UUID, Terms] = {}
    for call in _awaiting(calls):
        found = await attempts.possible(attempt.host.db, attempt.given, call.terms, attempt.at.message_seq)
        if found is None:
            await _turn_down(attempt, call, due)
        else:
            terms[call.id] = found
    awaiting = _awaiting(calls)
    if not awaiting:
        return
    attempt.at.status, attempt.at.invocation = CheckpointStatus.AWAITING_APPROVAL, awaiting[0].id
    pending = Pending(due, attempt.at.step)
    pending.new(*(call for call in calls if call.status is not None and not call.written))
    write = pending.take()
    write.requests = tuple(_request(attempt, call, terms[call.id]) for call in awaiting)
    write.status = JobStatus.WAITING_FOR_APPROVAL
    paused = {"reason": "approval", "pause_source": "approval", "calls": [str(call.id) for call in awaiting]}
    write.events = [
        *write.events,
        ("status", {"status": JobStatus.WAITING_FOR_APPROVAL, "open_approvals": len(awaiting)}),
        ("session_paused", paused),
    ]
    write.facts = [*write.facts, attempt.fact("session_suspended", calls=paused["calls"])]
    await attempt.write_calls(calls, write)
    raise Ended


def _awaiting(calls: Sequence[Call]) -> list[Call]:
    return [call for call in calls if call.status is CallStatus.AWAITING]


async def _turn_down(attempt: Attempt, call: Call, due: Write) -> None:
    """Nobody could ever decide it: said at once, not when its time is over."""
    terms = call.terms
    clearance = f" of clearance {terms.required_clearance}" if terms.required_clearance else ""
    others = "" if terms.self_approval else ", and whoever asked for it may not approve it"
    chosen = " among those whom the request names" if terms.named is not None else ""
    who = (
        "nobody can give it"
        if terms.quorum == ONE_VOTE
        else f"too few can give its {quorum_said(terms.quorum)}"
    )
    message = (
        f"`{call.name}` needs approval ({call.rule}), and {who}: it is for {said(terms.approvers)}{chosen}"
        f"{clearance} to decide{others}."
    )
    if terms.on_deny is OnDeny.FAIL:
        await attempt.fail(
            message,
            "Make somebody an approver with `cortex member update`, or correct the policy with `cortex policy apply`;"
            " then `cortex job resubmit` it.",
            Write(step=due.step, facts=due.facts, events=due.events),
        )
    call.status, call.error = CallStatus.REJECTED, f"{message} Do not send it again; go another way."


def _request(attempt: Attempt, call: Call, terms: Terms) -> NewRequest:
    return NewRequest(
        id=new_id(),
        kind=ApprovalKind.CALL,
        call_id=call.id,
        step_index=attempt.at.step,
        tool_name=call.name,
        tool_digest=call.digest,
        arguments=call.arguments,
        input_hash=call.input_hash,
        risk=call.code.risk,
        summary=f"{attempt.given.agent} wants to call {call.name}",
        agent_says=_agent_says(attempt),
        asked_for=_asked_for(attempt),
        question=None,
        rule=call.rule,
        policy_version=attempt.policies_version,
        terms=_bounded(attempt, call, terms),
    )


def _bounded(attempt: Attempt, call: Call, terms: Terms) -> Terms:
    """An agent may have a time of its own where nobody names one, and a cap for every one."""
    approval = attempt.limits.skills.approval
    asked = terms.timeout_seconds
    if call.rule.startswith("default:"):
        # Whatever is shorter than the default was asked for by the job's own request.
        own = approval.token_ttl_seconds
        asked = own if asked == DEFAULT_TIMEOUT_SECONDS else min(own, asked)
    return replace(terms, timeout_seconds=min(asked, approval.max_ttl_seconds))


def uncertain(attempt: Attempt, call: Call) -> NewRequest:
    """The card that asks whether a call happened."""
    return NewRequest(
        id=new_id(),
        kind=ApprovalKind.UNCERTAIN_EFFECT,
        call_id=call.id,
        step_index=attempt.at.step,
        tool_name=call.name,
        tool_digest=call.sent_digest or call.digest,
        arguments=call.arguments,
        input_hash=call.input_hash,
        risk=call.code.risk,
        summary=f"Nobody knows whether {call.name} of {attempt.given.agent} happened",
        agent_says=_agent_says(attempt),
        asked_for=_asked_for(attempt),
        question=doubt(call.name, call.error),
        rule="on_uncertain",
        policy_version=attempt.policies_version,
        terms=SETTLERS,
    )


def _agent_says(attempt: Attempt) -> str | None:
    turn = next((turn for turn in reversed(attempt.turns) if isinstance(turn, AssistantTurn)), None)
    return storable(turn.text)[:SHOWN_TEXT] if turn is not None and turn.text else None


def _asked_for(attempt: Attempt) -> str | None:
    turn = next((turn for turn in reversed(attempt.turns) if isinstance(turn, UserTurn)), None)
    return storable(turn.text)[:SHOWN_TEXT] if turn is not None else None
