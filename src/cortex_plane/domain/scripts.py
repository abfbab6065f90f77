"""The script of the scripted model: an agent without a provider, for tests, demos and benchmarks.

The answer depends on the script and the request alone, so a job that is adopted by another worker goes on with
the same words.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError, to_jsonable_python

from cortex_plane.domain.canonical import check_json
from cortex_plane.domain.errors import InvalidInput
from cortex_plane.domain.fields import DRAFT, MAX_OBJECT_BYTES, ExternalId, JsonObject, Text
from cortex_plane.domain.memories import extract_of
from cortex_plane.domain.models import (
    AssistantTurn,
    CallRequest,
    Request,
    Response,
    ToolTurn,
    Turn,
    Usage,
    UserTurn,
)
from cortex_plane.domain.tools import provider_name

MAX_TURNS = 1000
MAX_CALLS = 100
THE_END = "The script ends here."

_PLACEHOLDER = re.compile(r"\{(message|result)\}")


@draft(config=DRAFT, frozen=True, kw_only=True)
class ScriptCall:
    tool: ExternalId
    """The tool's name; it need not exist, so that unknown tools can be rehearsed too."""
    arguments: JsonObject = Field(default_factory=dict)
    raw_arguments: Text | None = None
    """Sent instead of `arguments`, as it is: to rehearse a model that writes bad JSON."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class ScriptTurn:
    """One response. `{message}` stands for the last user message, `{result}` for the last tool result."""

    text: Text | None = None
    calls: Annotated[list[ScriptCall], Field(max_length=MAX_CALLS)] = Field(default_factory=list)
    said: Text | None = None
    """Left out unless the person's last message has these words: so one script can answer several messages."""
    repeat: bool = False
    """Every later response is this one too."""
    delay_ms: Annotated[int, Field(strict=True, ge=0, le=600_000)] = 0
    """Before the answer begins."""
    chunk_delay_ms: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 0
    """After each word."""
    error_status: Annotated[int, Field(strict=True, ge=400, le=599)] | None = None
    """The provider answers this turn with this HTTP status, however often it is asked."""


def _storable(script: list[ScriptTurn]) -> list[ScriptTurn]:
    """Checked as it is stored, inside the agent's configuration: nesting counts from there."""
    stored = {"model_config": {"script": to_jsonable_python(script)}}
    try:
        check_json(stored, "agent", MAX_OBJECT_BYTES)
    except InvalidInput as error:
        raise PydanticCustomError("unstorable_script", "{reason}", {"reason": error.message}) from None
    return script


Script = Annotated[list[ScriptTurn], Field(max_length=MAX_TURNS), AfterValidator(_storable)]


@dataclass(frozen=True, kw_only=True, slots=True)
class ScriptedAnswer:
    response: Response
    delay_ms: int
    chunk_delay_ms: int
    error_status: int | None


def answer(script: Sequence[ScriptTurn] | None, request: Request) -> ScriptedAnswer:
    """The turn that is due, its placeholders filled in. Without a script the model repeats what it hears."""
    if request.purpose == "summary":
        return _summary(request)
    words = _Words(request.turns)
    turn = _due(script, request.turn_index, words)
    text = None if turn.text is None else _filled(turn.text, words)
    calls = tuple(
        CallRequest(
            id=f"call_{request.turn_index + 1}_{number}",
            name=provider_name(call.tool),
            arguments=_filled(call.arguments, words) if call.raw_arguments is None else call.raw_arguments,
        )
        for number, call in enumerate(turn.calls, start=1)
    )
    usage = Usage(
        prompt_tokens=tokens(heard(request)), completion_tokens=tokens(len(text or "") + _said(calls))
    )
    return ScriptedAnswer(
        response=Response(text=text, calls=calls, usage=usage, cost_micros=0),
        delay_ms=turn.delay_ms,
        chunk_delay_ms=turn.chunk_delay_ms,
        error_status=turn.error_status,
    )


def _summary(request: Request) -> ScriptedAnswer:
    """No turn of the script is used up: it tells what the agent says, not what is remembered of it."""
    asked = next(turn.text for turn in request.turns if isinstance(turn, UserTurn))
    text = extract_of(asked)
    usage = Usage(prompt_tokens=tokens(len(asked)), completion_tokens=tokens(len(text)))
    response = Response(text=text, calls=(), usage=usage, cost_micros=0)
    return ScriptedAnswer(response=response, delay_ms=0, chunk_delay_ms=0, error_status=None)


def _due(script: Sequence[ScriptTurn] | None, turn_index: int, words: _Words) -> ScriptTurn:
    if script is None:
        return ScriptTurn(text="You said: {message}")
    if any(turn.said for turn in script):
        heard = words["message"]
        script = [turn for turn in script if turn.said is None or turn.said in heard]
    for index, turn in enumerate(script):
        if index == turn_index or turn.repeat:
            return turn
    return ScriptTurn(text=THE_END)


@dataclass(frozen=True, slots=True)
class _Words:
    """What the placeholders stand for, looked for only where one is used: a conversation may be long."""

    turns: Sequence[Turn]

    def __getitem__(self, name: str) -> str:
        return self._message() if name == "message" else self._result()

    def _message(self) -> str:
        return next((turn.text for turn in reversed(self.turns) if isinstance(turn, UserTurn)), "")

    def _result(self) -> str:
        results = (
            result
            for turn in reversed(self.turns)
            if isinstance(turn, ToolTurn)
            for result in turn.results[::-1]
        )
        return next((result.content for result in results), "")


def _filled(value: Any, words: _Words) -> Any:
    """One pass: what a placeholder stands for is not searched for placeholders again."""
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda match: words[match[1]], value) if "{" in value else value
    if isinstance(value, dict):
        return {key: _filled(item, words) for key, item in value.items()}
    if isinstance(value, list):
        return [_filled(item, words) for item in value]
    return value


def tokens(characters: int) -> int:
    """An estimate that is the same every time; four characters make about one token."""
    return math.ceil(characters / 4)


def _said(calls: Sequence[CallRequest]) -> int:
    return sum(len(call.name) + len(str(call.arguments)) for call in calls)


def heard(request: Request) -> int:
    """What is new since the model last spoke, as providers count that keep what they heard before."""
    heard = len(request.notice)
    for turn in reversed(request.turns):
        if isinstance(turn, AssistantTurn):
            return heard
        heard += _length(turn)
    tools = sum(len(tool.name) + len(tool.description) + len(str(tool.parameters)) for tool in request.tools)
    return len(request.system_prompt or "") + tools + heard


def _length(turn: Turn) -> int:
    match turn:
        case UserTurn():
            return len(turn.text)
        case AssistantTurn():
            return len(turn.text or "") + _said(turn.calls)
        case ToolTurn():
            return sum(len(result.name) + len(result.content) for result in turn.results)
