"""Scenario files: read strictly, and played as they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.calls.rules.bench import BenchSetting, play
from cortex_plane.gates.files import atlases, scenarios
from cortex_plane.gates.model.atlases import (
    AnswerValidation,
    Atlas,
    AtlasPolicyType,
    Guidance,
    Mode,
    ResponseType,
    TriggerType,
)
from cortex_plane.gates.model.scenarios import MAX_FILE_BYTES, Scenario, ScenarioOutcome
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.kernel.errors import InvalidInput, TooLarge
from cortex_plane.policies.files import read_alone
from cortex_plane.policies.rules.engine import CompiledPolicies
from tests.fixtures.gates import ask, atlas, capability, context, gate, human, policy

EXAMPLES = Path(__file__).parents[2] / "examples" / "atlases"
TELL = Mode.ADVISORY
ATLAS = atlas(
    gate("start", TriggerType.SESSION_START),
    gate("word", TriggerType.KEYWORD, mode=TELL, on_patterns=("refund",), contexts=("rules",)),
    gate("wrong", TriggerType.ERROR_OCCURRED, mode=TELL, guidance=Guidance(content="Stay calm.")),
    gate("mood", TriggerType.CUSTOM, mode=TELL, on_trigger_id="mood", unlock_capabilities=("c",)),
    gate("ask", TriggerType.EXPLICIT_REQUEST, mode=TELL, on_patterns=("faq",), contexts=("faq",)),
    gate("often", TriggerType.TIME_INTERVAL, on_seconds=600.0),
    gate(
        "why", TriggerType.ACTION_PRE, on_patterns=("t.delete",),
        questions=(ask("why", ResponseType.TEXT, validation=AnswerValidation(custom_validator="v")),),
    ),
    human("boss", TriggerType.ACTION_PRE, on_patterns=("pay.*",)),
    policies=(policy(AtlasPolicyType.BUDGET, "t.get", max_calls=1), policy(AtlasPolicyType.ALLOW, "t.*", "pay.*")),
    capabilities=(capability("c", "x.*"),),
    contexts=(context("rules"), context("faq")),
)  # fmt: skip
TOOLS = "{t.get: {risk: low}, t.delete: {risk: medium}, x.y: {risk: low}, pay.out: {risk: low}}"
AGREED = "- {answered: start, with: {sure: understood}}"


def played(*session: str, expect: str, call: str = "") -> ScenarioOutcome:
    events = "\n".join(f"      {each}" for each in session)
    text = f"scenarios:\n  - name: It\n    session:\n{events}\n    expect: {{{expect}}}\n" if session else (
        f"scenarios:\n  - name: It\n    expect: {{{expect}}}\n"
    )  # fmt: skip
    (scenario,) = scenarios.read(f"tools: {TOOLS}\n" + text + (f"    call: {call}\n" if call else ""))
    return tried(scenario, ATLAS)


def tried(scenario: Scenario, *atlases: Atlas, policies: str | None = None) -> ScenarioOutcome:
    """As the command without a plane does."""
    rows, teams = read_alone(policies, scenario.setting.teams)
    setting = BenchSetting(
        atlases=CompiledAtlases(atlases), policies=CompiledPolicies(rows), agent=scenario.setting.agent or "agent",
        teams=teams, session_kind=scenario.setting.session_kind, tools=scenario.setting.tools,
    )  # fmt: skip
    return play(setting, scenario)


@pytest.mark.proves("D.356", "S5.31")
@pytest.mark.parametrize(
    ("session", "call", "expect"),
    [
        ((), "t.get", "decision: deny, questions: [sure], reason: ANSWERED BEFORE"),
        ((AGREED,), "t.get", "decision: allow, gates: [], questions: [], rule: atlas:com.acme/allow"),
        ((AGREED, "- said: A refund!"), "", "contexts: [rules]"),
        ((AGREED, "- requested: faq"), "", "contexts: [faq]"),
        ((AGREED, "- failed: timeout"), "", "guidance: [wrong]"),
        ((AGREED, "- triggered: mood"), "x.y", "decision: allow, open: [c]"),
        ((AGREED,), "x.y", "decision: deny, open: []"),
        ((AGREED, "- minutes: 9.5"), "t.get", "decision: allow"),
        ((AGREED, "- minutes: 10"), "t.get", "decision: deny, questions: [sure]"),
        ((AGREED, "- called: t.get"), "t.get", "decision: deny, rule: atlas:com.acme/budget"),
        ((AGREED,), "pay.out", "decision: requires_approval, people: [boss]"),
        ((AGREED, "- approved: pay.out"), "pay.out", "decision: requires_approval"),
        (("- ignored: true", "- ignored: true", "- ignored: true"), "t.get", "decision: deny, shut: [start]"),
        (
            (
                AGREED,
                "- called: t.delete",
                "- {answered: why, with: {why: x}, objections: {why: no}, accepted: false}",
                "- {answered: why, with: {why: x}}",
            ),
            "t.delete",
            "decision: allow",
        ),
    ],
)
def test_a_session_is_played_event_by_event(session: tuple[str, ...], call: str, expect: str) -> None:
    assert played(*session, call=call, expect=expect).faults == []


@pytest.mark.proves("D.356")
@pytest.mark.parametrize(
    ("session", "call", "expect", "fault"),
    [
        ((), "t.get", "decision: allow", "decision: expected allow, and it is deny"),
        ((), "t.get", "questions: []", "questions: expected none, and there is sure"),
        ((), "t.get", "reason: locked", "reason: expected the words “locked”"),
        ((AGREED,), "t.delete", "gates: []", "gates: expected none, and there is why"),
        ((AGREED,), "", "open: [c]", "open: expected c, and there is none"),
        (("- {answered: start, with: {sure: 'no'}}",), "", "shut: []", "line 5: the answer to `start` is not accepted"),
        (
            ("- {answered: start, with: {sure: understood}, accepted: false}",),
            "",
            "shut: []",
            "line 5: the answer to `start` is accepted, and should not be",
        ),
        (("- approved: pay.out",), "", "shut: []", "line 5: an approval does not let `pay.out` run"),
    ],
)
def test_what_differs_is_told(session: tuple[str, ...], call: str, expect: str, fault: str) -> None:
    (told,) = played(*session, call=call, expect=expect).faults
    assert told.startswith(fault)


POLICIES = """\
policies:
  - {name: small, target: pay.*, when: args.amount <= 50, effect: allow}
  - {name: large, target: pay.*, when: args.amount > 500, effect: requires_approval, template: dev_review, quorum: 2,
     approvers: {members: [Ada, Bob]}}
  - {name: any, target: pay.*, effect: requires_approval, template: dev_review}
teams:
  payments: [{name: never, target: pay.out, effect: deny}]
"""


@pytest.mark.proves("S5.262")
@pytest.mark.parametrize(
    ("call", "more", "expect"),
    [
        ("pay.in", "arguments: {amount: 40}", "decision: allow, rule: org:small"),
        ("pay.in", "arguments: {amount: 200}", "decision: requires_approval, rule: org:any, votes: 1"),
        ("pay.in", "arguments: {amount: 600}", "decision: requires_approval, rule: org:large, votes: 2"),
        # A condition that cannot be evaluated counts on the safe side.
        ("pay.in", "arguments: {}", "decision: requires_approval, votes: 2"),
        ("pay.out", "teams: [payments], arguments: {amount: 40}", "decision: deny, rule: team:never"),
        ("pay.out", "teams: [desk, payments], arguments: {amount: 40}", "decision: deny, rule: parent_team:never"),
        ("t.get", "", "decision: allow, rule: atlas:com.acme/allow"),
        ("t.get", "tools: {t.get: {}}", "decision: requires_approval, rule: default:owner"),
        ("t.get", "tools: {t.get: {read_only: true}}", "decision: allow, rule: default:read_only"),
        ("t.get", "risk: high", "decision: requires_approval, rule: default:owner"),
        ("t.get", "risk: critical", "decision: requires_approval, rule: platform:critical-needs-approval"),
        ("t.unknown", "", "decision: requires_approval, rule: default:owner"),
        ("t.unknown", "risk: low", "decision: allow, rule: atlas:com.acme/allow"),
    ],
)
def test_a_scenario_runs_under_policies_and_tools(call: str, more: str, expect: str) -> None:
    tools = "tools: {t.get: {risk: low}, pay.in: {risk: low}, pay.out: {risk: low}}"
    text = f"{tools}\nscenarios:\n- {{name: It, call: {call}, expect: {{{expect}}}{more and ', '}{more}}}\n"
    (scenario,) = scenarios.read(text)
    rules = atlas(policies=(policy(AtlasPolicyType.ALLOW, "t.*", "pay.*"),))
    assert tried(scenario, rules, policies=POLICIES).faults == []


@pytest.mark.proves("S5.262")
def test_an_approval_does_not_turn_what_a_policy_denies() -> None:
    text = "scenarios: [{name: It, session: [{approved: t.get}], expect: {open: []}}]"
    (scenario,) = scenarios.read(text)
    rules = atlas(policies=(policy(AtlasPolicyType.ALLOW),))
    denied = tried(scenario, rules, policies="policies: [{name: no, target: t.get, effect: deny}]")
    assert denied.faults == ["line 1: an approval does not let `t.get` run: org:no"]
    assert (
        tried(scenario, rules, policies="policies: [{name: ask, target: '*', effect: requires_approval}]").faults == []
    )


@pytest.mark.proves("S5.262")
def test_a_call_that_does_not_answer_what_stops_the_session_is_a_try_less() -> None:
    refused = played("- called: t.get", "- called: t.get", "- called: t.get", expect="shut: [start], questions: []")
    assert refused.faults == []


@pytest.mark.proves("D.356")
def test_the_example_is_as_expected() -> None:
    example = atlases.read((EXAMPLES / "acme-support.yaml").read_text()).atlas
    read = scenarios.read((EXAMPLES / "acme-support.scenarios.yaml").read_text())
    assert len(read) >= 10
    assert {each.name: tried(each, example).faults for each in read} == {each.name: [] for each in read}


@pytest.mark.proves("D.357", "S5.204")
@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", 1, "a mapping with `scenarios`"),
        ("scenarios: []", 1, "at least 1"),
        ("scenarios:\n- name: a\n  expct: {}", 3, "did you mean `expect`"),
        ("scenarios:\n- name: a", 2, "needs `expect`"),
        ("scenarios:\n- name: a\n  expect: {}", 2, "expects nothing"),
        ("scenarios:\n- name: a\n  expect: {decision: maybe}", 3, "must be one of allow, deny"),
        ("scenarios:\n- name: a\n  expect: {decision: deny}", 2, "has no `call`"),
        ("scenarios:\n- name: a\n  session:\n  - {}\n  expect: {open: []}", 4, "exactly one of"),
        ("scenarios:\n- name: a\n  session:\n  - {said: a, called: b}\n  expect: {open: []}", 4, "exactly one of"),
        ("scenarios:\n- name: a\n  session:\n  - {said: a, with: {}}\n  expect: {open: []}", 4, "belongs to answered"),
        ("scenarios:\n- name: a\n  session:\n  - minutes: soon\n  expect: {open: []}", 4, "must be a number"),
        ("scenarios:\n- name: a\n  session:\n  - ignored: false\n  expect: {open: []}", 4, "is true, or not there"),
        ("scenarios:\n- name: a\n  call: &x b\n  expect: {decision: deny}", 3, "anchors"),
        ("scenarios:\n- name: a\n  call: plane.ask_person\n  expect: {decision: deny}", 2, "which no atlas governs"),
        (
            "scenarios:\n- name: a\n  session:\n  - called: plane.ask\n  expect: {open: []}",
            4,
            "`plane.ask` is a tool of",
        ),
        (
            "scenarios:\n- name: a\n  session:\n  - approved: plane.ask\n  expect: {open: []}",
            4,
            "`plane.ask` is a tool of",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, line: int, said: str) -> None:
    with pytest.raises(InvalidInput) as error:
        scenarios.read(text, name="s.yaml")
    assert error.value.code == "invalid_scenarios"
    assert f"s.yaml:{line}: " in error.value.message
    assert said in error.value.message


@pytest.mark.proves("D.357")
def test_a_file_that_is_too_large_is_refused() -> None:
    with pytest.raises(TooLarge):
        scenarios.read("#" * (MAX_FILE_BYTES + 1))


_WORDS = st.sampled_from(["name", "expect", "session", "call", "decision", "said", "answered", "with", "minutes", "x"])
_TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | _WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.proves("D.357")
@given(_TREES)
def test_any_tree_is_read_or_refused(tree: Any) -> None:
    import json

    try:
        read = scenarios.read(json.dumps({"scenarios": [{"name": "a", "session": [tree], "expect": tree}, tree]}))
    except InvalidInput:
        return
    for each in read:
        tried(each, ATLAS)
