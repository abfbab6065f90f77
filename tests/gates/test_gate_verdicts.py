"""What gates and policies say of one call, together."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from cortex_plane.calls.model import ActionAnswer, ResolutionDecision
from cortex_plane.calls.rules.permissions import answered, decided
from cortex_plane.gates.model.gates import NOTHING_YET, Ruling
from cortex_plane.gates.rules.authorization import authorize, strictest
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import (
    OWNER_DECIDES,
    STRICTNESS,
    Approvers,
    CallFacts,
    PolicyDecision,
    PolicyRow,
    PolicySet,
    PolicyVerdict,
    Template,
    Terms,
)
from cortex_plane.policies.rules.engine import DEFAULT_OWNER, CompiledPolicies
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


def speaking(verdict: PolicyVerdict, risk: Risk, *, strict: bool = False) -> Ruling:
    return Ruling(
        verdict=verdict, rule="capability:a/desk", reason="", state=NOTHING_YET, risk=risk, strict=strict,
    )  # fmt: skip


def facts(*, declares_risk: bool = True, read_only: bool = False, **more: Any) -> CallFacts:
    return CallFacts(
        target="ticket.note", arguments={}, read_only=read_only, risk=Risk.LOW, agent="clerk",
        declares_risk=declares_risk, **more,
    )  # fmt: skip


NOBODY_ELSE = CompiledPolicies(PolicySet())


@pytest.mark.proves("S5.200")
@pytest.mark.parametrize("risk", list(Risk))
@pytest.mark.parametrize("declares_risk", [True, False])
def test_an_atlas_that_allows_a_call_speaks_for_it_where_its_tool_declares_low_or_medium_risk(
    risk: Risk, declares_risk: bool
) -> None:
    alone = authorize(NOBODY_ELSE, facts(declares_risk=declares_risk), (), ruling=speaking(ALLOW, risk))
    if declares_risk and risk in (Risk.LOW, Risk.MEDIUM):
        assert (alone.verdict, alone.rule, alone.terms) == (ALLOW, "capability:a/desk", None)
    else:
        assert (alone.verdict, alone.rule) == (ASK, DEFAULT_OWNER)


@pytest.mark.proves("S5.200")
def test_where_no_atlas_allows_the_call_the_default_stands() -> None:
    assert authorize(NOBODY_ELSE, facts(), ()).rule == DEFAULT_OWNER, "no atlas at all"
    strict = authorize(NOBODY_ELSE, facts(), (), ruling=speaking(ALLOW, Risk.LOW, strict=True))
    assert strict.rule == DEFAULT_OWNER, "one of its gates demands that policies judge it"
    asked = authorize(NOBODY_ELSE, facts(), (), ruling=speaking(ASK, Risk.LOW))
    assert (asked.verdict, asked.rule) == (ASK, "capability:a/desk")
    assert asked.terms is not None
    assert asked.terms.approvers.owner
    reading = authorize(NOBODY_ELSE, facts(declares_risk=False, read_only=True), (), ruling=speaking(ALLOW, Risk.LOW))
    assert (reading.verdict, reading.rule) == (ALLOW, "default:read_only")


@pytest.mark.proves("S5.200")
@pytest.mark.parametrize("effect", list(PolicyVerdict))
@pytest.mark.parametrize("gates", list(PolicyVerdict))
def test_a_policy_that_matches_is_judged_beside_the_atlas_and_the_stricter_holds(
    gates: PolicyVerdict, effect: PolicyVerdict
) -> None:
    row = PolicyRow(name="row", target="ticket.*", effect=effect)
    both = authorize(CompiledPolicies(PolicySet(org=(row,))), facts(), (), ruling=speaking(gates, Risk.LOW))
    assert STRICTNESS[both.verdict] == max(STRICTNESS[gates], STRICTNESS[effect])


@pytest.mark.proves("S5.200")
def test_what_a_job_demands_for_itself_holds_also_where_an_atlas_speaks() -> None:
    member = uuid4()
    demand = PolicyRow(name="careful", target="ticket.*", effect=ASK, approvers=Approvers(members=(member,)))
    policies, ruling = CompiledPolicies(PolicySet()), speaking(ALLOW, Risk.LOW)
    assert authorize(policies, facts(), (), ruling=ruling).verdict is ALLOW
    asked = authorize(policies, facts(), (demand,), ruling=ruling)
    assert (asked.verdict, asked.rule) == (ASK, "request:careful@0.0")
    assert authorize(policies, facts(), ()).verdict is ASK, "what one session's atlas says is not remembered for others"
