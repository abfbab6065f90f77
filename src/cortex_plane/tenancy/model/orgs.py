"""Orgs and who belongs to them: teams, members and their absences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, Field, StrictBool, StringConstraints
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import DRAFT, ChannelType, Clearance, Moment, Name, Note, Ref, Slug

KeyGlobs = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")], ...],
    Field(max_length=100),
]


PausedSeconds = Annotated[int, Field(strict=True, ge=0, le=10 * 365 * 24 * 3600)]
ApprovalChannels = Annotated[tuple[ChannelType, ...], Field(max_length=20)]


class PolicyChanges(StrEnum):
    """How a policy file comes into force."""

    DIRECT = "direct"
    """As soon as it is applied."""
    APPROVAL = "approval"
    """Once another steward or admin approves it."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class OrgSettings:
    """`OrgSettingsChange` describes the fields."""

    guests_may_chat: StrictBool = True
    redact: KeyGlobs | None = None
    end_paused_after_seconds: PausedSeconds | None = None
    approval_channels: ApprovalChannels | None = None
    policy_changes: PolicyChanges | None = None


@draft(config=DRAFT, frozen=True, kw_only=True)
class OrgSettingsChange:
    """What is left out stays as it is."""

    guests_may_chat: StrictBool | None = None
    """Whether a person whom nobody invited may talk with agents over a channel."""
    redact: KeyGlobs | None = None
    """Names of arguments whose values no mail, no webhook and no event shows, besides those that the plane knows itself."""
    end_paused_after_seconds: PausedSeconds | None = None
    """When a session that nobody came back to ends; 0, or none, for never."""
    approval_channels: ApprovalChannels | None = None
    """The channels over which this org asks for approvals; none means every one that it has connected."""
    policy_changes: PolicyChanges | None = None
    """How policies change; `direct` where nothing is said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Org:
    id: UUID
    slug: str
    name: str
    settings: dict[str, Any]
    """The settings of the org."""
    revision: int
    created_at: datetime
    updated_at: datetime


@draft(config=DRAFT, frozen=True, kw_only=True)
class OrgDraft:
    slug: Slug
    name: Name
    admin_name: Name = "Admin"
    """The name of its first admin."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class OrgChange:
    name: Name | None = None
    settings: OrgSettingsChange | None = None
    """The settings to change."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Team:
    id: UUID
    slug: str
    name: str
    parent_id: UUID | None
    """The id of the team above it; null where there is none."""
    revision: int
    created_at: datetime
    updated_at: datetime


@draft(config=DRAFT, frozen=True, kw_only=True)
class TeamDraft:
    slug: Slug
    name: Name
    parent: Ref | None = None
    """The team above it, by id or slug."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class TeamChange:
    name: Name


class Role(StrEnum):
    """What a member may do in the org."""

    ADMIN = "admin"
    """Manages the org: people, keys, agents, connections."""
    STEWARD = "steward"
    """Writes gates and policies."""
    OPERATOR = "operator"
    """Watches and steers jobs."""
    APPROVER = "approver"
    """Decides approvals."""
    MEMBER = "member"
    """Talks with agents and submits work."""
    GUEST = "guest"
    """Came in over a channel; may chat, decides nothing."""


Roles = Annotated[list[Role], Field(min_length=1, max_length=6), AfterValidator(lambda roles: sorted(set(roles)))]


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    id: UUID
    display_name: str
    clearance: int
    roles: list[Role]
    team_ids: list[UUID]
    """The ids of the teams that the member is in."""
    deactivated_at: datetime | None
    """When the member was deactivated; null while active."""
    revision: int
    created_at: datetime
    updated_at: datetime


@draft(config=DRAFT, frozen=True, kw_only=True)
class MemberDraft:
    display_name: Name
    clearance: Clearance = 0
    roles: Roles = Field(default_factory=lambda: [Role.MEMBER])
    teams: Annotated[list[Ref], Field(max_length=50)] = Field(default_factory=list)


@draft(config=DRAFT, frozen=True, kw_only=True)
class MemberChange:
    """Absent or null leaves a field as it is; ``teams`` replaces the whole list."""

    display_name: Name | None = None
    clearance: Clearance | None = None
    roles: Roles | None = None
    teams: Annotated[list[Ref], Field(max_length=50)] | None = None
    active: StrictBool | None = None
    """False deactivates the member, true lets them back in."""

    def promotes(self, roles: Sequence[str], clearance: int) -> bool:
        """Whether somebody with these may do more afterwards."""
        return not set(self.roles or ()) <= set(roles) or (self.clearance or 0) > clearance


AT_MOST_AHEAD = timedelta(days=366)


class AbsenceStatus(StrEnum):
    """Where an absence stands."""

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
    """The id of who decides meanwhile."""
    delegate: str
    """The name of who decides meanwhile."""
    starts_at: datetime
    """When it begins."""
    ends_at: datetime
    """When it ends."""
    reason: str | None
    status: AbsenceStatus
    cancelled_at: datetime | None
    """When it was cancelled; null where it was not."""
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
    return Span(member_id=member_id, delegate_id=draft.delegate_id, starts_at=starts_at, ends_at=draft.ends_at)


def way_back(span: Span, others: Iterable[Span]) -> list[UUID] | None:
    """Through whom it would lead back to whoever is absent, at some moment of the span; None: it would not."""
    of_person: dict[UUID, list[Span]] = {}
    for other in others:
        of_person.setdefault(other.member_id, []).append(other)
    ways = [([span.delegate_id], span.starts_at, span.ends_at)]
    while ways:
        way, starts, ends = ways.pop()
        for absence in of_person.get(way[-1], ()):
            begin, end = max(starts, absence.starts_at), min(ends, absence.ends_at)
            if begin >= end or absence.delegate_id in way:
                continue
            if absence.delegate_id == span.member_id:
                return way
            ways.append(([*way, absence.delegate_id], begin, end))
    return None
