"""Members: the people of an org, with their roles and their clearance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import AfterValidator, Field, StrictBool
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.fields import DRAFT, Clearance, Name, Ref


class Role(StrEnum):
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


def _sorted_roles(roles: list[Role]) -> list[Role]:
    return sorted(set(roles))


Roles = Annotated[list[Role], Field(min_length=1, max_length=6), AfterValidator(_sorted_roles)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    id: UUID
    display_name: str
    clearance: int
    roles: list[Role]
    team_ids: list[UUID]
    deactivated_at: datetime | None
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

    def promotes(self, roles: Sequence[str], clearance: int) -> bool:
        """Whether somebody with these may do more afterwards."""
        return not set(self.roles or ()) <= set(roles) or (self.clearance or 0) > clearance
