"""One serialisation of a JSON value: the same bytes before and after a trip through JSONB.

Hashes and checksums are taken over these bytes, so a value that JSONB would give back changed is refused here,
with the path to it, instead of failing verification later.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import orjson

from cortex_plane.domain.errors import InvalidInput, TooLarge

MAX_DEPTH = 64
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1  # what the JSON parser gives back as an integer

_EXACT = 2**53  # below it every integral float is exactly its decimal form


def canonical(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8; integral floats become integers, because JSONB may give them back so."""
    return orjson.dumps(_checked(value, "$"), option=orjson.OPT_SORT_KEYS)


def check_json(value: Any, name: str, max_bytes: int) -> None:
    """Refuse a value that cannot be stored exactly, or that is larger than ``max_bytes``."""
    size = len(orjson.dumps(_checked(value, name)))
    if size > max_bytes:
        raise TooLarge(f"`{name}` is {size} bytes; the limit is {max_bytes}.", field=name)


def check_text(value: str, name: str) -> str:
    """Refuse what PostgreSQL text cannot hold."""
    fault = _text_fault(value)
    if fault:
        raise InvalidInput(f"`{name}` {fault}", field=name)
    return value


class _Unstorable(Exception):
    """Something in the value cannot be stored; whoever catches it looks for the path."""


def _checked(value: Any, name: str) -> Any:
    """Nearly every value is fine, so the walk that knows where it is runs only for those that are not."""
    try:
        return _normal(value, 0)
    except _Unstorable:
        _raise_with_path(value, name, 0)
        raise


def _normal(value: Any, depth: int) -> Any:
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        if _text_fault(value):
            raise _Unstorable
        return value
    if isinstance(value, int):
        if not _INT_MIN <= value <= _INT_MAX:
            raise _Unstorable
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise _Unstorable
        return _integral(value) if value.is_integer() else value
    if depth >= MAX_DEPTH:
        raise _Unstorable
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str) or _text_fault(key):
                raise _Unstorable
        return {key: _normal(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_normal(item, depth + 1) for item in value]
    raise _Unstorable


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


def _raise_with_path(value: Any, path: str, depth: int) -> None:
    match value:
        case None | bool():
            return
        case str():
            check_text(value, path)
        case int():
            if not _INT_MIN <= value <= _INT_MAX:
                raise InvalidInput(
                    f"`{path}` is an integer beyond 64 bits.", field=path, hint="Send it as a string."
                )
        case float():
            if not math.isfinite(value):
                raise InvalidInput(f"`{path}` is NaN or infinite, which JSON does not have.", field=path)
        case dict() | list() | tuple():
            if depth >= MAX_DEPTH:
                raise InvalidInput(f"`{path}` is nested deeper than {MAX_DEPTH} levels.", field=path)
            for part, item in _parts(value, path):
                _raise_with_path(item, part, depth + 1)
        case _:
            raise InvalidInput(f"`{path}` is a {type(value).__name__}, which JSON does not have.", field=path)


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidInput(f"`{path}` has a key that is not a string.", field=path)
            check_text(key, f"{path} (a key)")
            yield f"{path}.{key}", item
    else:
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
