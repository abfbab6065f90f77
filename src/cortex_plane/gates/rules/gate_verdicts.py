"""What gates and policies say of one call, together: the stricter of the two holds."""

from __future__ import annotations

from dataclasses import replace

from cortex_plane.gates.model.gates import Ruling
from cortex_plane.policies.model.authorization import PolicyVerdict
from cortex_plane.policies.model.policies import PolicyDecision, PolicyRow, Terms
from cortex_plane.policies.rules.policy_terms import both_terms, resolve_terms


def strictest(ruling: Ruling, decision: PolicyDecision) -> PolicyDecision:
    """Where gates want a person, no standing approval speaks for one."""
    if ruling.verdict is PolicyVerdict.DENY:
        return PolicyDecision(verdict=PolicyVerdict.DENY, rule=ruling.rule)
    if decision.verdict is PolicyVerdict.DENY or ruling.verdict is PolicyVerdict.ALLOW:
        return decision
    return PolicyDecision(
        verdict=PolicyVerdict.REQUIRES_APPROVAL, rule=ruling.rule, terms=_terms(ruling, decision)
    )


def _terms(ruling: Ruling, decision: PolicyDecision) -> Terms:
    """What fulfils both: the template of the atlas, and what a policy says where it wants a person too."""
    asked = PolicyRow(
        name=ruling.rule,
        target="*",
        effect=PolicyVerdict.REQUIRES_APPROVAL,
        template=ruling.template,
    )
    terms, _ = resolve_terms(asked, None)
    if decision.terms is not None:
        terms, _ = both_terms(decision.terms, {}, terms, ruling.rule)
    return replace(terms, standing=False)
