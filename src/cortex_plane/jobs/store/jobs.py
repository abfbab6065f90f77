"""Jobs in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, one, page
from cortex_plane.jobs.model.jobs import Hold, Job, JobChange, JobKind, JobStatus
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import parse
from cortex_plane.policies.model.policies import PolicyRow
from cortex_plane.policies.model.policy_files import row_as_json

queries = Queries(__file__)


async def insert(
    tx: Transaction,
    id: UUID,
    session_id: UUID,
    agent_id: UUID,
    payload: dict[str, Any],
    max_retries: int,
    resubmitted_from: UUID | None,
    kind: JobKind,
    caused_by: UUID | None,
    submitted_by: UUID,
    policies: Sequence[PolicyRow] = (),
) -> None:
    await tx.rows(
        queries.insert,
        tx.org,
        id,
        session_id,
        agent_id,
        payload,
        max_retries,
        resubmitted_from,
        kind,
        caused_by,
        [row_as_json(row) for row in policies] or None,
        submitted_by,
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
    """Ends what no worker runs; False where one does, or where it has ended."""
    return await tx.value(queries.cancel, id, reason) is not None


async def request_cancel(tx: Transaction, id: UUID, reason: str) -> bool:
    """Asks the worker that runs it to stop; False where that was asked before."""
    return await tx.value(queries.request_cancel, id, reason) is not None


async def hold(tx: Transaction, id: UUID, hold: Hold) -> bool | None:
    """None: it stood already. True: nobody runs the job, so it can be paused now."""
    pause_now: bool | None = await tx.value(queries.hold, id, hold)
    return pause_now


async def pause(tx: Transaction, id: UUID) -> None:
    await tx.rows(queries.pause, id)


async def lift(tx: Transaction, id: UUID, holds: Sequence[Hold]) -> bool:
    return await tx.value(queries.lift, id, list(holds)) is not None


async def wake(tx: Transaction, id: UUID, holds: Sequence[Hold]) -> str | None:
    """The status that a paused job has now; None where none of these held it."""
    status: str | None = await tx.value(queries.wake, id, list(holds))
    return status


async def fail(tx: Transaction, id: UUID, error: str) -> bool:
    return await tx.value(queries.fail, id, error) is not None


async def lock_open(tx: Transaction, session_id: UUID) -> list[UUID]:
    """The open jobs of a session, locked in one order."""
    return [row["id"] for row in await tx.rows(queries.lock_open, session_id)]


async def checkpoint(tx: Transaction, id: UUID) -> dict[str, Any] | None:
    found: dict[str, Any] | None = await tx.value(queries.checkpoint, id)
    return found


async def cancel_open(tx: Transaction, session_id: UUID, reason: str) -> list[UUID]:
    """Cancel whatever is open in a session; returns the jobs."""
    return [row["id"] for row in await tx.rows(queries.cancel_open, session_id, reason)]
