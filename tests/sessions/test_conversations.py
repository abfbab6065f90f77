from __future__ import annotations

from typing import Any
from uuid import UUID

from cortex_plane.agents.model.completions import AssistantTurn, CallRequest, CallResult, ToolTurn, UserTurn
from cortex_plane.sessions.rules import SessionMessage, StepRow, heard, opening, rebuilt, result_of
from tests.jobs.test_effects import a_call

MINE, OTHER = UUID(int=1), UUID(int=2)


def said(seq: int, text: str, job: UUID | None = None) -> SessionMessage:
    return SessionMessage(seq=seq, role="assistant" if job else "user", text=text, job_id=job)


def step(index: int, read_to: int, text: str | None, *names: str) -> StepRow:
    calls = [{"id": f"c{index}{n}", "name": name, "arguments": {}} for n, name in enumerate(names)]
    return StepRow(step_index=index, message_seq=read_to, response={"text": text, "calls": calls})


def test_a_task_begins_with_its_text_or_with_all_of_its_payload() -> None:
    assert opening({"text": "Go.", "more": 1}) == UserTurn("Go.")
    assert opening({"text": "", "b": 1, "a": None}) == UserTurn('{"a":null,"b":1,"text":""}')
    assert opening({"text": 5}) == UserTurn('{"text":5}')
    assert opening({}) == UserTurn("{}")


def test_what_a_job_said_itself_stands_in_its_steps() -> None:
    talk = [said(1, "Hi"), said(2, "Hello", OTHER), said(3, "Mine", MINE)]
    assert [entry.turn for entry in heard(talk, MINE)] == [UserTurn("Hi"), AssistantTurn(text="Hello")]
    system = SessionMessage(seq=4, role="system", text="note", job_id=None)
    assert heard([system], MINE) == []


def test_turns_stand_in_the_order_in_which_they_were_heard() -> None:
    """A message that came while a step ran is heard after it, whatever its number."""
    talk = [
        said(1, "one"), said(2, "before", OTHER), said(3, "two"), said(4, "Re: two", MINE), said(5, "three"),
    ]  # fmt: skip
    steps = [step(0, 1, "First.", "look", "act"), step(1, 3, "Re: two"), step(2, 5, None, "look")]
    calls: dict[int, Any] = {
        0: [a_call(position=1, error="no"), a_call(position=0, result={"b": 1, "a": 2})],
        2: [a_call(position=0, result=None)],
    }
    first = ToolTurn(
        (
            CallResult(call_id="c00", name="look", content='{"a":2,"b":1}'),
            CallResult(call_id="c01", name="act", content='{"error":"no"}', is_error=True),
        )
    )
    requests = tuple(CallRequest(id=f"c0{n}", name=name, arguments={}) for n, name in enumerate(("look", "act")))
    begun = [UserTurn("one"), AssistantTurn(text="First.", calls=requests), first]
    middle = [AssistantTurn(text="before"), UserTurn("two"), AssistantTurn(text="Re: two")]

    def turns(finished_below: int, read_to: int) -> list[Any]:
        read = [each for each in talk if each.seq <= read_to]
        return list(rebuilt(MINE, read, steps, calls, finished_below))

    assert turns(0, 0) == []
    assert turns(0, 1) == [UserTurn("one")]
    assert turns(1, 1) == begun
    assert turns(2, 3) == begun + middle
    assert turns(2, 5) == [*begun, *middle, UserTurn("three")]
    assert turns(3, 5)[-2:] == [
        AssistantTurn(text=None, calls=(CallRequest(id="c20", name="look", arguments={}),)),
        ToolTurn((CallResult(call_id="c20", name="look", content="null"),)),
    ]


def test_a_task_hears_no_messages() -> None:
    turns = rebuilt(MINE, [], [step(0, 0, "Done.")], {}, 1, opening({"text": "Go."}))
    assert list(turns) == [UserTurn("Go."), AssistantTurn(text="Done.")]


def test_every_turn_says_which_rows_it_comes_from() -> None:
    """So that a memory can say how far it goes."""
    talk = [said(3, "one"), said(4, "before", OTHER), said(5, "Mine", MINE), said(6, "two")]
    calls: dict[int, Any] = {2: [a_call(position=0, result=1)]}
    thread = rebuilt(MINE, talk, [step(2, 4, None, "look"), step(3, 4, "Mine")], calls, 4)
    assert [(entry.step, entry.seq) for entry in thread.entries] == [
        (None, 3), (None, 4), (2, 4), (2, 4), (3, 4), (None, 6),
    ]  # fmt: skip


def test_what_a_person_asked_last_stands_in_front_until_somebody_speaks_again() -> None:
    steps = [step(2, 4, "Still at it.")]
    assert list(rebuilt(MINE, [], steps, {}, 3, UserTurn("Go."))) == [
        UserTurn("Go."), AssistantTurn(text="Still at it."),
    ]  # fmt: skip
    assert list(rebuilt(MINE, [said(5, "Well?")], steps, {}, 3, UserTurn("Go."))) == [
        AssistantTurn(text="Still at it."), UserTurn("Well?"),
    ]  # fmt: skip


def test_a_result_is_told_as_canonical_json() -> None:
    request = CallRequest(id="c", name="look", arguments={})
    assert result_of(request, a_call(result={"b": 1.0, "a": "ü"})).content == '{"a":"ü","b":1}'
    assert result_of(request, a_call(error="broken")).is_error
