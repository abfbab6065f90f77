"""Marks in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.approvals.model.marks import Mark
from cortex_plane.db.database import Queries, Transaction
from cortex_plane.kernel.values import parse
from cortex_plane.policies.model.policies import Approvers

queries = Queries(__file__)


async def of_approvals(
    tx: Transaction, ids: Sequence[UUID], member_id: UUID | None, for_staff: bool
) -> dict[UUID, Mark]:
    rows = await tx.rows(queries.of_approvals, list(ids), member_id, for_staff)
    return {row["approval_id"]: parse(Mark, row) for row in rows}


async def next_level(tx: Transaction, approval_id: UUID) -> Approvers | None:
    """Who is asked besides when a request goes up; None where it cannot."""
    found = await tx.value(queries.next_level, approval_id)
    return None if found is None else parse(Approvers, found)
