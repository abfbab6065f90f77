"""What is said to a language model and what it answers, in words that belong to no provider."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cortex_plane.domain.errors import CortexError


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRequest:
    """A tool call as the provider sent it; nothing about it has been checked."""

    id: str
    name: str
    """The name the provider sees, see `tools.provider_name`."""
    arguments: dict[str, Any] | str
    """An object, or a text that should be JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Response:
    text: str | None
    calls: tuple[CallRequest, ...]
    usage: Usage


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


class ModelError(CortexError):
    """The model gave no answer."""

    code = "model_error"
    default_hint = "Try again; if it stays, check the agent's model settings and the provider's status."

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        code: str | None = None,
        hint: str | None = None,
        **details: Any,
    ) -> None:
        super().__init__(message, code=code, hint=hint, **details)
        self.status = status
        """The provider's HTTP status, if it answered at all."""
