"""Idempotency keys in SQL."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from cortex_plane.db.database import Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.kernel.idempotency import IdempotencyKey

queries = Queries(__file__)


async def claim(tx: Transaction, caller: UUID, verb: str, once: IdempotencyKey) -> dict[str, Any] | None:
    """None when the key is new; the earlier result when it was used for the same request."""
    earlier: dict[str, Any] | None = await tx.value(
        queries.claim, tx.org, caller, verb, once.key, once.fingerprint
    )
    return earlier


async def settle(
    tx: Transaction, caller: UUID, verb: str, once: IdempotencyKey, result: dict[str, Any]
) -> None:
    await tx.rows(queries.settle, tx.org, caller, verb, once.key, result)
