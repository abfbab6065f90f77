"""Login links and browser sessions in SQL. Of a secret only its lookup is written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, ids, page
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.tenancy.model.access import Actor, ActorKind
from cortex_plane.tenancy.model.browser_sessions import BrowserSession
from cortex_plane.tenancy.model.members import Role
from cortex_plane.tenancy.rules.credential_keys import Kind
from cortex_plane.tenancy.store.credential_keys import ends_after

queries = Queries(__file__)


async def resolve_link(db: Database, secret_hash: bytes) -> tuple[UUID, UUID] | None:
    """The org and the id of a link."""
    rows = await db.call("resolve_login_link", None, db.credential_key.lookup(secret_hash))
    return (rows[0]["org_id"], rows[0]["id"]) if rows else None


async def authenticate(db: Database, secret_hash: bytes, idle: timedelta, touch: bool) -> Actor | None:
    """Raises ``Forged`` where the row of the session is not the plane's."""
    key = db.credential_key
    rows = await db.call("authenticate_browser", None, key.lookup(secret_hash), idle, touch)
    if not rows:
        return None
    (row,) = rows
    key.require(Kind.BROWSER_SESSION, row, row["mac"])
    return person(row["org_id"], row["id"], row["user_account_id"], row["name"], row)


def person(org_id: UUID, session_id: UUID, account: UUID, name: str, row: Row) -> Actor:
    return Actor(
        org_id=org_id,
        key_id=session_id,
        kind=ActorKind.PERSON,
        name=name,
        roles=frozenset(Role(role) for role in row["roles"]),
        user_account_id=account,
        clearance=row["clearance"],
    )


async def insert_link(
    tx: Transaction,
    id: UUID,
    member_id: UUID,
    secret_hash: bytes,
    life: timedelta,
    issued_by: str,
    key_id: UUID | None,
) -> datetime:
    expires_at = await ends_after(tx, life)
    lookup = tx.credential_key.lookup(secret_hash)
    mac = _mac(tx, Kind.LOGIN_LINK, id, member_id, key_id, expires_at, lookup)
    await tx.rows(queries.insert_link, tx.org, id, member_id, lookup, expires_at, issued_by, key_id, mac)
    return expires_at


def _mac(
    tx: Transaction, kind: Kind, id: UUID, member_id: UUID, key_id: UUID | None, expires_at: datetime, lookup: bytes
) -> bytes:  # fmt: skip
    written = {
        "org_id": tx.org, "id": id, "user_account_id": member_id, "key_id": key_id, "expires_at": expires_at,
        "secret_hash": lookup,
    }  # fmt: skip
    return tx.credential_key.mac(kind, written)


async def link_member(tx: Transaction, id: UUID) -> UUID | None:
    """Raises ``Forged`` where the row of the link is not the plane's."""
    row = await tx.row(queries.link_member, id)
    if row is None:
        return None
    tx.credential_key.require(Kind.LOGIN_LINK, row, row["mac"])
    member_id: UUID = row["user_account_id"]
    return member_id


async def link_holder(tx: Transaction, id: UUID) -> str | None:
    """As ``link_member``, by name, while the link works."""
    row = await tx.row(queries.link_holder, id)
    if row is None:
        return None
    tx.credential_key.require(Kind.LOGIN_LINK, row, row["mac"])
    name: str = row["display_name"]
    return name


@dataclass(frozen=True, kw_only=True, slots=True)
class UsedLink:
    """Whom a link logs in, who made it, and with which key."""

    actor: Actor
    issued_by: str
    key_id: UUID | None


async def use_link(tx: Transaction, id: UUID, session_id: UUID) -> UsedLink | None:
    """None where it was used, is too old, its key was revoked or has expired, or its person is deactivated."""
    row = await tx.row(queries.use_link, id)
    if row is None:
        return None
    actor = person(tx.org, session_id, row["id"], row["display_name"], row)
    return UsedLink(actor=actor, issued_by=row["issued_by"], key_id=row["key_id"])


async def insert(
    tx: Transaction,
    id: UUID,
    member_id: UUID,
    secret_hash: bytes,
    life: timedelta,
    key_id: UUID | None = None,
) -> None:
    """``key_id``: the key that it came from, and with which it ends."""
    expires_at = await ends_after(tx, life)
    lookup = tx.credential_key.lookup(secret_hash)
    mac = _mac(tx, Kind.BROWSER_SESSION, id, member_id, key_id, expires_at, lookup)
    await tx.rows(queries.insert, tx.org, id, member_id, lookup, expires_at, key_id, mac)


async def list_page(
    tx: Transaction, member_id: UUID, position: Position | None, limit: int, idle: timedelta
) -> Page[BrowserSession]:
    rows = await tx.rows(queries.list_page, *after(position), limit + 1, member_id, idle)
    return page(BrowserSession, rows, limit)


async def end_one(tx: Transaction, id: UUID, member_id: UUID) -> bool:
    return await tx.value(queries.end_one, id, member_id) is not None


async def end_of_keys(tx: Transaction, key_ids: Sequence[UUID]) -> int:
    """Every session and every unused link that came from these keys; returns how many sessions."""
    await end_links_of_keys(tx, key_ids)
    return len(await tx.rows(queries.end_of_keys, key_ids))


async def end_links_of_keys(tx: Transaction, key_ids: Sequence[UUID]) -> None:
    await tx.rows(queries.end_links_of_keys, key_ids)


async def delete(tx: Transaction, id: UUID) -> bool:
    return await tx.value(queries.delete, id) is not None


async def forget(tx: Transaction, member_id: UUID, idle: timedelta) -> None:
    """Drop what is over anyway."""
    await forget_links(tx, member_id)
    await forget_sessions(tx, member_id, idle)


async def forget_links(tx: Transaction, member_id: UUID) -> None:
    await tx.rows(queries.forget_links, member_id)


async def forget_sessions(tx: Transaction, member_id: UUID, idle: timedelta) -> None:
    await tx.rows(queries.forget_sessions, member_id, idle)


async def end_sessions(tx: Transaction, member_id: UUID, but: UUID | None = None) -> list[UUID]:
    """All of a member's, but the one that they are in; which ones."""
    return ids(await tx.rows(queries.end_sessions, member_id, but))


async def end_links(tx: Transaction, member_id: UUID) -> list[UUID]:
    return ids(await tx.rows(queries.end_links, member_id))
