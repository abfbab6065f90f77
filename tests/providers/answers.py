"""What a provider answers, in words that belong to none of them."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ToolUse:
    name: str
    arguments: str
    """As it goes over the wire: JSON, or what a confused model takes for it."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    text: str | None = None
    uses: tuple[ToolUse, ...] = ()
    thinking: str | None = None
    prompt_tokens: int = 100
    """Those that were neither read from the cache nor written to it."""
    completion_tokens: int = 20
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "as the test wants it"
    """Of an error."""
    fails_midway: str | None = None
    """The type of an error that the stream brings after its first words."""
    cut: bool = False
    """The connection is lost after the first words."""
    ends_early: bool = False
    """The stream ends as if it were complete, and is not."""
    broken: bytes | None = None
    """The data of an event that no schema knows, after the first words."""
    refusal: str | None = None
    """The provider will not answer, and says why."""
    truncated: bool = False
    """`max_tokens` were spent."""
    hold: asyncio.Event | None = None
    """After the first words nothing more comes until it is set."""

    @property
    def words(self) -> list[str]:
        """The text as it is streamed, and nothing lost between the pieces."""
        text = self.text or ""
        return [text[at : at + 8] for at in range(0, len(text), 8)]


def says(text: str, **more: Any) -> Answer:
    return Answer(text=text, **more)


def call(name: str, /, **arguments: Any) -> ToolUse:
    return ToolUse(name, json.dumps(arguments))


def calls(*uses: ToolUse, text: str | None = None, **more: Any) -> Answer:
    return Answer(text=text, uses=uses, **more)


def fails(status: int, retry_after: str | float | None = None, **more: Any) -> Answer:
    headers = {} if retry_after is None else {"retry-after": str(retry_after)}
    return Answer(status=status, headers=headers, **more)
