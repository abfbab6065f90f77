"""The gates of one attempt between two writes: what is judged, carried, forgotten and done again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import orjson
import pytest

from cortex_plane.agents.model.agents import SkillSettings
from cortex_plane.agents.model.completions import CallRequest, provider_name
from cortex_plane.gates.model.atlases import Atlas, Mode, TriggerType
from cortex_plane.gates.model.gates import GateInput, GateState, Pass, ShownAnswer, kept_state
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.worker.authorization import reset_call
from cortex_plane.worker.calls import Call, plan_call, toolbox_of
from cortex_plane.worker.session_gates import AttemptGates, as_gated
from tests.fixtures.gated import Desk
from tests.fixtures.gates import ATLAS, NOON, atlas, capability, gate, human
from tests.storage.leases import call as row
from tests.storage.leases import request_for

A, D, R = PolicyVerdict.ALLOW, PolicyVerdict.DENY, PolicyVerdict.REQUIRES_APPROVAL
CONFIRM = gate("confirm", TriggerType.ACTION_PRE, on_patterns=("*.delete",))
TOOLBOX = toolbox_of(Desk().app, SkillSettings.of({"app": "tests"}))


def _call(tool: str = "ticket.delete", **arguments: Any) -> Call:
    request = CallRequest(id="c", name=provider_name(tool), arguments=arguments or {"id": "1"})
    return plan_call(0, request, uuid4(), TOOLBOX)


def _bound(state: GateState, revision: int = 0) -> dict[str, Any]:
    return {"revision": revision, "state": kept_state(state)}


def _gates(*atlases: Atlas, state: GateState | None = None) -> AttemptGates:
    made = AttemptGates(CompiledAtlases(atlases), _bound(state or GateState()), lambda: NOON)
    if state is None:
        made.session.boundary(GateInput(now=NOON))
        made.commit(made.changes_for(StepWrite(), tuple(made.session.evaluations)))
    return made


def _pass(call: Call, gate_id: str = "confirm") -> Pass:
    return Pass(gate=f"{ATLAS}/{gate_id}", action=call.name, input_hash=call.input_hash)


def _intent(*calls: Call) -> StepWrite:
    rows = [{"id": str(call.id), "status": "intended"} for call in calls]
    return StepWrite(calls=orjson.dumps(rows), dispatches=True)


@pytest.mark.proves("D.361")
def test_calls_that_were_approved_together_each_need_a_pass() -> None:
    one, other = _call(), _call()
    gates = _gates(atlas(CONFIRM), state=GateState(started=True, passes=(_pass(one),)))
    assert gates.judge_again(as_gated(one, has_approval=True), is_resend=False).verdict is A
    gates.let_through(one, has_approval=True)
    assert gates.judge_again(as_gated(other, has_approval=True), is_resend=False).verdict is D
    assert gates.judge_again(as_gated(one, has_approval=True), is_resend=False).verdict is A, "it is its own pass"


@pytest.mark.proves("D.377")
def test_what_was_written_meanwhile_is_used_up_for_a_response_that_began_before() -> None:
    one, other = _call(), _call()
    gates = _gates(atlas(CONFIRM), state=GateState(started=True, passes=(_pass(one),)))
    gates.begin_response()
    assert gates.judge_new(as_gated(one)).verdict is A
    gates.let_through(one)
    # One branch sends its call while another one has not been judged yet.
    gates.commit(gates.changes_for(_intent(one), tuple(gates.session.evaluations)))
    assert gates.judge_new(as_gated(other)).verdict is D


@pytest.mark.proves("D.377")
def test_what_others_used_up_is_used_up_for_a_response_that_began_before() -> None:
    one = _call()
    atlases = CompiledAtlases([atlas(CONFIRM)])
    gates = AttemptGates(atlases, _bound(GateState(started=True, passes=(_pass(one),))), lambda: NOON)
    gates.begin_response()
    gates.rebase(atlases, _bound(GateState(started=True), 1))
    assert gates.judge_new(as_gated(one)).verdict is D


@pytest.mark.proves("D.377", "D.371")
def test_an_approved_call_is_not_sent_past_a_gate_that_came_while_it_was_written() -> None:
    one = _call()
    boss = human("boss", TriggerType.KEYWORD, on_patterns=("payroll",))
    atlases = CompiledAtlases([atlas(boss)])
    gates = AttemptGates(atlases, _bound(GateState(started=True)), lambda: NOON)
    gates.let_through(one, has_approval=True)
    write = StepWrite(intents=orjson.dumps([{"id": str(one.id), "grant": True}]), dispatches=True)
    assert gates.allows_write(write)
    gates.rebase(atlases, _bound(GateState(started=True, people=(boss.key,)), 1))
    assert not gates.allows_write(write)


@pytest.mark.proves("D.361", "D.360")
def test_what_is_asked_is_told_and_nothing_else_is_left_open() -> None:
    """The first call locks what the second one needs. It was let through by what held before, so nothing asks about it."""
    lock = gate(
        "lock", TriggerType.ACTION_PRE, mode=Mode.ADVISORY, on_patterns=("mail.send",), lock_capabilities=("adm",)
    )  # fmt: skip
    door = gate("door", TriggerType.CAPABILITY_ACCESS, on_capability_ids=("adm",), unlock_capabilities=("adm",))
    opens = gate("opens", TriggerType.SESSION_START, mode=Mode.ADVISORY, unlock_capabilities=("adm",))
    gates = _gates(atlas(lock, door, opens, capabilities=(capability("adm", "ticket.delete"),)))
    gates.begin_response()
    assert gates.judge_new(as_gated(_call("mail.send", to="a"))).verdict is A
    assert gates.judge_new(as_gated(_call())).verdict is A
    carried = gates.changes_for(StepWrite(), tuple(gates.session.evaluations))
    assert carried.state.open == ()
    assert [trace.payload["checkpoint_id"] for trace in carried.traces] == ["lock", "lock"]
    gates.begin_response()
    ruling = gates.judge_new(as_gated(_call()))
    assert [each.gate for each in ruling.asks] == [f"{ATLAS}/door"]
    told = gates.changes_for(StepWrite(), tuple(gates.session.evaluations)).traces
    assert [trace.payload["checkpoint_id"] for trace in told] == ["lock", "lock", "door", "door"]


@pytest.mark.proves("D.365", "D.378")
def test_a_call_that_is_sent_again_passes_its_own_gates_and_not_those_of_a_capability() -> None:
    door = gate("door", TriggerType.CAPABILITY_ACCESS, on_capability_ids=("adm",))
    one = _call()
    gates = _gates(atlas(CONFIRM), state=GateState(started=True))
    assert gates.judge_again(as_gated(one), is_resend=True).verdict is A
    locked = (capability("adm", "ticket.delete", locked=True),)
    gates = _gates(atlas(CONFIRM, door, capabilities=locked), state=GateState(started=True))
    found = gates.judge_again(as_gated(one), is_resend=True)
    assert (found.verdict, [each.gate for each in found.asks]) == (D, [f"{ATLAS}/door"])


@pytest.mark.proves("D.377")
def test_what_is_judged_anew_is_neither_told_nor_remembered_of_the_first_time() -> None:
    hint = gate(
        "hint", TriggerType.ACTION_PRE, mode=Mode.ADVISORY, on_patterns=("ticket.*",), lock_capabilities=("adm",)
    )
    gates = _gates(atlas(hint, CONFIRM, capabilities=(capability("adm", "x.y"),)))
    before = gates.session.state
    gates.begin_response()
    sent, kept = _call("ticket.get", id="1"), _call()
    gates.judge_new(as_gated(sent))
    changed = gates.session.state
    assert changed != before
    gates.forget([sent])
    assert (gates.session.state, tuple(gates.session.evaluations)) == (before, ())
    gates.judge_new(as_gated(kept))
    gates.judge_new(as_gated(sent))
    gates.forget([sent])
    carried = gates.changes_for(StepWrite(), tuple(gates.session.evaluations))
    assert [each.gate for each in carried.state.open] == [CONFIRM.key], "what was refused is kept"
    told = sorted(trace.payload["checkpoint_id"] for trace in carried.traces)
    assert told == ["confirm", "confirm", "hint", "hint"]


@pytest.mark.proves("D.376", "D.377")
def test_a_write_that_is_tried_again_holds_what_was_done_before_it_and_nothing_that_came_meanwhile() -> None:
    """Whoever answered meanwhile has its own entry, which goes with its own write."""
    start = gate("start", TriggerType.SESSION_START)
    gates = _gates(atlas(start))
    gates.begin_response()
    done = tuple(gates.session.evaluations)
    gates.session.record_answer(gates.session.answer_target("start", None), {"sure": "understood"}, {})
    carried = gates.changes_for(StepWrite(), done)
    assert ([each.gate for each in carried.state.asks], carried.traces) == ([start.key], ())
    gates.commit(carried)
    assert gates.session.state.asks == ()
    later = gates.changes_for(StepWrite(), tuple(gates.session.evaluations))
    assert (later.state.asks, len(later.traces)) == ((), 2)


@pytest.mark.proves("D.371")
def test_what_people_saw_is_recorded_by_no_write_but_the_one_that_asks() -> None:
    gates = _gates(atlas(human("boss", TriggerType.ACTION_PRE, on_patterns=("*.delete",))))
    gates.begin_response()
    one = _call()
    one.ruling = gates.judge_new(as_gated(one))
    assert one.ruling.verdict is R
    gates.add_request(one)
    assert gates.changes_for(StepWrite(), tuple(gates.session.evaluations)).state.cards == ()
    assert gates.judge_again(as_gated(one, has_approval=True), is_resend=False).verdict is R


@pytest.mark.proves("D.367")
def test_a_call_that_is_asked_about_anew_is_charged_anew() -> None:
    """It was sent once, by what does not hold any more."""
    one = _call()
    one.status, one.has_grant, one.settle_after, one.has_row = CallStatus.CLEARED, True, NOON, True
    again = reset_call(one)
    assert again is one
    assert (again.status, again.has_grant, again.settle_after, again.has_row) == (None, False, None, False)


@pytest.mark.proves("D.371")
def test_calls_join_one_request_only_where_people_read_the_same_question() -> None:
    one = request_for(row())
    assert one.terms_hash() == replace(one, id=uuid4(), call_id=uuid4()).terms_hash()
    assert one.terms_hash() != replace(one, question="Does the boss know?").terms_hash()
    answer = ShownAnswer(gate="com.acme/g", question_id="why", question="Why?", answer="A duplicate.")
    assert one.terms_hash() != replace(one, gate_answers=[answer]).terms_hash()
    assert one.terms_hash() != replace(one, rule_reason="Bans need a person.").terms_hash()


@pytest.mark.proves("D.377")
def test_an_atlas_that_came_meanwhile_is_met_before_anything_is_sent() -> None:
    late = atlas(gate("late", TriggerType.SESSION_START, of="com.late"), id="com.late")
    gates = _gates(atlas(CONFIRM))
    met = [gates.session.unmet]
    gates.rebase(CompiledAtlases([atlas(CONFIRM), late]), _bound(gates.session.state, 1))
    met.append(gates.session.unmet)
    gates.session.boundary(GateInput(now=NOON))
    assert met == [False, True]
    assert (gates.session.unmet, [each.gate for each in gates.session.state.asks]) == (False, ["com.late/late"])
