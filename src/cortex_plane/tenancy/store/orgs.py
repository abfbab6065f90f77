"""Orgs in SQL."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, one, page
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import parse
from cortex_plane.tenancy.model.orgs import Org
from cortex_plane.tenancy.rules.credential_keys import Kind

queries = Queries(__file__)


async def insert(tx: Transaction, id: UUID, slug: str, name: str, settings: dict[str, Any]) -> Org:
    (row,) = await tx.rows(queries.insert, id, slug, name, settings, in_force_mac(tx, 0))
    return parse(Org, row)


async def get(tx: Transaction) -> Org | None:
    """The org of the transaction: the only one that it can see."""
    return one(Org, await tx.row(queries.get))


async def update(
    tx: Transaction, revision: int | None, name: str | None, settings: dict[str, Any] | None
) -> Org | None:
    return one(Org, await tx.row(queries.update, revision, name, settings))


async def list_all(db: Database, position: Position | None, limit: int) -> Page[Org]:
    """Across orgs, for platform keys: the one list that no transaction of an org can give."""
    return page(Org, await db.call("list_orgs", None, *after(position), limit + 1), limit)


def in_force_mac(tx: Transaction, version: int) -> bytes:
    return tx.credential_key.mac(Kind.POLICY_IN_FORCE, {"org_id": tx.org, "policy_version": version})
