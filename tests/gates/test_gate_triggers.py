"""When gates fire: every trigger, every mode, in the order of their priorities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cortex_plane.gates.model.atlases import PRIORITIES, GateBudget, Guidance, MatchMode, Mode, TriggerType
from cortex_plane.gates.model.gates import GateInput
from cortex_plane.gates.rules.evaluation import at_boundary, judge
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.sessions.model.events import TraceType
from cortex_plane.sessions.rules import inputs_of
from tests.fixtures.gates import ATLAS, Life, action, ask, atlas, call, capability, context, gate, human

WATCH, TELL = Mode.OBSERVATIONAL, Mode.ADVISORY


def fired(life: Life) -> list[str]:
    return [id for kind, id in life.traced() if kind == "triggered"]


@pytest.mark.proves("S5.1", "D.340")
def test_a_session_meets_an_atlas_once() -> None:
    life = Life(atlas(gate("start", TriggerType.SESSION_START), gate("first", TriggerType.INTERACTIVE)))
    assert fired(life) == ["start", "first"]
    life.answer("start")
    life.answer("first")
    life.traced()
    life.step("hello")
    assert fired(life) == [], "and its state went through a row each time: a restart fires nothing again"


@pytest.mark.proves("D.340")
def test_an_atlas_that_comes_later_is_met_when_it_comes() -> None:
    first = atlas(gate("start", TriggerType.SESSION_START))
    second = atlas(
        gate("welcome", TriggerType.SESSION_START, of="b"),
        gate("often", TriggerType.TIME_INTERVAL, of="b", mode=TELL, on_seconds=300.0),
        gate("counts", TriggerType.COUNT_INTERVAL, of="b", mode=TELL, on_actions=2),
        id="b",
    )
    life = Life(first)
    life.answer("start")
    for _ in range(5):
        life.run("a.b")
    life.step(passing=3600)
    both = Life(first, second, begun=False)
    both.state, both.now = life.state, life.now
    both.step()
    assert fired(both) == ["welcome"], "what comes round counts from then on"
    both.answer("welcome")
    both.run("a.b")
    both.run("a.b")
    both.step(passing=300)
    assert fired(both) == ["often", "counts"]


@pytest.mark.proves("D.340")
def test_priorities_are_those_of_the_table_and_decide_the_order() -> None:
    table = {
        "session_start": 1000, "interactive": 950, "capability_access": 920, "risk_threshold": 900, "action_pre": 800,
        "keyword": 600, "time_interval": 500, "count_interval": 400, "explicit_request": 300, "action_post": 100,
        "error_occurred": 50, "session_end": 0,
    }  # fmt: skip
    assert {kind: PRIORITIES[TriggerType(kind)] for kind in table} == table
    life = Life(
        atlas(
            gate("post", TriggerType.ACTION_POST, mode=WATCH, on_patterns=("*",)),
            gate("error", TriggerType.ERROR_OCCURRED, mode=WATCH),
            gate("word", TriggerType.KEYWORD, mode=WATCH, on_patterns=("x",)),
            gate("own", TriggerType.SESSION_START, mode=WATCH, priority=70),
            gate("start", TriggerType.SESSION_START, mode=WATCH),
        ),
        begun=False,
    )
    life.step("x", finished=("a.b",), errors=("broken",))
    assert fired(life) == ["start", "word", "post", "own", "error"]


@pytest.mark.proves("D.340")
def test_the_gates_of_a_call_are_asked_in_their_order() -> None:
    life = Life(
        atlas(
            gate("pre", TriggerType.ACTION_PRE, on_patterns=("a.*",)),
            gate("risk", TriggerType.RISK_THRESHOLD, on_min_tier=Risk.HIGH),
            gate("cap", TriggerType.CAPABILITY_ACCESS, on_capability_ids=("c",)),
            capabilities=(capability("c", "a.b"),),
        )
    )
    asked = life.judge(call("a.b", Risk.HIGH)).asks
    assert [each.gate for each in asked] == [f"{ATLAS}/{id}" for id in ("cap", "risk", "pre")]


@pytest.mark.proves("S5.2", "D.340")
@pytest.mark.parametrize(
    ("pattern", "matches", "not_this"),
    [
        ("ticket.delete", "ticket.delete", "ticket.deleted"),
        ("ticket.*", "ticket.get", "tickets.get"),
        ("*.delete", "user.delete", "user.delete.now"),
        ("admin.*.delete", "admin.user.delete", "admin.delete"),
    ],
)
def test_patterns_of_actions(pattern: str, matches: str, not_this: str) -> None:
    life = Life(atlas(gate("pre", TriggerType.ACTION_PRE, mode=WATCH, on_patterns=(pattern,))))
    life.judge(not_this)
    assert fired(life) == []
    life.judge(matches)
    assert fired(life) == ["pre"]


@pytest.mark.proves("S5.3", "D.340")
def test_after_an_action_and_after_an_error() -> None:
    life = Life(
        atlas(
            gate("post", TriggerType.ACTION_POST, mode=WATCH, on_patterns=("payment.process",)),
            gate("error", TriggerType.ERROR_OCCURRED, mode=TELL, guidance=Guidance(content="Stay calm.")),
        )
    )
    life.step(finished=("ticket.get",))
    assert fired(life) == []
    life.step(finished=("payment.process", "payment.process"))
    assert fired(life) == ["post"]
    life.step(errors=("timeout",))
    assert fired(life) == ["error"]
    assert f"{ATLAS}/error" in life.state.guidance


@pytest.mark.proves("S5.4", "D.340")
@pytest.mark.parametrize(
    ("mode", "words", "yes", "no"),
    [
        (MatchMode.ANY, ("refund", "cancel"), "I want my REFUND", "I want my money"),
        (MatchMode.ALL, ("refund", "cancel"), "cancel it and refund me", "refund me"),
        (MatchMode.PHRASE, ("give back",), "please give  back the money", "forgive backwards"),
        (MatchMode.REGEX, (r"ref\w+\s+\d+",), "refund  12", "refund twelve"),
    ],
)
def test_keywords(mode: MatchMode, words: tuple[str, ...], yes: str, no: str) -> None:
    life = Life(atlas(gate("word", TriggerType.KEYWORD, mode=WATCH, on_patterns=words, on_match_mode=mode)))
    life.step(no)
    assert fired(life) == []
    life.step(yes)
    assert fired(life) == ["word"]


@pytest.mark.proves("S5.4")
def test_keywords_that_mind_their_case() -> None:
    word = gate("word", TriggerType.KEYWORD, mode=WATCH, on_patterns=("STOP",), on_case_sensitive=True)
    life = Life(atlas(word))
    life.step("please stop")
    assert fired(life) == []
    life.step("please STOP")
    assert fired(life) == ["word"]


@pytest.mark.proves("D.340")
def test_a_keyword_gate_asks_for_each_input_that_has_its_word() -> None:
    life = Life(atlas(gate("word", TriggerType.KEYWORD, on_patterns=("refund",))))
    life.step("a refund", heard=1)
    life.answer("word")
    life.step(heard=1)
    assert not life.state.asks
    life.step("another refund", heard=2)
    assert [each.gate for each in life.state.asks] == [f"{ATLAS}/word"]
    assert life.state.heard == 2
    assert life.verdict("a.b") is PolicyVerdict.DENY


@pytest.mark.proves("S5.5", "D.340")
def test_the_higher_of_two_risks_counts() -> None:
    risky = gate("risk", TriggerType.RISK_THRESHOLD, mode=WATCH, on_min_tier=Risk.HIGH)
    life = Life(atlas(risky, actions=(action("a.b", Risk.HIGH),)))
    assert life.judge(call("a.b", Risk.LOW)).risk is Risk.HIGH
    assert life.judge(call("other", Risk.CRITICAL)).risk is Risk.CRITICAL
    assert fired(life) == ["risk", "risk"]
    life.judge(call("other", Risk.MEDIUM))
    assert fired(life) == []


@pytest.mark.proves("S5.6", "D.340")
def test_time_and_counts_come_round_also_after_a_restart() -> None:
    life = Life(
        atlas(
            gate("time", TriggerType.TIME_INTERVAL, on_seconds=300.0),
            gate("count", TriggerType.COUNT_INTERVAL, mode=TELL, on_actions=3),
        )
    )
    life.step(passing=299)
    assert fired(life) == []
    life.step(passing=1)
    assert fired(life) == ["time"]
    assert life.verdict("a.b") is PolicyVerdict.DENY
    life.answer("time")
    life.traced()
    life.step(passing=299)
    assert fired(life) == []
    for _ in range(3):
        life.run("a.b")
    life.step(passing=1)
    assert fired(life) == ["time", "count"]
    life.step()
    assert fired(life) == []


@pytest.mark.proves("S5.7", "D.340")
def test_custom_triggers_fire_where_their_code_said_so() -> None:
    life = Life(atlas(gate("mood", TriggerType.CUSTOM, mode=WATCH, on_trigger_id="sentiment-check")))
    life.step("this is awful")
    assert fired(life) == []
    life.step("this is awful", custom=frozenset({f"{ATLAS}/mood", f"{ATLAS}/unknown"}))
    assert [each.payload["trigger_data"] for each in life.traces] == [{"trigger_id": "sentiment-check"}]


@pytest.mark.proves("D.340")
def test_nobody_fires_a_gate_of_another_kind_as_a_custom_one() -> None:
    life = Life(atlas(gate("end", TriggerType.SESSION_END, mode=WATCH)))
    life.step(custom=frozenset({f"{ATLAS}/end"}))
    assert fired(life) == []
    life.step(ends=True)
    assert fired(life) == ["end"]


@pytest.mark.proves("D.340")
def test_an_agent_asks_for_what_is_written_down_but_not_before_it_agreed() -> None:
    life = Life(
        atlas(
            gate("start", TriggerType.SESSION_START),
            gate("ask", TriggerType.EXPLICIT_REQUEST, mode=TELL, on_patterns=("secrets",), contexts=("s",)),
            contexts=(context("s"),),
        )
    )
    assert life.request("secrets").fired == ()
    assert life.state.contexts == {}
    life.answer("start")
    assert [each.gate_id for each in life.request("secrets").fired] == ["ask"]
    assert list(life.state.contexts) == [f"{ATLAS}/s"]
    assert life.request("anything else").fired == ()


@pytest.mark.proves("S5.8", "D.341")
def test_blocking_stops_advisory_tells_observational_only_records() -> None:
    guide = Guidance(content="Read me.")
    life = Life(
        atlas(
            gate("block", TriggerType.ACTION_PRE, on_patterns=("a.block",), guidance=guide),
            gate("tell", TriggerType.ACTION_PRE, mode=TELL, on_patterns=("a.tell",), guidance=guide),
            gate(
                "watch", TriggerType.ACTION_PRE, mode=WATCH, on_patterns=("a.watch",), guidance=guide,
                deny_actions=("*",), contexts=("c",),
            ),
            contexts=(context("c"),),
        )
    )  # fmt: skip
    assert life.verdict("a.watch") is PolicyVerdict.ALLOW
    assert life.state.guidance == {}
    assert life.state.contexts == {}
    assert life.state.actions == {}
    assert life.verdict("a.tell") is PolicyVerdict.ALLOW
    assert list(life.state.guidance) == [f"{ATLAS}/tell"]
    assert life.verdict("a.block") is PolicyVerdict.DENY
    kinds = [kind for kind, _ in life.traced()]
    assert kinds == ["triggered", "triggered", "passed", "triggered", "blocked"]


@pytest.mark.proves("D.341")
def test_a_gate_that_only_looks_on_locks_nothing() -> None:
    watch = gate("watch", TriggerType.CAPABILITY_ACCESS, mode=WATCH, on_capability_ids=("c",))
    life = Life(atlas(watch, policies=(), capabilities=(capability("c", "a.b", locked=True),)))
    assert life.verdict("a.b") is PolicyVerdict.ALLOW
    assert life.verdict("a.b") is PolicyVerdict.ALLOW
    assert fired(life) == ["watch", "watch"], "each access is recorded"


@pytest.mark.proves("S5.9")
def test_the_trail_has_the_fields_of_the_spec() -> None:
    life = Life(
        atlas(
            gate(
                "delete-confirm", TriggerType.ACTION_PRE, on_patterns=("*.delete",), force_sync_trace=True,
                questions=(ask("confirm-delete"),),
            )
        )
    )  # fmt: skip
    life.judge("ticket.delete")
    life.answer("delete-confirm", None, **{"confirm-delete": "acknowledged"})
    assert all(each.sync for each in life.traces)
    who = {"atlas_id": ATLAS, "checkpoint_id": "delete-confirm"}
    assert [(each.type, each.payload) for each in life.traces] == [
        (
            TraceType.TRIGGERED,
            {
                **who,
                "checkpoint_type": "action_pre",
                "mode": "blocking",
                "trigger_data": {"action_id": "ticket.delete"},
            },
        ),
        (TraceType.BLOCKED, {**who, "reason": "Required question not answered", "blocked_action": "ticket.delete"}),
        (
            TraceType.RESPONSE,
            {
                **who,
                "answers": {"confirm-delete": "acknowledged"},
                "validation_result": "valid",
                "action_id": "ticket.delete",
            },
        ),
        (TraceType.PASSED, {**who, "unlocked_capabilities": [], "injected_contexts": []}),
    ]  # fmt: skip


# Budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S5.10", "D.342")
def test_a_budget_leaves_out_the_least_important_and_never_what_blocks() -> None:
    told = [gate(f"tell{n}", TriggerType.SESSION_START, mode=TELL, priority=n) for n in range(4)]
    blocks = [gate(f"block{n}", TriggerType.SESSION_START, priority=-n) for n in range(2)]
    life = Life(atlas(*told, *blocks, budget=GateBudget(max_checkpoints_per_input=3)))
    told_of = life.traced()
    assert [id for kind, id in told_of if kind == "triggered"] == ["tell3", "block0", "block1"]
    assert [id for kind, id in told_of if kind == "skipped"] == ["tell2", "tell1", "tell0"]
    assert len(life.state.asks) == 2


@pytest.mark.proves("D.342")
def test_a_budget_smaller_than_what_blocks_leaves_all_of_that() -> None:
    blocks = [gate(f"block{n}", TriggerType.ACTION_PRE, on_patterns=("*",)) for n in range(3)]
    watch = gate("watch", TriggerType.ACTION_PRE, mode=WATCH, on_patterns=("*",))
    life = Life(atlas(*blocks, watch, budget=GateBudget(max_checkpoints_per_input=1)))
    assert len(life.judge("a.b").asks) == 3
    assert ("skipped", "watch") in life.traced()


@pytest.mark.proves("D.342")
def test_out_of_time_only_what_blocks_is_left() -> None:
    life = Life(
        atlas(
            gate("tell", TriggerType.KEYWORD, mode=TELL, on_patterns=("x",)),
            gate("block", TriggerType.KEYWORD, on_patterns=("x",)),
            budget=GateBudget(max_checkpoint_time_ms=500.0),
        )
    )
    moment = GateInput(now=life.now, inputs=("x",))
    late = at_boundary(life.atlases, life.state, moment, lambda: 501.0)
    assert [each.gate_id for each in late.fired] == ["block"]
    assert [each.payload.get("reason") for each in late.traces if each.type is TraceType.SKIPPED] == [
        "max_checkpoint_time_ms"
    ]
    assert [each.gate_id for each in at_boundary(life.atlases, life.state, moment, lambda: 499.0).fired] == [
        "block",
        "tell",
    ]


@pytest.mark.proves("D.342")
def test_contexts_and_guidance_fit_into_their_size() -> None:
    life = Life(
        atlas(
            gate("a", TriggerType.SESSION_START, mode=TELL, contexts=("big", "small"), priority=2),
            gate("b", TriggerType.SESSION_START, mode=TELL, guidance=Guidance(content="z" * 5), priority=1),
            gate("c", TriggerType.KEYWORD, mode=TELL, on_patterns=("x",), guidance=Guidance(content="y" * 4)),
            contexts=(context("big", "x" * 11), context("small", "x" * 6)),
            budget=GateBudget(max_context_injection_size=10),
        )
    )
    assert list(life.state.contexts) == [f"{ATLAS}/small"]
    skipped = [each.payload for each in life.traces if each.type is TraceType.SKIPPED]
    assert [(each["checkpoint_id"], each["reason"]) for each in skipped] == [
        ("a", "max_context_injection_size"),
        ("b", "max_context_injection_size"),
    ]
    life.step("x")
    assert list(life.state.guidance) == [f"{ATLAS}/c"]


@pytest.mark.proves("D.342")
def test_running_traces_no_second_time_what_was_left_out() -> None:
    gates = [gate(f"w{n}", TriggerType.ACTION_PRE, mode=WATCH, on_patterns=("*",)) for n in range(3)]
    people = human("boss", TriggerType.ACTION_PRE, on_patterns=("*",))
    life = Life(atlas(*gates, people, budget=GateBudget(max_checkpoints_per_input=1)))
    life.judge("a.b")
    life.traced()
    life.run(call("a.b", approved=True))
    assert life.traced() == [("passed", "boss")]


@pytest.mark.proves("D.342")
@pytest.mark.parametrize("known", ["told", "approved"])
def test_a_call_that_is_looked_at_again_traces_no_second_time_what_was_left_out(known: str) -> None:
    gates = [gate(f"w{n}", TriggerType.ACTION_PRE, mode=WATCH, on_patterns=("*",)) for n in range(3)]
    life = Life(atlas(*gates, budget=GateBudget(max_checkpoints_per_input=1)))
    assert life.verdict("a.b") is PolicyVerdict.ALLOW
    assert life.traced() == [("skipped", "w1"), ("skipped", "w2"), ("triggered", "w0")]
    again = replace(call("a.b"), told=known == "told", approved=known == "approved")
    assert life.verdict(again) is PolicyVerdict.ALLOW
    assert life.traced() == []


@pytest.mark.proves("D.341")
def test_what_changes_nothing_gives_the_very_same_state() -> None:
    life = Life(
        atlas(
            gate("tell", TriggerType.ACTION_PRE, mode=TELL, on_patterns=("*",), guidance=Guidance(content="Mind.")),
            gate("watch", TriggerType.RISK_THRESHOLD, mode=WATCH, on_min_tier=Risk.LOW),
        )
    )
    life.judge("a.b")
    before = life.state
    assert judge(life.atlases, before, call("a.b"), life.now).state is before


@pytest.mark.proves("D.341")
def test_a_blocking_gate_without_questions_stops_nobody() -> None:
    life = Life(atlas(gate("none", TriggerType.SESSION_START, questions=())))
    assert life.state.asks == ()
    assert life.verdict("a.b") is PolicyVerdict.ALLOW


@pytest.mark.proves("D.340")
@pytest.mark.parametrize("mode", [MatchMode.ANY, MatchMode.PHRASE, MatchMode.REGEX])
@pytest.mark.parametrize(
    ("payload", "code"),
    [
        ({"text": "hello", "order": {"notes": ["fine", "I want my\nrefund, now"]}}, True),
        ({"text": "hello", "refund": 1}, True),
        ({"a": "x" * 20_000, "text": "a refund", "z": "x" * 20_000}, True),
        ({"text": "a refund", "z": 1}, False),
        ({"note": "hello\nrefund\t"}, False),
        ({"text": "", "notes": [[["\trefund"]]]}, False),
        ({"text": ["refund"]}, False),
    ],
)
def test_a_word_is_found_wherever_whoever_runs_the_task_reads_it(
    mode: MatchMode, payload: dict[str, Any], code: bool
) -> None:
    on = (r"\brefund\b",) if mode is MatchMode.REGEX else ("refund",)
    life = Life(atlas(gate("money", TriggerType.KEYWORD, mode=TELL, on_patterns=on, on_match_mode=mode)))
    life.step(*inputs_of(payload, code=code))
    assert fired(life) == ["money"]


@pytest.mark.proves("D.340")
def test_what_the_model_of_a_task_does_not_read_fires_nothing() -> None:
    assert inputs_of({"text": "hello", "id": "refund-7"}, code=False) == ("hello",)
    assert inputs_of({"text": "hello"}, code=True) == ("hello", "text\nhello")
    deep: dict[str, Any] = {"text": "hello"}
    for _ in range(5_000):
        deep = {"text": "hello", "in": [deep]}
    assert inputs_of(deep, code=True)[1].count("hello") == 5_001
