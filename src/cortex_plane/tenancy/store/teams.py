"""Teams in SQL."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, one, page
from cortex_plane.kernel.fields import split_ref
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import parse
from cortex_plane.tenancy.model.teams import Team

queries = Queries(__file__)


async def insert(tx: Transaction, id: UUID, slug: str, name: str, parent_id: UUID | None) -> Team:
    (row,) = await tx.rows(queries.insert, tx.org, id, slug, name, parent_id)
    return parse(Team, row)


async def get(tx: Transaction, ref: str) -> Team | None:
    return one(Team, await tx.row(queries.get, *split_ref(ref)))


async def find(tx: Transaction, refs: list[str]) -> dict[str, UUID]:
    """The ids of the teams that exist, by the reference they were asked with."""
    ids = [id for id, _ in map(split_ref, refs) if id is not None]
    slugs = [slug for _, slug in map(split_ref, refs) if slug is not None]
    found: dict[str, UUID] = {}
    for row in await tx.rows(queries.find, ids, slugs):
        found[str(row["id"])] = row["id"]
        found[row["slug"]] = row["id"]
    return found


async def list_page(tx: Transaction, position: Position | None, limit: int) -> Page[Team]:
    return page(Team, await tx.rows(queries.list_page, *after(position), limit + 1), limit)


async def update(tx: Transaction, id: UUID, revision: int | None, name: str) -> Team | None:
    return one(Team, await tx.row(queries.update, id, revision, name))


async def usage(tx: Transaction, id: UUID) -> dict[str, int]:
    (row,) = await tx.rows(queries.usage, id)
    return dict(row)


async def delete(tx: Transaction, id: UUID) -> bool:
    return await tx.value(queries.delete, id) is not None
