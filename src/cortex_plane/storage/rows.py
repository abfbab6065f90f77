"""From database rows to domain values."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter

from cortex_plane.domain.pages import Page, Position
from cortex_plane.storage.database import Row

T = TypeVar("T")


@functools.cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def value(kind: type[T], row: Row) -> T:
    """A row as a domain value: text becomes the enum it stands for, columns that the value lacks are dropped."""
    adapter: TypeAdapter[T] = _adapter(kind)  # type: ignore[arg-type]
    return adapter.validate_python(dict(row))


def one(kind: type[T], row: Row | None) -> T | None:
    return None if row is None else value(kind, row)


def page(kind: type[T], rows: Sequence[Row], limit: int) -> Page[T]:
    """A page of ``limit`` items from a query that was asked for one more, which tells whether there is a next."""
    kept = rows[:limit]
    last = kept[-1] if len(rows) > limit else None
    return Page(
        items=[value(kind, row) for row in kept],
        next=Position(created_at=last["created_at"], id=last["id"]) if last is not None else None,
    )


def after(position: Position | None) -> tuple[object, object]:
    """The two parameters that say where a page starts."""
    return (position.created_at, position.id) if position else (None, None)
