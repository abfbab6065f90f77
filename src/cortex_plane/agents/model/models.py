"""What is said to a language model and what it answers, in words that belong to no provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.retry import ErrorClass, classify


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRequest:
    """A tool call as the provider sent it; nothing about it has been checked."""

    id: str
    name: str
    """The name the provider sees, see `tools.provider_name`."""
    arguments: dict[str, Any] | str
    """An object, or a text that should be JSON."""
    truncated: bool = False
    """The model was cut off in the answer that has this call: nobody knows whether the call is whole."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    text: str | None
    calls: tuple[CallRequest, ...]
    usage: Usage
    stop_reason: StopReason = StopReason.END
    model: str | None = None
    """Who answered, as people are told; None for the scripted model that the agent itself names."""
    cost_micros: int | None = None
    """Millionths of a US dollar; None where nobody knows the price."""
    refusal: str | None = None
    """Why it would not answer, where it said so."""


@dataclass(frozen=True, slots=True)
class TextChunk:
    """A piece of a response's text, while the model is still speaking."""

    text: str


@dataclass(frozen=True, slots=True)
class UserTurn:
    text: str


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
class Request:
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
