"""Events that other systems sent, in SQL."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Queries, Row, Transaction

queries = Queries(__file__)


async def resolve(db: Database, connection_id: UUID) -> UUID | None:
    """The org of a connection."""
    rows = await db.call("resolve_connection", None, connection_id)
    return rows[0]["org_id"] if rows else None


async def claim(
    tx: Transaction, connection_id: UUID, event_id: str, body_hash: bytes
) -> tuple[bytes, dict[str, Any] | None]:
    """Of an event, new or known: the digest of the body that it came with first, and its answer where there is one."""
    await tx.rows(queries.claim, tx.org, connection_id, event_id, body_hash)
    row = await get(tx, connection_id, event_id)
    if row is None:
        raise RuntimeError("the event that was just written is not there")
    return row["body_hash"], row["answer"]


async def get(tx: Transaction, connection_id: UUID, event_id: str) -> Row | None:
    return await tx.row(queries.get, connection_id, event_id)


async def answer(tx: Transaction, connection_id: UUID, event_id: str, answer: dict[str, Any]) -> bool:
    """Keep the answer; False where another delivery was faster."""
    return await tx.value(queries.answer, connection_id, event_id, answer) is not None


async def get_answer(tx: Transaction, connection_id: UUID, event_id: str) -> dict[str, Any] | None:
    row = await get(tx, connection_id, event_id)
    return None if row is None else row["answer"]


async def forget(db: Database, older: timedelta, limit: int) -> int:
    """Delete events of any org that came longer ago than that; how many."""
    rows = await db.call("forget_inbound_events", None, older, limit)
    return int(rows[0]["forget_inbound_events"])
