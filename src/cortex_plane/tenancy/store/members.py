"""Members in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.db.database import Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, one, page
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.tenancy.model.members import Member

queries = Queries(__file__)


async def insert(
    tx: Transaction,
    id: UUID,
    display_name: str,
    clearance: int,
    roles: Sequence[str],
    sponsors: Sequence[UUID] = (),
) -> None:
    """``sponsors``: whoever adds them. Until they have proven a channel of their own they count as one human with those."""
    await tx.rows(queries.insert, tx.org, id, display_name, clearance, roles, list(sponsors))


async def add_sponsor(tx: Transaction, id: UUID, sponsor: UUID) -> None:
    await tx.rows(queries.add_sponsor, id, sponsor)


async def has_proven_channel(tx: Transaction, id: UUID) -> bool:
    return bool(await tx.value(queries.has_proven_channel, tx.org, id))


async def get(tx: Transaction, id: UUID) -> Member | None:
    return one(Member, await tx.row(queries.get, id))


async def list_page(tx: Transaction, position: Position | None, limit: int, role: str | None) -> Page[Member]:
    return page(Member, await tx.rows(queries.list_page, *after(position), limit + 1, role), limit)


async def update(
    tx: Transaction,
    id: UUID,
    display_name: str | None,
    clearance: int | None,
    roles: Sequence[str] | None,
    active: bool | None,
) -> None:
    await tx.rows(queries.update, id, display_name, clearance, roles, active)


async def first_admin(tx: Transaction) -> UUID | None:
    id: UUID | None = await tx.value(queries.first_admin)
    return id


async def lock_with_admins(tx: Transaction, id: UUID) -> Sequence[Row]:
    return await tx.rows(queries.lock_with_admins, id)


async def hold_access(tx: Transaction, id: UUID) -> None:
    """Until this transaction ends nobody else makes or ends a credential of this member."""
    await tx.rows(queries.hold_access, id)


async def leave_teams(tx: Transaction, id: UUID) -> None:
    await tx.rows(queries.leave_teams, id)


async def join_teams(tx: Transaction, id: UUID, team_ids: list[UUID]) -> None:
    await tx.rows(queries.join_teams, tx.org, id, team_ids)


async def set_teams(tx: Transaction, id: UUID, team_ids: list[UUID]) -> None:
    await leave_teams(tx, id)
    await join_teams(tx, id, team_ids)
