"""The budgets of requests in SQL: one row for each key and each person."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from cortex_plane.db.database import Database


async def take(
    db: Database, org_id: UUID, subjects: Sequence[UUID], want: int, per_second: float, burst: float
) -> tuple[int, float]:
    """How many were taken, at most ``want``; and where there are none, after how many seconds there is one."""
    (row,) = await db.call("take_requests", org_id, list(subjects), want, per_second, burst)
    return row["granted"], row["wait_seconds"]


async def forget(db: Database, older: timedelta, limit: int) -> int:
    """Delete budgets that nobody took from for so long; returns how many, at most ``limit``."""
    (row,) = await db.call("forget_request_budgets", None, older, limit)
    forgotten: int = row["forget_request_budgets"]
    return forgotten
