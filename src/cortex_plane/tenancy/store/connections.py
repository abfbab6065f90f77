"""Channel connections and mappings in SQL. Secrets are sealed before they get here."""

from __future__ import annotations

from collections.abc import Mapping as Dict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, one, page
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import parse
from cortex_plane.tenancy.model.connections import Connection, Mapping
from cortex_plane.tenancy.rules.credential_keys import Kind

queries = Queries(__file__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Sealed:
    """A connection with what opens its messages, as of a moment."""

    id: UUID
    channel_type: str
    name: str
    config: dict[str, Any]
    sealed: bytes | None
    disabled_at: datetime | None
    now: datetime


def seal(vault: Vault, org_id: UUID, id: UUID, secrets: Dict[str, str]) -> bytes:
    return vault.seal(org_id, f"connection/{id}", orjson.dumps(dict(secrets)))


def opened(vault: Vault, org_id: UUID, id: UUID, sealed: bytes | None) -> dict[str, str]:
    """The secrets of a connection; none where it has none."""
    if sealed is None:
        return {}
    secrets: dict[str, str] = orjson.loads(vault.open(org_id, f"connection/{id}", sealed))
    return secrets


async def insert(
    tx: Transaction,
    id: UUID,
    channel_type: str,
    name: str,
    config: dict[str, Any] | None = None,
    sealed: bytes | None = None,
) -> Connection:
    (row,) = await tx.rows(queries.insert, tx.org, id, channel_type, name, config or {}, sealed)
    return parse(Connection, row)


async def get(tx: Transaction, id: UUID) -> Connection | None:
    return one(Connection, await tx.row(queries.get, id))


async def list_page(tx: Transaction, position: Position | None, limit: int) -> Page[Connection]:
    return page(Connection, await tx.rows(queries.list_page, *after(position), limit + 1), limit)


async def update(
    tx: Transaction,
    id: UUID,
    name: str | None,
    enabled: bool | None,
    revision: int | None,
    url: str | None = None,
) -> Connection | None:
    return one(Connection, await tx.row(queries.update, id, name, enabled, revision, url))


async def sealed(tx: Transaction, id: UUID) -> Sealed | None:
    return one(Sealed, await tx.row(queries.sealed, id))


async def named(tx: Transaction, name: str) -> Sealed | None:
    """By its name or its id; where several have the name, the webhook."""
    return one(Sealed, await tx.row(queries.named, name))


async def lock(tx: Transaction, id: UUID) -> Sealed | None:
    """As ``sealed``, for whoever is about to change it."""
    return one(Sealed, await tx.row(queries.lock, id))


async def add_set_up(tx: Transaction, id: UUID, by: UUID) -> None:
    """They set its secret, or said whose a name behind it is: votes through it count with theirs as one."""
    await tx.rows(queries.add_set_up, id, by)


async def reseal(tx: Transaction, id: UUID, sealed: bytes) -> None:
    await tx.rows(queries.reseal, id, sealed)


async def mappings(
    tx: Transaction, user_account_id: UUID, position: Position | None, limit: int
) -> Page[Mapping]:
    rows = await tx.rows(queries.mappings, *after(position), limit + 1, user_account_id)
    return page(Mapping, rows, limit)


async def verified_mapping(tx: Transaction, connection_id: UUID, channel_user_id: str) -> Mapping | None:
    """Whose this name is on this connection. Raises ``Forged`` where the row that says so is not the plane's."""
    row = await tx.row(queries.verified_mapping, connection_id, channel_user_id)
    if row is not None:
        tx.credential_key.require(Kind.MAPPING, row, row["mac"])
    return one(Mapping, row)


async def find_failing(
    db: Database, channel_type: str, longer: timedelta, limit: int
) -> list[tuple[UUID, UUID]]:
    """Org and id of connections in any org to which nothing has got through for so long."""
    rows = await db.call("find_failing_connections", None, channel_type, longer, limit)
    return [(row["org_id"], row["id"]) for row in rows]


async def give_up(tx: Transaction, id: UUID, reason: str, longer: timedelta) -> Row | None:
    """Disable it, unless something has got through or somebody disabled it meanwhile."""
    return await tx.row(queries.give_up, id, reason, longer)
