"""Delegates in SQL."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.approvals.model.delegates import Delegate
from cortex_plane.db.database import Queries, Transaction
from cortex_plane.kernel.values import parse

queries = Queries(__file__)


async def list_some(tx: Transaction, besides: UUID | None, name: str | None, limit: int) -> list[Delegate]:
    return [parse(Delegate, row) for row in await tx.rows(queries.list_some, besides, name, limit)]


async def of_approval(
    tx: Transaction, approval_id: UUID, besides: UUID, name: str | None, limit: int
) -> list[Delegate]:
    rows = await tx.rows(queries.of_approval, approval_id, besides, name, limit)
    return [parse(Delegate, row) for row in rows]
