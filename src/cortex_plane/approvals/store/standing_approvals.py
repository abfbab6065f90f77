"""Standing approvals in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from cortex_plane.approvals.model.standing_approvals import StandingApproval
from cortex_plane.db.database import Queries, Row, Transaction, after, page
from cortex_plane.jobs.model.effects import REPEATS_OF_A_GRANT
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import parse

queries = Queries(__file__)


async def insert(
    tx: Transaction,
    id: UUID,
    approval_id: UUID,
    *,
    input_hash: str | None,
    condition: str | None,
    max_calls: int | None,
    expires_at: datetime,
    granted_by: str,
    granted_by_id: UUID,
    reason: str | None,
    version: int,
    now: datetime,
) -> None:
    await tx.rows(
        queries.insert, tx.org, id, approval_id, bytes.fromhex(input_hash) if input_hash else None, condition,
        max_calls, expires_at, granted_by, granted_by_id, reason, version, now,
    )  # fmt: skip


async def get(tx: Transaction, id: UUID, sees: UUID | None) -> tuple[StandingApproval, datetime] | None:
    """With the database's time."""
    row = await tx.row(queries.get, id, sees)
    return None if row is None else (parse(StandingApproval, row), row["now"])


async def list_page(
    tx: Transaction,
    position: Position | None,
    limit: int,
    sees: UUID | None,
    session_id: UUID | None,
    active: bool,
) -> tuple[Page[StandingApproval], datetime | None]:
    """With the database's time, where there are any."""
    rows = await tx.rows(queries.list_page, *after(position), limit + 1, sees, session_id, active)
    return page(StandingApproval, rows, limit), rows[0]["now"] if rows else None


async def candidates(
    tx: Transaction, session_id: UUID, tool_name: str, tool_digest: str, input_hash: str, call_id: UUID
) -> Sequence[tuple[StandingApproval, Row]]:
    """Those of the session that may cover this call, with whether it was counted before and how new its giver's row is."""
    rows = await tx.rows(
        queries.candidates, session_id, tool_name, tool_digest, input_hash, call_id, REPEATS_OF_A_GRANT
    )
    return [(parse(StandingApproval, row), row) for row in rows]


async def origin(tx: Transaction, job_id: UUID, read_to: int, askers: Sequence[UUID]) -> Row | None:
    """Whose session a job belongs to, who shaped what it asks for, and who could be the same human as those."""
    return await tx.row(queries.origin, job_id, read_to, list(askers))


async def revoke(tx: Transaction, id: UUID, by: str, reason: str | None) -> bool:
    """False: somebody did before."""
    return await tx.value(queries.revoke, id, by, reason) is not None
