"""The budgets of requests in SQL: one row for each key and each person."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.storage.database import Database


async def take(
    db: Database, org_id: UUID, subjects: Sequence[UUID], want: int, per_second: float, burst: float
) -> tuple[int, float]:
    """How many were taken, at most ``want``; and where there are none, after how many seconds there is one."""
    (row,) = await db.call("take_requests", org_id, list(subjects), want, per_second, burst)
    return row["granted"], row["wait_seconds"]
