"""Pages of lists, and the cursors that lead from one to the next."""

from __future__ import annotations

import base64
import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

import orjson

from cortex_plane.kernel.errors import InvalidInput

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """The last item of a page, newest first. Ids break ties, they never order."""

    created_at: datetime
    id: UUID


After = Position | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    next: Position | None


def encode(noun: str, *parts: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([noun, *parts])).decode().rstrip("=")


def encode_position(noun: str, position: Position | None) -> str | None:
    return encode(noun, position.created_at, str(position.id)) if position else None


def _position(at: str, id: str) -> Position:
    created_at = datetime.fromisoformat(at)
    if created_at.tzinfo is None:
        raise ValueError
    return Position(created_at=created_at.astimezone(UTC), id=UUID(id))


def _number(number: Any) -> int:
    if type(number) is not int or not 0 <= number < 2**31:
        raise ValueError
    return number


def _text(text: Any) -> str:
    if not isinstance(text, str) or not 0 < len(text) <= 500 or "\x00" in text:
        raise ValueError
    text.encode()  # a lone surrogate is a ValueError
    return text


def _decode(noun: str, cursor: str | None, read: Callable[..., T]) -> T | None:
    if cursor is None:
        return None
    try:
        parts = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        if isinstance(parts, list) and parts[:1] == [noun]:
            return read(*parts[1:])
    except (ValueError, TypeError, AttributeError, OverflowError):
        pass
    raise InvalidInput(
        "This cursor is not one of this list.",
        code="invalid_cursor",
        hint="Send `next_cursor` of the previous page unchanged, or none to start over.",
    )


decode_position = functools.partial(_decode, read=_position)
decode_number = functools.partial(_decode, read=_number)
decode_text = functools.partial(_decode, read=_text)
