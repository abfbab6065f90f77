"""People in browsers: a link logs somebody in once, and the session that it opens acts as that person."""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

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


def path_of(token: str) -> str:
    return f"/login/{token}"


def is_link_token(text: str) -> bool:
    return _LINK.fullmatch(text) is not None


def is_session_secret(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def digest(secret: str) -> bytes:
    """What is stored. Both secrets are 256 random bits, so no salt is needed."""
    return hashlib.sha256(secret.encode()).digest()


def form_token(session_secret: str) -> str:
    """What a form of this session must carry: a page of another site cannot know it, and it does not give the cookie away."""
    return hmac.new(session_secret.encode(), b"cortex form", hashlib.sha256).hexdigest()


def is_form_token(session_secret: str, given: str) -> bool:
    return hmac.compare_digest(form_token(session_secret).encode(), given.encode())
