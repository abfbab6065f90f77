"""Teams: groups inside an org, with at most one level of parents."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.fields import DRAFT, Name, Ref, Slug


@dataclass(frozen=True, kw_only=True, slots=True)
class Team:
    id: UUID
    slug: str
    name: str
    parent_id: UUID | None
    revision: int
    created_at: datetime
    updated_at: datetime


@draft(config=DRAFT, frozen=True, kw_only=True)
class TeamDraft:
    slug: Slug
    name: Name
    parent: Ref | None = None


@draft(config=DRAFT, frozen=True, kw_only=True)
class TeamChange:
    name: Name
