"""Ids and idempotency keys."""

from __future__ import annotations

from dataclasses import dataclass

from uuid_utils.compat import uuid7

MAX_KEY_LENGTH = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class IdempotencyKey:
    """An idempotency key with a digest of the request it was first sent with."""

    key: str
    fingerprint: bytes


new_id = uuid7
"""A UUIDv7: close in time means close in the index. Nothing is ordered by it."""
