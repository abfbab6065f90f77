"""Verdicts: the walk, its limits, the terms, and an index that finds what a plain walk would find."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.kernel.fields import Risk
from cortex_plane.kernel.globs import Glob
from cortex_plane.policies.model.policies import (
    MAX_TIMEOUT_SECONDS,
    OWNER_DECIDES,
    STRICTNESS,
    TEMPLATES,
    Approvers,
    CallFacts,
    Level,
    OnDeny,
    PolicyDecision,
    PolicyRow,
    PolicySet,
    PolicyVerdict,
    Quorum,
    RoleVotes,
    Template,
    Terms,
)
from cortex_plane.policies.rules.engine import DEFAULT_UNSURE, CompiledPolicies, LevelIndex
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.properties import holds_for

ALLOW, DENY, ASK = PolicyVerdict.ALLOW, PolicyVerdict.DENY, PolicyVerdict.REQUIRES_APPROVAL
TEAM, PARENT = UUID(int=1), UUID(int=2)
CRITICAL = PolicyRow(
    name="critical-needs-approval",
    target="*",
    effect=ASK,
    condition='risk == "critical"',
    template=Template.CRITICAL_PATH,
)


def call(target: str = "deploy", **known: Any) -> CallFacts:
    facts = CallFacts(
        target=target, arguments={}, read_only=False, risk=Risk.LOW, agent="deployer", teams=(TEAM, PARENT)
    )
    return replace(facts, **known)


def row(effect: PolicyVerdict, target: str = "*", name: str = "row", **said: Any) -> PolicyRow:
    return PolicyRow(name=name, target=target, effect=effect, **said)


def decide(
    facts: CallFacts,
    *,
    platform: Sequence[PolicyRow] = (),
    org: Sequence[PolicyRow] = (),
    team: Sequence[PolicyRow] = (),
    parent: Sequence[PolicyRow] = (),
    request: Sequence[PolicyRow] = (),
) -> PolicyDecision:
    policies = PolicySet(
        version="7.1", platform=tuple(platform), org=tuple(org), teams={TEAM: tuple(team), PARENT: tuple(parent)}
    )
    return CompiledPolicies(policies).decide(facts, request)


def terms(decision: PolicyDecision) -> Terms:
    assert decision.terms is not None
    return decision.terms


# The walk --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.50")
def test_without_a_match_reading_is_allowed_and_the_owner_decides_the_rest() -> None:
    assert decide(call(read_only=True)) == PolicyDecision(verdict=ALLOW, rule="default:read_only")
    assert decide(call()) == PolicyDecision(
        verdict=ASK, rule="default:owner", terms=OWNER_DECIDES, own_time_limit=MAX_TIMEOUT_SECONDS
    )


@pytest.mark.proves("D.50")
def test_the_most_specific_level_decides_and_within_a_level_the_first_match() -> None:
    levels = {"platform": ASK, "org": DENY, "parent": ALLOW, "team": DENY}
    given: dict[str, list[PolicyRow]] = {}
    for level, effect in levels.items():
        given[level] = [
            row(ASK, "other*"),
            row(effect, name=level),
            row(DENY if effect is ALLOW else ALLOW, name="late"),
        ]
    assert decide(call(), **given).rule == "team:team@7.1"
    del given["team"]
    # The parent allows; the platform's match still is a ceiling.
    parent = decide(call(), **given)
    assert (parent.verdict, parent.rule) == (ASK, "platform:platform@7.1")
    del given["parent"]
    assert decide(call(), **given).rule == "org:org@7.1"
    del given["org"]
    assert decide(call(), **given).rule == "platform:platform@7.1"


def test_another_teams_rows_and_another_actions_do_not_count() -> None:
    assert decide(call(teams=(PARENT,)), team=[row(DENY)]).rule == "default:owner"
    assert decide(call(teams=()), team=[row(DENY)], parent=[row(DENY)]).rule == "default:owner"
    assert decide(call(), org=[row(DENY, action_type="spend")]).rule == "default:owner"


@pytest.mark.proves("D.51")
def test_a_request_only_tightens() -> None:
    assert decide(call(), request=[row(ALLOW)]).verdict is ASK
    assert decide(call(), org=[row(DENY)], request=[row(ASK)]).verdict is DENY
    assert decide(call(), org=[row(ALLOW)], request=[row(DENY, name="mine")]).rule == "request:mine@7.1"
    asked = decide(call(), org=[row(ALLOW)], request=[row(ASK, template=Template.DEV_REVIEW)])
    assert (asked.verdict, terms(asked).template) == (ASK, Template.DEV_REVIEW)
    base = row(
        ASK, required_clearance=3, timeout_seconds=600, approvers=Approvers(roles=(Role.ADMIN,)), self_approval=False
    )
    loose = row(
        ASK, required_clearance=1, timeout_seconds=6000, approvers=Approvers(owner=True), self_approval=True,
        on_deny=OnDeny.CONTINUE,
    )  # fmt: skip
    kept = terms(decide(call(), org=[base], request=[loose]))
    assert (kept.required_clearance, kept.timeout_seconds, kept.self_approval) == (3, 600, False)
    assert kept.approvers == Approvers(roles=(Role.ADMIN,)), "who decides is not the request's to say"
    tight = terms(decide(call(), org=[base], request=[row(ASK, required_clearance=9, timeout_seconds=60)]))
    assert (tight.required_clearance, tight.timeout_seconds) == (9, 60)


@pytest.mark.proves("D.51")
def test_what_is_final_is_not_loosened_by_what_is_more_specific() -> None:
    final = row(
        ASK, name="final", final=True, required_clearance=4, timeout_seconds=3600,
        approvers=Approvers(roles=(Role.APPROVER,)), self_approval=False, template=Template.FULL_PIPELINE,
    )  # fmt: skip
    allowed = decide(call(), org=[final], team=[row(ALLOW, name="free")])
    assert (allowed.verdict, allowed.rule) == (ASK, "org:final@7.1")
    mine = row(ASK, required_clearance=1, timeout_seconds=7200, approvers=Approvers(owner=True), self_approval=True)
    kept = terms(decide(call(), org=[final], team=[mine]))
    assert (kept.required_clearance, kept.timeout_seconds) == (4, 3600)
    assert kept.approvers == final.approvers
    assert not kept.self_approval
    assert decide(call(), org=[final], team=[row(DENY)]).verdict is DENY
    assert decide(call(), parent=[replace(final, effect=DENY)], team=[row(ALLOW)]).verdict is DENY
    # A row that an earlier one of its own level hides says nothing.
    assert decide(call(), org=[row(ALLOW), final], team=[row(ALLOW)]).verdict is ALLOW
    assert decide(call(), org=[replace(final, final=False)], team=[row(ALLOW)]).verdict is ALLOW


@pytest.mark.proves("D.51")
def test_the_platforms_match_is_a_ceiling_for_effect_clearance_and_time() -> None:
    ceiling = row(ASK, name="ceiling", required_clearance=2, timeout_seconds=3600)
    assert decide(call(), platform=[ceiling], org=[row(ALLOW)]).rule == "platform:ceiling@7.1"
    mine = row(ASK, required_clearance=1, timeout_seconds=7200, approvers=Approvers(owner=True), self_approval=True)
    kept = terms(decide(call(), platform=[ceiling], team=[mine]))
    assert (kept.required_clearance, kept.timeout_seconds, kept.self_approval) == (2, 3600, True)
    assert kept.approvers == Approvers(owner=True), "who decides is not part of the ceiling"
    assert decide(call(), platform=[row(DENY)], org=[row(ALLOW)], team=[row(ASK)]).verdict is DENY
    assert decide(call(), platform=[row(ALLOW)], org=[row(DENY)]).verdict is DENY


# Terms -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.52")
@pytest.mark.parametrize(
    ("template", "hours", "window", "self_approval"),
    [
        (Template.DEV_ONLY, 24, None, True),
        (Template.DEV_REVIEW, 24, 4, False),
        (Template.FULL_PIPELINE, 48, 8, False),
        (Template.CRITICAL_PATH, 72, 24, False),
    ],
)
def test_templates_have_the_times_of_spec_4(
    template: Template, hours: int, window: int | None, self_approval: bool
) -> None:
    found = terms(decide(call(), org=[row(ASK, template=template)]))
    assert found.timeout_seconds == hours * 3600
    assert found.reminder_seconds == (None if window is None else window * 3600)
    assert found.self_approval is self_approval
    wanted = Approvers(owner=True) if self_approval else Approvers(roles=(Role.APPROVER, Role.ADMIN))
    assert (found.approvers, found.on_deny, found.required_clearance) == (wanted, OnDeny.FAIL, 0)


@pytest.mark.proves("D.52")
def test_a_null_inherits_from_template_then_platform_then_default() -> None:
    platform = row(ASK, name="p", template=Template.CRITICAL_PATH, required_clearance=5, on_deny=OnDeny.CONTINUE)
    bare = terms(decide(call(), platform=[platform], org=[row(ASK)]))
    assert bare == replace(
        terms(decide(call(), platform=[platform])), template=Template.CRITICAL_PATH, required_clearance=5
    )
    own = terms(decide(call(), platform=[platform], org=[row(ASK, template=Template.DEV_REVIEW, timeout_seconds=7200)]))
    assert own.template is Template.DEV_REVIEW
    assert own.timeout_seconds == 7200
    assert own.reminder_seconds == 3600, "four hours before does not fit into two: half of the time"
    assert (own.required_clearance, own.on_deny) == (5, OnDeny.CONTINUE)
    assert terms(decide(call(), org=[row(ASK)])) == OWNER_DECIDES


def test_times_stay_under_the_cap_and_a_reminder_can_be_switched_off() -> None:
    long = terms(decide(call(), org=[row(ASK, timeout_seconds=10**9, reminder_seconds=60)]))
    assert (long.timeout_seconds, long.reminder_seconds) == (MAX_TIMEOUT_SECONDS, 60)
    never = terms(decide(call(), org=[row(ASK, template=Template.DEV_REVIEW, reminder_seconds=0)]))
    assert never.reminder_seconds is None


@pytest.mark.proves("D.50")
def test_the_seeded_platform_row_asks_for_critical_calls_alone() -> None:
    assert decide(call(), platform=[CRITICAL]).rule == "default:owner"
    critical = decide(call(risk=Risk.CRITICAL), platform=[CRITICAL], org=[row(ALLOW)])
    assert (critical.verdict, critical.rule) == (ASK, "platform:critical-needs-approval@7.1")
    assert terms(critical).approvers == Approvers(roles=(Role.APPROVER, Role.ADMIN))


# Quorum, escalation, channels, standing approvals ----------------------------------------------------------------

ADMINS = Approvers(roles=(Role.ADMIN,))
REVIEWERS = Approvers(roles=(Role.APPROVER, Role.ADMIN))
APPROVER = Approvers(roles=(Role.APPROVER,))
BOB, CY = Approvers(members=(UUID(int=11),)), Approvers(members=(UUID(int=12),))


def votes(count: int, **roles: int) -> Quorum:
    return Quorum(votes=count, roles=tuple(RoleVotes(role=Role(role), votes=n) for role, n in sorted(roles.items())))


@pytest.mark.proves("D.111")
@pytest.mark.parametrize(
    ("template", "hours", "standing"),
    [
        (Template.DEV_ONLY, None, True),
        (Template.DEV_REVIEW, 4, False),
        (Template.FULL_PIPELINE, 8, False),
        (Template.CRITICAL_PATH, 24, False),
    ],
)
def test_templates_say_when_it_goes_up_and_whether_a_yes_may_stand(
    template: Template, hours: int | None, standing: bool
) -> None:
    found = terms(decide(call(), org=[row(ASK, template=template, approvers=BOB)]))
    assert found.escalation_seconds == (hours * 3600 if hours else None)
    assert found.escalations == ((ADMINS,) if hours else ())
    assert found.standing is standing
    assert found.quorum == Quorum(votes=1)


@pytest.mark.proves("D.111")
def test_without_a_word_about_it_it_goes_up_the_levels_and_to_the_admins_in_the_end() -> None:
    team = row(ASK, approvers=BOB, template=Template.FULL_PIPELINE)
    levels: dict[str, Any] = {
        "team": [team],
        "parent": [row(ASK, approvers=CY)],
        "org": [row(ASK, approvers=APPROVER)],
        "platform": [row(ASK, template=Template.DEV_REVIEW)],
    }
    assert terms(decide(call(), **levels)).escalations == (CY, APPROVER, REVIEWERS)
    # What allows, denies or names nobody is no step; nor is who was asked before.
    assert terms(decide(call(), **levels | {"parent": [row(ALLOW)]})).escalations == (APPROVER, REVIEWERS)
    assert terms(decide(call(), **levels | {"parent": [row(ASK)]})).escalations == (APPROVER, REVIEWERS)
    assert terms(decide(call(), **levels | {"org": [row(ASK, approvers=BOB)]})).escalations == (CY, REVIEWERS)
    assert terms(decide(call(), **levels | {"platform": []})).escalations == (CY, APPROVER, ADMINS)
    assert terms(decide(call(), team=[team])).escalations == (ADMINS,)
    # From where the deciding row stands, upwards.
    assert terms(decide(call(), **levels | {"team": [], "parent": []})).escalations == (REVIEWERS,)
    assert terms(decide(call(), **levels | {"team": [], "parent": [], "org": []})).escalations == ()
    org = row(ASK, approvers=APPROVER, template=Template.CRITICAL_PATH)
    assert terms(decide(call(), org=[org], platform=[row(ASK, template=Template.DEV_ONLY)])).escalations == (
        Approvers(owner=True),
        ADMINS,
    )


@pytest.mark.proves("D.111")
def test_once_means_once_and_what_a_row_says_itself_goes_before() -> None:
    review = row(ASK, approvers=BOB, template=Template.DEV_REVIEW)
    org = [row(ASK, approvers=CY)]
    assert terms(decide(call(), team=[review], org=org)).escalations == (CY,)
    assert terms(decide(call(), team=[row(ASK, approvers=BOB, escalation_seconds=60)], org=org)).escalations == (
        CY, ADMINS,
    )  # fmt: skip
    own = replace(review, escalate_to=(CY, CY, APPROVER))
    found = terms(decide(call(), team=[own], org=org))
    assert (found.escalations, found.escalation_seconds) == ((CY, APPROVER), 4 * 3600)
    silent = replace(review, escalation_seconds=0)
    assert terms(decide(call(), team=[silent], org=org)).escalations == ()
    everybody = replace(review, escalate_to=(BOB,))
    quiet = terms(decide(call(), team=[everybody], org=org))
    assert (quiet.escalations, quiet.escalation_seconds) == ((), None), "nobody is new"
    # Reviewers include the admins: nobody is above them.
    none = terms(decide(call(), org=[row(ASK, template=Template.CRITICAL_PATH)]))
    assert (none.escalations, none.escalation_seconds) == ((), None)


@pytest.mark.proves("D.111")
def test_an_escalation_that_would_come_before_the_request_comes_at_half_of_its_time() -> None:
    short = row(ASK, template=Template.FULL_PIPELINE, approvers=BOB, timeout_seconds=3600)
    assert terms(decide(call(), org=[short])).escalation_seconds == 1800
    tight = terms(decide(call(), org=[short], request=[row(ASK, timeout_seconds=100)]))
    assert (tight.timeout_seconds, tight.escalation_seconds) == (100, 50)
    instant = terms(decide(call(), org=[replace(short, timeout_seconds=1)]))
    assert (instant.escalation_seconds, instant.escalations) == (None, ())


@pytest.mark.proves("D.111")
def test_a_final_row_brings_its_approvers_and_its_escalations() -> None:
    final = row(ASK, final=True, approvers=APPROVER, escalation_seconds=600, escalate_to=(CY,))
    team = row(ASK, approvers=BOB, template=Template.CRITICAL_PATH, escalate_to=(REVIEWERS,))
    found = terms(decide(call(), team=[team], org=[final]))
    assert (found.approvers, found.escalations, found.escalation_seconds) == (APPROVER, (CY,), 600)
    never = terms(decide(call(), team=[team], org=[replace(final, escalation_seconds=0)]))
    assert (never.escalations, never.escalation_seconds) == ((), None)
    raised = terms(decide(call(), team=[row(ALLOW)], org=[final]))
    assert (raised.approvers, raised.escalations) == (APPROVER, (CY,))


@pytest.mark.proves("D.110")
def test_a_null_inherits_quorum_channels_and_standing_approvals() -> None:
    platform = row(ASK, quorum=votes(3), channels=("email",), standing=True, escalation_seconds=60, approvers=BOB)
    found = terms(decide(call(), platform=[platform], org=[row(ASK)]))
    assert (found.quorum, found.channels, found.standing) == (votes(3), ("email",), True)
    assert (found.escalation_seconds, found.escalations) == (60, (ADMINS,))
    own = row(ASK, channels=(), template=Template.DEV_REVIEW)
    found = terms(decide(call(), platform=[platform], org=[own]))
    assert (found.channels, found.standing, found.quorum) == ((), False, votes(3))
    more = row(ASK, template=Template.DEV_REVIEW, standing=True)
    assert terms(decide(call(), org=[more])).standing
    assert OWNER_DECIDES.standing


@pytest.mark.proves("D.110")
def test_a_quorum_of_a_limit_is_a_floor_and_its_no_to_standing_approvals_wins() -> None:
    final = row(ASK, final=True, quorum=votes(2, admin=1), standing=False)
    mine = row(ASK, quorum=votes(1, approver=1), standing=True)
    for limits in ({"org": [final]}, {"parent": [final]}, {"platform": [replace(final, final=False)]}):
        found = terms(decide(call(), team=[mine], **limits))
        assert found.quorum == votes(2, admin=1, approver=1)
        assert not found.standing
    more = terms(decide(call(), team=[replace(mine, quorum=votes(3, admin=2))], org=[final]))
    assert more.quorum == votes(3, admin=2)
    loose = terms(decide(call(), team=[mine], org=[replace(final, final=False)]))
    assert (loose.quorum, loose.standing) == (votes(1, approver=1), True), "the more specific says"
    by_template = row(ASK, template=Template.CRITICAL_PATH)
    assert not terms(decide(call(), team=[mine], platform=[by_template])).standing


# Requests --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.113")
def test_a_request_raises_a_quorum_narrows_channels_and_turns_standing_approvals_off() -> None:
    org = row(ASK, approvers=BOB, quorum=votes(2, admin=1), channels=("email", "webhook"), standing=True)
    less = row(ASK, quorum=votes(1), channels=("webhook", "slack"), standing=True)
    found = terms(decide(call(), org=[org], request=[less]))
    assert (found.quorum, found.channels, found.standing) == (votes(2, admin=1), ("webhook",), True)
    more = row(ASK, quorum=votes(3, approver=2), channels=(), standing=False)
    found = terms(decide(call(), org=[org], request=[more]))
    assert (found.quorum, found.channels, found.standing) == (votes(3, admin=1, approver=2), (), False)
    strict = replace(org, standing=False)
    assert not terms(decide(call(), org=[strict], request=[less])).standing
    open_ = terms(decide(call(), request=[row(ASK, channels=("email",), template=Template.DEV_REVIEW)]))
    assert (open_.channels, open_.standing) == (("email",), False)


@pytest.mark.proves("D.113")
def test_a_request_says_when_others_are_asked_and_not_who() -> None:
    org = row(ASK, approvers=BOB, template=Template.FULL_PIPELINE)
    sooner = terms(decide(call(), org=[org], request=[row(ASK, escalation_seconds=7200)]))
    assert (sooner.escalation_seconds, sooner.escalations) == (7200, (ADMINS,))
    never = terms(decide(call(), org=[org], request=[row(ASK, escalation_seconds=0)]))
    assert (never.escalation_seconds, never.escalations) == (None, ())
    silent = row(ASK, approvers=BOB, escalation_seconds=0)
    for asked in (row(ASK, escalation_seconds=60), row(ASK, template=Template.CRITICAL_PATH)):
        found = terms(decide(call(), org=[silent], request=[asked]))
        assert (found.escalation_seconds, found.escalations) == (None, ()), "its policy says never"


@pytest.mark.proves("D.113")
def test_where_nothing_but_the_default_speaks_those_whom_a_request_names_decide() -> None:
    named = (UUID(int=21), UUID(int=22))
    asked = row(ASK, named=named, action="Pay the invoice", details={"amount": 9}, quorum=votes(2))
    found = decide(call(), request=[asked])
    assert found.rule == "default:owner"
    assert terms(found) == replace(
        OWNER_DECIDES,
        approvers=Approvers(members=named),
        action="Pay the invoice",
        details={"amount": 9},
        quorum=votes(2),
    )
    late = terms(decide(call(), request=[replace(asked, escalation_seconds=60)]))
    assert (late.escalations, late.escalation_seconds) == ((ADMINS,), 60)


@pytest.mark.proves("D.113")
def test_where_a_row_decided_a_request_chooses_among_its_approvers() -> None:
    named = (UUID(int=21),)
    asked = row(ASK, named=named, action="Ship it", details={"to": "production"})
    found = terms(decide(call(), org=[row(ASK, approvers=APPROVER)], request=[asked]))
    assert (found.approvers, found.named) == (APPROVER, named)
    assert (found.action, found.details) == ("Ship it", {"to": "production"})
    owner = terms(decide(call(), org=[row(ASK)], request=[asked]))
    assert (owner.approvers, owner.named) == (Approvers(owner=True), named), "a row says so, not the default"
    denied = decide(call(), org=[row(DENY)], request=[asked])
    assert (denied.verdict, denied.terms) == (DENY, None)


@pytest.mark.proves("D.113")
def test_an_approval_that_only_the_request_demands_is_for_those_whom_it_names() -> None:
    named = (UUID(int=21),)
    asked = row(ASK, name="mine", named=named, action="Ship it", required_clearance=2, escalation_seconds=60)
    for rest in ({"org": [row(ALLOW)]}, {}):
        found = decide(call(read_only=True), request=[asked], **rest)
        assert found.rule == "request:mine@7.1"
        assert terms(found).approvers == Approvers(members=named)
        assert (terms(found).named, terms(found).action) == (None, "Ship it")
        assert (terms(found).required_clearance, terms(found).escalations) == (2, (ADMINS,))
    # The ceiling holds for it too.
    ceiling = row(ALLOW, required_clearance=5, timeout_seconds=60, quorum=votes(2), standing=False)
    for place, final in (("platform", False), ("org", True)):
        held = terms(decide(call(), request=[asked], **{place: [replace(ceiling, final=final)]}))
        assert (held.required_clearance, held.timeout_seconds) == (5, 60)
        assert (held.quorum, held.standing) == (votes(2), False)


def test_a_request_with_details_is_asked_again_and_again() -> None:
    """They hold a dict, and rows of requests are found again by what they are."""
    policies = CompiledPolicies(PolicySet())
    for amount in (1, 2, 1):
        asked = [row(ASK, details={"amount": amount})]
        assert terms(policies.decide(call(), asked)).details == {"amount": amount}


# Conditions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "known"),
    [
        ('args.environment == "production"', {"arguments": {"environment": "production"}}),
        ("args.amount > 100", {"arguments": {"amount": 101}}),
        ('args.to.exists(x, x.endsWith("@rival.example"))', {"arguments": {"to": ["a@rival.example"]}}),
        ("has(args.force) && args.force", {"arguments": {"force": True}}),
        ('tool == "deploy" && risk in ["low", "medium"]', {}),
        ("read_only", {"read_only": True}),
        ('agent.startsWith("deploy")', {}),
        ('session_kind == "conversation"', {"session_kind": "conversation"}),
        ('action_type == "tool_call"', {}),
    ],
)
def test_conditions_see_arguments_and_context(condition: str, known: dict[str, Any]) -> None:
    rows = [row(DENY, condition=condition, name="yes"), row(ALLOW, name="no")]
    assert decide(call(**known), org=rows).rule == "org:yes@7.1"
    rows[0] = row(DENY, condition=f"!({condition})", name="yes")
    assert decide(call(**known), org=rows).rule == "org:no@7.1"


@pytest.mark.proves("D.53")
@pytest.mark.parametrize(
    "condition",
    [
        "args.missing == 1", "args.text > 3", "args.text", "args.list[9] == 1", "1 / args.zero == 1",
        "args.many.all(x, x > 0)", "9223372036854775807 + args.one > 0",
    ],
)  # fmt: skip
def test_a_condition_that_fails_counts_on_the_safe_side(condition: str) -> None:
    arguments = {"text": "x", "list": [], "zero": 0, "one": 1, "many": list(range(1, 300))}
    facts = call(arguments=arguments)
    last = row(ASK, name="last")
    assert decide(facts, org=[row(ALLOW, condition=condition), last]).rule == "org:last@7.1"
    for effect in (ASK, DENY):
        assert decide(facts, org=[row(effect, condition=condition, name="safe"), last]).rule == "org:safe@7.1"
    told = CompiledPolicies(PolicySet(org=(row(ALLOW, condition=condition),))).explain(facts).considered[0]
    assert not told.matched
    assert "counts as no match" in told.reason


# Explaining ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.54")
def test_explain_tells_the_walk_the_limits_and_where_each_term_came_from() -> None:
    policies = CompiledPolicies(
        PolicySet(
            version="3.1",
            platform=(CRITICAL,),
            org=(row(ASK, "deploy*", "deploys", template=Template.DEV_REVIEW, required_clearance=2, final=True),),
            teams={
                TEAM: (
                    row(ALLOW, "deploy", "staging", condition='args.environment == "staging"'),
                    row(ASK, "*", "mine", timeout_seconds=10**6, approvers=Approvers(owner=True)),
                )
            },
        )
    )
    facts = call(arguments={"environment": "production"}, risk=Risk.CRITICAL)
    request = [row(ASK, name="careful", required_clearance=7)]
    told = policies.explain(facts, request)
    assert [(one.level, one.name, one.matched) for one in told.considered] == [
        (Level.REQUEST, "careful", True),
        (Level.TEAM, "staging", False),
        (Level.TEAM, "mine", True),
        (Level.ORG, "deploys", True),
        (Level.PLATFORM, "critical-needs-approval", True),
    ]
    assert told.considered[1].reason == "the condition is false"
    assert told.decided_by == "team:mine@3.1"
    assert [(one.level, one.name) for one in told.limits] == [
        (Level.ORG, "deploys"), (Level.PLATFORM, "critical-needs-approval"), (Level.REQUEST, "careful"),
    ]  # fmt: skip
    assert "required_clearance 0 → 2" in told.limits[0].changes
    assert told.limits[1].changes == []
    assert told.limits[2].changes == ["required_clearance 2 → 7"]
    assert told.decision == policies.decide(facts, request)
    assert terms(told.decision).timeout_seconds == 24 * 3600
    assert told.origins["timeout_seconds"] == "limit org:deploys@3.1"
    assert told.origins["required_clearance"] == "request request:careful@3.1"
    assert told.origins["on_deny"] == "default"
    assert told.version == "3.1"


# Properties ------------------------------------------------------------------------------------------------------

_PIECES = st.text(alphabet="ab.?[", max_size=3)
_TARGETS = st.text(alphabet="ab.", min_size=1, max_size=6)
_GLOBS = st.lists(_PIECES, min_size=1, max_size=4).map("*".join).filter(bool)


@pytest.mark.proves("D.55")
@given(pattern=_GLOBS, text=st.text(alphabet="ab.?[\n", max_size=8))
def test_a_glob_matches_what_the_same_regular_expression_matches(pattern: str, text: str) -> None:
    reference = re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)
    assert Glob.of(pattern).matches(text) == bool(reference.fullmatch(text))


@given(wide=_GLOBS, narrow=_GLOBS, text=st.text(alphabet="ab.?[", max_size=8))
def test_a_glob_that_covers_another_matches_whatever_that_one_matches(wide: str, narrow: str, text: str) -> None:
    if Glob.of(wide).matches(narrow) and Glob.of(narrow).matches(text):
        assert Glob.of(wide).matches(text)


def test_a_glob_takes_its_time_from_the_length_of_the_text() -> None:
    # Exponential for a matcher that backtracks.
    assert not Glob.of("*a" * 50 + "*b").matches("a" * 100_000)


_CONDITIONS = st.sampled_from([None, None, 'tool == "a"', "read_only", "args.missing", 'risk == "critical"'])
_ROWS = st.lists(
    st.builds(
        PolicyRow,
        name=st.integers(0, 99).map(lambda n: f"r{n}"),
        target=st.one_of(_TARGETS, _GLOBS),
        effect=st.sampled_from(PolicyVerdict),
        action_type=st.sampled_from(["tool_call", "tool_call", "other"]),
        condition=_CONDITIONS,
    ),
    max_size=5,
).map(tuple)
_SAID: dict[str, list[Any]] = {
    "required_clearance": [0, 3, 9],
    "template": list(Template),
    "timeout_seconds": [1, 60, 90_000, 10**6],
    "reminder_seconds": [0, 30, 10**6],
    "approvers": [Approvers(owner=True), ADMINS, REVIEWERS, BOB],
    "on_deny": list(OnDeny),
    "self_approval": [True, False],
    "final": [True],
    "channels": [(), ("email",), ("webhook", "email")],
    "quorum": [votes(1), votes(2), votes(2, admin=1), votes(3, admin=2, approver=1)],
    "escalation_seconds": [0, 30, 10**6],
    "escalate_to": [(ADMINS,), (BOB, CY, REVIEWERS), (Approvers(owner=True), APPROVER)],
    "standing": [True, False],
}


def _saying(
    said: dict[str, list[Any]], conditions: Sequence[str | None] | None = None, max_size: int = 2
) -> st.SearchStrategy[tuple[PolicyRow, ...]]:
    """Rows that match often and say some of this each."""
    some = st.sets(st.sampled_from(sorted(said)), max_size=5).flatmap(
        lambda names: st.fixed_dictionaries({name: st.sampled_from(said[name]) for name in sorted(names)})
    )
    one = st.builds(
        lambda target, effect, condition, said: row(effect, target, condition=condition, **said),
        st.sampled_from(["*", "*", "a*", "*b"]),
        st.sampled_from([ASK, ASK, ALLOW, DENY]),
        _CONDITIONS if conditions is None else st.sampled_from(conditions),
        some,
    )
    return st.lists(one, max_size=max_size).map(tuple)


_LEVELS = _saying(_SAID)
_REQUESTS = _saying(
    _SAID | {"named": [(UUID(int=31),), (UUID(int=31), UUID(int=32))], "action": ["Ship it"], "details": [{"a": 1}]}
)
_CALLS = st.builds(call, target=st.sampled_from(["a", "ab", "b"]), read_only=st.booleans(), risk=st.sampled_from(Risk))
_FACTS = st.builds(
    call, target=_TARGETS, read_only=st.booleans(), risk=st.sampled_from(Risk), action_type=st.just("tool_call")
)
_SETS = st.builds(
    lambda platform, org, team, parent: PolicySet(
        version="1.1", platform=platform, org=org, teams={TEAM: team, PARENT: parent}
    ),
    _LEVELS, _LEVELS, _LEVELS, _LEVELS,
)  # fmt: skip


def naive(rows: Sequence[PolicyRow], facts: CallFacts) -> list[PolicyRow]:
    """The rows that match up to the first that surely does, one after the other, by other means than the engine's."""
    matched = []
    for one in rows:
        pattern = ".*".join(map(re.escape, one.target.split("*")))
        if one.action_type != facts.action_type or not re.fullmatch(pattern, facts.target, re.DOTALL):
            continue
        holds = {
            None: True,
            'tool == "a"': facts.target == "a",
            "read_only": facts.read_only,
            "args.missing": one.effect is not ALLOW,
            'risk == "critical"': facts.risk is Risk.CRITICAL,
        }[one.condition]
        if holds:
            matched.append(one)
            if one.condition != "args.missing":
                break
    return matched


@pytest.mark.proves("D.55")
@holds_for(rows=_ROWS, facts=_FACTS, few=40, many=600)
def test_the_index_finds_what_a_plain_walk_finds(rows: tuple[PolicyRow, ...], facts: CallFacts) -> None:
    told = CompiledPolicies(PolicySet(org=rows)).explain(facts)
    matched = [one.name for one in told.considered if one.matched]
    wanted = naive(rows, facts)
    assert matched == [one.name for one in wanted]
    if wanted:
        assert told.decision.verdict is max((one.effect for one in wanted), key=STRICTNESS.__getitem__)


def is_no_lower(one: Quorum, than: Quorum) -> bool:
    roles = {needed.role: needed.votes for needed in one.roles}
    return one.votes >= than.votes and all(roles.get(needed.role, 0) >= needed.votes for needed in than.roles)


def is_no_looser(one: PolicyDecision, than: PolicyDecision) -> bool:
    if one.verdict is not than.verdict or one.terms is None or than.terms is None:
        return STRICTNESS[one.verdict] >= STRICTNESS[than.verdict]
    default = than.rule == "default:owner"
    return (
        one.terms.required_clearance >= than.terms.required_clearance
        and one.terms.timeout_seconds <= than.terms.timeout_seconds
        and (than.terms.self_approval or not one.terms.self_approval)
        and (than.terms.standing or not one.terms.standing)
        and is_no_lower(one.terms.quorum, than.terms.quorum)
        and is_within(one.terms.channels, than.terms.channels)
        and (default or one.terms.approvers == than.terms.approvers)
        and (default or one.terms.escalations in ((), than.terms.escalations))
    )


@pytest.mark.proves("D.51", "D.113")
@holds_for(policies=_SETS, facts=_CALLS, request=_REQUESTS, few=40, many=600)
def test_no_request_loosens_anything(policies: PolicySet, facts: CallFacts, request: tuple[PolicyRow, ...]) -> None:
    compiled = CompiledPolicies(policies)
    assert is_no_looser(compiled.decide(facts, request), compiled.decide(facts))


@pytest.mark.proves("D.51", "D.110")
@holds_for(policies=_SETS, facts=_CALLS, request=_REQUESTS, few=40, many=600)
def test_ceiling_and_final_rows_hold_whatever_else_is_written(
    policies: PolicySet, facts: CallFacts, request: tuple[PolicyRow, ...]
) -> None:
    compiled = CompiledPolicies(policies)
    decision = compiled.decide(facts, request)
    for limit in limits_of(policies, facts):
        assert STRICTNESS[decision.verdict] >= STRICTNESS[limit.effect]
        if decision.terms is not None:
            assert decision.terms.required_clearance >= (limit.required_clearance or 0)
            said = TEMPLATES[limit.template] if limit.template else None
            time = limit.timeout_seconds or (said.timeout_seconds if said else None)
            assert time is None or decision.terms.timeout_seconds <= time
            assert limit.quorum is None or is_no_lower(decision.terms.quorum, limit.quorum)
            standing = limit.standing if limit.standing is not None else said and said.standing
            assert standing is not False or not decision.terms.standing


def limits_of(policies: PolicySet, facts: CallFacts) -> list[PolicyRow]:
    """The row that each level answers with, where it is the platform's or final."""
    answers = [
        (_answer(policies.teams[TEAM], facts), False),
        (_answer(policies.teams[PARENT], facts), False),
        (_answer(policies.org, facts), False),
        (_answer(policies.platform, facts), True),
    ]
    return [found for found, always in answers if found is not None and (always or found.final)]


def _answer(rows: Sequence[PolicyRow], facts: CallFacts) -> PolicyRow | None:
    matched = naive(rows, facts)
    strictest = max((STRICTNESS[each.effect] for each in matched), default=0)
    return next((each for each in matched if STRICTNESS[each.effect] == strictest), None)


_UNSURE = _saying(_SAID, ["args.missing", "args.missing", None], max_size=3)
_UNSURE_SETS = st.builds(
    lambda platform, org, team, parent: PolicySet(
        version="1.1", platform=platform, org=org, teams={TEAM: team, PARENT: parent}
    ),
    _LEVELS, _UNSURE, _UNSURE, _UNSURE,
)  # fmt: skip


def alone(policies: PolicySet, facts: CallFacts) -> Iterator[PolicySet]:
    """Whatever could be the case where nobody can tell: of each level one of its matches for sure, or none where no match is
    sure, and nothing of those before the one that decides."""
    levels = [policies.teams[TEAM], policies.teams[PARENT], policies.org, policies.platform]
    found = [naive(rows, facts) for rows in levels]
    for first, matches in enumerate(found):
        if not matches:
            continue
        chosen: list[Sequence[PolicyRow | None]] = [
            [None] if place < first else _choices(rows, decides=place == first) for place, rows in enumerate(found)
        ]
        for team, parent, org, platform in itertools.product(*chosen):
            yield PolicySet(
                version="1.1", platform=only(platform), org=only(org), teams={TEAM: only(team), PARENT: only(parent)}
            )
        if matches[-1].condition != "args.missing":
            break


def _choices(rows: Sequence[PolicyRow], *, decides: bool) -> list[PolicyRow | None]:
    is_unsure = not rows or rows[-1].condition == "args.missing"
    return [*rows, None] if is_unsure and not decides else [*rows]


def only(one: PolicyRow | None) -> tuple[PolicyRow, ...]:
    return () if one is None else (replace(one, condition=None),)


def people(*asked: Approvers) -> set[Any]:
    return {each for one in asked for each in (*one.roles, *one.members)}


def holds_within(one: PolicyDecision, than: PolicyDecision) -> bool:
    """No looser, where several rows may name different people: then nobody whom not all of them name, but the admins."""
    if one.terms is None or than.terms is None:
        return STRICTNESS[one.verdict] >= STRICTNESS[than.verdict]
    templates = list(Template)
    asked = people(than.terms.approvers)
    later = people(*one.terms.escalations) - {Role.ADMIN}
    return (
        one.terms.required_clearance >= than.terms.required_clearance
        and templates.index(one.terms.template) >= templates.index(than.terms.template)
        and one.terms.timeout_seconds <= than.terms.timeout_seconds
        and (than.terms.self_approval or not one.terms.self_approval)
        and (than.terms.standing or not one.terms.standing)
        and (than.terms.on_deny is OnDeny.CONTINUE or one.terms.on_deny is OnDeny.FAIL)
        and is_no_lower(one.terms.quorum, than.terms.quorum)
        and is_within(one.terms.channels, than.terms.channels)
        and (than.terms.approvers.owner or not one.terms.approvers.owner)
        and (not asked or one.terms.approvers == ADMINS or people(one.terms.approvers) <= asked)
        and later <= people(*than.terms.escalations)
    )


def is_within(channels: tuple[str, ...] | None, limit: tuple[str, ...] | None) -> bool:
    return limit is None or (channels is not None and set(channels) <= set(limit))


@pytest.mark.proves("D.53", "D.51")
@holds_for(policies=_UNSURE_SETS, facts=_CALLS, request=_REQUESTS, few=40, many=600)
def test_where_nobody_can_tell_the_verdict_is_no_looser_than_any_that_could_be_meant(
    policies: PolicySet, facts: CallFacts, request: tuple[PolicyRow, ...]
) -> None:
    compiled = CompiledPolicies(policies)
    decision = compiled.decide(facts)
    for one in alone(policies, facts):
        assert holds_within(decision, CompiledPolicies(one).decide(facts))
    asked = compiled.decide(facts, request)
    for each in naive(request, facts):
        assert holds_within(asked, compiled.decide(facts, only(each)))


@pytest.mark.proves("D.111")
@holds_for(policies=_SETS, facts=_CALLS, request=_REQUESTS, few=40, many=600)
def test_every_step_asks_somebody_new_and_none_comes_before_the_request(
    policies: PolicySet, facts: CallFacts, request: tuple[PolicyRow, ...]
) -> None:
    found = CompiledPolicies(policies).decide(facts, request).terms
    if found is None:
        return
    assert (found.escalation_seconds is None) == (found.escalations == ())
    assert found.escalation_seconds is None or 0 < found.escalation_seconds < found.timeout_seconds
    asked = {("owner", found.approvers.owner)} | set(found.approvers.roles) | set(found.approvers.members)
    for step in found.escalations:
        wanted = {("owner", True)} if step.owner else set()
        new = (wanted | set(step.roles) | set(step.members)) - asked
        assert new
        asked |= new


@holds_for(policies=_SETS, facts=_CALLS, request=_REQUESTS, few=40, many=600)
def test_terms_are_whole_and_an_explanation_says_what_happens(
    policies: PolicySet, facts: CallFacts, request: tuple[PolicyRow, ...]
) -> None:
    compiled = CompiledPolicies(policies)
    told = compiled.explain(facts, request)
    assert told.decision == compiled.decide(facts, request)
    # Whatever was concluded before about other calls with other matches.
    others = [facts, replace(facts, read_only=not facts.read_only), replace(facts, teams=()), facts]
    for other in others:
        assert compiled.decide(other) == compiled.explain(other).decision
    assert (told.decision.terms is not None) == (told.decision.verdict is ASK)
    if told.decision.terms is not None:
        assert 1 <= told.decision.terms.timeout_seconds <= MAX_TIMEOUT_SECONDS
        reminder = told.decision.terms.reminder_seconds
        assert reminder is None or 0 < reminder < told.decision.terms.timeout_seconds
        assert set(told.origins) == set(Terms.__slots__)


# The index -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.55")
def test_a_verdict_looks_at_few_rows_however_many_there_are() -> None:
    rows = [
        row(DENY, name=f"r{n}", target=[f"tool_{n}", f"tool_{n}.*", f"*.verb_{n}", f"*_x{n}y_*"][n % 4])
        for n in range(20_000)
    ]
    index = LevelIndex(rows)
    for target, wanted in [("tool_4", 4), ("tool_5.a", 5), ("a.verb_6", 6), ("a_x7y_b", 7)]:
        assert len(list(index._by_action["tool_call"]._candidates(target))) <= 4
        assert [one.position for one in index.find("tool_call", target)] == [wanted]


def test_an_agent_cannot_step_around_a_deny_by_making_an_earlier_condition_fail() -> None:
    """`args.amount > 100` cannot be judged for a text; the rows behind it still count."""
    rows = [
        PolicyRow(name="large", target="pay", effect=ASK, condition="args.amount > 100"),
        PolicyRow(name="never", target="pay", effect=DENY),
    ]
    policies = CompiledPolicies(PolicySet(version="1.1", org=tuple(rows)))
    amounts: list[Any] = [5, "5", None, {}]
    for amount in amounts:
        assert policies.decide(call("pay", arguments={"amount": amount})).verdict is DENY
    assert policies.decide(call("pay", arguments={"amount": 500})).verdict is ASK
    softer = [rows[0], PolicyRow(name="fine", target="pay", effect=PolicyVerdict.ALLOW)]
    unsure = CompiledPolicies(PolicySet(version="1.1", org=tuple(softer)))
    assert unsure.decide(call("pay", arguments={"amount": "5"})).verdict is ASK


SMALL = row(ASK, "pay", "small", condition="args.amount < 100", template=Template.DEV_ONLY)
REST = row(ASK, "pay", "rest", template=Template.CRITICAL_PATH, quorum=votes(2), required_clearance=5)
UNTOLD: list[dict[str, Any]] = [{}, {"amount": "5000"}, {"amount": None}, {"amount": [5]}]


@pytest.mark.proves("D.53")
@pytest.mark.parametrize("arguments", UNTOLD)
def test_an_agent_cannot_step_around_a_stricter_approval_by_making_a_condition_fail(arguments: dict[str, Any]) -> None:
    wanted = decide(call("pay", arguments={"amount": 5000}), org=[SMALL, REST])
    assert wanted.rule == "org:rest@7.1"
    levels: list[dict[str, list[PolicyRow]]] = [
        {"org": [SMALL, REST]},
        {"team": [SMALL], "org": [REST]},
        {"parent": [SMALL], "platform": [REST]},
        {"team": [SMALL], "parent": [row(ASK, "pay", condition="args.amount < 1000")], "org": [REST]},
    ]
    for placed in levels:
        found = decide(call("pay", arguments=arguments), **placed)
        assert found.rule.partition(":")[2] == "rest@7.1"
        held = terms(found)
        assert (held.template, held.required_clearance) == (Template.CRITICAL_PATH, 5)
        assert (held.quorum, held.approvers) == (votes(2), REVIEWERS)
        assert (held.self_approval, held.standing) == (False, False)
        assert held.timeout_seconds == 24 * 3600, "the shorter one"
    small = decide(call("pay", arguments={"amount": 5}), org=[SMALL, REST])
    assert (small.rule, terms(small).quorum) == ("org:small@7.1", votes(1)), "where it can be told, one row decides"


@pytest.mark.proves("D.53")
def test_a_level_of_which_nobody_can_tell_does_not_hide_a_denial_behind_it() -> None:
    for placed in ({"team": [SMALL], "org": [row(DENY)]}, {"org": [SMALL], "platform": [row(DENY)]}):
        assert decide(call("pay", arguments={"amount": "5"}), **placed).verdict is DENY
    assert decide(call("pay", arguments={"amount": 5}), team=[SMALL], org=[row(DENY)]).verdict is ASK


@pytest.mark.proves("D.53")
@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (Approvers(owner=True), BOB, BOB),
        (Approvers(owner=True), replace(REVIEWERS, owner=True), Approvers(owner=True)),
        (REVIEWERS, APPROVER, APPROVER),
        (replace(BOB, owner=True), replace(BOB, roles=(Role.APPROVER,)), BOB),
        (APPROVER, BOB, ADMINS),
        (BOB, CY, ADMINS),
    ],
)
def test_who_decides_where_nobody_can_tell_is_whom_all_name(
    one: Approvers, other: Approvers, wanted: Approvers
) -> None:
    for first, then in ((one, other), (other, one)):
        rows = [row(ASK, condition="args.missing", approvers=first), row(ASK, approvers=then)]
        assert terms(decide(call(), org=rows)).approvers == wanted


@pytest.mark.proves("D.53")
def test_the_owner_does_not_decide_alone_where_one_of_the_rows_forbids_it() -> None:
    mine = row(ASK, condition="args.missing", template=Template.DEV_ONLY)
    strict = row(ASK, approvers=replace(ADMINS, owner=True), self_approval=False)
    found = terms(decide(call(), org=[mine, strict]))
    assert (found.approvers, found.self_approval) == (ADMINS, False)


@pytest.mark.proves("D.53", "D.111")
def test_where_nobody_can_tell_it_escalates_only_to_whom_all_would_ask() -> None:
    first = row(ASK, condition="args.missing", approvers=BOB, escalation_seconds=60, escalate_to=(CY, ADMINS))
    same = replace(first, condition=None)
    assert terms(decide(call(), org=[first, same])).escalations == (CY, ADMINS)
    for then in (replace(same, escalate_to=(ADMINS,)), replace(same, escalation_seconds=0)):
        found = terms(decide(call(), org=[first, then]))
        assert (found.approvers, found.escalations, found.escalation_seconds) == (BOB, (), None)


@pytest.mark.proves("D.53", "D.51")
def test_a_final_row_limits_also_where_another_of_its_level_may_be_the_one() -> None:
    """Neither the denial nor the approval of a level may make the other one's `final` vanish."""
    ask = row(ASK, name="ask", final=True, required_clearance=4)
    for org in ([replace(ask, condition="args.missing"), row(DENY)], [row(DENY, condition="args.missing"), ask]):
        found = decide(call(), team=[row(ALLOW)], org=org)
        assert (found.verdict, found.rule, terms(found).required_clearance) == (ASK, "org:ask@7.1", 4)
    # Whether its approvers decide cannot be told: not more people than the team's own row names.
    wide = replace(ask, condition="args.missing", approvers=REVIEWERS)
    found = decide(call(), team=[row(ASK, approvers=ADMINS)], org=[wide, row(ASK)])
    assert (terms(found).approvers, terms(found).required_clearance) == (ADMINS, 4)


@pytest.mark.proves("D.53", "D.113")
def test_all_rows_of_a_request_hold_that_could_be_the_one() -> None:
    weak = row(ASK, name="weak", condition="args.amount < 100", named=(UUID(int=21),), action="Pay")
    strong = row(ASK, name="strong", template=Template.CRITICAL_PATH, quorum=votes(2), required_clearance=5)
    for arguments in UNTOLD:
        for org in ([row(ALLOW)], [row(ASK)], []):
            found = terms(decide(call(arguments=arguments), org=org, request=[weak, strong]))
            assert (found.template, found.quorum) == (Template.CRITICAL_PATH, votes(2))
            assert (found.required_clearance, found.self_approval, found.standing) == (5, False, False)
        assert decide(call(arguments=arguments), request=[weak, row(DENY)]).verdict is DENY


@pytest.mark.proves("D.54")
def test_explain_tells_what_each_row_did_of_which_nobody_can_tell() -> None:
    policies = CompiledPolicies(PolicySet(version="7.1", org=(replace(SMALL, channels=("email",)), REST)))
    facts = call("pay")
    told = policies.explain(facts)
    assert told.decision == policies.decide(facts)
    assert [(one.name, one.matched) for one in told.considered] == [("small", True), ("rest", True)]
    assert told.decided_by == told.decision.rule == "org:rest@7.1"
    limit = told.limits[0]
    assert (limit.name, limit.why) == ("small", "nobody can tell which of them matches")
    assert limit.changes == [
        "timeout_seconds 259200 → 86400", "reminder_seconds 86400 → 43200", "channels all → email",
    ]  # fmt: skip
    assert told.origins["channels"] == "limit org:small@7.1"


def test_a_thousand_rows_of_which_nobody_can_tell_are_still_judged() -> None:
    rows = [row(ASK, "pay", condition=f"args.amount > {n}", required_clearance=n) for n in range(1000)]
    policies = CompiledPolicies(PolicySet(org=tuple(rows)))
    assert terms(policies.decide(call("pay"))).required_clearance == 999
    assert terms(policies.decide(call("pay", arguments={"amount": 3}))).required_clearance == 0


@pytest.mark.proves("D.53")
def test_more_combinations_than_are_decided_are_denied() -> None:
    rows = [row(ASK, "pay", condition=f"args.amount > {n}", name=f"r{n}") for n in range(100)]
    policies = CompiledPolicies(PolicySet(org=tuple(rows), teams={TEAM: tuple(rows)}))
    refused = policies.explain(call("pay"))
    assert (refused.decision.verdict, refused.decision.rule, refused.decided_by) == (
        DENY,
        DEFAULT_UNSURE,
        DEFAULT_UNSURE,
    )
    assert policies.decide(call("pay")) == refused.decision
    assert policies.decide(call("pay"), [row(ASK)]).verdict is DENY
    assert policies.decide(call("pay", arguments={"amount": 3})).verdict is ASK, "where it can be told, one row decides"


@pytest.mark.proves("D.51")
def test_what_is_more_specific_adds_no_channel_and_does_not_go_on_where_a_final_row_fails() -> None:
    final = row(ASK, final=True, channels=("email",), on_deny=OnDeny.FAIL)
    mine = row(ASK, channels=("webhook", "email"), on_deny=OnDeny.CONTINUE)
    found = terms(decide(call(), team=[mine], org=[final]))
    assert (found.channels, found.on_deny) == (("email",), OnDeny.FAIL)
    assert terms(decide(call(), team=[replace(mine, channels=None)], org=[final])).channels == ("email",)
    assert terms(decide(call(), team=[replace(mine, channels=())], org=[final])).channels == ()
    loose = terms(decide(call(), team=[mine], org=[replace(final, final=False)]))
    assert (loose.channels, loose.on_deny) == (mine.channels, OnDeny.CONTINUE)
    silent = terms(decide(call(), team=[mine], org=[row(ASK, final=True)]))
    assert (silent.channels, silent.on_deny) == (mine.channels, OnDeny.CONTINUE), "it says nothing of either"
    ceiling = terms(decide(call(), team=[mine], platform=[replace(final, final=False)]))
    assert (ceiling.channels, ceiling.on_deny) == (("email",), OnDeny.CONTINUE)


def test_a_request_may_fail_a_job_on_a_denial_and_not_let_it_go_on() -> None:
    strict = PolicyRow(name="asks", target="pay", effect=ASK, on_deny=OnDeny.FAIL)
    loose = PolicyRow(name="asks", target="pay", effect=ASK, on_deny=OnDeny.CONTINUE)
    for org, request, expected in ((strict, loose, OnDeny.FAIL), (loose, strict, OnDeny.FAIL)):
        policies = CompiledPolicies(PolicySet(version="1.1", org=(org,)))
        terms = policies.decide(call("pay"), [request]).terms
        assert terms is not None
        assert terms.on_deny is expected


@pytest.mark.parametrize(
    "limit",
    [row(ASK, final=True, condition="args.missing"), row(ASK, final=True, condition="args.missing", approvers=BOB)],
)
def test_an_unsure_final_row_does_not_replace_the_approvers_of_a_sure_one(limit: PolicyRow) -> None:
    """Its condition may be false, and then it limits nothing: only whom both name may decide."""
    mine = row(ASK, approvers=ADMINS)
    for levels in ({"org": [limit]}, {"platform": [limit]}):
        decision = decide(call("pay"), team=[mine], **levels)
        assert terms(decision).approvers == ADMINS
        assert not terms(decision).approvers.owner
