"""Signing keys in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.db.database import Row, Transaction
from cortex_plane.db.queries import Queries

queries = Queries(__file__)


async def active(tx: Transaction) -> Row | None:
    return await tx.row(queries.active)


async def insert(tx: Transaction, id: UUID, public_key: bytes, sealed: bytes) -> bool:
    """False: there is an active one, and nothing happened."""
    return await tx.value(queries.insert, tx.org, id, public_key, sealed) is not None


async def retire(tx: Transaction) -> Row | None:
    return await tx.row(queries.retire)


async def kept(tx: Transaction) -> Sequence[Row]:
    """All of them with their private halves, which are sealed."""
    return await tx.rows(queries.kept)


async def list_all(tx: Transaction) -> Sequence[Row]:
    return await tx.rows(queries.list_all)
