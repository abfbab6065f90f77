"""Receipts in SQL."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from cortex_plane.db.database import Row, Transaction
from cortex_plane.db.queries import Queries

queries = Queries(__file__)


async def insert(
    tx: Transaction, approval_id: UUID, key_id: UUID, body: bytes, signature: bytes, at: datetime
) -> None:
    await tx.rows(queries.insert, tx.org, approval_id, key_id, body, signature, at)


async def get(tx: Transaction, approval_id: UUID) -> Row | None:
    return await tx.row(queries.get, approval_id)
