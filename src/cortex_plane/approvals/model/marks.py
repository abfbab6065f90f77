"""Marks: what a row of the inbox says of a request, to whoever looks, besides the request itself."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    approval_id: UUID
    handed_by: str | None
    """Who handed their part to whoever looks."""
    out_of_office: bool
    """It came by itself, because they are absent."""
    voted: bool
    """Whoever looks said yes to this version; others are still to."""
    undelivered: bool
    """Somebody could not be told; for staff."""


UNMARKED = Mark(approval_id=UUID(int=0), handed_by=None, out_of_office=False, voted=False, undelivered=False)
