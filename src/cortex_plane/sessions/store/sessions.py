"""Sessions in SQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, one, page
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.sessions.model.sessions import Session, SessionKind, SessionStatus
from cortex_plane.tenancy.model.access import Actor

queries = Queries(__file__)


async def insert(
    tx: Transaction,
    id: UUID,
    kind: SessionKind,
    user_account_id: UUID | None,
    agent_id: UUID,
    title: str | None,
    context: dict[str, Any],
    opened_by: Actor,
) -> None:
    await tx.rows(
        queries.insert, tx.org, id, kind, user_account_id, agent_id, title, context, opened_by.key_id, opened_by.identity
    )  # fmt: skip


async def get(tx: Transaction, id: UUID, sees: UUID | None) -> Session | None:
    return one(Session, await tx.row(queries.get, id, sees))


async def lock(tx: Transaction, id: UUID, sees: UUID | None) -> Row | None:
    return await tx.row(queries.lock, id, sees)


async def list_page(
    tx: Transaction,
    position: Position | None,
    limit: int,
    sees: UUID | None,
    member_id: UUID | None,
    status: SessionStatus | None,
    agent_id: UUID | None,
) -> Page[Session]:
    rows = await tx.rows(queries.list_page, *after(position), limit + 1, sees, member_id, status, agent_id)
    return page(Session, rows, limit)


async def update(
    tx: Transaction, id: UUID, title: str | None, context: dict[str, Any] | None, by: Actor
) -> None:
    """Whoever writes the context is a cause of what its jobs ask for."""
    await tx.rows(queries.update, id, title, context, by.identity)


async def set_status(tx: Transaction, id: UUID, status: SessionStatus) -> None:
    await tx.rows(queries.set_status, id, status)


async def hold(tx: Transaction, id: UUID, reason: str) -> bool:
    return await tx.value(queries.hold, id, reason) is not None


async def release(tx: Transaction, id: UUID) -> bool:
    return await tx.value(queries.release, id) is not None


async def idle(db: Database, limit: int) -> list[tuple[UUID, UUID, datetime]]:
    """Sessions that somebody should look at because they may have gone idle, across orgs."""
    return [(r["org_id"], r["id"], r["due"]) for r in await db.call("find_idle_sessions", None, limit)]


async def went_idle(tx: Transaction, id: UUID) -> bool:
    return bool(await tx.value(queries.went_idle, id))


async def count_suspended(db: Database) -> dict[UUID, int]:
    """Across orgs: how many sessions of each have a job that waits for a person; those without any are left out."""
    return {row["org_id"]: row["sessions"] for row in await db.call("count_suspended_sessions", None)}
