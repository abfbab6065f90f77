"""Events in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.sessions.model.events import GATES, Event

queries = Queries(__file__)


async def list_after(
    tx: Transaction, session_id: UUID, job_id: UUID | None, after: int, limit: int
) -> list[Event]:
    return [_event(row) for row in await tx.rows(queries.list_after, session_id, job_id, after, limit)]


async def latest(tx: Transaction, session_id: UUID) -> int:
    """The number of the session's last event."""
    return int(await tx.value(queries.latest, session_id) or 0)


async def fresh(tx: Transaction, cursors: Mapping[UUID, int], limit: int) -> list[tuple[UUID, Event]]:
    """What is new in these sessions, each with the number that is known; at most ``limit`` of each."""
    rows = await tx.rows(queries.fresh, list(cursors), list(cursors.values()), limit)
    return [(row["session_id"], _event(row)) for row in rows]


async def approvals(tx: Transaction, seconds: float, limit: int) -> list[tuple[UUID, Event]]:
    """What happened to approvals anywhere in the org, lately."""
    return [
        (row["session_id"], _event(row)) for row in await tx.rows(queries.approvals, float(seconds), limit)
    ]


async def of_gates(tx: Transaction, session_id: UUID, job_id: UUID, after: int, limit: int) -> list[Event]:
    """What gates did in a job after number ``after``: the newest of it, in order."""
    rows = await tx.rows(queries.of_gates, tx.org, session_id, after, job_id, sorted(GATES), limit)
    return [_event(row) for row in reversed(rows)]


async def append_chunks(
    db: Database, org_id: UUID, job_id: UUID, worker_id: UUID, epoch: int, step: int, texts: Sequence[str]
) -> bool:
    """False: the job is not this worker's any more, or the step is recorded."""
    rows = await db.call("append_chunks", org_id, job_id, worker_id, epoch, step, list(texts))
    return bool(rows[0]["append_chunks"])


async def void_chunks(db: Database, org_id: UUID, job_id: UUID, epoch: int, step: int) -> None:
    """What an attempt told of a step that it did not finish is void."""
    await db.call("void_chunks", org_id, job_id, epoch, step)


async def drop_chunks(db: Database, org_id: UUID, job_id: UUID, step: int) -> bool:
    """Delete what is durable elsewhere; whether nothing of this step is left."""
    rows = await db.call("drop_chunks", org_id, job_id, step)
    return bool(rows[0]["drop_chunks"])


async def forget_chunks(db: Database, limit: int) -> int:
    """Delete chunks of any org that are an hour old; how many."""
    rows = await db.call("forget_chunks", None, limit)
    return int(rows[0]["forget_chunks"])


def _event(row: Row) -> Event:
    return Event(
        seq=row["seq"],
        type=row["type"],
        job_id=row["job_id"],
        data=row["data"],
        created_at=row["created_at"],
    )
