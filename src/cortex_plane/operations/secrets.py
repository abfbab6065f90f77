"""The one place that makes secrets."""

from __future__ import annotations

import secrets

from cortex_plane.domain.keys import ENTROPY_BYTES, PREFIX


def new_key_secret() -> str:
    return PREFIX + secrets.token_urlsafe(ENTROPY_BYTES)
