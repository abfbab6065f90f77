"""Channel connections and mappings in SQL."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.domain.connections import Connection, Mapping
from cortex_plane.domain.pages import Page, Position
from cortex_plane.domain.values import parse
from cortex_plane.storage.database import Transaction
from cortex_plane.storage.queries import Queries
from cortex_plane.storage.rows import after, one, page

queries = Queries("connections")


async def insert(tx: Transaction, id: UUID, channel_type: str, name: str) -> Connection:
    (row,) = await tx.rows(queries.insert, tx.org, id, channel_type, name)
    return parse(Connection, row)


async def get(tx: Transaction, id: UUID) -> Connection | None:
    return one(Connection, await tx.row(queries.get, id))


async def list_page(tx: Transaction, position: Position | None, limit: int) -> Page[Connection]:
    return page(Connection, await tx.rows(queries.list_page, *after(position), limit + 1), limit)


async def update(
    tx: Transaction, id: UUID, name: str | None, enabled: bool | None, revision: int | None
) -> Connection | None:
    return one(Connection, await tx.row(queries.update, id, name, enabled, revision))


async def mappings(
    tx: Transaction, user_account_id: UUID, position: Position | None, limit: int
) -> Page[Mapping]:
    rows = await tx.rows(queries.mappings, *after(position), limit + 1, user_account_id)
    return page(Mapping, rows, limit)
