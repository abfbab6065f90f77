"""A page of a list, and where the next one starts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Generic, TypeVar
from uuid import UUID

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
