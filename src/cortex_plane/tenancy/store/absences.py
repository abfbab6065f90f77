"""Absences in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.db.database import Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, one, page
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import parse
from cortex_plane.tenancy.model.absences import Absence, Span

queries = Queries(__file__)


async def hold_people(tx: Transaction, ids: Sequence[UUID]) -> Sequence[Row]:
    return await tx.rows(queries.hold_people, list(ids))


async def one_at_a_time(tx: Transaction) -> None:
    await tx.rows(queries.one_at_a_time, tx.org)


async def overlapping(tx: Transaction, span: Span) -> int:
    """How many absences the person has in that time already."""
    count: int = await tx.value(queries.overlapping, span.member_id, span.starts_at, span.ends_at)
    return count


async def reached(tx: Transaction, span: Span) -> list[Span]:
    rows = await tx.rows(queries.reached, span.delegate_id, span.starts_at, span.ends_at)
    return [parse(Span, row) for row in rows]


async def insert(tx: Transaction, id: UUID, span: Span, reason: str | None, created_by: str) -> None:
    await tx.rows(
        queries.insert, tx.org, id, span.member_id, span.delegate_id, span.starts_at, span.ends_at, reason, created_by
    )  # fmt: skip


async def get(tx: Transaction, id: UUID, member_id: UUID | None = None) -> Absence | None:
    """With a ``member_id``, only theirs."""
    return one(Absence, await tx.row(queries.get, id, member_id))


async def list_page(
    tx: Transaction, position: Position | None, limit: int, member_id: UUID | None, only_open: bool
) -> Page[Absence]:
    rows = await tx.rows(queries.list_page, *after(position), limit + 1, member_id, only_open)
    return page(Absence, rows, limit)


async def cancel(tx: Transaction, id: UUID) -> bool:
    return await tx.value(queries.cancel, id) is not None
