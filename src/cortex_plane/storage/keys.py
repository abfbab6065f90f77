"""API keys in SQL. Of a secret only its digest and its last characters are written."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.domain.access import Actor, actor_kind
from cortex_plane.domain.keys import Key, KeyKind, digest
from cortex_plane.domain.members import Role
from cortex_plane.domain.pages import Page, Position
from cortex_plane.domain.values import parse
from cortex_plane.storage.database import Database, Transaction
from cortex_plane.storage.queries import Queries
from cortex_plane.storage.rows import after, one, page

queries = Queries("keys")


async def authenticate(db: Database, secret_hash: bytes, org_slug: str | None) -> Actor | None:
    """Who holds this key. Revoked and expired keys raise with the reason."""
    rows = await db.call("authenticate", None, secret_hash, org_slug)
    if not rows:
        return None
    (row,) = rows
    return Actor(
        org_id=row["org_id"],
        key_id=row["key_id"],
        kind=actor_kind(KeyKind(row["kind"]), acts_elsewhere=row["acts_elsewhere"]),
        name=row["name"],
        roles=frozenset(Role(role) for role in row["roles"]),
        user_account_id=row["user_account_id"],
        clearance=row["clearance"],
        platform=row["platform"],
    )


async def insert(
    tx: Transaction,
    id: UUID,
    name: str,
    kind: KeyKind,
    member_id: UUID | None,
    roles: Sequence[str],
    secret: str,
    expires_in_days: int | None,
    *,
    made_by: UUID | None = None,
    platform: bool = False,
) -> Key:
    """``made_by``: the identity that makes it. Whoever is behind it owns the key."""
    (row,) = await tx.rows(
        queries.insert, tx.org, id, name, kind, member_id, roles, platform, digest(secret), secret[-4:],
        expires_in_days, made_by,
    )  # fmt: skip
    return parse(Key, row)


async def get(tx: Transaction, id: UUID) -> Key | None:
    return one(Key, await tx.row(queries.get, id))


async def list_page(tx: Transaction, position: Position | None, limit: int) -> Page[Key]:
    return page(Key, await tx.rows(queries.list_page, *after(position), limit + 1), limit)


async def revoke(tx: Transaction, id: UUID) -> bool:
    return await tx.value(queries.revoke, id) is not None
