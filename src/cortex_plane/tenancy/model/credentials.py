"""What proves who somebody is: keys, browser sessions, enrolment codes; and the keys of model providers."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated
from uuid import UUID

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.fields import DRAFT, Name
from cortex_plane.tenancy.model.orgs import Org, Role, Roles

PREFIX = "cortex_key_"
ENTROPY_BYTES = 32
_PATTERN = re.compile(PREFIX + r"[A-Za-z0-9_-]{43}")


def is_well_formed(secret: str) -> bool:
    return _PATTERN.fullmatch(secret) is not None


def key_digest(secret: str) -> bytes:
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


LINK_PREFIX = "cortex_login_"
SESSION_PREFIX = "cortex_session_"
_RANDOM = r"[A-Za-z0-9_-]{43}"
_LINK = re.compile(LINK_PREFIX + _RANDOM)
_SESSION = re.compile(SESSION_PREFIX + _RANDOM)

LINK_LIFE = timedelta(minutes=15)
IDLE_LIFE = timedelta(hours=12)
"""A session ends when nothing was heard of it for so long,"""
WHOLE_LIFE = timedelta(days=7)
"""and in any case after so long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoginLink:
    """Works once, for one person. Whoever holds it is that person: it is shown to nobody else."""

    member_id: UUID
    url_path: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class BrowserSession:
    """Somebody who is logged in."""

    id: UUID
    member_id: UUID
    key_id: UUID | None
    """The key that its login link was made with: the session ends with it. Null where a mail or an enrolment code opened it."""
    key_name: str | None
    created_at: datetime
    last_seen_at: datetime
    expires_at: datetime
    """When it ends if nobody visits any more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedSessions:
    ended: int


def login_path(token: str) -> str:
    return f"/login/{token}"


def is_link_token(text: str) -> bool:
    return _LINK.fullmatch(text) is not None


def is_session_secret(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def session_digest(secret: str) -> bytes:
    """What is stored. Both secrets are 256 random bits, so no salt is needed."""
    return hashlib.sha256(secret.encode()).digest()


def form_token(session_secret: str) -> str:
    """What a form of this session must carry: a page of another site cannot know it, and it does not give the cookie away."""
    return hmac.new(session_secret.encode(), b"cortex form", hashlib.sha256).hexdigest()


def is_form_token(session_secret: str, token: str) -> bool:
    return hmac.compare_digest(form_token(session_secret).encode(), token.encode())


CODE_PREFIX = "cortex_enrol_"
_CODE = re.compile(CODE_PREFIX + r"[A-Za-z0-9_-]{43}")
CODE_LIFE = timedelta(hours=24)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnrolmentCode:
    """Works once, for one person. It is shown this once; whoever handed it over counts as one human with whoever redeems it,
    until they have proven a channel of their own."""

    member_id: UUID
    code: str
    url_path: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Enrolment:
    """What a code would do now."""

    id: UUID
    member_id: UUID
    member: str
    org: str
    issued_by: str


@draft(config=DRAFT, frozen=True, kw_only=True)
class Redemption:
    """A code, and the name of the key that it is redeemed for."""

    code: Annotated[str, Field(min_length=1, max_length=100)]
    key_name: Name = "command line"


def is_code(text: str) -> bool:
    return _CODE.fullmatch(text) is not None


def enrolment_digest(code: str) -> bytes:
    """What is stored. A code is 256 random bits, so no salt is needed."""
    return hashlib.sha256(code.encode()).digest()


def enrolment_path(code: str) -> str:
    return f"/enrol/{code}"


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


class Provider(StrEnum):
    ANTHROPIC = "anthropic"
    OPENAI = "openai"
    """And whoever speaks its chat completions protocol."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class ModelKeyDraft:
    key: str = Field(min_length=16, max_length=500, pattern=r"^[\x21-\x7e]+$", repr=False)
    """As the provider gave it out. It is never told again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelKey:
    provider: Provider
    last_characters: str
    set_by: str
    created_at: datetime
    updated_at: datetime
