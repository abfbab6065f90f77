"""The caller's promise that a repeated request is the same request."""

from __future__ import annotations

from dataclasses import dataclass

MAX_KEY_LENGTH = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class Once:
    """An idempotency key with a digest of the request it was first sent with."""

    key: str
    fingerprint: bytes
