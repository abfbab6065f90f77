"""What a model is asked and answers, how many tokens that is, and scripts that stand in for a model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import orjson
from pydantic import AfterValidator, Field
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError, to_jsonable_python

from cortex_plane.kernel.canonical import check_json
from cortex_plane.kernel.errors import CortexError, ErrorClass, InvalidInput, classify
from cortex_plane.kernel.fields import DRAFT, MAX_OBJECT_BYTES, ExternalId, JsonObject, Text


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelUsage:
    """What one answer took. The two of the cache are part of the prompt, not beside it."""

    prompt_tokens: int
    completion_tokens: int
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0

    @property
    def total(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class StopReason(StrEnum):
    """Why a model stopped speaking."""

    END = "end"
    TOOL_CALLS = "tool_calls"
    MAX_TOKENS = "max_tokens"
    """It was cut off: a text is incomplete, and none of its calls may be run."""
    REFUSAL = "refusal"
    """It, or a filter of its provider, would not answer."""


def provider_name(tool: str) -> str:
    """The name of a tool that a provider sees: none of them takes dots."""
    return tool.replace(".", "_")


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRequest:
    """A tool call as the provider sent it; nothing about it has been checked."""

    id: str
    name: str
    """The name the provider sees, see `provider_name`."""
    arguments: dict[str, Any] | str
    """An object, or a text that should be JSON."""
    truncated: bool = False
    """The model was cut off in the answer that has this call: nobody knows whether the call is whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    text: str | None
    calls: tuple[CallRequest, ...]
    usage: ModelUsage
    stop_reason: StopReason = StopReason.END
    model: str | None = None
    """Who answered, as people are told; None for the scripted model that the agent itself names."""
    cost_micros: int | None = None
    """Millionths of a US dollar; None where nobody knows the price."""
    refusal: str | None = None
    """Why it would not answer, where it said so."""


@dataclass(slots=True)
class TextChunk:
    """A piece of a response's text, while the model is still speaking. Not frozen: there are hundreds in a response."""

    text: str


@dataclass(frozen=True, slots=True)
class UserTurn:
    text: str
    by_operator: bool = False
    """Words of whoever operates the plane, which a model reads as it reads a user's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AssistantTurn:
    text: str | None
    calls: tuple[CallRequest, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CallResult:
    call_id: str
    name: str
    content: str
    """JSON text."""
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ToolTurn:
    results: tuple[CallResult, ...]


Turn = UserTurn | AssistantTurn | ToolTurn


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """A tool as the model is told of it."""

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON Schema of an object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    model: str
    system_prompt: str | None
    turns: Sequence[Turn]
    tools: Sequence[ToolSpec]
    temperature: float | None
    max_tokens: int | None
    settings: Mapping[str, Any]
    """The whole `model_config` of the agent version; a backend finds its own settings there."""
    turn_index: int
    """How many responses this job already has: earlier jobs of the session do not count."""
    org_id: UUID | None = None
    """Whose own key is used, where the org has one for the provider."""
    purpose: str = "step"
    """What the answer is for: `step`, or `summary` where the conversation is compacted."""
    notice: str = ""
    """The last thing that the model reads, after all turns: what the plane itself says to it now."""


class ModelError(CortexError):
    """The model gave no answer."""

    code = "model_error"
    http_status = 424
    default_hint = "Try again; if it stays, check the agent's model settings and the provider's status."

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        hint: str | None = None,
        retry_after: float | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, code=code, hint=hint, **details)
        self.status = status
        """The provider's HTTP status, if it answered at all."""
        self.retry_after = retry_after
        """Seconds after which the provider wants to be asked again, where it said so."""

    @property
    def error_class(self) -> ErrorClass:
        return ErrorClass.PERMANENT if self.code in FINAL else classify(self.status)


FINAL = frozenset(
    {
        "unknown_model", "no_model_key", "model_refused", "unknown_price", "no_provider", "model_quota",
        "prompt_too_long",
    }
)  # fmt: skip
"""Codes that no later try would change."""


TURN = 4
"""What a turn costs beside its words: its role, its beginning and its end."""
CALL = 16
"""What a call or a result costs beside its name and content: its id."""


def of_text(text: str) -> int:
    if text.isascii():
        return (2 * len(text) + 6) // 7
    others = len(text) - len(text.encode("ascii", "ignore"))
    return (2 * (len(text) - others) + 6) // 7 + others


def of_turn(turn: Turn) -> int:
    match turn:
        case UserTurn():
            return TURN + of_text(turn.text)
        case AssistantTurn():
            return TURN + of_text(turn.text or "") + sum(map(_of_call, turn.calls))
        case ToolTurn():
            return TURN + sum(CALL + of_text(result.name) + of_text(result.content) for result in turn.results)


def of_tools(tools: Sequence[ToolSpec]) -> int:
    return sum(
        CALL + of_text(tool.name) + of_text(tool.description) + of_text(arguments_text(tool.parameters))
        for tool in tools
    )


def arguments_text(arguments: object) -> str:
    """Arguments as they are sent: an object as JSON, a text as it is."""
    return arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()


def _of_call(call: CallRequest) -> int:
    return CALL + of_text(call.name) + of_text(arguments_text(call.arguments))


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
    """What the model says besides its calls."""
    calls: Annotated[list[ScriptCall], Field(max_length=MAX_CALLS)] = Field(default_factory=list)
    """The calls of the turn."""
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
    config = {"model_config": {"script": to_jsonable_python(script)}}
    try:
        check_json(config, "agent", MAX_OBJECT_BYTES)
    except InvalidInput as error:
        raise PydanticCustomError("unstorable_script", "{reason}", {"reason": error.message}) from None
    return script


Script = Annotated[list[ScriptTurn], Field(max_length=MAX_TURNS), AfterValidator(_storable)]


def tokens(characters: int) -> int:
    """An estimate that is the same every time; four characters make about one token."""
    return math.ceil(characters / 4)


def heard(request: ModelRequest) -> int:
    """What is new since the model last spoke, as providers count that keep what they heard before."""
    length = len(request.notice)
    for turn in reversed(request.turns):
        match turn:
            case UserTurn():
                length += len(turn.text)
            case ToolTurn():
                length += sum(len(result.name) + len(result.content) for result in turn.results)
            case AssistantTurn():
                return length
    tools = sum(len(tool.name) + len(tool.description) + len(str(tool.parameters)) for tool in request.tools)
    return len(request.system_prompt or "") + tools + length


def length_of_calls(calls: Sequence[CallRequest]) -> int:
    return sum(len(call.name) + len(str(call.arguments)) for call in calls)
