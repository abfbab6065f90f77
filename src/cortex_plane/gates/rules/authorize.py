"""The one door: whoever wants to call a tool asks here first.

The answer becomes a row together with the intent that refers to it, so a dispatch that was not authorised cannot be
written. An answer costs no query: policies are compiled once for every version of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol
from uuid import UUID

from cortex_plane.gates.model.gates import Ruling
from cortex_plane.gates.rules.gate_verdicts import strictest
from cortex_plane.kernel.idempotency import new_id
from cortex_plane.policies.model.authorization import PolicyVerdict
from cortex_plane.policies.model.policies import CallFacts, PolicyDecision, PolicyRow
from cortex_plane.policies.rules.policy_engine import CompiledPolicies


class JobRef(Protocol):
    """The job that a call belongs to."""

    @property
    def org_id(self) -> UUID: ...
    @property
    def job_id(self) -> UUID: ...
    @property
    def session_id(self) -> UUID: ...
    @property
    def agent_id(self) -> UUID: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingUse:
    """The standing approval that a call leans on, and by which version of its giver's row it was judged."""

    standing_id: UUID
    granter_revision: int
    counted: bool
    """It was counted for this very call, when that was sent before."""


@dataclass(frozen=True, slots=True)
class Authorization:
    id: UUID
    decision: PolicyDecision
    leaning: StandingUse | None = None
    """Where a person's standing approval allows what policy alone does not."""

    @property
    def verdict(self) -> PolicyVerdict:
        return self.decision.verdict


def authorize(
    policies: CompiledPolicies,
    facts: CallFacts,
    request: Sequence[PolicyRow],
    *,
    turned_down: bool = False,
    ruling: Ruling | None = None,
) -> Authorization:
    """``turned_down``: a person said no to this very call before, in the same job. ``ruling``: what the gates of its session
    say; policies look at the risk that it names, and the stricter of the two holds."""
    if ruling is not None:
        facts = replace(facts, risk=ruling.risk, read_only=facts.read_only and not ruling.strict)
    decision = policies.decide(facts, request)
    if ruling is not None:
        decision = strictest(ruling, decision)
    if turned_down and decision.verdict is PolicyVerdict.REQUIRES_APPROVAL:
        decision = PolicyDecision(verdict=PolicyVerdict.DENY, rule="turned down before, and unchanged")
    return Authorization(new_id(), decision)


def leaning_on(answer: Authorization, leaning: StandingUse) -> Authorization:
    """A standing approval speaks where a person would have to; what is denied stays denied."""
    if answer.verdict is not PolicyVerdict.REQUIRES_APPROVAL:
        raise AssertionError(f"a standing approval cannot turn {answer.verdict}")
    rule = f"standing:{leaning.standing_id}"
    return replace(answer, decision=PolicyDecision(verdict=PolicyVerdict.ALLOW, rule=rule), leaning=leaning)
