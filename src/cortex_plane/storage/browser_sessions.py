"""Login links and browser sessions in SQL. Of a secret only its digest is written."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from cortex_plane.domain.access import Actor, ActorKind
from cortex_plane.domain.members import Role
from cortex_plane.storage.database import Database, Row, Transaction
from cortex_plane.storage.queries import Queries

queries = Queries("browser_sessions")


async def resolve_link(db: Database, secret_hash: bytes) -> tuple[UUID, UUID] | None:
    """The org and the id of a link."""
    rows = await db.call("resolve_login_link", None, secret_hash)
    return (rows[0]["org_id"], rows[0]["id"]) if rows else None


async def authenticate(db: Database, secret_hash: bytes, idle: timedelta, touch: bool) -> Actor | None:
    rows = await db.call("authenticate_browser", None, secret_hash, idle, touch)
    if not rows:
        return None
    (row,) = rows
    return person(row["org_id"], row["session_id"], row["user_account_id"], row["name"], row)


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
    tx: Transaction, id: UUID, member_id: UUID, secret_hash: bytes, life: timedelta, issued_by: str
) -> datetime:
    expires_at: datetime = await tx.value(
        queries.insert_link, tx.org, id, member_id, secret_hash, life, issued_by
    )
    return expires_at


async def link_holder(tx: Transaction, id: UUID) -> str | None:
    name: str | None = await tx.value(queries.link_holder, id)
    return name


async def use_link(tx: Transaction, id: UUID, session_id: UUID) -> tuple[Actor, UUID, str] | None:
    """Whom it logs in, with their account, and who made it; None where it was used, is too old, or its person is deactivated."""
    row = await tx.row(queries.use_link, id)
    if row is None:
        return None
    actor = person(tx.org, session_id, row["id"], row["display_name"], row)
    return actor, row["id"], row["issued_by"]


async def insert(tx: Transaction, id: UUID, member_id: UUID, secret_hash: bytes, life: timedelta) -> None:
    await tx.rows(queries.insert, tx.org, id, member_id, secret_hash, life)


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


async def end_all(tx: Transaction, member_id: UUID) -> None:
    """Every session and every unused link of a member."""
    await end_sessions(tx, member_id)
    await end_links(tx, member_id)


async def end_sessions(tx: Transaction, member_id: UUID) -> None:
    await tx.rows(queries.end_sessions, member_id)


async def end_links(tx: Transaction, member_id: UUID) -> None:
    await tx.rows(queries.end_links, member_id)
