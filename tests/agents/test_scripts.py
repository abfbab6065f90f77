"""Scripts: what may stand in one, and which turn is due."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from cortex_plane.agents.model.agents import ModelConfig
from cortex_plane.agents.model.completions import (
    MAX_CALLS,
    MAX_TURNS,
    AssistantTurn,
    CallRequest,
    CallResult,
    ModelRequest,
    ScriptCall,
    ScriptTurn,
    ToolSpec,
    ToolTurn,
    Turn,
    UserTurn,
)
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.fields import MAX_OBJECT_BYTES, adapter
from cortex_plane.worker.models.backends import THE_END, ScriptedAnswer, answer


def _request(*turns: Turn, index: int = 0, **more: Any) -> ModelRequest:
    given: dict[str, Any] = {
        "model": "scripted", "system_prompt": None, "turns": turns, "tools": [], "temperature": None,
        "max_tokens": None, "settings": {}, "turn_index": index,
    }  # fmt: skip
    return ModelRequest(**{**given, **more})


def _texts(script: list[ScriptTurn] | None, count: int) -> list[str | None]:
    return [answer(script, _request(UserTurn("Hi"), index=n)).response.text for n in range(count)]


def _result(content: str, name: str = "find") -> CallResult:
    return CallResult(call_id="c", name=name, content=content)


def test_turns_come_in_order_and_then_a_last_word() -> None:
    script = [ScriptTurn(text="One."), ScriptTurn(text="Two.")]
    assert _texts(script, 4) == ["One.", "Two.", THE_END, THE_END]
    assert _texts([], 1) == [THE_END]


def test_a_repeated_turn_stays() -> None:
    script = [ScriptTurn(text="One."), ScriptTurn(text="Again.", repeat=True), ScriptTurn(text="Never.")]
    assert _texts(script, 4) == ["One.", "Again.", "Again.", "Again."]


def test_earlier_jobs_of_the_session_do_not_count() -> None:
    earlier: list[Turn] = [UserTurn("Hi"), AssistantTurn(text="Hello."), UserTurn("Go on")]
    assert answer([ScriptTurn(text="One.")], _request(*earlier)).response.text == "One."


def test_without_a_script_the_model_repeats_what_it_hears() -> None:
    turns: list[Turn] = [UserTurn("First"), AssistantTurn(text="x"), UserTurn("a {result} {message}")]
    assert answer(None, _request(*turns)).response.text == "You said: a {result} {message}"
    assert answer(None, _request()).response.text == "You said: "


def test_a_long_message_can_be_repeated() -> None:
    assert answer(None, _request(UserTurn("x" * 100_000))).response.text == "You said: " + "x" * 100_000


def test_placeholders_stand_for_the_last_message_and_the_last_result() -> None:
    call = ScriptCall(
        tool="github.find",
        arguments={"q": "<{message}>", "deep": [{"r": "{result}"}], "{message}": 1, "n": 2.5, "other": "{x} {} {{"},
    )
    turn = ScriptTurn(text="{message}/{result}/{unknown}/{message!r}", calls=[call])
    turns: list[Turn] = [
        UserTurn("old"),
        ToolTurn((_result("0"),)),
        UserTurn("{result}"),
        ToolTurn((_result("1"), _result('{"a":2}'))),
        ToolTurn(()),
        AssistantTurn(text="{message}"),
    ]
    made = answer([turn], _request(*turns)).response
    assert made.text == '{result}/{"a":2}/{unknown}/{message!r}'
    assert made.calls[0].arguments == {
        "q": "<{result}>", "deep": [{"r": '{"a":2}'}], "{message}": 1, "n": 2.5, "other": "{x} {} {{",
    }  # fmt: skip


def test_calls_have_provider_names_and_ids_of_their_own() -> None:
    call = ScriptCall(tool="github.create_issue")
    calls = [
        each
        for index in (0, 1)
        for each in answer([ScriptTurn(calls=[call, call], repeat=True)], _request(index=index)).response.calls
    ]
    assert {each.name for each in calls} == {"github_create_issue"}
    assert [each.id for each in calls] == ["call_1_1", "call_1_2", "call_2_1", "call_2_2"]


def test_raw_arguments_are_sent_as_they_are() -> None:
    call = ScriptCall(tool="find", arguments={"a": 1}, raw_arguments="{message")
    assert answer([ScriptTurn(calls=[call])], _request(UserTurn("x"))).response.calls[0].arguments == "{message"


def test_delays_and_errors_are_passed_on() -> None:
    turn = ScriptTurn(delay_ms=5, chunk_delay_ms=6, error_status=529)
    made = answer([turn], _request(index=0))
    assert (made.turn.delay_ms, made.turn.chunk_delay_ms, made.turn.error_status) == (5, 6, 529)
    assert (made.response.text, made.response.calls) == (None, ())


def test_tokens_are_a_quarter_of_the_characters() -> None:
    made = answer([ScriptTurn(text="12345678")], _request(UserTurn("1234"))).response.usage
    assert (made.prompt_tokens, made.completion_tokens) == (1, 2)
    nothing = answer([ScriptTurn()], _request()).response.usage
    assert (nothing.prompt_tokens, nothing.completion_tokens) == (0, 0)
    turns: list[Turn] = [
        UserTurn("12345678"),
        AssistantTurn(text=None, calls=(CallRequest(id="c", name="find", arguments="{}xx"),)),
        ToolTurn((_result("1234"),)),
    ]
    tools = [ToolSpec(name="find", description="Finds it", parameters={"a": 1})]
    made = answer(
        [ScriptTurn(calls=[ScriptCall(tool="ab")])], _request(*turns, tools=tools, system_prompt="1234")
    ).response.usage
    # Only what is new since the model last spoke: the result of its call.
    assert (made.prompt_tokens, made.completion_tokens) == ((4 + 4) // 4, 1)
    made = answer([ScriptTurn(text="1234")], _request(turns[0], tools=tools, system_prompt="1234")).response.usage
    assert (made.prompt_tokens, made.completion_tokens) == ((4 + 4 + 8 + 8 + 8) // 4, 1)


_texts_or_none = st.none() | st.text(min_size=1, max_size=30).filter(lambda t: "\x00" not in t)


@given(text=_texts_or_none, index=st.integers(0, 5), message=st.text(max_size=30))
def test_the_same_request_has_the_same_answer(text: str | None, index: int, message: str) -> None:
    def once() -> ScriptedAnswer:
        return answer([ScriptTurn(text=text, calls=[ScriptCall(tool="a")])], _request(UserTurn(message), index=index))

    assert once() == once()


# What may stand in a script


def _parsed(script: Any) -> ModelConfig:
    made: ModelConfig = adapter(ModelConfig).validate_python({"model": "scripted", "script": script})
    return made


def test_a_script_is_part_of_the_model_configuration() -> None:
    script = [{"text": "Hi", "calls": [{"tool": "find", "arguments": {"a": [1]}}]}, {"repeat": True}]
    stored = asdict(_parsed(script))["script"]
    assert stored[0]["calls"] == [{"tool": "find", "arguments": {"a": [1]}, "raw_arguments": None}]
    assert _parsed(stored) == _parsed(script)
    assert _parsed(None).script is None
    assert ModelConfig(model="scripted").script is None


@pytest.mark.parametrize(
    "turn",
    [
        {"txt": "a"},
        {"text": ""},
        {"text": "a\x00"},
        {"text": "\ud800"},
        {"text": 5},
        {"text": "x" * 100_001},
        {"calls": {}},
        {"calls": [{}]},
        {"calls": [{"tool": ""}]},
        {"calls": [{"tool": " "}]},
        {"calls": [{"tool": "a\nb"}]},
        {"calls": [{"tool": "x" * 256}]},
        {"calls": [{"tool": "a", "arguments": []}]},
        {"calls": [{"tool": "a", "arguments": {"a": float("nan")}}]},
        {"calls": [{"tool": "a", "arguments": {"a": "\x00"}}]},
        {"calls": [{"tool": "a", "raw_arguments": {}}]},
        {"calls": [{"tool": "a"}] * (MAX_CALLS + 1)},
        {"delay_ms": -1},
        {"delay_ms": 600_001},
        {"delay_ms": 1.5},
        {"delay_ms": True},
        {"chunk_delay_ms": 10_001},
        {"error_status": 200},
        {"error_status": 600},
        {"error_status": "500"},
        {"error_times": 1},
        "text",
        None,
    ],
)
def test_what_no_script_may_say(turn: Any) -> None:
    with pytest.raises(ValidationError):
        _parsed([turn])


def test_a_turn_may_be_for_certain_messages_alone() -> None:
    script = [
        ScriptTurn(said="refund", text="How much?"),
        ScriptTurn(said="thanks", text="You are welcome."),
        ScriptTurn(text="Anything else?"),
    ]

    def said(message: str, index: int) -> str | None:
        return answer(script, _request(UserTurn("refund thanks"), UserTurn(message), index=index)).response.text

    assert [said("a refund, please", n) for n in range(3)] == ["How much?", "Anything else?", THE_END]
    assert [said("thanks", n) for n in range(2)] == ["You are welcome.", "Anything else?"]
    assert [said("hello", n) for n in range(2)] == ["Anything else?", THE_END]


def test_scripts_have_limits() -> None:
    _parsed([{"text": "a"}] * MAX_TURNS)
    with pytest.raises(ValidationError, match="at most 1000 items"):
        _parsed([{"text": "a"}] * (MAX_TURNS + 1))
    with pytest.raises(ValidationError, match=f"the limit is {MAX_OBJECT_BYTES}"):
        _parsed([{"text": "x" * 99_000}] * 3)


def test_a_script_that_is_taken_can_be_compared_later() -> None:
    """`agents.update` takes the canonical form of the configurations inside a list."""

    def nested(depth: int) -> Any:
        value: Any = {}
        for _ in range(depth):
            value = {"a": value}
        return [{"calls": [{"tool": "a", "arguments": value}]}]

    deepest = next(depth for depth in range(64, 0, -1) if _taken(nested(depth)))
    assert 50 < deepest < 60
    canonical([asdict(_parsed(nested(deepest))), {}, {}])
    with pytest.raises(ValidationError, match="nested deeper than 64"):
        _parsed(nested(deepest + 1))


def _taken(script: Any) -> bool:
    try:
        _parsed(script)
    except ValidationError:
        return False
    return True
