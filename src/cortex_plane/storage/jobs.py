"""Jobs in SQL."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from cortex_plane.domain.jobs import Job, JobChange, JobKind, JobStatus
from cortex_plane.domain.pages import Page, Position
from cortex_plane.domain.values import parse
from cortex_plane.storage.database import Row, Transaction
from cortex_plane.storage.queries import Queries
from cortex_plane.storage.rows import after, one, page

queries = Queries("jobs")


async def insert(
    tx: Transaction,
    id: UUID,
    session_id: UUID,
    agent_id: UUID,
    payload: dict[str, Any],
    max_retries: int,
    resubmitted_from: UUID | None,
    kind: JobKind,
) -> None:
    await tx.rows(
        queries.insert, tx.org, id, session_id, agent_id, payload, max_retries, resubmitted_from, kind
    )


async def open_conversation(tx: Transaction, session_id: UUID) -> UUID | None:
    id: UUID | None = await tx.value(queries.open_conversation, session_id)
    return id


async def get(tx: Transaction, id: UUID, sees: UUID | None) -> Job | None:
    return one(Job, await tx.row(queries.get, id, sees))


async def lock(tx: Transaction, id: UUID, sees: UUID | None) -> Row | None:
    return await tx.row(queries.lock, id, sees)


async def list_page(
    tx: Transaction,
    position: Position | None,
    limit: int,
    sees: UUID | None,
    status: JobStatus | None,
    session_id: UUID | None,
    agent_id: UUID | None,
) -> Page[Job]:
    rows = await tx.rows(queries.list_page, *after(position), limit + 1, sees, status, session_id, agent_id)
    return page(Job, rows, limit)


async def history(tx: Transaction, id: UUID) -> list[JobChange]:
    return [parse(JobChange, row) for row in await tx.rows(queries.history, id)]


async def cancel(tx: Transaction, id: UUID, reason: str) -> bool:
    return await tx.value(queries.cancel, id, reason) is not None


async def cancel_open(tx: Transaction, session_id: UUID, reason: str) -> list[UUID]:
    """Cancel whatever is open in a session; returns the jobs."""
    return [row["id"] for row in await tx.rows(queries.cancel_open, session_id, reason)]
