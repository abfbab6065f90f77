"""One serialisation of a JSON value: the same bytes before and after a trip through JSONB.

Hashes and checksums are taken over these bytes, so a value that JSONB would give back changed is refused here,
with the path to it, instead of failing verification later.
"""

from __future__ import annotations

import math
from typing import Any

import orjson

from cortex_plane.domain.errors import InvalidInput, TooLarge

MAX_DEPTH = 64
_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1


def canonical(value: Any) -> bytes:
    """Sorted keys, no spaces, UTF-8; integral floats become integers, because JSONB may give them back so."""
    return orjson.dumps(_normal(value, "$", 0), option=orjson.OPT_SORT_KEYS)


def check_json(value: Any, name: str, max_bytes: int) -> None:
    """Refuse a value that cannot be stored exactly, or that is larger than ``max_bytes``."""
    size = len(orjson.dumps(_normal(value, name, 0)))
    if size > max_bytes:
        raise TooLarge(f"`{name}` is {size} bytes; the limit is {max_bytes}.", field=name)


def check_text(value: str, name: str) -> str:
    """Refuse what PostgreSQL text cannot hold."""
    if "\x00" in value:
        raise InvalidInput(f"`{name}` contains U+0000, which cannot be stored.", field=name)
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise InvalidInput(f"`{name}` contains a lone surrogate, which is not valid Unicode.", field=name)
    return value


def _normal(value: Any, path: str, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise InvalidInput(f"`{path}` is nested deeper than {MAX_DEPTH} levels.", field=path)
    match value:
        case None | bool():
            return value
        case str():
            return check_text(value, path)
        case int():
            if not _INT_MIN <= value <= _INT_MAX:
                raise InvalidInput(
                    f"`{path}` is an integer beyond 64 bits.", field=path, hint="Send it as a string."
                )
            return value
        case float():
            return _float(value, path)
        case dict():
            for key in value:
                if not isinstance(key, str):
                    raise InvalidInput(f"`{path}` has a key that is not a string.", field=path)
                check_text(key, f"{path} (a key)")
            return {k: _normal(v, f"{path}.{k}", depth + 1) for k, v in value.items()}
        case list() | tuple():
            return [_normal(v, f"{path}[{i}]", depth + 1) for i, v in enumerate(value)]
        case _:
            raise InvalidInput(f"`{path}` is a {type(value).__name__}, which JSON does not have.", field=path)


def _float(value: float, path: str) -> int | float:
    if not math.isfinite(value):
        raise InvalidInput(f"`{path}` is NaN or infinite, which JSON does not have.", field=path)
    if value.is_integer() and _INT_MIN <= value <= _INT_MAX:
        return int(value)
    return value
