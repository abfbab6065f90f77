"""Memories in SQL. They are written with the job's own writes, see `record_memory`."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.kernel.values import parse
from cortex_plane.sessions.model.memories import Memory, SessionMemory

queries = Queries(__file__)


async def list_page(tx: Transaction, session_id: UUID, below: int | None, limit: int) -> list[SessionMemory]:
    rows = await tx.rows(queries.list_page, session_id, below, limit)
    return [parse(SessionMemory, row) for row in rows]


async def of_job(tx: Transaction, job_id: UUID) -> Memory:
    row = await tx.row(queries.of_job, job_id)
    return Memory(row["summary"], tuple(row["facts"])) if row else Memory()
