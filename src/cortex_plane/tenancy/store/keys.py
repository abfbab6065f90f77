"""API keys in SQL. Of a secret only its lookup and its last characters are written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, one, page
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import parse
from cortex_plane.tenancy.model.access import Actor, Permission, actor_kind
from cortex_plane.tenancy.model.keys import Key, KeyKind, digest
from cortex_plane.tenancy.model.members import Role
from cortex_plane.tenancy.rules.credential_keys import Kind
from cortex_plane.tenancy.store.credential_keys import ends_after

queries = Queries(__file__)


async def authenticate(db: Database, secret_hash: bytes, org_slug: str | None) -> Actor | None:
    """Who holds this key. Revoked and expired keys raise with the reason; raises ``Forged`` where its row is not the plane's."""
    key = db.credential_key
    lookup = key.lookup(secret_hash)
    rows = await db.call("authenticate", None, lookup, org_slug)
    if not rows:
        return None
    (row,) = rows
    written = {
        "org_id": row["home_id"],
        "id": row["key_id"],
        "user_account_id": row["holder_id"],
        "kind": row["kind"],
        "roles": row["own_roles"],
        "permissions": row["permissions"],
        "platform": row["own_platform"],
        "expires_at": row["expires_at"],
        "secret_hash": lookup,
    }
    key.require(Kind.KEY, written, row["mac"])
    return Actor(
        org_id=row["org_id"],
        key_id=row["key_id"],
        kind=actor_kind(KeyKind(row["kind"]), acts_elsewhere=row["acts_elsewhere"]),
        name=row["name"],
        roles=frozenset(Role(role) for role in row["roles"]),
        user_account_id=row["user_account_id"],
        clearance=row["clearance"],
        platform=row["platform"],
        granted=frozenset(Permission(name) for name in row["permissions"]),
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
    made_with: UUID | None = None,
    permissions: Sequence[str] = (),
) -> Key:
    """``made_by``: the identity that makes it. Whoever is behind it owns the key."""
    expires_at = None if expires_in_days is None else await ends_after(tx, timedelta(days=expires_in_days))
    lookup = tx.credential_key.lookup(digest(secret))
    written = {
        "org_id": tx.org, "id": id, "user_account_id": member_id, "kind": kind, "roles": list(roles),
        "permissions": list(permissions), "platform": platform, "expires_at": expires_at, "secret_hash": lookup,
    }  # fmt: skip
    (row,) = await tx.rows(
        queries.insert, tx.org, id, name, kind, member_id, roles, platform, lookup, secret[-4:],
        expires_at, made_with, list(permissions), made_by, tx.credential_key.mac(Kind.KEY, written),
    )  # fmt: skip
    return parse(Key, row)


async def get(tx: Transaction, id: UUID) -> Key | None:
    return one(Key, await tx.row(queries.get, id))


async def list_page(
    tx: Transaction, position: Position | None, limit: int, member_id: UUID | None = None
) -> Page[Key]:
    rows = await tx.rows(queries.list_page, *after(position), limit + 1, member_id)
    return page(Key, rows, limit)


async def revoke(tx: Transaction, id: UUID) -> list[UUID]:
    """Which keys ended: it, and those that were made with it."""
    return [row["id"] for row in await tx.rows(queries.revoke, id)]


async def revoke_all(tx: Transaction, member_id: UUID) -> list[UUID]:
    return [row["id"] for row in await tx.rows(queries.revoke_all, member_id)]


async def maker(tx: Transaction, id: UUID) -> UUID | None:
    """The member who made a service's key."""
    member_id: UUID | None = await tx.value(queries.maker, id)
    return member_id


async def origin(tx: Transaction, credential_id: UUID) -> tuple[UUID | None, bool] | None:
    """The key behind a key or a browser session, and whether it works; None where there is no such credential."""
    row = await tx.row(queries.origin, credential_id)
    return None if row is None else (row["key_id"], row["works"])
