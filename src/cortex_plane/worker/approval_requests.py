"""Requests to people: a job whose calls need approval gives up its lease and waits.

All calls of a response that need approval are requested together, in the commit that records the response; nothing of
that response runs before all of them are decided. Before an approved call is sent its receipt is checked: a row could have
been written by anybody who can write to the database, but a receipt is signed with a key that only the plane can open.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn
from uuid import UUID

import structlog

from cortex_plane.agents.model.completions import AssistantTurn, UserTurn
from cortex_plane.approvals.model.approvals import ApprovalKind, Cause, NewRequest
from cortex_plane.approvals.verbs.approval_requests import (
    SETTLERS,
    Possible,
    bounded,
    feasible_terms,
    nobody_can,
)
from cortex_plane.calls.verbs.authorization import asked_of_people
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.model.checkpoints import CheckpointStatus
from cortex_plane.jobs.model.effects import CallStatus, doubt
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.rules.attempts import StepWrite
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import OnDeny
from cortex_plane.proof.model import Fact
from cortex_plane.proof.verbs.receipts import receipt_fault
from cortex_plane.worker.calls import Call, PendingWrite, storable
from cortex_plane.worker.lease import Ended

if TYPE_CHECKING:
    from cortex_plane.worker.attempt import Acting
    from cortex_plane.worker.resume import Opening


SHOWN_TEXT = 4000


async def ask(attempt: Acting, calls: Sequence[Call], due: StepWrite) -> None:
    """Ends the attempt; returns only where nobody is left to be asked and the model must be told."""
    terms: dict[UUID, Possible] = {}
    for call in _awaiting(calls):
        found = await terms_of(attempt, call, due)
        if found is not None:
            terms[call.id] = found
    awaiting = _awaiting(calls)
    if not awaiting:
        return
    await park(attempt, calls, terms, due)


async def terms_of(attempt: Acting, call: Call, due: StepWrite) -> Possible | None:
    """By which terms people can decide a call; None where nobody could, and then it is turned down."""
    again = call.id if call.asked_before else None
    found = await feasible_terms(
        attempt.host.db, attempt.given, call.terms, attempt.at.message_seq, again=again
    )
    if found.terms is None:
        await _turn_down(attempt, call, due, found.excluded)
        return None
    return found


async def park(
    attempt: Acting, calls: Sequence[Call], terms: Mapping[UUID, Possible], due: StepWrite
) -> NoReturn:
    """The write that asks: the job lets go of everything until all of them are decided."""
    awaiting = _awaiting(calls)
    attempt.at.status, attempt.at.invocation = CheckpointStatus.AWAITING_APPROVAL, awaiting[0].id
    pending = PendingWrite(due)
    pending.new(*(call for call in calls if call.status is not None and not call.written))
    write = pending.take()
    if attempt.gates is not None:
        for call in awaiting:
            attempt.gates.asks_people(call)
    write.requests = tuple(_request(attempt, call, terms[call.id]) for call in awaiting)
    write.status = JobStatus.WAITING_FOR_APPROVAL
    # Of several versions at most one holds: no version is called like all of them, so they are judged again.
    write.policies = (
        " ".join(sorted({call.policies for call in awaiting if call.policies is not None})) or None
    )
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


async def _turn_down(attempt: Acting, call: Call, due: StepWrite, excluded: Sequence[Cause]) -> None:
    """Nobody could ever decide it: said at once, not when its time is over."""
    terms = call.terms
    message = nobody_can(call.name, call.rule, terms, excluded)
    if terms.on_deny is OnDeny.FAIL:
        await attempt.fail(
            message,
            "Make somebody an approver with `cortex member update`, or correct the policy with `cortex policy apply`;"
            " then `cortex job resubmit` it.",
            StepWrite(step=due.step, facts=due.facts, events=due.events),
        )
    call.status, call.error = CallStatus.REJECTED, f"{message} Do not send it again; go another way."


def _request(attempt: Acting, call: Call, possible: Possible) -> NewRequest:
    if possible.terms is None:
        raise AssertionError("nobody is asked who cannot decide")
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
        summary=attempt.summary_of(call),
        agent_says=_agent_says(attempt),
        asked_for=_asked_for(attempt),
        question=asked_of_people(call.ruling.people) if call.ruling is not None else None,
        rule=call.rule,
        policy_version=call.policies or attempt.policies_version,
        terms=bounded(possible.terms, call.rule, attempt.limits.skills.approval),
        changed_by=possible.changed_by,
    )


def uncertain(attempt: Acting, call: Call) -> NewRequest:
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
        summary=f"Nobody knows whether {call.name} of {attempt.given.agent} happened",
        agent_says=_agent_says(attempt),
        asked_for=_asked_for(attempt),
        question=doubt(call.name, call.error),
        rule="on_uncertain",
        policy_version=call.policies or attempt.policies_version,
        terms=SETTLERS,
    )


def _agent_says(attempt: Acting) -> str | None:
    turn = next((turn for turn in reversed(attempt.turns) if isinstance(turn, AssistantTurn)), None)
    return storable(turn.text)[:SHOWN_TEXT] if turn is not None and turn.text else None


def _asked_for(attempt: Acting) -> str | None:
    turn = next((turn for turn in reversed(attempt.turns) if isinstance(turn, UserTurn)), None)
    return storable(turn.text)[:SHOWN_TEXT] if turn is not None else None


log = structlog.get_logger()


def receipt_refusal(attempt: Opening, call: Call, *, sent: bool) -> str | None:
    """Why an approved call must not be sent; None where its receipt is true. ``sent``: it was, in time, before."""
    given = attempt.given
    stamp = attempt.receipts.get(call.id)
    why = receipt_fault(
        Vault(attempt.host.master_key),
        stamp,
        org_id=given.org_id,
        call_id=call.id,
        tool_name=call.name,
        tool_digest=call.digest,
        input_hash=call.input_hash,
        now=None if sent else attempt.time.now(),
    )
    if why is not None:
        log.error("receipt refused", job_id=str(given.job_id), call=str(call.id), tool=call.name, reason=why)
    return why


def standing_refused(attempt: Opening, call: Call, standing_id: UUID, why: str) -> Fact:
    """A standing approval that nobody gave covers nothing; somebody should hear of it all the same."""
    log.error(
        "standing approval refused", job_id=str(attempt.given.job_id), call=str(call.id), tool=call.name,
        standing=str(standing_id), reason=why,
    )  # fmt: skip
    return attempt.fact(
        "receipt_refused", call=str(call.id), tool=call.name, standing=str(standing_id), reason=why
    )
