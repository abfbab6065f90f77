"""Delegates: to whom somebody may hand their part, in a request or for a time."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

AT_MOST = 200


@dataclass(frozen=True, kw_only=True, slots=True)
class Delegate:
    """A colleague, with no more than one needs to tell them apart."""

    id: UUID
    display_name: str
