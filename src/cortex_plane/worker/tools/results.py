"""What a tool returned, as the bytes that are stored and shown to the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from cortex_plane.kernel.canonical import MAX_DEPTH, canonical
from cortex_plane.kernel.errors import InvalidInput

_HINT = (
    "Return what JSON can express: text, finite numbers within 64 bits, lists, objects with text keys, "
    "dataclasses, pydantic models, dates, ids, enums."
)


def encode_result(value: Any) -> bytes:
    """Canonical JSON. The order of a set is not kept. What cannot be stored is refused with its place."""
    try:
        return canonical(to_jsonable_python(value))
    except InvalidInput as error:
        raise _unstorable(error.message, error.details["field"]) from None
    except Exception as error:  # a serialiser that the tool's author wrote may raise anything
        place, culprit = _culprit(value)
        kind = type(culprit).__name__
        reason = str(error).partition("\n")[0]
        raise _unstorable(f"`{place}` is a {kind}: {reason}.", place) from error


def _unstorable(reason: str, field: str) -> InvalidInput:
    return InvalidInput(
        f"What the tool returned cannot be stored: {reason}",
        code="unstorable_result",
        field=field,
        hint=_HINT,
    )


def _culprit(value: Any) -> tuple[str, Any]:
    """The innermost part that cannot become JSON; pydantic says what is wrong but not where."""
    place = "$"
    for _ in range(MAX_DEPTH):  # a value that contains itself never ends
        for name, part in _parts(value):
            if not _becomes_json(part):
                place, value = place + name, part
                break
        else:
            break
    return place, value


def _parts(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, BaseModel):
        return [(f".{name}", part) for name, part in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{each.name}", getattr(value, each.name)) for each in dataclasses.fields(value)]
    if isinstance(value, dict):
        return [(f".{str(key)[:50]}", part) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", part) for index, part in enumerate(value)]
    return []


def _becomes_json(value: Any) -> bool:
    try:
        to_jsonable_python(value)
    except Exception:
        return False
    return True
