"""Parked jobs in SQL."""

from __future__ import annotations

from cortex_plane.domain.jobs import JobStatus
from cortex_plane.domain.pages import Page, Position
from cortex_plane.domain.preflight import Parked
from cortex_plane.storage.database import Transaction
from cortex_plane.storage.queries import Queries
from cortex_plane.storage.rows import after, page

queries = Queries("preflight")


async def parked(tx: Transaction, status: JobStatus, position: Position | None, limit: int) -> Page[Parked]:
    return page(Parked, await tx.rows(queries.parked, *after(position), limit + 1, status), limit)
