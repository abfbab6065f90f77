"""The journal of code agents in SQL."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.jobs.model.journal import Entry
from cortex_plane.kernel.values import parse

queries = Queries(__file__)


async def past(db: Database, org_id: UUID, job_id: UUID) -> tuple[list[Entry], dict[str, Any]]:
    """The entries of a job, and by the key of the entry that waits for it: what arrived."""
    (row,) = await db.call("job_journal", org_id, job_id)
    return [parse(Entry, each) for each in row["entries"]], row["arrived"]


async def list_page(tx: Transaction, job_id: UUID, above: int, limit: int) -> list[Entry]:
    return [parse(Entry, row) for row in await tx.rows(queries.list_page, job_id, above, limit)]
