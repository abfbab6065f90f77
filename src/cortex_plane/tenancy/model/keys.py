"""API keys: what they look like, and what is kept of them (never the key itself)."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.fields import DRAFT, Name
from cortex_plane.tenancy.model.members import Role, Roles

PREFIX = "cortex_key_"
ENTROPY_BYTES = 32
_PATTERN = re.compile(PREFIX + r"[A-Za-z0-9_-]{43}")


def is_well_formed(secret: str) -> bool:
    return _PATTERN.fullmatch(secret) is not None


def digest(secret: str) -> bytes:
    """What is stored: a leaked table gives nobody a usable key. The key is random, so no salt is needed."""
    return hashlib.sha256(secret.encode()).digest()


class KeyKind(StrEnum):
    PERSON = "person"
    """Acts as a member, with that member's roles."""
    SERVICE = "service"
    """Acts as a program, with roles of its own; it cannot decide approvals."""


class Grantable(StrEnum):
    """What a service has only where an admin grants it by name."""

    CONNECTION_WRITE = "connection.write"
    POLICY_WRITE = "policy.write"
    ATLAS_WRITE = "atlas.write"
    TOOL_CONFIRM = "tool.confirm"
    AGENT_WRITE = "agent.write"
    TEAM_WRITE = "team.write"
    ORG_WRITE = "org.write"
    MEMBER_WRITE = "member.write"


@dataclass(frozen=True, kw_only=True, slots=True)
class Key:
    id: UUID
    name: str
    kind: KeyKind
    member_id: UUID | None
    roles: list[Role]
    """A service key's own roles; a person's key has its person's."""
    permissions: list[str]
    """What an admin granted a service by name, beyond its roles."""
    platform: bool
    last_characters: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None
    made_with: UUID | None
    """The key of the same person that it was made with, and with which it ends."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class NewKey:
    key: Key
    secret: str | None
    """Shown once. Null when an idempotency key is replayed: the plane no longer knows it."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class OwnKeyDraft:
    """A key for whoever asks."""

    name: Name
    expires_in_days: Annotated[int, Field(strict=True, ge=1, le=3650)] | None = None


@draft(config=DRAFT, frozen=True, kw_only=True)
class KeyDraft:
    """A key for a member (``member_id``) or for a service (``roles``), never both."""

    name: Name
    member_id: UUID | None = None
    roles: Roles | None = None
    permissions: list[Grantable] = Field(default_factory=list, max_length=8)
    """What the service may do by name, whatever its roles are."""
    expires_in_days: Annotated[int, Field(strict=True, ge=1, le=3650)] | None = None
