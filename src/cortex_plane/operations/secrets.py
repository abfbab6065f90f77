"""The one place that makes secrets."""

from __future__ import annotations

import secrets

from cortex_plane.domain.browser_sessions import LINK_PREFIX, SESSION_PREFIX
from cortex_plane.domain.keys import ENTROPY_BYTES, PREFIX


def new_key_secret() -> str:
    return PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_link_token() -> str:
    return LINK_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_session_secret() -> str:
    return SESSION_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)
