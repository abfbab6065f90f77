"""Ids and idempotency keys."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import uuid_utils.compat

MAX_KEY_LENGTH = 255


@dataclass(frozen=True, kw_only=True, slots=True)
class IdempotencyKey:
    """An idempotency key with a digest of the request it was first sent with."""

    key: str
    fingerprint: bytes


def new_id() -> UUID:
    """A UUIDv7: close in time means close in the index. Nothing is ordered by it."""
    return uuid_utils.compat.uuid7()
