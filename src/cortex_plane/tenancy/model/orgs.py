"""Orgs: the tenants. Whatever belongs to one is invisible to every other."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, StrictBool, StringConstraints
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.fields import DRAFT, Name, Slug
from cortex_plane.tenancy.model.enrolments import EnrolmentCode
from cortex_plane.tenancy.model.keys import NewKey

KeyGlobs = Annotated[
    tuple[
        Annotated[str, StringConstraints(min_length=1, max_length=100, pattern=r"^[^\x00-\x1f\x7f]+$")], ...
    ],
    Field(max_length=100),
]


@draft(config=DRAFT, frozen=True, kw_only=True)
class OrgSettings:
    guests_may_chat: StrictBool = True
    """Whether a person whom nobody invited may talk with agents over a channel."""
    redact: KeyGlobs | None = None
    """Names of arguments whose values no mail and no webhook shows, besides those that the plane knows itself."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class OrgSettingsChange:
    """What is left out stays as it is."""

    guests_may_chat: StrictBool | None = None
    redact: KeyGlobs | None = None


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
    settings: OrgSettingsChange | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FirstOrg:
    """The org that a plane starts with, and the key of its admin: whoever starts the plane."""

    org: Org
    key: NewKey


@dataclass(frozen=True, kw_only=True, slots=True)
class NewOrg:
    """An org, and the code that its first admin redeems."""

    org: Org
    enrolment: EnrolmentCode
