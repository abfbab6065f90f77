"""The one place that makes secrets."""

from __future__ import annotations

import secrets

from cortex_plane.approvals.model.credentials import TOKEN_PREFIX, TOKEN_VERSION
from cortex_plane.notify.model.webhooks import SECRET_BYTES, secret_of
from cortex_plane.tenancy.model.browser_sessions import LINK_PREFIX, SESSION_PREFIX
from cortex_plane.tenancy.model.enrolments import CODE_PREFIX
from cortex_plane.tenancy.model.identities import ALPHABET, CODE_LENGTH, VERIFY_PREFIX
from cortex_plane.tenancy.model.keys import ENTROPY_BYTES, PREFIX


def new_key_secret() -> str:
    return PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_link_token() -> str:
    return LINK_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_session_secret() -> str:
    return SESSION_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_enrolment_code() -> str:
    return CODE_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_approval_token() -> str:
    return f"{TOKEN_PREFIX}{TOKEN_VERSION}_{secrets.token_urlsafe(ENTROPY_BYTES)}"


def new_verify_code() -> str:
    return VERIFY_PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)


def new_sender_code() -> str:
    return "".join(secrets.choice(ALPHABET) for _ in range(CODE_LENGTH))


def new_mark() -> str:
    """Tells one rendering of a page from another."""
    return secrets.token_hex(8)


def new_webhook_secret() -> str:
    return secret_of(secrets.token_bytes(SECRET_BYTES))
