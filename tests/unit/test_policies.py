"""Verdicts: the walk, its limits, the terms, and an index that finds what a plain walk would find."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortex_plane.domain.authorization import STRICTNESS, PolicyVerdict
from cortex_plane.domain.globs import Glob
from cortex_plane.domain.members import Role
from cortex_plane.domain.policies import (
    MAX_TIMEOUT_SECONDS,
    OWNER_DECIDES,
    TEMPLATES,
    Approvers,
    CallFacts,
    Level,
    OnDeny,
    PolicyDecision,
    PolicyRow,
    PolicySet,
    Template,
    Terms,
)
from cortex_plane.domain.policy_engine import CompiledPolicies
from cortex_plane.domain.policy_index import LevelIndex
from cortex_plane.domain.tools import Risk

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
        version="7.1",
        platform=tuple(platform),
        org=tuple(org),
        teams={TEAM: tuple(team), PARENT: tuple(parent)},
    )
    return CompiledPolicies(policies).decide(facts, request)


def terms(decision: PolicyDecision) -> Terms:
    assert decision.terms is not None
    return decision.terms


# The walk --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.50")
def test_without_a_match_reading_is_allowed_and_the_owner_decides_the_rest() -> None:
    assert decide(call(read_only=True)) == PolicyDecision(verdict=ALLOW, rule="default:read_only")
    assert decide(call()) == PolicyDecision(verdict=ASK, rule="default:owner", terms=OWNER_DECIDES)


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
        ASK,
        required_clearance=3,
        timeout_seconds=600,
        approvers=Approvers(roles=(Role.ADMIN,)),
        self_approval=False,
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
    mine = row(
        ASK, required_clearance=1, timeout_seconds=7200, approvers=Approvers(owner=True), self_approval=True
    )
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
    mine = row(
        ASK, required_clearance=1, timeout_seconds=7200, approvers=Approvers(owner=True), self_approval=True
    )
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
    platform = row(
        ASK, name="p", template=Template.CRITICAL_PATH, required_clearance=5, on_deny=OnDeny.CONTINUE
    )
    bare = terms(decide(call(), platform=[platform], org=[row(ASK)]))
    assert bare == replace(
        terms(decide(call(), platform=[platform])), template=Template.CRITICAL_PATH, required_clearance=5
    )
    own = terms(
        decide(
            call(), platform=[platform], org=[row(ASK, template=Template.DEV_REVIEW, timeout_seconds=7200)]
        )
    )
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
            org=(
                row(
                    ASK, "deploy*", "deploys", template=Template.DEV_REVIEW, required_clearance=2, final=True
                ),
            ),
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
def test_a_glob_that_covers_another_matches_whatever_that_one_matches(
    wide: str, narrow: str, text: str
) -> None:
    if Glob.of(wide).covers(narrow) and Glob.of(narrow).matches(text):
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
        required_clearance=st.none() | st.integers(0, 9),
        template=st.none() | st.sampled_from(Template),
        timeout_seconds=st.none() | st.integers(1, 10**6),
        reminder_seconds=st.none() | st.integers(0, 10**6),
        approvers=st.none() | st.builds(Approvers, owner=st.booleans(), roles=st.just((Role.ADMIN,))),
        on_deny=st.none() | st.sampled_from(OnDeny),
        self_approval=st.none() | st.booleans(),
        final=st.booleans(),
    ),
    max_size=5,
).map(tuple)
_FACTS = st.builds(
    call,
    target=_TARGETS,
    read_only=st.booleans(),
    risk=st.sampled_from(Risk),
    action_type=st.just("tool_call"),
)
_SETS = st.builds(
    lambda platform, org, team, parent: PolicySet(
        version="1.1", platform=platform, org=org, teams={TEAM: team, PARENT: parent}
    ),
    _ROWS, _ROWS, _ROWS, _ROWS,
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
@settings(max_examples=100)
@given(rows=_ROWS, facts=_FACTS)
def test_the_index_finds_what_a_plain_walk_finds(rows: tuple[PolicyRow, ...], facts: CallFacts) -> None:
    told = CompiledPolicies(PolicySet(org=rows)).explain(facts)
    matched = [one.name for one in told.considered if one.matched]
    wanted = naive(rows, facts)
    assert matched == [one.name for one in wanted]
    if wanted:
        assert told.decision.verdict is max((one.effect for one in wanted), key=STRICTNESS.__getitem__)


def is_no_looser(one: PolicyDecision, than: PolicyDecision) -> bool:
    if one.verdict is not than.verdict or one.terms is None or than.terms is None:
        return STRICTNESS[one.verdict] >= STRICTNESS[than.verdict]
    return (
        one.terms.required_clearance >= than.terms.required_clearance
        and one.terms.timeout_seconds <= than.terms.timeout_seconds
        and (than.terms.self_approval or not one.terms.self_approval)
        and one.terms.approvers == than.terms.approvers
    )


@pytest.mark.proves("D.51")
@settings(max_examples=100)
@given(policies=_SETS, facts=_FACTS, request=_ROWS)
def test_no_request_loosens_anything(
    policies: PolicySet, facts: CallFacts, request: tuple[PolicyRow, ...]
) -> None:
    compiled = CompiledPolicies(policies)
    assert is_no_looser(compiled.decide(facts, request), compiled.decide(facts))


@pytest.mark.proves("D.51")
@settings(max_examples=100)
@given(policies=_SETS, facts=_FACTS, request=_ROWS)
def test_ceiling_and_final_rows_hold_whatever_else_is_written(
    policies: PolicySet, facts: CallFacts, request: tuple[PolicyRow, ...]
) -> None:
    decision = CompiledPolicies(policies).decide(facts, request)
    limits = naive(policies.platform, facts)
    limits += [
        found
        for rows in (policies.org, policies.teams[PARENT])
        for found in naive(rows, facts)
        if found.final
    ]
    for limit in limits:
        assert STRICTNESS[decision.verdict] >= STRICTNESS[limit.effect]
        if decision.terms is not None:
            assert decision.terms.required_clearance >= (limit.required_clearance or 0)
            time = limit.timeout_seconds or (
                TEMPLATES[limit.template].timeout_seconds if limit.template else None
            )
            assert time is None or decision.terms.timeout_seconds <= time


@settings(max_examples=60)
@given(policies=_SETS, facts=_FACTS, request=_ROWS)
def test_terms_are_whole_and_an_explanation_says_what_happens(
    policies: PolicySet, facts: CallFacts, request: tuple[PolicyRow, ...]
) -> None:
    compiled = CompiledPolicies(policies)
    told = compiled.explain(facts, request)
    assert told.decision == compiled.decide(facts, request)
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
        candidates = list(index.candidates("tool_call", target))
        assert len(candidates) <= 4
        assert next(one.position for one in candidates if one.glob.matches(target)) == wanted


def test_what_only_conditions_tell_apart_is_counted() -> None:
    rows = [row(ASK, "pay", condition=f"args.amount > {n}") for n in range(1200)]
    assert list(LevelIndex(rows).crowds()) == [("pay", 1200)]
    assert list(LevelIndex([row(ASK, "pay")] * 5000).crowds()) == []


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


def test_a_request_may_fail_a_job_on_a_denial_and_not_let_it_go_on() -> None:
    strict = PolicyRow(name="asks", target="pay", effect=ASK, on_deny=OnDeny.FAIL)
    loose = PolicyRow(name="asks", target="pay", effect=ASK, on_deny=OnDeny.CONTINUE)
    for org, request, expected in ((strict, loose, OnDeny.FAIL), (loose, strict, OnDeny.FAIL)):
        policies = CompiledPolicies(PolicySet(version="1.1", org=(org,)))
        terms = policies.decide(call("pay"), [request]).terms
        assert terms is not None
        assert terms.on_deny is expected
