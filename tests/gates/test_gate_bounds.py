"""What gates cost at most, whatever a steward wrote: how often something is looked at, not how long it takes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
import pytest

from cortex_plane.gates.model.atlases import AtlasPolicyType, Gate, GateBudget, Guidance, MatchMode, Mode, TriggerType
from cortex_plane.gates.model.gates import NOTHING_YET, GateInput, kept_state
from cortex_plane.gates.rules.effects import MAX_CARRIED, MAX_FIRED, MAX_NAMED, MAX_STATE, TOO_MUCH
from cortex_plane.gates.rules.evaluation import TOO_LONG, at_boundary, judge
from cortex_plane.gates.rules.index import MAX_MEMORY, MAX_SEARCHED, CompiledAtlases, KeywordIndex, expression
from cortex_plane.gates.rules.prompts import MAX_CARD, card, news
from cortex_plane.gates.verbs.session_gates import search_texts
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.sessions.model.events import TraceType
from tests.fixtures.counting import Searches
from tests.fixtures.gates import ALLOW_ALL, ATLAS, NOON, Life, atlas, call, capability, context, gate, human, policy

A, D, P = PolicyVerdict.ALLOW, PolicyVerdict.DENY, PolicyVerdict.REQUIRES_APPROVAL
START, PRE = TriggerType.SESSION_START, TriggerType.ACTION_PRE
ADVISES, LOOKS_ON = Mode.ADVISORY, Mode.OBSERVATIONAL


def steps(work: Callable[[], Any]) -> int:
    """Calls that are made, those of built-in functions and of generators included: the same every time."""
    work()  # what is made once is made
    count = 0

    def note(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def begins(gates: list[Gate], **more: Any) -> Callable[[], Any]:
    compiled = CompiledAtlases([atlas(*gates, **more)])
    return lambda: at_boundary(compiled, NOTHING_YET, GateInput(now=NOON))


HI = Guidance(content="hi")
TOGETHER: dict[str, Callable[[int], list[Gate]]] = {
    "advice": lambda n: [gate(f"g{i}", START, mode=ADVISES, guidance=HI) for i in range(n)],
    "questions": lambda n: [gate(f"g{i}", START, guidance=HI) for i in range(n)],
    "people": lambda n: [human(f"g{i}", START) for i in range(n)],
}


@pytest.mark.proves("D.342")
@pytest.mark.parametrize("kind", list(TOGETHER))
def test_twice_as_many_gates_at_once_cost_about_twice_as_much(kind: str) -> None:
    few, many = (
        steps(begins(TOGETHER[kind](number), budget=GateBudget(max_context_injection_size=10_000)))
        for number in (100, 200)
    )
    assert few < many < 2.5 * few


@pytest.mark.proves("D.349")
def test_guidance_still_ends_with_the_gate_that_it_lasts_until() -> None:
    until = [
        gate(f"g{i}", START, mode=ADVISES, guidance=Guidance(content="hi", expires_after="end")) for i in range(3)
    ]  # fmt: skip
    life = Life(atlas(*until, gate("end", TriggerType.KEYWORD, mode=ADVISES, on_patterns=("done",))))
    assert len(life.state.guidance) == 3
    life.step("we are done")
    assert life.state.guidance == {}


@pytest.mark.proves("D.342")
@pytest.mark.parametrize("mode", [ADVISES, LOOKS_ON])
def test_of_very_many_gates_at_once_the_rest_is_left_out_in_one_line(mode: Mode) -> None:
    asks = [gate(f"asks{i}", START) for i in range(3)]
    life = Life(atlas(*(gate(f"g{i:04}", START, mode=mode) for i in range(1000)), *asks))
    fired = [each for each in life.traces if each.type is TraceType.TRIGGERED]
    assert len(fired) == MAX_FIRED
    assert len(life.state.asks) == 3, "those that block are never left out"
    (left,) = [each for each in life.traces if each.type is TraceType.SKIPPED]
    assert (left.payload["reason"], left.payload["others"]) == ("max_gates_at_once", 1003 - MAX_FIRED - 1)
    told = news(left.type, left.payload)
    assert told is not None
    assert told.said == "and 802 others are left out: the budget max_gates_at_once is used up"
    assert len(Life(atlas(*(gate(f"g{i}", START) for i in range(MAX_FIRED + 50)))).state.asks) == 250


RESTRICTS: dict[str, dict[str, Any]] = {"deny": {"deny_actions": ("pay.*",)}, "lock": {"lock_capabilities": ("money",)}}


@pytest.mark.proves("D.342")
@pytest.mark.parametrize("effect", list(RESTRICTS))
@pytest.mark.parametrize("kind", [START, PRE])
@pytest.mark.parametrize("number", [3, MAX_FIRED + 50])
def test_what_restricts_is_never_left_out(effect: str, kind: TriggerType, number: int) -> None:
    on: dict[str, Any] = {"on_patterns": ("*",)} if kind is PRE else {}
    crowd = [gate(f"g{i:04}", kind, mode=ADVISES, guidance=HI, priority=9, **on) for i in range(number)]
    last = gate("last", kind, mode=ADVISES, priority=-9, **on, **RESTRICTS[effect])
    budget = GateBudget(max_checkpoints_per_input=1) if number < MAX_FIRED else GateBudget()
    life = Life(atlas(*crowd, last, capabilities=(capability("money", "pay.*"),), budget=budget))
    assert life.verdict("pay.out") is D
    assert life.verdict("look.up") is A
    left = [each.payload["checkpoint_id"] for each in life.traces if each.type is TraceType.SKIPPED]
    assert left
    assert "last" not in left


@pytest.mark.proves("D.342", "S5.10")
def test_out_of_time_what_restricts_still_holds() -> None:
    tells = gate("tells", START, mode=ADVISES, guidance=HI)
    denies = gate("denies", START, mode=ADVISES, deny_actions=("pay.*",))
    compiled = CompiledAtlases([atlas(tells, denies, budget=GateBudget(max_checkpoint_time_ms=1))])
    late = at_boundary(compiled, NOTHING_YET, GateInput(now=NOON), elapsed=lambda: 2.0)
    assert [each.gate_id for each in late.fired] == ["denies"]
    assert judge(compiled, late.state, call("pay.out"), NOON).verdict is D


@pytest.mark.proves("D.342")
def test_policies_look_strictly_whatever_the_budget_leaves_out() -> None:
    on: dict[str, Any] = {"mode": ADVISES, "on_patterns": ("*",)}
    strict = gate("strict", PRE, priority=-9, require_policy_check=True, **on)
    life = Life(atlas(gate("tells", PRE, **on), strict, budget=GateBudget(max_checkpoints_per_input=1)))
    assert life.judge("a.b").strict


@pytest.mark.proves("D.342", "D.375")
def test_of_a_gate_that_nobody_could_ask_only_what_restricts_holds() -> None:
    """Whether its trigger fires is not known: it opens nothing then, tells nothing, and restricts all the same."""
    unknown = gate(
        "unknown", TriggerType.CUSTOM, mode=ADVISES, on_trigger_id="mood", guidance=HI, deny_actions=("pay.*",),
        unlock_capabilities=("money",), lock_capabilities=("mail",), allow_actions=("look.*",),
    )  # fmt: skip
    own = (capability("money", "coin.*", locked=True), capability("mail", "mail.*"))
    life = Life(atlas(unknown, capabilities=own, policies=(policy(AtlasPolicyType.ALLOW, "*"),)))
    life.step("hello", unknown=frozenset({unknown.key}))
    assert life.state.guidance == {}
    assert [life.verdict(name) for name in ("pay.out", "coin.flip", "mail.send", "look.up")] == [D, D, D, A]
    assert list(life.state.actions) == ["pay.*"]


@pytest.mark.proves("D.342")
def test_very_many_that_a_budget_leaves_out_are_one_line_too() -> None:
    crowd = [gate(f"g{i:04}", START, mode=LOOKS_ON) for i in range(1000)]
    life = Life(atlas(*crowd, budget=GateBudget(max_checkpoints_per_input=5)))
    (left,) = [each.payload for each in life.traces if each.type is TraceType.SKIPPED]
    assert (left["reason"], left["others"]) == ("max_checkpoints_per_input", 994)


@pytest.mark.proves("D.342", "S5.10")
def test_a_session_carries_no_more_than_there_is_room_for_whatever_its_atlas_says() -> None:
    large = [context(f"c{i}", "x" * (MAX_CARRIED // 2)) for i in range(3)]
    tells = gate("tells", START, mode=ADVISES, contexts=("c0", "c1", "c2"))
    for budget in (GateBudget(), GateBudget(max_context_injection_size=100 * MAX_CARRIED)):
        life = Life(atlas(tells, contexts=tuple(large), budget=budget))
        assert len(life.state.contexts) == 2
        assert [each.payload.get("context_id") for each in life.traces if each.type is TraceType.SKIPPED] == ["c2"]


@pytest.mark.proves("D.342")
def test_what_a_session_must_remember_has_an_end_and_nothing_is_forgotten_then() -> None:
    first = gate("first", START)
    crowd = [gate(f"{'long-name-' * 5}{i}", TriggerType.KEYWORD, on_patterns=("payroll",)) for i in range(4000)]
    life = Life(atlas(first, *crowd))
    before = life.state
    assert life.verdict("a.b") is D
    life.step("the payroll", heard=7)
    assert life.state.ended is not None
    assert life.state.ended.reason == TOO_MUCH
    assert len(orjson.dumps(kept_state(life.state))) < MAX_STATE
    assert (life.state.open, life.state.heard) == (before.open, 7), "what was asked before is still asked"
    assert life.traces[-1].payload["reason"] == TOO_MUCH
    ruling = life.judge("a.b")
    assert (ruling.verdict, TOO_MUCH in ruling.reason) == (D, True)


@pytest.mark.proves("D.342")
def test_the_end_comes_without_any_gate_too() -> None:
    limits = tuple(
        policy(AtlasPolicyType.RATE_LIMIT, "*", id=f"{'long-name-' * 6}{i}", max_calls=9, window_seconds=60)
        for i in range(3000)
    )
    life = Life(atlas(policies=(ALLOW_ALL, *limits)))
    assert life.verdict("a.b") is A
    life.run("a.b")
    assert life.state.spent == {}
    assert life.verdict("a.b") is D


# Looking -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.387")
def test_whoever_only_looks_pays_for_no_advice_and_leaves_nothing() -> None:
    crowd = [gate(f"g{i}", PRE, mode=ADVISES, on_patterns=("*",), guidance=HI) for i in range(100)]
    timed = gate("round", TriggerType.TIME_INTERVAL, on_seconds=60)
    denies = gate("denies", PRE, mode=ADVISES, on_patterns=("a.b",), deny_actions=("a.b",))
    life = Life(atlas(*crowd, timed, denies))
    looked = judge(life.atlases, life.state, call("x.y"), life.now, looking=True)
    assert (looked.verdict, looked.traces, looked.fired, looked.limits) == (A, (), (), ())
    assert looked.state is life.state
    assert judge(life.atlases, life.state, call("a.b"), life.now, looking=True).verdict is D, "as it would be"
    does = steps(lambda: judge(life.atlases, life.state, call("x.y"), life.now))
    looks = steps(lambda: judge(life.atlases, life.state, call("x.y"), life.now, looking=True))
    assert looks < does / 2
    assert [each.name for each in life.judge("x.y").limits] == [timed.key]


# The trail, and the card -------------------------------------------------------------------------------------------


@pytest.mark.proves("D.342")
def test_the_trail_names_some_and_counts_the_rest() -> None:
    names = tuple(f"c{i}" for i in range(MAX_NAMED + 20))
    opens = gate("opens", START, mode=ADVISES, unlock_capabilities=names)
    life = Life(atlas(opens, capabilities=tuple(capability(each, f"{each}.*") for each in names)))
    passed = next(each.payload for each in life.traces if each.type is TraceType.PASSED)
    assert passed["unlocked_capabilities"] == list(names[:MAX_NAMED])
    assert passed["more"] == {"unlocked_capabilities": 20}
    assert len(life.state.capabilities) == len(names), "all of them are open"
    told = news(TraceType.PASSED, passed)
    assert told is not None
    assert told.said.endswith("c9 and 60 more")


@pytest.mark.proves("D.347")
def test_what_people_cannot_be_shown_in_full_is_not_asked() -> None:
    long = [human(f"{'x' * 700}{i}", PRE, on_patterns=(f"a.{'b' * i}*",)) for i in range(3)]
    life = Life(atlas(*long))
    assert len(card(long[:2])) <= MAX_CARD < len(card(long))
    assert life.verdict("a.b") is P
    refused = life.judge("a.bb")
    assert (refused.verdict, refused.reason, refused.people) == (D, TOO_LONG, ())


# Regular expressions -----------------------------------------------------------------------------------------------


@pytest.mark.proves("D.352")
@pytest.mark.parametrize("pattern", [r"\pL{200}%d", r"(?:\pL\pN){300}%d", r"(?i)(?:[\pL\pN]{20}){10}%d"])
def test_expressions_that_take_much_room_are_refused(pattern: str) -> None:
    for number in range(3):
        with pytest.raises(InvalidInput) as error:
            expression(pattern % number)
        assert error.value.code == "invalid_pattern"
        assert "Repeat less" in (error.value.hint or "")


@pytest.mark.proves("D.352")
def test_few_expressions_are_kept_and_none_has_much_room() -> None:
    assert expression("a+b").options.max_mem == MAX_MEMORY
    assert (expression.cache_info().maxsize or 0) <= 128


def keyword(id: str, *patterns: str, mode: MatchMode = MatchMode.REGEX, **more: Any) -> Gate:
    return gate(id, TriggerType.KEYWORD, on_patterns=patterns, on_match_mode=mode, **more)


@pytest.mark.proves("S5.201")
@pytest.mark.parametrize("mode", [MatchMode.REGEX, MatchMode.ANY, MatchMode.PHRASE])
def test_a_word_fires_its_gate_wherever_it_stands_in_a_long_text(mode: MatchMode) -> None:
    index = KeywordIndex([keyword("w", "payroll", mode=mode)])
    half = "x " * 11_000
    assert len(f"{half}payroll{half}") == 44_007
    for said in (f"payroll {half}{half}", f"{half}{half} payroll", f"{half} payroll {half}"):
        assert index.find(said)
    assert not index.find(half)


@pytest.mark.proves("S5.201")
def test_an_expression_fires_on_whole_texts_and_not_on_parts_of_them() -> None:
    index = KeywordIndex([keyword("w", "^(a+)+$")])
    many = "a" * 30_000
    assert index.find(many)
    assert not index.find(f"{many}b{many}")
    assert not index.find(f"b{many}")


@pytest.mark.proves("S5.201")
def test_a_text_that_is_too_long_to_be_searched_fires_the_gates_that_block_and_is_traced() -> None:
    blocking, advice = keyword("stop", "payroll"), keyword("hint", "payroll", mode=MatchMode.ANY)
    advice = replace(advice, mode=Mode.ADVISORY, questions=())
    lock = replace(advice, gate_id="lock", deny_actions=("pay.*",))
    life = Life(atlas(blocking, advice, lock))
    life.traces.clear()
    life.step("x" * (MAX_SEARCHED + 1))
    why = f"a text of {MAX_SEARCHED + 1} characters, which is too long to be searched"
    data = {each.payload["checkpoint_id"]: (each.type, each.payload) for each in life.traces}
    assert data["stop"][0] is TraceType.TRIGGERED
    assert data["stop"][1]["trigger_data"] == {"matched": [], "unread": why}
    for id in ("hint", "lock"):
        assert (data[id][0], data[id][1]["reason"]) == (TraceType.SKIPPED, why)
    life.answer("stop")
    assert life.verdict("a.b") is A
    assert life.judge("pay.out").rule == f"gate:{ATLAS}/lock", "what it forbids where it fires is forbidden"
    grows = "\ufdfa" * (MAX_SEARCHED // 10)
    assert KeywordIndex([blocking]).find(grows) is None, "people read it as a longer text"


@pytest.mark.proves("S5.201")
async def test_a_long_text_is_searched_in_a_thread_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = Searches(monkeypatch)
    compiled = CompiledAtlases([atlas(keyword("w", "[ab]*a[ab]{120}c"))])
    said, turns = "ab" * 20_000, 0
    assert not compiled.keywords.is_quick(said)
    assert compiled.keywords.is_quick("ab" * 100)
    search = asyncio.create_task(search_texts(compiled, (said, "short")))
    while not search.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 1, "others went on meanwhile"
    cost, searches.cost = searches.cost, 0
    assert cost >= len(said)
    assert compiled.keywords.find(said) == {}
    assert searches.cost == 0, "what the thread found is known"


@pytest.mark.proves("D.342")
def test_what_is_made_at_first_use_is_made_before() -> None:
    compiled = CompiledAtlases([atlas(gate("c", TriggerType.CUSTOM, on_trigger_id="t"))])
    assert compiled.blocking_custom == tuple(compiled.gates.values())
    compiled.prepare()
    assert {"keywords", "known_actions"} <= set(vars(compiled))
