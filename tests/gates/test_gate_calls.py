"""What becomes of a call: the order of the rules, passes, capabilities, people, limits, several atlases."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from cortex_plane.gates.model.atlases import (
    AnswerValidation,
    AtlasPolicy,
    AtlasPolicyType,
    Gate,
    Guidance,
    GuidanceFormat,
    Mode,
    OnInvalid,
    ResponseType,
    TriggerType,
)
from cortex_plane.gates.model.gates import (
    EVERY_CALL,
    MAX_CARDS,
    MAX_OPEN,
    MAX_SHUT,
    MAX_TRIES,
    NOTHING_YET,
    ActionRule,
    CapabilityState,
    Limit,
    Open,
    Shut,
    Window,
    call_name,
)
from cortex_plane.gates.rules.evaluation import judge, ran
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.rules.prompts import prompt_parts, questions
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import PolicyVerdict, Template
from tests.fixtures.gates import ATLAS, NOON, Life, action, ask, atlas, call, capability, context, gate, human, policy

DENY, APPROVE, RATE, BUDGET, ALLOW = AtlasPolicyType
D, A, R = PolicyVerdict.DENY, PolicyVerdict.ALLOW, PolicyVerdict.REQUIRES_APPROVAL
WATCH, TELL = Mode.OBSERVATIONAL, Mode.ADVISORY
ADMIN = gate("admin", TriggerType.CAPABILITY_ACCESS, on_capability_ids=("adm",))


# The order -------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.343")
@pytest.mark.parametrize("row", list(product((False, True), repeat=6)))
def test_the_order_is_deny_questions_approval_rate_limit_budget_allow_and_else_deny(row: tuple[bool, ...]) -> None:
    deny, asks, approve, rate, budget, allow = row
    given: list[tuple[bool, AtlasPolicy]] = [
        (allow, policy(ALLOW)),
        (budget, policy(BUDGET, max_calls=0)),
        (rate, policy(RATE, window_seconds=60.0, max_calls=0)),
        (approve, policy(APPROVE)),
        (deny, policy(DENY)),
    ]
    gates = (gate("g", TriggerType.ACTION_PRE, on_patterns=("*",)),) if asks else ()
    ruling = Life(atlas(*gates, policies=tuple(each for there, each in given if there))).judge("a.b")
    expected = (
        (D, f"atlas:{ATLAS}/deny") if deny
        else (D, f"gate:{ATLAS}/g") if asks
        else (R, f"atlas:{ATLAS}/requires_approval") if approve
        else (D, f"atlas:{ATLAS}/rate_limit") if rate
        else (D, f"atlas:{ATLAS}/budget") if budget
        else (A, f"atlas:{ATLAS}/allow") if allow
        else (D, "atlas:default")
    )  # fmt: skip
    assert (ruling.verdict, ruling.rule) == expected
    assert bool(ruling.asks) is (asks and not deny)


@pytest.mark.proves("D.343")
@pytest.mark.parametrize(("limited", "verdict"), [(False, A), (True, D)])
def test_an_approval_goes_no_further_than_limits(limited: bool, verdict: PolicyVerdict) -> None:
    rows = (policy(APPROVE, template=Template.CRITICAL_PATH), policy(BUDGET, max_calls=0 if limited else 1))
    life = Life(atlas(policies=rows))
    asked = life.judge("a.b")
    assert (asked.verdict, asked.template, asked.overrides) == (R, Template.CRITICAL_PATH, True)
    assert life.verdict(call("a.b", approved=True)) is verdict


@pytest.mark.proves("D.343")
def test_several_atlases_are_one_and_deny_wins() -> None:
    permits = atlas(id="a")
    denies = atlas(id="b", policies=(policy(DENY, "x.*"),))
    locks = atlas(
        gate("never", TriggerType.CUSTOM, of="c", unlock_capabilities=("v",), on_trigger_id="t"),
        id="c", policies=(), capabilities=(capability("v", "y.*"),),
    )  # fmt: skip
    for order in ((permits, denies, locks), (locks, denies, permits)):
        life = Life(*order)
        assert life.verdict("x.go") is D
        assert life.verdict("y.go") is D, "one atlas has it locked"
        assert life.verdict("z.go") is A


@pytest.mark.proves("D.343", "S5.11")
def test_no_gate_allows_again_what_another_one_denies() -> None:
    no = gate("no", TriggerType.KEYWORD, mode=TELL, on_patterns=("no",), deny_actions=("public.*",))
    yes = gate("yes", TriggerType.KEYWORD, mode=TELL, of="b", on_patterns=("yes",), allow_actions=("public.*", "*"))
    for order in (("no", "yes"), ("yes", "no")):
        life = Life(atlas(no, policies=()), atlas(yes, id="b", policies=()))
        for word in order:
            life.step(word)
        ruling = life.judge("public.read")
        assert (ruling.verdict, ruling.rule) == (D, f"gate:{ATLAS}/no")
        assert life.verdict("other.read") is A


@pytest.mark.proves("D.343")
def test_what_a_gate_before_the_call_denies_or_locks_holds_for_this_call() -> None:
    deny = gate("d", TriggerType.ACTION_PRE, mode=TELL, on_patterns=("a.b",), deny_actions=("a.*",))
    assert Life(atlas(deny)).verdict("a.b") is D
    lock = gate("l", TriggerType.ACTION_PRE, mode=TELL, on_patterns=("a.c",), lock_capabilities=("adm",))
    life = Life(atlas(ADMIN, lock, capabilities=(capability("adm", "a.*"),)))
    life.judge("a.b")
    life.answer("admin")
    assert life.verdict("a.b") is A
    assert [each.gate for each in life.judge("a.c").asks] == [f"{ATLAS}/admin"]


@pytest.mark.proves("D.343", "D.387")
@pytest.mark.parametrize(
    ("effect", "verdict"),
    [
        ({"deny_actions": ("a.*",)}, D),
        ({"lock_capabilities": ("adm",)}, D),
        ({"unlock_capabilities": ("adm",)}, A),
        ({"allow_actions": ("a.b",)}, A),
        ({"guidance": Guidance(content="Mind the gap.")}, D),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_who_only_looks_sees_what_a_gate_before_the_call_makes_of_it(
    effect: dict[str, Any], verdict: PolicyVerdict
) -> None:
    """Such a gate asks nobody: it fires with the call, and what it does holds for this call."""
    tells = gate("tells", TriggerType.ACTION_PRE, mode=TELL, on_patterns=("a.b",), **effect)
    locked = "lock_capabilities" not in effect and "deny_actions" not in effect
    life = Life(atlas(tells, policies=(), capabilities=(capability("adm", "c.d" if "allow_actions" in effect else "a.b",
                                                                    locked=locked),)))  # fmt: skip
    seen = judge(life.atlases, life.state, call("a.b"), life.now, looking=True)
    told = life.judge("a.b")
    assert (seen.verdict, seen.rule, seen.reason) == (told.verdict, told.rule, told.reason)
    assert seen.verdict is verdict


@pytest.mark.proves("D.343")
def test_arguments_must_fit_what_the_atlas_declares_unless_somebody_only_looks() -> None:
    schema = {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}}
    life = Life(atlas(actions=(action("a.b", parameters_schema=schema),)))
    refused = life.judge(call("a.b", id=3))
    assert (refused.verdict, refused.rule) == (D, "action:a.b")
    assert life.verdict(call("a.b", id="3")) is A
    assert judge(life.atlases, life.state, call("a.b"), life.now, looking=True).verdict is A


# Passes ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S5.12", "D.344")
def test_an_answer_lets_exactly_one_call_through() -> None:
    life = Life(atlas(gate("del", TriggerType.ACTION_PRE, on_patterns=("*.delete",))))
    first, second = call("t.delete", id=1), call("t.delete", id=2)
    assert life.verdict(first) is D
    told = life.answer("del")
    assert told.told["next"] == "Now call `t.delete` again with the same arguments."
    assert life.verdict(second) is D, "its arguments are others"
    assert life.verdict(replace(first, action="u.delete")) is D
    assert life.verdict(first) is A
    assert life.verdict(first) is A, "asking uses nothing up"
    life.run(first)
    assert life.verdict(first) is D


@pytest.mark.proves("D.344")
def test_calls_of_the_same_arguments_are_told_apart_by_their_action() -> None:
    life = Life(atlas(gate("del", TriggerType.ACTION_PRE, on_patterns=("*.delete",))))
    life.judge("t.delete")
    life.judge("u.delete")
    assert "name one with `call`" in life.answer("del").told["error"]
    assert life.answer("del", call_name(call("u.delete"))).valid
    assert (life.verdict("u.delete"), life.verdict("t.delete")) == (A, D)


@pytest.mark.proves("D.344")
def test_gates_of_the_same_name_in_two_atlases_are_named_in_full() -> None:
    start = gate("start", TriggerType.SESSION_START)
    life = Life(atlas(start), atlas(replace(start, atlas_id="b"), id="b"))
    assert "`b/start`" in questions(life.atlases, life.state.asks)
    assert f"`{ATLAS}/start`" in life.answer("start").told["error"]
    assert life.answer(f"{ATLAS}/start").valid
    assert life.answer("start").valid, "by now only one of them waits"
    assert life.verdict("a.b") is A


@pytest.mark.proves("D.344")
def test_an_answer_to_what_nobody_asked_changes_nothing() -> None:
    life = Life(atlas(gate("start", TriggerType.SESSION_START), gate("other", TriggerType.ACTION_PRE)))
    before = life.state
    for forged in ("other", "unknown", f"{ATLAS}/other", ""):
        said = life.answer(forged)
        assert (said.valid, said.gate) == (False, None)
        assert "`start`" in said.told["error"]
    assert life.state == before


@pytest.mark.proves("D.345")
def test_a_question_that_stops_the_session_stops_every_call() -> None:
    life = Life(atlas(gate("start", TriggerType.SESSION_START)))
    ruling = life.judge("a.b")
    assert (ruling.verdict, ruling.rule, ruling.asks) == (D, f"gate:{ATLAS}/start", ())
    assert "start" in prompt_parts(life.atlases, life.state).questions
    life.answer("start")
    assert prompt_parts(life.atlases, life.state).questions == ""
    assert life.verdict("a.b") is A


@pytest.mark.proves("D.345")
def test_out_of_tries_a_gate_of_the_session_ends_it() -> None:
    life = Life(atlas(gate("start", TriggerType.SESSION_START, max_attempts=3)))
    assert life.answer("start", sure="no").told["next"] == "Answer again; 2 more tries."
    assert "not accepted" in prompt_parts(life.atlases, life.state).questions
    life.ignore()
    assert not life.state.ended
    last = life.answer("start", sure="not understood")
    assert last.told["next"] == "The gate is shut."
    assert life.state.ended is not None
    assert life.verdict("a.b") is D
    assert not life.answer("start").valid
    life.step("hello")
    assert life.state.asks == ()


@pytest.mark.proves("D.345")
def test_out_of_tries_a_gate_of_a_call_shuts_that_call_and_at_last_every_one() -> None:
    life = Life(atlas(gate("del", TriggerType.ACTION_PRE, on_patterns=("*.delete",), max_attempts=1)))
    for n in range(MAX_TRIES):
        tried = call("t.delete", id=n)
        assert life.judge(tried).asks
        life.answer("del", sure="no")
        assert (life.verdict(tried), life.judge(tried).asks) == (D, ())
        assert life.state.ended is None
    fresh = life.judge(call("t.delete", id="fresh"))
    assert (fresh.verdict, fresh.asks) == (D, ()), "other arguments do not give fresh tries for ever"
    assert [each.action for each in life.state.shut] == [EVERY_CALL]
    assert life.verdict("t.get") is A


@pytest.mark.proves("D.345")
def test_a_gate_of_a_capability_is_shut_for_all_of_it() -> None:
    rows = (capability("adm", "adm.*"), capability("rest", "t.*"))
    life = Life(atlas(replace(ADMIN, max_attempts=1), policies=(), capabilities=rows))
    life.judge("adm.a")
    life.answer("admin", sure="no")
    assert (life.verdict("adm.b"), life.judge("adm.b").asks) == (D, ())
    assert life.verdict("t.get") is A


@pytest.mark.proves("D.345")
def test_leaving_a_question_for_many_others_gives_no_fresh_tries() -> None:
    life = Life(atlas(gate("del", TriggerType.ACTION_PRE, on_patterns=("*",), max_attempts=100)))
    for n in range(MAX_OPEN):
        life.judge(call("t.delete", id=n))
        life.answer("del", call_name(call("t.delete", id=n)), sure="no")
    life.judge(call("t.delete", id="more"))
    assert len(life.state.open) == MAX_OPEN
    left = life.judge(call("t.delete", id=0))
    assert (left.verdict, left.asks) == (D, ())
    for n in range(200):
        life.judge(call("t.delete", again=n))
    assert len(life.state.open) <= MAX_OPEN
    assert len(life.state.shut) <= MAX_SHUT


@pytest.mark.proves("D.345")
def test_all_calls_before_a_capability_share_the_tries_of_its_gate() -> None:
    pin = replace(ADMIN, questions=(ask("pin", ResponseType.TEXT, validation=AnswerValidation(pattern="^0042$")),))
    life = Life(atlas(pin, policies=(), capabilities=(capability("adm", "adm.*"),)))
    calls = [call("adm.a", id=n) for n in range(6)]
    for each in calls:
        assert life.judge(each).asks
    told = [life.answer("admin", call_name(calls[n]), pin=f"000{n}").told for n in range(3)]
    assert [each["next"] for each in told] == [
        "Answer again; 2 more tries.", "Answer again; 1 more try.", "The gate is shut.",
    ]  # fmt: skip
    assert [each.action for each in life.state.shut] == [EVERY_CALL]
    assert life.state.open == (), "what it asked about other calls cannot be answered either"
    assert not life.answer("admin", call_name(calls[4]), pin="0042").valid
    for each in (*calls, call("adm.b")):
        ruling = life.judge(each)
        assert (ruling.verdict, ruling.asks) == (D, ())


@pytest.mark.proves("D.345")
def test_leaving_a_question_about_a_capability_neither_shuts_it_nor_gives_fresh_tries() -> None:
    life = Life(atlas(ADMIN, policies=(), capabilities=(capability("adm", "adm.*"),)))
    for n in range(2):
        life.judge(call("adm.a", id=n))
        life.answer("admin", call_name(call("adm.a", id=n)), sure="no")
    for n in range(2 * MAX_OPEN):
        assert life.judge(call("adm.b", id=n)).asks
    assert len(life.state.open) == MAX_OPEN
    assert {each.attempts for each in life.state.open} == {2}
    last = life.answer("admin", life.state.open[0].call, sure="no")
    assert (last.told["next"], life.verdict("adm.c")) == ("The gate is shut.", D)


@pytest.mark.proves("D.345")
def test_who_passes_the_gate_of_a_capability_has_all_tries_when_it_is_locked_again() -> None:
    lock = gate("lock", TriggerType.KEYWORD, mode=TELL, on_patterns=("lock",), lock_capabilities=("adm",))
    life = Life(atlas(ADMIN, lock, policies=(), capabilities=(capability("adm", "adm.*"),)))
    for name in ("adm.a", "adm.b"):
        life.judge(name)
        life.answer("admin", call_name(call(name)), sure="no")
    life.answer("admin", call_name(call("adm.a")))
    life.step("lock it")
    for name in ("adm.b", "adm.c"):
        assert life.judge(name).asks
        assert life.answer("admin", call_name(call(name)), sure="no").told["next"].startswith("Answer again")
    assert not life.state.shut


@pytest.mark.proves("D.345")
def test_wrong_answers_about_many_calls_shut_the_gate_for_all_of_them() -> None:
    """Each call has its own tries, and all of them together have an end."""
    life = Life(atlas(gate("del", TriggerType.ACTION_PRE, on_patterns=("*.delete",))))
    calls = [call("t.delete", id=n) for n in range(MAX_TRIES + 5)]
    for each in calls:
        assert life.judge(each).asks
    for n in range(MAX_TRIES - 1):
        assert life.answer("del", call_name(calls[n]), sure="no").told["next"].startswith("Answer again")
    assert life.answer("del", call_name(calls[MAX_TRIES]), sure="no").told["next"] == "The gate is shut."
    assert ([each.action for each in life.state.shut], life.state.open) == ([EVERY_CALL], ())
    assert not life.answer("del", call_name(calls[0])).valid
    assert {life.verdict(each) for each in calls} == {D}
    assert life.verdict("t.get") is A


@pytest.mark.proves("D.345")
def test_a_wrong_answer_that_a_right_one_followed_is_forgotten() -> None:
    """Of a long session that works nobody is shut out; passing one call gives no fresh tries for another one."""
    life = Life(atlas(gate("del", TriggerType.ACTION_PRE, on_patterns=("*.delete",), max_attempts=2)))
    other = call("t.delete", id="other")
    life.judge(other)
    life.answer("del", sure="no")
    for n in range(2 * MAX_TRIES):
        mine = call("t.delete", id=n)
        life.judge(mine)
        life.answer("del", call_name(mine), sure="no")
        assert life.answer("del", call_name(mine)).valid
        life.run(mine)
    assert life.state.tried == {f"{ATLAS}/del": 1}
    assert life.answer("del", call_name(other), sure="no").told["next"] == "The gate is shut."
    assert [each.input_hash for each in life.state.shut] == [other.input_hash]


@pytest.mark.proves("D.345")
def test_answers_that_shut_at_once_count_with_the_others() -> None:
    stop = ask(on_invalid=OnInvalid.BLOCK)
    life = Life(atlas(gate("del", TriggerType.ACTION_PRE, on_patterns=("*.delete",), questions=(stop,))))
    for n in range(MAX_TRIES):
        life.judge(call("t.delete", id=n))
        life.answer("del", sure="no")
    assert [each.action for each in life.state.shut] == [EVERY_CALL]


# Capabilities ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("S5.13", "D.346")
def test_a_capability_stays_open_until_it_is_locked() -> None:
    lock = gate("lock", TriggerType.KEYWORD, mode=TELL, on_patterns=("lock",), lock_capabilities=("adm",))
    life = Life(atlas(ADMIN, lock, policies=(), capabilities=(capability("adm", "adm.*"),)))
    assert life.judge("adm.a").asks
    life.answer("admin")
    for name in ("adm.a", "adm.b"):
        assert life.verdict(name) is A
        life.run(name)
    life.judge("adm.c")
    life.step("lock it")
    assert [each.gate for each in life.judge("adm.c").asks] == [f"{ATLAS}/admin"]
    life.answer("admin")
    assert life.verdict("adm.c") is A


@pytest.mark.proves("D.346")
def test_an_answer_before_the_lock_does_not_count_after_it() -> None:
    lock = gate("lock", TriggerType.KEYWORD, mode=TELL, on_patterns=("lock",), lock_capabilities=("adm",))
    life = Life(atlas(ADMIN, lock, capabilities=(capability("adm", "adm.*"),)))
    life.judge("adm.a")
    life.answer("admin")
    life.step("lock")
    assert life.judge("adm.a").asks, "though a policy allows everything"


@pytest.mark.proves("D.346")
def test_every_gate_before_a_capability_must_be_passed() -> None:
    second = replace(ADMIN, gate_id="second")
    life = Life(atlas(ADMIN, second, policies=(), capabilities=(capability("adm", "adm.*"),)))
    assert len(life.judge("adm.a").asks) == 2
    life.answer("admin")
    assert [each.gate for each in life.judge("adm.a").asks] == [f"{ATLAS}/second"]
    life.answer("second")
    assert life.verdict("adm.a") is A


@pytest.mark.proves("D.346")
def test_an_open_capability_is_no_way_around_the_gate_of_another_one() -> None:
    rows = (capability("all", "t.*"), capability("adm", "t.delete"))
    life = Life(atlas(ADMIN, policies=(), capabilities=rows))
    assert life.verdict("t.get") is A
    assert life.judge("t.delete").asks


@pytest.mark.proves("D.346", "S5.14")
def test_what_a_gate_unlocks_locks_allows_and_denies() -> None:
    life = Life(
        atlas(
            gate(
                "admin", TriggerType.CAPABILITY_ACCESS, on_capability_ids=("admin-tools",),
                unlock_capabilities=("admin-tools", "audit-logs"), lock_capabilities=("public-access",),
                allow_actions=("admin.*",), deny_actions=("public.write",), contexts=("how",),
            ),
            policies=(),
            capabilities=(
                capability("admin-tools", "tools.use"), capability("audit-logs", "audit.read"),
                capability("public-access", "public.*"),
            ),
            contexts=(context("how"),),
        )
    )  # fmt: skip
    assert [life.verdict(each) for each in ("tools.use", "audit.read", "public.read", "admin.ban")] == [D, D, A, D]
    life.answer("admin")
    passed = life.traces[-1].payload
    assert passed["unlocked_capabilities"] == ["admin-tools", "audit-logs"]
    assert passed["injected_contexts"] == ["how"]
    assert [life.verdict(each) for each in ("tools.use", "audit.read", "public.read", "admin.ban")] == [A, A, D, A]
    assert life.judge("public.write").rule == f"gate:{ATLAS}/admin"
    assert life.judge("public.read").reason.endswith(f"is locked, by the gate `{ATLAS}/admin`")


# People ----------------------------------------------------------------------------------------------------------

BOSS = human("boss", TriggerType.ACTION_PRE, on_patterns=("pay.*",))


@pytest.mark.proves("D.347")
def test_a_gate_for_people_makes_an_approval_for_each_call() -> None:
    life = Life(atlas(BOSS))
    asked = life.judge("pay.out")
    assert (asked.verdict, asked.rule, asked.people) == (R, f"gate:{ATLAS}/boss", (BOSS,))
    assert life.verdict(call("pay.out", approved=True)) is A
    life.run(call("pay.out", approved=True))
    assert life.verdict("pay.out") is R


@pytest.mark.proves("D.347")
def test_people_pass_what_they_were_shown_and_nothing_else() -> None:
    first = human("first", TriggerType.SESSION_START)
    later = human("later", TriggerType.KEYWORD, on_patterns=("money",))
    life = Life(atlas(first, later))
    assert [each.gate_id for each in life.judge("a.b").people] == ["first"]
    life.step("money", heard=1)
    again = life.judge(call("a.b", approved=True))
    assert (again.verdict, [each.gate_id for each in again.people]) == (R, ["first", "later"])
    life.run(call("a.b", approved=True))
    assert life.state.people == ()
    assert life.verdict("c.d") is A


@pytest.mark.proves("D.347")
def test_running_with_an_approval_that_showed_less_passes_less() -> None:
    first = human("first", TriggerType.SESSION_START)
    later = human("later", TriggerType.KEYWORD, on_patterns=("money",))
    life = Life(atlas(first, later))
    life.judge("a.b")
    life.step("money", heard=1)
    life.run(call("a.b", approved=True))
    assert life.state.people == (f"{ATLAS}/later",)
    assert life.verdict("c.d") is R


@pytest.mark.proves("D.347")
def test_what_people_saw_counts_for_the_call_that_they_were_asked_about() -> None:
    """Another one of the same action, even with the same arguments, was shown to nobody."""
    life = Life(atlas(BOSS))
    life.judge(call("pay.out", to="a"))
    assert life.verdict(call("pay.out", approved=True, to="b")) is R
    twin = replace(call("pay.out", approved=True, to="a"), call_id="another")
    assert judge(life.atlases, life.state, twin, life.now).verdict is R
    nameless = replace(twin, call_id="")
    assert judge(life.atlases, life.state, nameless, life.now).verdict is R
    assert life.verdict(call("pay.out", approved=True, to="a")) is A


@pytest.mark.proves("D.347")
def test_judging_shows_nobody_anything_and_looking_changes_nothing() -> None:
    life = Life(atlas(BOSS, gate("sure", TriggerType.ACTION_PRE, on_patterns=("del.*",))))
    asked = judge(life.atlases, life.state, call("pay.out"), life.now)
    assert (asked.verdict, asked.state.cards) == (R, ())
    for name, verdict in (("pay.out", R), ("del.it", D)):
        looked = judge(life.atlases, life.state, call(name), life.now, looking=True)
        assert (looked.verdict, looked.state, looked.traces) == (verdict, life.state, ())


@pytest.mark.proves("D.347")
def test_only_the_newest_cards_are_remembered() -> None:
    life = Life(atlas(BOSS))
    for number in range(MAX_CARDS + 5):
        life.judge(call("pay.out", number=number))
    assert len(life.state.cards) == MAX_CARDS
    assert life.verdict(call("pay.out", approved=True, number=MAX_CARDS + 4)) is A
    assert life.verdict(call("pay.out", approved=True, number=0)) is R


@pytest.mark.proves("D.347")
def test_people_open_a_capability_until_it_is_locked() -> None:
    door = human("door", TriggerType.CAPABILITY_ACCESS, on_capability_ids=("adm",))
    lock = gate("lock", TriggerType.KEYWORD, mode=TELL, on_patterns=("lock",), lock_capabilities=("adm",))
    life = Life(atlas(door, lock, policies=(), capabilities=(capability("adm", "adm.*"),)))
    assert life.verdict("adm.a") is R
    assert life.verdict(call("adm.a", approved=True)) is A
    life.run(call("adm.a", approved=True))
    assert life.verdict("adm.b") is A
    life.step("lock")
    assert life.verdict("adm.b") is R
    assert life.verdict(call("adm.a", approved=True)) is R, "the yes from before the lock is used up"


@pytest.mark.proves("D.347")
def test_nobody_is_asked_for_a_call_that_is_denied_anyway() -> None:
    life = Life(atlas(BOSS, policies=(policy(DENY),)))
    assert (life.judge("pay.out").verdict, life.judge("pay.out").people) == (D, ())
    life = Life(atlas(BOSS, policies=()))
    assert life.verdict("pay.out") is D


# Limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.348")
def test_limits_are_used_up_by_running_not_by_asking() -> None:
    rate = policy(RATE, "a.*", max_calls=2, window_seconds=60.0, reason="Slowly")
    life = Life(atlas(policies=(rate, policy(BUDGET, "a.*", max_calls=3), policy(ALLOW))))
    for _ in range(5):
        assert life.verdict("a.b") is A
    life.run("a.b")
    life.run("a.b")
    over = life.judge("a.c")
    assert (over.verdict, over.rule) == (D, f"atlas:{ATLAS}/rate_limit")
    assert over.reason == "Slowly: 2 of 2 calls; again after 2026-05-04T12:01:00+00:00"
    life.step(passing=60)
    allowed = life.judge("a.b")
    assert allowed.verdict is A
    assert [(each.kind, each.detail["left"]) for each in allowed.limits] == [("rate_limit", 2), ("budget", 1)]
    life.run("a.b")
    life.step(passing=3600)
    assert life.judge("a.b").rule == f"atlas:{ATLAS}/budget"


@pytest.mark.proves("D.348")
def test_a_call_is_allowed_until_the_next_gate_comes_round() -> None:
    life = Life(atlas(gate("often", TriggerType.TIME_INTERVAL, on_seconds=60.0)))
    until = {"until": "2026-05-04T12:01:00+00:00"}
    assert life.judge("a.b").limits == (Limit(kind="time_window", name=f"{ATLAS}/often", detail=until),)


# What is told ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("S5.15", "D.349")
def test_guidance_is_added_replaced_and_expires() -> None:
    def says(id: str, text: str, **more: Any) -> Gate:
        return gate(
            id, TriggerType.KEYWORD, mode=TELL, on_patterns=(f"<{id}>",), guidance=Guidance(content=text, **more)
        )  # fmt: skip

    life = Life(
        atlas(
            says("one", "One."), says("two", "Two.", priority=200), says("brief", "Brief.", expires_after="10m"),
            says("until", "Until two.", expires_after="two"), says("only", "Only.", append=False),
        ),
        atlas(replace(gate("b", TriggerType.SESSION_START, mode=TELL, guidance=Guidance(content="B.")), atlas_id="b"), id="b"),
    )  # fmt: skip

    def known() -> list[str]:
        return prompt_parts(life.atlases, life.state).knowledge.split("\n\n")

    life.step("<one>", passing=1)
    life.step("<brief>", passing=1)
    life.step("<until>", passing=1)
    assert known() == ["B.", "One.", "Brief.", "Until two."]
    life.step("<two>", passing=1)
    assert known() == ["Two.", "B.", "One.", "Brief."]
    life.step(passing=600)
    assert known() == ["Two.", "B.", "One."]
    life.step("<only>")
    assert known() == ["B.", "Only."], "another steward's guidance stays"


@pytest.mark.proves("D.349")
def test_a_pass_does_not_give_the_guidance_of_its_question_a_second_time() -> None:
    alone = gate("alone", TriggerType.SESSION_START, guidance=Guidance(content="Alone.", append=False))
    more = gate("more", TriggerType.INTERACTIVE, guidance=Guidance(content="More."))
    life = Life(atlas(alone, more))
    assert len(life.state.guidance) == 2
    life.answer("alone")
    assert len(life.state.guidance) == 2


@pytest.mark.proves("S5.16", "D.349")
def test_what_the_model_reads_is_made_of_the_state_alone_and_in_one_order() -> None:
    gates = [
        gate(
            f"g{n}", TriggerType.SESSION_START, mode=TELL, contexts=(f"c{n}",),
            guidance=Guidance(content=f"G{n}.", format=kind),
        )
        for n, kind in enumerate(GuidanceFormat)
    ]  # fmt: skip
    life = Life(atlas(*gates, contexts=tuple(context(f"c{n}", f"C{n}.") for n in range(4))))
    parts = prompt_parts(life.atlases, life.state)
    assert parts.instructions == "G3."
    assert parts.knowledge == "## C0\nC0.\n\n## C1\nC1.\n\n## C2\nC2.\n\n## C3\nC3.\n\nG0.\n\nG1.\n\nG2."
    shuffled = replace(
        life.state, contexts=dict(reversed(life.state.contexts.items())),
        guidance=dict(reversed(life.state.guidance.items())),
    )  # fmt: skip
    assert prompt_parts(life.atlases, shuffled) == parts, "a row keeps no order of its keys"


# What a session remembers of gates that are gone ------------------------------------------------------------------


@pytest.mark.proves("D.345")
def test_gates_that_are_in_no_atlas_ask_nobody_and_open_nothing() -> None:
    gone = "old/gone"
    life = Life(atlas(ADMIN, policies=(), capabilities=(capability("adm", "adm.*"),)))
    life.state = replace(
        life.state, open=(Open(gate=gone),), people=(gone,), spent={"old/p": Window(since=NOON, calls=9)},
        capabilities={f"{ATLAS}/adm": CapabilityState(open=True, by=gone, at=NOON)},
        actions={"x.*": ActionRule(allow=True, by=gone, at=NOON), "y.*": ActionRule(allow=False, by=gone, at=NOON)},
    )  # fmt: skip
    assert prompt_parts(life.atlases, life.state).questions == ""
    assert life.judge("adm.a").asks, "what it opened is closed"
    assert [life.verdict(each) for each in ("x.a", "y.a")] == [D, D], "it allows nothing, and denies still"
    assert not life.answer("gone").valid
    life.ignore()
    life.run(call("z.a", approved=True))
    life.step()
    assert [each.gate for each in life.state.open] == [f"{ATLAS}/admin"]
    assert life.state.people == ()
    life.state = replace(life.state, shut=(Shut(gate=gone, reason="r"),))
    assert life.verdict("adm.a") is D


@pytest.mark.proves("D.341")
def test_policies_look_strictly_where_a_gate_says_so() -> None:
    strict = gate("s", TriggerType.ACTION_PRE, mode=TELL, on_patterns=("a.*",), require_policy_check=True)
    life = Life(atlas(strict))
    assert (life.judge("a.b").strict, life.judge("b.b").strict) == (True, False)
    assert life.judge(call("a.b", Risk.LOW)).risk is Risk.LOW


@pytest.mark.proves("D.361")
@pytest.mark.parametrize("approved", [False, True])
def test_what_its_own_gate_allows_is_allowed_each_time_and_given_when_it_runs(approved: bool) -> None:
    helps = gate("helps", TriggerType.ACTION_PRE, mode=TELL, on_patterns=("a.b",), allow_actions=("a.*",))
    compiled, mine = CompiledAtlases([atlas(helps, policies=())]), call("a.b")
    first = judge(compiled, NOTHING_YET, mine, NOON)
    assert (first.verdict, first.state.actions) == (A, {})
    again = judge(compiled, first.state, replace(mine, told=not approved, approved=approved), NOON)
    assert (again.verdict, again.state.actions, again.traces) == (A, {}, ())
    assert judge(compiled, again.state, call("a.c"), NOON).verdict is D
    assert judge(compiled, ran(compiled, again.state, mine, NOON).state, call("a.c"), NOON).verdict is A
