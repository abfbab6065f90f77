"""What gates and policies say of one call, together."""

from __future__ import annotations

import pytest

from cortex_plane.agents.model.tools import Risk
from cortex_plane.calls.model import ActionAnswer, ResolutionDecision
from cortex_plane.calls.rules.permissions import answered, decided
from cortex_plane.gates.model.gates import NOTHING_YET, Ruling
from cortex_plane.gates.rules.authorization import strictest
from cortex_plane.policies.model.policies import (
    OWNER_DECIDES,
    STRICTNESS,
    Approvers,
    PolicyDecision,
    PolicyVerdict,
    Template,
    Terms,
)
from cortex_plane.tenancy.model.orgs import Role

ALLOW, DENY, ASK = PolicyVerdict.ALLOW, PolicyVerdict.DENY, PolicyVerdict.REQUIRES_APPROVAL


def ruling(verdict: PolicyVerdict, template: Template | None = None) -> Ruling:
    return Ruling(
        verdict=verdict, rule="gate:a/g", reason="because", state=NOTHING_YET, risk=Risk.HIGH, template=template
    )


def decision(verdict: PolicyVerdict, terms: Terms = OWNER_DECIDES) -> PolicyDecision:
    return PolicyDecision(verdict=verdict, rule="org:row", terms=terms if verdict is ASK else None)


@pytest.mark.proves("D.383")
@pytest.mark.parametrize("policy", list(PolicyVerdict))
@pytest.mark.parametrize("gates", list(PolicyVerdict))
def test_the_stricter_of_the_two_holds(gates: PolicyVerdict, policy: PolicyVerdict) -> None:
    both = strictest(ruling(gates), decision(policy))
    assert STRICTNESS[both.verdict] == max(STRICTNESS[gates], STRICTNESS[policy])
    assert (both.terms is not None) == (both.verdict is ASK)
    # Where gates want a person, no standing approval speaks for one; where policies alone do, it may.
    if both.terms is not None:
        assert both.terms.standing == (gates is not ASK)


@pytest.mark.proves("D.383")
def test_a_person_must_fulfil_what_the_atlas_and_what_the_policy_say() -> None:
    alone = strictest(ruling(ASK, Template.DEV_REVIEW), decision(ALLOW)).terms
    assert alone is not None
    assert (alone.template, alone.self_approval) == (Template.DEV_REVIEW, False)
    admins = Terms(
        template=Template.FULL_PIPELINE, required_clearance=3, timeout_seconds=60, reminder_seconds=None,
        approvers=Approvers(roles=(Role.ADMIN,)), on_deny=OWNER_DECIDES.on_deny, self_approval=True,
    )  # fmt: skip
    both = strictest(ruling(ASK, Template.DEV_REVIEW), decision(ASK, admins)).terms
    assert both is not None
    assert (both.template, both.required_clearance, both.timeout_seconds) == (Template.FULL_PIPELINE, 3, 60)
    assert (both.approvers, both.self_approval) == (Approvers(roles=(Role.ADMIN,)), False)
    owner = strictest(ruling(ASK), decision(ASK)).terms
    assert owner is not None
    assert owner.approvers == OWNER_DECIDES.approvers


@pytest.mark.proves("D.388")
def test_what_differs_between_actions_is_partial() -> None:
    def answers(*verdicts: PolicyVerdict) -> list[ActionAnswer]:
        return [answered("a.b", decision(each), None, Risk.LOW) for each in verdicts]

    assert decided(answers()) is ResolutionDecision.DENY
    assert decided(answers(ALLOW, ALLOW)) is ResolutionDecision.ALLOW
    assert decided(answers(DENY, DENY)) is ResolutionDecision.DENY
    assert decided(answers(ASK)) is ResolutionDecision.REQUIRES_APPROVAL
    assert decided(answers(ASK, DENY)) is ResolutionDecision.PARTIAL
    assert decided(answers(ALLOW, DENY)) is ResolutionDecision.PARTIAL


@pytest.mark.proves("D.388")
def test_an_answer_names_who_decided() -> None:
    gates = answered("a.b", strictest(ruling(DENY), decision(ALLOW)), ruling(DENY), Risk.HIGH)
    assert (gates.verdict, gates.rule, gates.reason) == (DENY, "gate:a/g", "because")
    policy = answered("a.b", strictest(ruling(ALLOW), decision(DENY)), ruling(ALLOW), Risk.HIGH)
    assert (policy.verdict, policy.rule, policy.reason) == (DENY, "org:row", "a policy denies it")
