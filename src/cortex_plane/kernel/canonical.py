"""One serialisation of a JSON value: the same bytes before and after a trip through JSONB.

Hashes and checksums are taken over these bytes, so a value that JSONB would give back changed is refused here,
with the path to it, instead of failing verification later.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import orjson

from cortex_plane.kernel.errors import InvalidInput, TooLarge

MAX_DEPTH = 64
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1  # what the JSON parser gives back as an integer

_EXACT = 2**53  # below it every integral float is exactly its decimal form


def canonical(value: Any, *, depth: int = 0) -> bytes:
    """Sorted keys, no spaces, UTF-8; integral floats become integers, because JSONB may give them back so. ``depth``: how deep it will
    stand in another value."""
    return orjson.dumps(_checked(value, "$", depth), option=orjson.OPT_SORT_KEYS)


def iso(at: datetime) -> str:
    """Always with six decimals and a Z, so that each moment has exactly one text."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def check_json(value: Any, name: str, max_bytes: int) -> None:
    """Refuse a value that cannot be stored exactly, or that is larger than ``max_bytes``: that first, because to look at every
    part of a value takes twenty times as long as to write it."""
    size = _size(value)
    if size > max_bytes:
        raise TooLarge(f"`{name}` is {size} bytes; the limit is {max_bytes}.", field=name)
    _checked(value, name)


def _size(value: Any) -> int:
    try:
        return len(orjson.dumps(value))
    except TypeError:  # an integer beyond 64 bits, a lone surrogate: who looks at every part says where
        pass
    try:
        return len(json.dumps(value, separators=(",", ":")))
    except (TypeError, ValueError, RecursionError):
        return 0


def check_text(value: str, name: str) -> str:
    """Refuse what PostgreSQL text cannot hold."""
    if fault := _text_fault(value):
        raise InvalidInput(f"`{name}` {fault}", field=name)
    return value


class _Unstorable(Exception):
    """What is wrong; the place is put together on the way out, so that a value that is fine pays nothing for it."""

    def __init__(self, reason: str, place: str = "", hint: str | None = None) -> None:
        self.reason, self.places, self.hint = reason, [place], hint


def _checked(value: Any, name: str, depth: int = 0) -> Any:
    try:
        return _normal(value, depth)
    except _Unstorable as error:
        path = name + "".join(reversed(error.places))
        raise InvalidInput(f"`{path}` {error.reason}", field=path, hint=error.hint) from None


def _normal(value: Any, depth: int) -> Any:
    if type(value) is str and value.isascii() and "\x00" not in value:
        return value
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        if fault := _text_fault(value):
            raise _Unstorable(fault)
        return value
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise _Unstorable("is an integer beyond 64 bits.", hint="Send it as a string.")
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Unstorable("is NaN or infinite, which JSON does not have.")
        return _integral(value) if value.is_integer() else value
    if not isinstance(value, (dict, list, tuple)):
        raise _Unstorable(f"is a {type(value).__name__}, which JSON does not have.")
    if depth >= MAX_DEPTH:
        raise _Unstorable(f"is nested deeper than {MAX_DEPTH} levels.")
    return _normal_object(value, depth) if isinstance(value, dict) else _normal_list(value, depth)


def _normal_object(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    result = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise _Unstorable("has a key that is not a string.")
        if (not key.isascii() or "\x00" in key) and (fault := _text_fault(key)):
            raise _Unstorable(fault, " (a key)")
        if item is None or (type(item) is str and item.isascii() and "\x00" not in item):
            result[key] = item  # by far the most frequent, so without a call
            continue
        try:
            result[key] = _normal(item, depth + 1)
        except _Unstorable as error:
            error.places.append(f".{key[:50]}")
            raise
    return result


def _normal_list(value: list[Any] | tuple[Any, ...], depth: int) -> list[Any]:
    result = []
    for index, item in enumerate(value):
        try:
            result.append(_normal(item, depth + 1))
        except _Unstorable as error:
            error.places.append(f"[{index}]")
            raise
    return result


def _integral(value: float) -> int | float:
    """The integer that JSONB makes of the shortest decimal form, where the parser gives it back as one."""
    whole = int(value) if abs(value) < _EXACT else int(Decimal(repr(value)))
    return whole if _INT_MIN <= whole <= _INT_MAX else value


def _text_fault(value: str) -> str | None:
    if "\x00" in value:
        return "contains U+0000, which cannot be stored."
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            return "contains a lone surrogate, which is not valid Unicode."
    return None


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The ``object_pairs_hook`` of ``json.loads``. Raises ``InvalidInput`` for a key that occurs twice."""
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            break
        names.add(name)
    raise InvalidInput(f"`{name[:100]}` stands there twice.", code="duplicate_key", hint="Keep one of the two.")
