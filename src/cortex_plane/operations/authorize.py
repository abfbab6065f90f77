"""The one door: whoever wants to call a tool asks here first.

The answer becomes a row together with the intent that refers to it, so a dispatch that was not authorised cannot be
written. An answer costs no query: policies are compiled once for every version of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.domain.authorization import PolicyVerdict
from cortex_plane.domain.policies import CallFacts, PolicyDecision, PolicyRow
from cortex_plane.domain.policy_engine import CompiledPolicies
from cortex_plane.operations.verbs import new_id


@dataclass(frozen=True, slots=True)
class Authorization:
    id: UUID
    decision: PolicyDecision

    @property
    def verdict(self) -> PolicyVerdict:
        return self.decision.verdict


def authorize(
    policies: CompiledPolicies, facts: CallFacts, request: Sequence[PolicyRow], *, turned_down: bool = False
) -> Authorization:
    """``turned_down``: a person said no to this very call before, in the same job."""
    decision = policies.decide(facts, request)
    if turned_down and decision.verdict is PolicyVerdict.REQUIRES_APPROVAL:
        decision = PolicyDecision(verdict=PolicyVerdict.DENY, rule="turned down before, and unchanged")
    return Authorization(new_id(), decision)
