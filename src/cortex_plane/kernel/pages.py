"""Pages of lists, and the cursors that lead from one to the next."""

from __future__ import annotations

import base64
import binascii
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Page(Generic[T]):
    items: list[T]
    next: Position | None


def encode(noun: str, *parts: Any) -> str:
    return base64.urlsafe_b64encode(orjson.dumps([noun, *parts])).decode().rstrip("=")


def encode_position(noun: str, position: Position | None) -> str | None:
    return encode(noun, position.created_at, str(position.id)) if position else None


def decode_position(noun: str, cursor: str | None) -> Position | None:
    if cursor is None:
        return None
    try:
        at, id = _decode(noun, cursor)
        created_at = datetime.fromisoformat(at)
        if created_at.tzinfo is None:
            raise ValueError
        return Position(created_at=created_at.astimezone(UTC), id=UUID(id))
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise _malformed() from error


def decode_number(noun: str, cursor: str | None) -> int | None:
    if cursor is None:
        return None
    try:
        (number,) = _decode(noun, cursor)
        if type(number) is not int or not 0 <= number < 2**31:
            raise ValueError
        return number
    except (ValueError, TypeError) as error:
        raise _malformed() from error


def decode_text(noun: str, cursor: str | None) -> str | None:
    if cursor is None:
        return None
    try:
        (text,) = _decode(noun, cursor)
        if not isinstance(text, str) or not 0 < len(text) <= 500 or "\x00" in text:
            raise ValueError
        text.encode()
        return text
    except (ValueError, TypeError) as error:
        raise _malformed() from error


def _decode(noun: str, cursor: str) -> list[Any]:
    try:
        raw = orjson.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (binascii.Error, UnicodeError) as error:
        raise ValueError from error
    if not isinstance(raw, list) or not raw or raw[0] != noun:
        raise ValueError
    return raw[1:]


def _malformed() -> InvalidInput:
    return InvalidInput(
        "This cursor is not one of this list.",
        code="invalid_cursor",
        hint="Send `next_cursor` of the previous page unchanged, or none to start over.",
    )
