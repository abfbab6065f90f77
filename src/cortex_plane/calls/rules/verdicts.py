"""The verdict about one call: gates, policies, refusals before it, and what its agent demands of people. One function, wherever the call
runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from cortex_plane.calls.model import RequestedCall
from cortex_plane.gates.model.gates import GatedCall, GateRecord, Ruling
from cortex_plane.gates.rules.authorization import Authorization, CallJob, UnsentCall, authorize, facts_of, is_unseen
from cortex_plane.gates.rules.prompts import card
from cortex_plane.gates.rules.session import GateSession, record_of
from cortex_plane.policies.model.policies import OnDeny, PolicyDecision, PolicyRow, PolicyVerdict
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.rules.terms import both_terms
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor


def judge_call(
    policies: CompiledPolicies, job: CallJob, call: UnsentCall, request: Sequence[PolicyRow], *, read_only: bool,
    is_claim: bool = False, ruling: Ruling | None = None, refused_before: bool = False, asks: Sequence[str] = (),
    demand: PolicyRow | None = None,
) -> Authorization:  # fmt: skip
    """The strictest of gates (``ruling``) and policies; standing approvals come after it. ``is_claim``: that it only reads is what its
    agent says, which counts where a row looks at it, and not by itself. ``demand``: the call asks people, whatever policies say."""
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
        """Why gates refuse it; empty where policies do."""
        is_gates = self.ruling is not None and self.ruling.rule == self.answer.decision.rule
        return f": {self.ruling.reason}" if is_gates and self.ruling is not None and self.ruling.reason else ""

    @property
    def is_unseen(self) -> bool:
        """A person must pass a gate that was not on the card when they approved it."""
        return is_unseen(self.ruling)

    @property
    def needed_a_person(self) -> bool:
        """Its gates, or a policy of its atlases, let it through because a person did."""
        return self.ruling is not None and (self.ruling.overrides or bool(self.ruling.people))

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
