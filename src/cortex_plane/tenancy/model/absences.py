"""Absences: while somebody is out of office, what is asked of them goes to somebody else.

A chain of absences is followed as long as it goes; one that would lead back to whoever is absent is never made.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import DRAFT, Moment, Note

AT_MOST_AHEAD = timedelta(days=366)


class AbsenceStatus(StrEnum):
    PLANNED = "planned"
    CURRENT = "current"
    OVER = "over"
    CANCELLED = "cancelled"


@draft(config=DRAFT, frozen=True, kw_only=True)
class AbsenceDraft:
    delegate_id: UUID
    """Who decides meanwhile, where their clearance allows it."""
    ends_at: Moment
    """At most a year ahead."""
    starts_at: Moment | None = None
    """Now, where it is left out or in the past."""
    member_id: UUID | None = None
    """Who is absent: yourself, where it is left out. For others it takes an admin."""
    reason: Note | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Absence:
    id: UUID
    member_id: UUID
    member: str
    delegate_id: UUID
    delegate: str
    starts_at: datetime
    ends_at: datetime
    reason: str | None
    status: AbsenceStatus
    cancelled_at: datetime | None
    created_by: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """One person's absence, as far as it matters to others."""

    member_id: UUID
    delegate_id: UUID
    starts_at: datetime
    ends_at: datetime


def span_of(member_id: UUID, draft: AbsenceDraft, now: datetime) -> Span:
    """What a draft means at this moment."""
    starts_at = max(draft.starts_at or now, now)
    if draft.ends_at <= starts_at:
        raise InvalidInput(
            "The absence would end before it begins.",
            hint="Let `ends_at` lie in the future and after `starts_at`.",
            field="ends_at",
        )
    if draft.ends_at > now + AT_MOST_AHEAD:
        raise InvalidInput(
            "An absence ends within a year.",
            hint="Choose an earlier `ends_at`; it can be made again later.",
            field="ends_at",
        )
    return Span(
        member_id=member_id, delegate_id=draft.delegate_id, starts_at=starts_at, ends_at=draft.ends_at
    )


def way_back(planned: Span, others: Iterable[Span]) -> list[UUID] | None:
    """Through whom it would lead back to whoever is absent, at some moment of the span; None: it would not."""
    of_person: dict[UUID, list[Span]] = {}
    for other in others:
        of_person.setdefault(other.member_id, []).append(other)
    ways = [([planned.delegate_id], planned.starts_at, planned.ends_at)]
    while ways:
        way, starts, ends = ways.pop()
        for absence in of_person.get(way[-1], ()):
            begin, end = max(starts, absence.starts_at), min(ends, absence.ends_at)
            if begin >= end or absence.delegate_id in way:
                continue
            if absence.delegate_id == planned.member_id:
                return way
            ways.append(([*way, absence.delegate_id], begin, end))
    return None
