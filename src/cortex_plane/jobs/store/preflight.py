"""Parked jobs in SQL."""

from __future__ import annotations

from cortex_plane.db.database import Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, page
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.model.preflight import Parked
from cortex_plane.kernel.pages import Page, Position

queries = Queries(__file__)


async def parked(tx: Transaction, status: JobStatus, position: Position | None, limit: int) -> Page[Parked]:
    return page(Parked, await tx.rows(queries.parked, *after(position), limit + 1, status), limit)
