"""Between domain values and JSON or rows: the one place that knows how they are parsed and rendered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")


_adapters: dict[Any, TypeAdapter[Any]] = {}


def adapter(kind: Any) -> TypeAdapter[Any]:
    """Building one costs milliseconds, using one microseconds: build each once."""
    known = _adapters.get(kind)
    if known is None:
        known = _adapters[kind] = TypeAdapter(kind)
    return known


def parse(kind: type[T], given: Mapping[str, Any]) -> T:
    """Text becomes the enum, id or time it stands for; fields that the value lacks are dropped."""
    made: T = adapter(kind).validate_python(dict(given))
    return made


def to_json(value: Any) -> bytes:
    return adapter(type(value)).dump_json(value)
