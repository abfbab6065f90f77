"""Orgs: the tenants. Whatever belongs to one is invisible to every other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import StrictBool
from pydantic.dataclasses import dataclass as draft

from cortex_plane.domain.fields import DRAFT, Name, Slug
from cortex_plane.domain.keys import NewKey


@draft(config=DRAFT, frozen=True, kw_only=True)
class OrgSettings:
    guests_may_chat: StrictBool = True
    """Whether a person whom nobody invited may talk with agents over a channel."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Org:
    id: UUID
    slug: str
    name: str
    settings: dict[str, Any]
    revision: int
    created_at: datetime
    updated_at: datetime


@draft(config=DRAFT, frozen=True, kw_only=True)
class OrgDraft:
    slug: Slug
    name: Name
    admin_name: Name = "Admin"


@draft(config=DRAFT, frozen=True, kw_only=True)
class OrgChange:
    name: Name | None = None
    settings: OrgSettings | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NewOrg:
    """An org with the key of its first admin."""

    org: Org
    key: NewKey
