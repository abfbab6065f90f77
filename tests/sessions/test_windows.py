"""The window: what is told, what leaves, and what may never be torn apart or lost."""

from __future__ import annotations

from collections.abc import Sequence

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortex_plane.agents.model import completions
from cortex_plane.agents.model.completions import (
    AssistantTurn,
    CallRequest,
    CallResult,
    ToolSpec,
    ToolTurn,
    Turn,
    UserTurn,
)
from cortex_plane.sessions.model.sessions import Memory, bound_memory
from cortex_plane.sessions.rules import (
    CONTEXT_TURNS,
    HIGH,
    Budget,
    Covered,
    Entry,
    Thread,
    assembled,
    chunk,
    clipped,
    due,
    filled,
    shortened,
)
from tests.fixtures.properties import holds_for

words = st.text(min_size=1, max_size=400)
long_words = st.builds(lambda text, times: text * times, st.text(min_size=1, max_size=40), st.integers(1, 400))
arguments = st.dictionaries(st.text(max_size=8), st.text(max_size=200) | st.integers(-9, 9), max_size=3)


@st.composite
def units(draw: st.DrawFn) -> list[Turn]:
    kind = draw(st.sampled_from(["user", "agent", "calls"]))
    said = draw(words | long_words)
    if kind == "user":
        return [UserTurn(said)]
    if kind == "agent":
        return [AssistantTurn(text=said)]
    given = draw(st.lists(arguments | st.text(max_size=50), min_size=1, max_size=4))
    calls = tuple(CallRequest(id=f"c{n}", name="look", arguments=each) for n, each in enumerate(given))
    results = tuple(
        CallResult(call_id=f"c{n}", name="look", content=orjson.dumps(draw(words | long_words)).decode())
        for n in range(len(calls))
    )
    return [AssistantTurn(text=draw(st.none() | words), calls=calls), ToolTurn(results)]


def is_whole(turns: Sequence[Turn]) -> bool:
    """Every response with calls is followed by exactly their results, and no results stand alone."""
    for index, turn in enumerate(turns):
        before = turns[index - 1] if index else None
        if isinstance(turn, ToolTurn):
            if not isinstance(before, AssistantTurn):
                return False
            if [call.id for call in before.calls] != [result.call_id for result in turn.results]:
                return False
        elif isinstance(before, AssistantTurn) and before.calls:
            return False
    last = turns[-1] if turns else None
    return not (isinstance(last, AssistantTurn) and last.calls)


def size(turns: Sequence[Turn]) -> int:
    return sum(map(completions.of_turn, turns))


@holds_for(
    few=40,
    many=600,
    said=st.lists(units(), min_size=1, max_size=30),
    budget=st.integers(1_000, 6_000),
    turns=st.integers(4, 40),
)
@pytest.mark.proves("D.230")
def test_every_turn_is_in_the_window_or_covered_and_no_pair_is_split(
    said: list[list[Turn]], budget: int, turns: int
) -> None:
    """A job as it is lived: a unit comes, room is made, the model is asked, and so on."""
    limits = Budget(budget, turns)
    thread, memory, covered = Thread([Entry(UserTurn("Go."), seq=1)]), Memory(), Covered()
    heard: list[Turn] = [UserTurn("Go.")]
    forgotten: list[Turn] = []
    for step, unit in enumerate(said):
        for turn in unit:
            thread.append(turn, step=None if isinstance(turn, UserTurn) else step, seq=step + 2)
        heard += unit
        while count := due(thread, memory, limits):
            count, told = chunk(thread.entries[:count], budget)
            assert count
            assert is_whole(told)
            dropped = thread.drop(count)
            assert is_whole([entry.turn for entry in dropped])
            forgotten += [entry.turn for entry in dropped]
            now = covered.after(dropped)
            assert (now.step, now.seq) >= (covered.step, covered.seq)
            covered = now
            memory = bound_memory(Memory("What was said. " * 50, (*memory.facts, f"fact {step}")), budget)
        # Nothing is lost, and the order is kept.
        assert forgotten + [entry.turn for entry in thread.entries] == heard
        assert all(entry.step is None or entry.step >= covered.step for entry in thread.entries)
        window = assembled(thread, memory, limits)
        assert is_whole(window)
        assert not isinstance(window[0], ToolTurn)
        assert bool(forgotten) == (window[0] == memory.turn())
        # What the model must answer is there: the newest user turn, and whatever came last.
        newest = next(turn for turn in reversed(heard) if isinstance(turn, UserTurn))
        told_newest = next(turn for turn in reversed(window) if isinstance(turn, UserTurn))
        assert told_newest == newest or "characters left out" in told_newest.text
        assert type(window[-1]) is type(heard[-1])
        assert size(window) <= budget
        assert len(thread.entries) <= max(turns, len(unit))
        # One unit alone may be larger than the mark; nothing else is.
        assert filled(thread, memory, limits) <= HIGH * budget or len(thread.entries) <= len(unit)


def test_a_long_task_is_told_whole_while_nobody_else_needs_the_room() -> None:
    budget = Budget(3_000)
    task = UserTurn("word " * 1_400 + "SECRET " + "word " * 100)
    assert budget.tokens // 3 < completions.of_turn(task) < budget.tokens
    thread = Thread(newest_user=Entry(task))
    assert assembled(thread, Memory(), budget) == [task]
    thread.append(AssistantTurn(text="Yes. " * 30), step=0)
    assert assembled(thread, Memory(), budget)[0] == task
    told = []
    for step in range(1, 12):
        thread.append(AssistantTurn(text="More. " * 100), step=step)
        window = assembled(thread, Memory(), budget)
        assert size(window) <= budget.tokens
        told.append(window[0])
    # Then it gives way, in few pieces, to no less than its own part; and nothing is forgotten for its sake.
    assert "characters left out" in repr(told[-1])
    assert completions.of_turn(told[-1]) > budget.tokens // 3 - 20
    assert len(set(told)) <= 6
    assert due(Thread(thread.entries[:3], newest_user=Entry(task)), Memory(), budget) == 0


def test_a_task_that_no_window_holds_takes_all_of_it() -> None:
    budget = Budget(3_000)
    (told,) = assembled(Thread(newest_user=Entry(UserTurn("word " * 9_000))), Memory(), budget)
    assert budget.tokens * 3 // 4 < completions.of_turn(told) <= budget.tokens


@holds_for(turns=st.lists(units(), min_size=1, max_size=6), allowed=st.integers(1_200, 3_000), few=40, many=600)
def test_what_is_too_large_is_shortened_and_says_so(turns: list[list[Turn]], allowed: int) -> None:
    whole = [turn for unit in turns for turn in unit]
    short = shortened(whole, allowed)
    assert size(short) <= allowed
    assert [type(turn) for turn in short] == [type(turn) for turn in whole]
    assert is_whole(short) == is_whole(whole)
    for before, after in zip(whole, short, strict=True):
        assert after == before or "characters left out" in repr(after)
        if isinstance(after, ToolTurn):
            for result in after.results:
                orjson.loads(result.content)
    if size(whole) <= allowed:
        assert short == whole


@given(text=long_words, cap=st.integers(20, 400))
def test_a_text_keeps_its_beginning_and_its_end(text: str, cap: int) -> None:
    short = clipped(text, cap)
    assert completions.of_text(short) <= cap
    if short != text:
        head, _, rest = short.partition("[… ")
        count, _, tail = rest.partition(" characters left out …]")
        assert text.startswith(head)
        assert text.endswith(tail)
        assert len(head) + int(count) + len(tail) == len(text)


def test_nothing_leaves_below_the_high_mark_and_then_half_of_it_does() -> None:
    budget = Budget(10_000)
    thread = Thread([Entry(UserTurn("x" * 693), seq=seq) for seq in range(1, 40)])
    assert {entry.tokens for entry in thread.entries} == {202}
    assert due(thread, Memory(), budget) == 0
    thread.append(UserTurn("x" * 693), seq=40)
    count = due(thread, Memory(), budget)
    # 5,000 tokens, of which a quarter of the window is for the memory and one turn is counted as what was asked.
    assert sum(entry.tokens for entry in thread.entries[count:]) <= 2_500 - 202
    assert sum(entry.tokens for entry in thread.entries[count - 1 :]) > 2_500 - 202


def test_many_small_turns_leave_as_well() -> None:
    thread = Thread([Entry(UserTurn("hi"), seq=seq) for seq in range(1, CONTEXT_TURNS + 1)])
    budget = Budget(100_000)
    assert due(thread, Memory(), budget) == 0
    thread.append(UserTurn("hi"), seq=CONTEXT_TURNS + 1)
    assert due(thread, Memory(), budget) == CONTEXT_TURNS // 2 + 1


def test_the_budget_is_what_prompt_tools_and_answer_leave() -> None:
    tool = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
    without = Budget.of({"context_tokens": 50_000, "max_tokens": 10_000}, None, ())
    assert without == Budget(40_000, CONTEXT_TURNS)
    assert Budget.of({"context_tokens": 50_000, "max_tokens": 10_000}, "p" * 3500, ()).tokens == 39_000
    assert Budget.of({"context_tokens": 50_000, "max_tokens": 10_000}, None, [tool]).tokens < 40_000
    assert Budget.of({}, None, ()).tokens == 100_000 - 4096
    # An answer may be larger than the window: half of it is left to what was said.
    assert Budget.of({"context_tokens": 2_000, "max_tokens": 500_000}, None, ()).tokens == 1_000
    assert Budget.of({"context_tokens": 1_000}, "p" * 100_000, ()).tokens == 500


def test_a_question_takes_as_many_units_as_fit_and_one_at_least() -> None:
    large = [Entry(UserTurn("x" * 3500), seq=seq) for seq in range(1, 6)]
    count, turns = chunk(large, 2_100)
    assert (count, turns) == (2, [large[0].turn, large[1].turn])
    count, turns = chunk(large, 500)
    assert count == 1
    assert "characters left out" in repr(turns)
    assert chunk([], 500) == (0, [])


def test_what_is_not_ascii_costs_more() -> None:
    assert completions.of_text("") == 0
    assert completions.of_text("a" * 35) == 10
    assert completions.of_text("日本語") == 3
    assert completions.of_text("日" + "a" * 35) == 11
