"""Which actions of an atlas can run: gates that unlock what locks their own action, dead ends, and the plane's own tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.gates.files.atlases import read
from cortex_plane.gates.model.atlases import Atlas, AtlasPolicyType, Gate, Mode, TriggerType
from cortex_plane.gates.rules.reachability import unreachable_actions
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import Risk
from cortex_plane.kernel.globs import Glob
from cortex_plane.policies.model.policies import PolicyVerdict
from tests.fixtures.gates import ATLAS, Life, atlas, call, capability, gate, human, policy
from tests.fixtures.people import World
from tests.gates.files import SPEC, below

A, D, P = PolicyVerdict.ALLOW, PolicyVerdict.DENY, PolicyVerdict.REQUIRES_APPROVAL
PRE, POST = TriggerType.ACTION_PRE, TriggerType.ACTION_POST
ERASE = capability("erase", "t.delete", "t.wipe", locked=True)


def confirm(**more: Any) -> Gate:
    return gate("confirm", PRE, on_patterns=("*.delete",), unlock_capabilities=("erase",), **more)


@pytest.mark.proves("S5.202")
def test_a_gate_before_an_action_may_unlock_the_capability_that_locks_it() -> None:
    life = Life(atlas(confirm(), policies=(), capabilities=(ERASE,)))
    assert life.judge("t.wipe").reason.endswith("is locked"), "no gate before this one unlocks it"
    assert [each.gate for each in life.judge("t.delete").asks] == [f"{ATLAS}/confirm"]
    life.answer("confirm")
    assert (life.verdict("t.delete"), life.verdict("t.wipe")) == (A, A)
    life.run("t.delete")
    assert life.verdict("t.delete") is D, "it is asked for each call"


@pytest.mark.proves("S5.202")
@pytest.mark.parametrize("kind", [PRE, TriggerType.RISK_THRESHOLD])
@pytest.mark.parametrize("mode", ["advisory", "human"])
def test_so_may_one_that_asks_nothing_or_asks_people(kind: TriggerType, mode: str) -> None:
    on: dict[str, Any] = {"on_patterns": ("*.delete",)} if kind is PRE else {"on_min_tier": Risk.HIGH}
    make: Callable[..., Gate] = human if mode == "human" else gate
    more = {} if mode == "human" else {"mode": Mode.ADVISORY}
    life = Life(
        atlas(make("opens", kind, unlock_capabilities=("erase",), **on, **more), policies=(), capabilities=(ERASE,))
    )
    delete = call("t.delete", Risk.HIGH)
    assert life.verdict(delete) is (P if mode == "human" else A)
    approved = call("t.delete", Risk.HIGH, approved=True)
    if mode == "human":
        assert life.verdict(approved) is A
    life.run(approved if mode == "human" else delete)
    assert life.verdict(call("t.wipe", Risk.LOW)) is A, "it is open once the call ran"


@pytest.mark.proves("S5.202")
def test_a_person_who_passes_the_start_unlocks_with_the_first_call() -> None:
    start = human("start", TriggerType.SESSION_START, unlock_capabilities=("erase",))
    life = Life(atlas(start, policies=(), capabilities=(ERASE,)))
    assert life.verdict("t.wipe") is P
    life.run(call("t.wipe", approved=True))
    assert life.verdict("t.delete") is A


@pytest.mark.proves("S5.202")
def test_who_answered_answers_again_where_the_capability_was_locked_since() -> None:
    lock = gate("lock", TriggerType.KEYWORD, mode=Mode.ADVISORY, on_patterns=("lock",), lock_capabilities=("erase",))
    life = Life(atlas(confirm(), lock, policies=(), capabilities=(ERASE,)))
    life.judge("t.delete")
    life.answer("confirm")
    life.step("please lock it")
    assert [each.gate for each in life.judge("t.delete").asks] == [f"{ATLAS}/confirm"]
    life.answer("confirm")
    assert life.verdict("t.delete") is A


DEAD_ENDS = """
    capabilities:
      - capability_id: fine
        actions: [t.get, t.delete]
      - capability_id: itself
        actions: [t.a]
      - capability_id: one
        actions: [t.b, "b.*"]
      - capability_id: other
        actions: [t.c]
      - capability_id: shown
        actions: [t.d]
    checkpoints:
      - checkpoint_id: own-action
        trigger: {type: action_pre, patterns: ["*.delete"]}
        mode: blocking
        questions: [{question_id: q, question: Sure?, response_type: boolean}]
        unlock_capabilities: [fine]
      - checkpoint_id: after-itself
        trigger: {type: action_post, patterns: [t.a]}
        mode: advisory
        unlock_capabilities: [itself]
      - checkpoint_id: before-one
        trigger: {type: action_pre, patterns: [t.b]}
        mode: advisory
        unlock_capabilities: [other]
      - checkpoint_id: before-other
        trigger: {type: action_pre, patterns: [t.c]}
        mode: advisory
        unlock_capabilities: [one]
      - checkpoint_id: start
        trigger: {type: session_start}
        mode: advisory
        unlock_capabilities: [shown]
        deny_actions: [t.d]
    actions: [{action_id: t.a}, {action_id: t.b}, {action_id: t.c}, {action_id: t.d}, {action_id: t.get}, {action_id: t.delete}]
"""
NAMED = [
    "10: no sequence of answers lets the action `t.a` run: nothing that can be reached unlocks `itself`.",
    "12: no sequence of answers lets the action `t.b` run: nothing that can be reached unlocks `one`.",
    "12: no sequence of answers lets the actions `b.*` run: nothing that can be reached unlocks `one`.",
    "14: no sequence of answers lets the action `t.c` run: nothing that can be reached unlocks `other`.",
    "16: no sequence of answers lets the action `t.d` run: the checkpoint `start` denies it before it could.",
]


@pytest.mark.proves("S5.203")
async def test_dead_ends_are_named_with_their_lines_by_whoever_reads_or_publishes_the_file(
    http: httpx.AsyncClient, world: World
) -> None:
    text = below(DEAD_ENDS.removeprefix("\n"))
    expected = sorted(f"atlas.yaml:{line}" for line in NAMED)
    assert sorted(read(text).warnings) == expected
    published = await http.post("/v1/atlases", json={"manifest": text}, headers=world.admin.headers)
    assert published.status_code == 201, published.text
    assert sorted(published.json()["warnings"]) == expected
    assert not any("no sequence" in warning for warning in read(SPEC.read_text()).warnings)


@pytest.mark.proves("S5.203")
def test_an_atlas_that_is_too_large_is_not_searched_for_ever() -> None:
    """Each action stands behind each gate, and each gate unlocks the capability of another action."""

    def ring(size: int) -> Atlas:
        own = [capability(f"c{n}", f"x.a{n}", locked=True) for n in range(size)]
        unlocking = [
            gate(f"g{n}", PRE, mode=Mode.ADVISORY, on_patterns=("*",), unlock_capabilities=(f"c{n}",))
            for n in range(size)
        ]
        return atlas(*unlocking, policies=(), capabilities=tuple(own))

    assert unreachable_actions(ring(700)) is None
    assert unreachable_actions(ring(20)) == {}


KINDS = (
    TriggerType.SESSION_START,
    TriggerType.KEYWORD,
    PRE,
    POST,
    TriggerType.CAPABILITY_ACCESS,
    TriggerType.COUNT_INTERVAL,
)
ACTIONS = ("a.x", "a.y", "b.x", "b.y")
CALLED = (*ACTIONS, "a.other", "other")
"""Also some that only patterns name."""
PATTERNS = st.sampled_from((*ACTIONS, "a.*", "*")), st.sampled_from((*ACTIONS, "a.*", "*", "*.x"))
"""Where one does not contain the other, not all that never runs is named."""
CAPABILITIES = ("one", "two", "three")
IDS = st.lists(st.sampled_from(CAPABILITIES), max_size=2, unique=True).map(tuple)


@st.composite
def gates(draw: Any, number: int, *, restricts: bool) -> Gate:
    kind, patterns = draw(st.sampled_from(KINDS)), PATTERNS[restricts]
    on: dict[str, Any] = {}
    if kind in (PRE, POST):
        on["on_patterns"] = (draw(patterns),)
    elif kind is TriggerType.KEYWORD:
        on["on_patterns"] = ("word",)
    elif kind is TriggerType.CAPABILITY_ACCESS:
        on["on_capability_ids"] = (draw(st.sampled_from(CAPABILITIES)),)
    elif kind is TriggerType.COUNT_INTERVAL:
        on["on_actions"] = 1
    make: Callable[..., Gate] = draw(st.sampled_from((gate, human)))
    if make is gate:
        on["mode"] = draw(st.sampled_from((Mode.BLOCKING, Mode.ADVISORY)))
    unlocks, allows = draw(IDS), draw(st.lists(patterns, max_size=1).map(tuple))
    if kind is TriggerType.CAPABILITY_ACCESS and not restricts:
        unlocks, allows = (), ()  # whether it is met depends on the order of calls, and the player below has one
    locks = tuple(id for id in draw(IDS) if id not in unlocks) if restricts else ()
    denies = draw(st.lists(patterns, max_size=1).map(tuple)) if restricts else ()
    made: Gate = make(
        f"g{number}", kind, unlock_capabilities=unlocks, allow_actions=allows, lock_capabilities=locks,
        deny_actions=tuple(each for each in denies if each not in allows), **on,
    )  # fmt: skip
    return made


@st.composite
def atlases(draw: Any, *, restricts: bool) -> Atlas:
    patterns = PATTERNS[restricts]
    made = [draw(gates(number, restricts=restricts)) for number in range(draw(st.integers(0, 5)))]
    unlocked = {id for each in made for id in each.unlock_capabilities}
    own = [
        capability(id, *draw(st.lists(patterns, min_size=1, max_size=2, unique=True)), locked=id in unlocked)
        for id in CAPABILITIES
    ]
    kinds = st.sampled_from((AtlasPolicyType.ALLOW, AtlasPolicyType.REQUIRES_APPROVAL, AtlasPolicyType.DENY))
    rules = [policy(draw(kinds), draw(patterns), id=f"p{n}") for n in range(draw(st.integers(0, 1)))]
    return atlas(*made, policies=tuple(rules), capabilities=tuple(own))


def all_that_run(manifest: Atlas, rounds: int = 6) -> set[str]:
    """By a player who answers and approves everything, says every word, and calls every action again and again."""
    life, done = Life(manifest), set[str]()

    def answer_all() -> None:
        while life.state.open:
            question = life.state.open[0]
            life.answer(question.gate, question.call or None)

    for _ in range(rounds):
        life.step("word")
        answer_all()
        for name in CALLED:
            for _ in range(rounds):
                ruling = life.judge(call(name))
                answer_all()
                if ruling.verdict is P:
                    ruling = life.judge(call(name, approved=True))
                if ruling.verdict is A:
                    life.run(call(name, approved=True))
                    life.step(finished=(name,))
                    answer_all()
                    done.add(name)
                    break
    return done


@pytest.mark.proves("S5.203")
@given(st.booleans().flatmap(lambda restricts: st.tuples(atlases(restricts=restricts), st.just(restricts))))
def test_what_is_named_never_runs_and_where_nothing_is_forbidden_all_else_does(case: tuple[Atlas, bool]) -> None:
    manifest, restricts = case
    named, ran = unreachable_actions(manifest), all_that_run(manifest)
    assert named is not None
    assert not ran & named.keys()
    if restricts:
        return
    denied = [each for rule in manifest.policies if rule.type is AtlasPolicyType.DENY for each in rule.actions]
    allowing = [each for own in manifest.capabilities for each in own.actions]
    allowing += [each for one in manifest.gates for each in one.allow_actions]
    allowing += [each for rule in manifest.policies if rule.type is not AtlasPolicyType.DENY for each in rule.actions]
    exact = {each for each in allowing if "*" not in each}
    assert {name for name in exact if not any(Glob.of(each).matches(name) for each in denied)} == ran & exact | (
        named.keys() & exact
    )


@pytest.mark.proves("S5.203")
@given(st.text("ab*", max_size=5), st.text("ab*", max_size=5), st.text("ab", max_size=10))
def test_globs_overlap_where_a_text_matches_both(one: str, other: str, text: str) -> None:
    first, second = Glob.of(one), Glob.of(other)
    assert first.overlaps(second) == second.overlaps(first)
    if first.matches(text) and second.matches(text):
        assert first.overlaps(second)
    if first.overlaps(second):
        parts = [*first.middles, *second.middles]
        begin, end = max(first.prefix, second.prefix, key=len), max(first.suffix, second.suffix, key=len)
        exact = next((each.prefix for each in (first, second) if each.exact), None)
        both = exact if exact is not None else begin + "".join(parts) + end
        assert first.matches(both)
        assert second.matches(both)


@pytest.mark.proves("S5.204")
@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("checkpoints:\n  - checkpoint_id: g\n    mode: advisory\n    trigger: {type: action_pre, patterns: [plane.answer]}", 9),
        ("checkpoints:\n  - checkpoint_id: g\n    mode: advisory\n    trigger: {type: action_post, patterns: ['plane.*']}", 9),
        ("checkpoints:\n  - {checkpoint_id: g, mode: advisory, trigger: {type: session_start}, deny_actions: [plane.ask]}", 7),
        ("capabilities:\n  - capability_id: c\n    actions: [x.y, plane.request_context]", 8),
        ("policies:\n  - {policy_id: p, type: deny, actions: ['plane.*']}", 7),
        ("actions:\n  - action_id: plane.answer", 7),
        ("checkpoint_config:\n  action_pre:\n    mappings:\n      plane_*: {require_confirmation: true}", 9),
    ],
)  # fmt: skip
def test_an_atlas_that_names_a_tool_of_the_plane_is_refused_with_the_line(part: str, line: int) -> None:
    with pytest.raises(InvalidInput) as error:
        read(below(part))
    assert f"atlas.yaml:{line}: `plane." in error.value.message
    assert "which no atlas governs" in error.value.message


@pytest.mark.proves("S5.204")
def test_a_pattern_that_also_matches_tools_of_the_plane_is_accepted() -> None:
    part = "checkpoints:\n  - {checkpoint_id: g, mode: advisory, trigger: {type: action_pre, patterns: ['*', '*.answer', 'planes.*']}}"
    assert read(below(part)).atlas
