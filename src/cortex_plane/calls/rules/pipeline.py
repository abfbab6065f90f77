"""What every call goes through, wherever it runs: its verdict, whether it may be sent or sent again, and what is written of it.

A worker writes the rows, events and audit facts with its steps, an agent that runs elsewhere with requests of its own.
`db/functions/calls.sql` reads the rows.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.approvals.model.approvals import Approval, ApprovalKind, Cause, EditContext, NewRequest
from cortex_plane.approvals.model.questions import ASK_PERSON, form_of
from cortex_plane.calls.model import CallDraft, ExternalCall, RequestedCall
from cortex_plane.gates.model.gates import GatedCall, GateRecord, Ruling
from cortex_plane.gates.rules.authorization import Authorization, Origin, StandingUse, UnsentCall, authorize, facts_of
from cortex_plane.gates.rules.prompts import card
from cortex_plane.gates.rules.session import GateSession, record_of
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import OnDeny, PolicyDecision, PolicyRow, PolicyVerdict, Terms
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.rules.terms import both_terms
from cortex_plane.sessions.model.events import EventType
from cortex_plane.tenancy.model.access import Actor, Fact

MAX_ERROR = 4000
"""Characters of an error in a row."""
PREVIEW = 500
"""Characters of an error in an event."""
Event = tuple[str, dict[str, Any]]


def judge_call(
    policies: CompiledPolicies, job: Origin, call: UnsentCall, request: Sequence[PolicyRow], *, read_only: bool,
    is_claim: bool = False, ruling: Ruling | None = None, refused_before: bool = False, asks: Sequence[str] = (),
    demand: PolicyRow | None = None, only: Collection[str] | None = None,
) -> Authorization:  # fmt: skip
    """The strictest of gates (``ruling``) and policies; standing approvals come after it. ``is_claim``: that it only reads is what its
    agent says, which counts where a row looks at it, and not by itself. ``demand``: the call asks people, whatever policies say.
    ``only``: the tools that its agent may call."""
    if only is not None and call.name not in only:
        return Authorization(PolicyDecision(verdict=PolicyVerdict.DENY, rule="not one of its agent's tools"))
    facts = facts_of(job, call, read_only=read_only)
    decision = authorize(policies, facts, request, turned_down=refused_before, ruling=ruling, asks=asks)
    if is_claim and read_only and decision.rule.startswith("default:"):
        facts = replace(facts, read_only=False)
        decision = authorize(policies, facts, request, turned_down=refused_before, ruling=ruling, asks=asks)
    if demand is not None and decision.verdict is not PolicyVerdict.DENY:
        decision = _demand_approval(decision, authorize(policies, facts, [demand]), demand)
    return Authorization(decision)


def _demand_approval(policy: PolicyDecision, request: PolicyDecision, demand: PolicyRow) -> PolicyDecision:
    """A question to people is always one, whatever policies say of its name; they say who decides."""
    terms = request.terms
    if terms is None:
        return request
    if policy.terms is not None:
        terms, _ = both_terms(terms, {}, policy.terms, "")
    terms = replace(terms, on_deny=OnDeny.CONTINUE, standing=False, action=demand.action, details=demand.details)
    return replace(request, terms=terms)


def is_unseen(ruling: Ruling | None) -> bool:
    """A gate that a person must pass stands before an approved call, and was not on the card when they approved."""
    return ruling is not None and ruling.verdict is PolicyVerdict.REQUIRES_APPROVAL


def outgrown_reason(
    verdict: PolicyVerdict, ruling: Ruling | None, expires_at: datetime | None, now: datetime, *, is_same_tool: bool = True
) -> str | None:  # fmt: skip
    """Why an approval does not hold for its call any more; None where it holds, unless policies deny the call by now."""
    if expires_at is None or expires_at <= now:
        return "its grant has expired"
    if not is_same_tool:
        return "its tool has changed"
    if verdict is not PolicyVerdict.DENY and is_unseen(ruling):
        return "whoever approved it was not shown a gate that a person must pass by now"
    return None


def may_be_sent_again(authorization: Authorization, ruling: Ruling | None, *, has_grant: bool) -> bool:
    """A call that was sent before needs permission of this moment, or the very approval that it was sent with. A standing
    approval is that only if it was counted for this call, and while it lasts: it is not counted twice."""
    if authorization.verdict is PolicyVerdict.REQUIRES_APPROVAL:
        return has_grant and not is_unseen(ruling)
    use = authorization.leaning
    return authorization.verdict is PolicyVerdict.ALLOW and (use is None or use.counted)


@dataclass(kw_only=True, slots=True)
class CallVerdict:
    """The answer to one call, with what must be written when it is acted on."""

    answer: Authorization
    gates: GateSession | None = None
    ruling: Ruling | None = None
    notes: list[Fact] = field(default_factory=list)
    again: bool = False

    @property
    def verdict(self) -> PolicyVerdict:
        return self.answer.verdict

    @property
    def reason(self) -> str:
        """Why gates or a policy refuse it, in their stewards' words; empty where they say nothing."""
        return _because(verdict_reason(self.answer.decision, self.ruling))

    @property
    def is_for_people(self) -> bool:
        """Only a person lets it through, or its gates and the policies of its atlases do because a person did."""
        by_gates = self.ruling is not None and (self.ruling.overrides or bool(self.ruling.people))
        return self.verdict is PolicyVerdict.REQUIRES_APPROVAL or (self.verdict is PolicyVerdict.ALLOW and by_gates)

    def with_risk(self, call: RequestedCall) -> RequestedCall:
        """With the risk that its atlases give it."""
        return call if self.ruling is None else replace(call, risk=self.ruling.risk)

    def record(
        self, actor: Actor, call: RequestedCall | None = None, granted: bool = False, shown: RequestedCall | None = None
    ) -> GateRecord:
        """What a write holds of it. ``call``: the write sends it. ``shown``: it asks people about this one."""
        if self.gates is None:
            return GateRecord(facts=self.notes)
        changes = self.gates.changes(
            cards=[(gate_call(shown), self.ruling.people)] if shown is not None and self.ruling is not None else (),
            calls=[(call.id, gate_call(call, approved=granted))] if call is not None and not self.again else (),
        )
        record = record_of(actor, changes)
        return replace(record, facts=[*record.facts, *self.notes])

    def more(self, record: GateRecord, **others: Any) -> dict[str, Any] | None:
        if self.gates is None:
            return others or None
        seen = {"revision": self.gates.revision, "atlases": len(self.gates.atlases.atlases)}
        return others | {"gates": seen | record.written}


def people_card(ruling: Ruling | None) -> str | None:
    """What the card says about gates that the approver confirms. What does not fit on a card was refused before."""
    return (card(ruling.people) or None) if ruling is not None else None


def gate_call(call: RequestedCall, *, approved: bool = False, seen_before: bool = False) -> GatedCall:
    return GatedCall(
        action=call.name,
        arguments=orjson.loads(call.arguments),
        input_hash=call.input_hash,
        risk=call.risk,
        approved=approved,
        call_id=str(call.id),
        told=seen_before,
    )


def judge_edited(
    policies: CompiledPolicies, context: EditContext, approval: Approval, arguments: bytes, requests: Sequence[Sequence[PolicyRow]],
    gates: GateSession | None,
) -> list[CallVerdict]:  # fmt: skip
    """The verdict on a call with the arguments that its approver wants, for each job that waits for it. Nothing is recorded."""
    call = RequestedCall(
        id=approval.id, name=approval.tool_name, digest=approval.tool_digest or "", arguments=arguments,
        input_hash=hashlib.sha256(arguments).hexdigest(), read_only=context.read_only, risk=Risk(approval.risk),
        declares_risk=context.declares_risk,
    )  # fmt: skip
    ruling = gates.look(gate_call(call, seen_before=True), any_arguments=False) if gates is not None else None
    answers = (judge_call(policies, context, call, rows, read_only=call.read_only, ruling=ruling) for rows in requests)
    return [CallVerdict(answer=answer, ruling=ruling) for answer in answers]


def call_row(
    call: UnsentCall, authorization: Authorization | None, *, status: CallStatus | None, step: int | None, position: int = 0,
    read_only: bool = False, on_uncertain: OnUncertain | None, timeout_seconds: float | None, arguments: int = 1,
    result: int | None = None, result_id: UUID | None = None, error: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A new call with its verdict. ``arguments`` and ``result``: their places beside the rows. A call that is sent on a standing
    approval names it, so that it is looked at once more, and counted, in the same commit."""
    use = authorization.leaning if authorization is not None and status is CallStatus.INTENDED else None
    return {
        **(standing_columns(use) if use is not None else {}),
        "id": str(call.id),
        "step": step,
        "position": position,
        "tool": call.name,
        "digest": call.digest,
        "arguments": arguments,
        "input_hash": call.input_hash,
        "read_only": read_only,
        "on_uncertain": on_uncertain,
        "verdict": authorization.decision.verdict if authorization is not None else None,
        "rule": authorization.decision.rule if authorization is not None else None,
        "timeout_seconds": timeout_seconds,
        "status": status,
        "result": result,
        "result_id": str(result_id) if result_id else None,
        "error": error,
    }


def intent_row(
    call: UnsentCall, attempt: int, on_uncertain: OnUncertain | None, timeout_seconds: float, *, grant: bool = False,
    authorization: Authorization | None = None, use: StandingUse | None = None,
) -> dict[str, Any]:  # fmt: skip
    """A call that has a row begins, with the grant that a person gave it, or once more. ``authorization``: anew. ``use``: the standing
    approval that lets it be sent."""
    anew = {} if authorization is None else {"verdict": authorization.verdict, "rule": authorization.decision.rule}
    return {
        "id": str(call.id),
        "grant": grant,
        "digest": call.digest,
        "input_hash": call.input_hash,
        "attempt": attempt,
        "on_uncertain": on_uncertain,
        "timeout_seconds": timeout_seconds,
        **anew,
        **(standing_columns(use) if use is not None else {}),
    }


def outcome_row(
    id: UUID, status: CallStatus | None, *, result: int | None = None, result_id: UUID | None = None,
    error: str | None = None, settled_by: str | None = None, is_reported: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """``is_reported``: its agent itself says that nobody knows."""
    return {
        "id": str(id),
        "status": status,
        "result": result,
        "result_id": str(result_id) if result_id else None,
        "error": error,
        "settled_by": settled_by,
        **({"reported": True} if is_reported else {}),
    }


def standing_columns(use: StandingUse) -> dict[str, Any]:
    return {"standing_id": str(use.standing_id), "granter_revision": use.granter_revision}


def call_request(
    id: UUID, call: UnsentCall, step: int, *, summary: str, rule: str, policies: str, terms: Terms,
    question: str | None = None, is_doubt: bool = False, says: str | None = None, asked_for: str | None = None,
    changed_by: Sequence[Cause] = (), ruling: Ruling | None = None, reason: str | None = None,
) -> NewRequest:  # fmt: skip
    """The card by which people are asked whether a call may be sent, or to answer a question. ``is_doubt``: whether it happened.
    ``ruling``: of the gates before it, which say what people confirm, why a policy of an atlas asks them, and what the agent answered.
    ``reason``: why a policy of the org asks them."""
    reasons = [ruling.policy_reason if ruling is not None else None, reason]
    if (
        call.name == ASK_PERSON
        and not is_doubt
        and (form := form_of(call.name, orjson.loads(call.arguments))) is not None
    ):
        question = form.question
    return NewRequest(
        id=id,
        kind=ApprovalKind.UNCERTAIN_EFFECT if is_doubt else ApprovalKind.CALL,
        call_id=call.id,
        step_index=step,
        tool_name=call.name,
        tool_digest=call.digest,
        arguments=call.arguments,
        input_hash=call.input_hash,
        risk=call.risk,
        summary=summary,
        agent_says=says,
        asked_for=asked_for,
        question=people_card(ruling) if question is None else question,
        rule=rule,
        rule_reason="\n".join(filter(None, reasons)) or None,
        gate_answers=ruling.answers if ruling is not None else (),
        policy_version=policies,
        terms=terms,
        changed_by=changed_by,
    )


# Each field of an event and of an audit fact has one name, whoever runs the call.
def call_event(step: int, call: UnsentCall) -> Event:
    """A call is recorded, and was not sent yet."""
    data = {"step": step, "id": str(call.id), "tool": call.name, "input_hash": call.input_hash}
    return EventType.TOOL_CALL, data


def result_event(step: int | None, id: UUID, tool: str | None, status: CallStatus | None, error: str | None) -> Event:
    """``step`` and ``tool``: None where only the write knows them, and puts them in."""
    data = {"step": step, "id": str(id), "tool": tool, "status": str(status)}
    return EventType.TOOL_RESULT, data if error is None else data | {"error": error[:PREVIEW]}


Facts = Callable[..., Fact]
"""Makes the facts of whoever acts: an action and its fields."""


def facts_by(actor: Actor) -> Facts:
    return functools.partial(Fact.of, actor)


def call_fact(fact: Facts, action: str, call: UnsentCall, **fields: Any) -> Fact:
    return fact(action, call=str(call.id), tool=call.name, **fields)


def authorized_fact(
    fact: Facts, call: UnsentCall, authorization: Authorization, policies: str, **fields: Any
) -> Fact:  # fmt: skip
    """The verdict about a call, by which policies."""
    decision = authorization.decision
    return call_fact(
        fact, "call_authorized", call, digest=call.digest, input_hash=call.input_hash, verdict=decision.verdict,
        rule=decision.rule, policies=policies, **fields,
    )  # fmt: skip


def standing_fact(fact: Facts, call: UnsentCall, use: StandingUse) -> Fact:
    """A standing approval let this call be sent."""
    standing = str(use.standing_id)
    return call_fact(fact, "standing_used", call, standing=standing, digest=call.digest, input_hash=call.input_hash)


def verdict_reason(decision: PolicyDecision, ruling: Ruling | None) -> str:
    """The reason of the gates or the policy that decided, in their stewards' words; empty where they say nothing."""
    if ruling is not None and ruling.rule == decision.rule:
        return ruling.reason
    return decision.reason or ""


def _because(reason: str | None) -> str:
    return f": {reason.rstrip('.')}" if reason else ""


def denial(tool: str, rule: str, why: str = "", *, by_now: bool = False) -> str:
    """What an agent reads of a call that is not allowed. ``why``: what stewards say. ``by_now``: it was allowed before."""
    return f"`{tool}` is denied{' by now' if by_now else ''} ({rule}){why}. Do not call it again; go another way."


def status_of(tool: str, authorization: Authorization, why: str = "") -> tuple[CallStatus | None, str | None]:
    """What a verdict makes of a call before it is sent, with the error; None: it may be sent."""
    if authorization.verdict is PolicyVerdict.ALLOW:
        return None, None
    if authorization.verdict is PolicyVerdict.REQUIRES_APPROVAL:
        return CallStatus.AWAITING, None
    decision = authorization.decision
    return CallStatus.REJECTED, denial(tool, decision.rule, why or _because(decision.reason))


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedCall:
    """A call that runs elsewhere, with its authorization, before it is written."""

    draft: CallDraft
    request: RequestedCall
    request_hash: bytes
    authorization: Authorization
    policies: str
    status: CallStatus
    error: str | None
    runner: str | None
    """The process that runs it; None where its agent does not say which, and where it only reads: then it is never in doubt as another one."""
    doubt_hash: bytes
    """By which the same request under another key is recognised."""
    callback_id: UUID | None
    """The connection over which its agent is told of decisions about it."""

    def row(self) -> dict[str, Any]:
        """The number of its step is put in where it is known."""
        return call_row(
            self.request, self.authorization, status=self.status, step=None, on_uncertain=self.draft.settlement,
            timeout_seconds=self.draft.timeout_seconds, error=self.error,
        )  # fmt: skip

    def declaration(self, actor: Actor, approval_id: UUID | None) -> dict[str, Any]:
        """What only a call that runs elsewhere has: what its agent says of it, and who asks."""
        draft = self.draft
        others = {"approval_id": approval_id, "callback_id": self.callback_id, "caused_by": actor.user_account_id}
        return {
            "key": draft.key, "asked_hash": self.request_hash.hex(), "sender": draft.sender,
            "parameters": canonical(draft.parameters).decode() if draft.parameters is not None else None,
            "read_only": draft.read_only, "risk": self.request.risk, "declares_risk": self.request.declares_risk, "timeout_seconds": draft.timeout_seconds,
            "policies": self.policies, "says": draft.says, "asker": str(actor.identity),
            "request_hash": self.doubt_hash.hex(), **({} if self.runner is None else {"runner": self.runner}),
            **{name: str(id) for name, id in others.items() if id is not None},
        }  # fmt: skip

    def shown(self, session_id: UUID, job_id: UUID, agent: str, row: Mapping[str, Any]) -> ExternalCall:
        """The call as it was just written, unless people are asked about it. ``row``: what only the write knows."""
        draft, request, decision = self.draft, self.request, self.authorization.decision
        is_over = self.status is CallStatus.REJECTED
        return ExternalCall(
            id=request.id, session_id=session_id, job_id=job_id, agent=agent, step_index=row["step_index"],
            tool=request.name, tool_digest=request.digest, arguments=draft.arguments, input_hash=request.input_hash,
            edited=False, read_only=draft.read_only, risk=request.risk, declares_risk=request.declares_risk, on_uncertain=draft.settlement,
            timeout_seconds=draft.timeout_seconds, key=draft.key, status=self.status, verdict=decision.verdict,
            rule=decision.rule, held=False, approval_id=None, approval_status=None, approval_kind=None, deadline=None,
            attempt=1, dispatch_before=row["dispatch_before"], settle_after=row["settle_after"], result=None,
            error=self.error, settled_by=None, job_status=JobStatus(row["job_status"]), now=row["at"],
            created_at=row["at"], finished_at=row["at"] if is_over else None,
        )  # fmt: skip

    def facts(self, fact: Facts) -> list[Fact]:
        request, callback = self.request, str(self.callback_id) if self.callback_id else None
        status, key = self.status, self.draft.key
        facts = [
            authorized_fact(fact, request, self.authorization, self.policies, key=key, status=status, callback=callback)
        ]
        if status is not CallStatus.INTENDED:
            return facts
        if (use := self.authorization.leaning) is not None:
            facts.append(standing_fact(fact, request, use))
        return [*facts, call_fact(fact, "call_intended", request, input_hash=request.input_hash, attempt=1)]

    def events(self) -> list[Event]:
        events = [call_event(0, self.request)]
        if self.status is CallStatus.REJECTED:
            events.append(result_event(0, self.request.id, self.request.name, self.status, self.error or ""))
        return events
