"""From database rows to domain values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar
from uuid import UUID

from cortex_plane.db.database import Row
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import parse

T = TypeVar("T")


def one(kind: type[T], row: Row | None) -> T | None:
    return None if row is None else parse(kind, row)


def page(kind: type[T], rows: Sequence[Row], limit: int) -> Page[T]:
    """A page of ``limit`` items from a query that was asked for one more, which tells whether there is a next."""
    kept = rows[:limit]
    last = kept[-1] if len(rows) > limit else None
    return Page(
        items=[parse(kind, row) for row in kept],
        next=Position(created_at=last["created_at"], id=last["id"]) if last is not None else None,
    )


def after(position: Position | None) -> tuple[object, object]:
    """The two parameters that say where a page starts."""
    return (position.created_at, position.id) if position else (None, None)


def ids(rows: Sequence[Row]) -> list[UUID]:
    return [row["id"] for row in rows]
