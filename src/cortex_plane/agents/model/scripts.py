"""The script of the scripted model: an agent without a provider, for tests, demos and benchmarks.

The answer depends on the script and the request alone, so a job that is adopted by another worker goes on with
the same words.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError, to_jsonable_python

from cortex_plane.agents.model.models import AssistantTurn, CallRequest, Request, ToolTurn, Turn, UserTurn
from cortex_plane.kernel.canonical import check_json
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import DRAFT, MAX_OBJECT_BYTES, ExternalId, JsonObject, Text

MAX_TURNS = 1000
MAX_CALLS = 100


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


def tokens(characters: int) -> int:
    """An estimate that is the same every time; four characters make about one token."""
    return math.ceil(characters / 4)


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
            return len(turn.text or "") + length_of_calls(turn.calls)
        case ToolTurn():
            return sum(len(result.name) + len(result.content) for result in turn.results)


def length_of_calls(calls: Sequence[CallRequest]) -> int:
    return sum(len(call.name) + len(str(call.arguments)) for call in calls)
