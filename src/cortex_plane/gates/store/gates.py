"""What the gates of sessions remember, in SQL."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Queries, Transaction

queries = Queries(__file__)


async def bound(tx: Transaction, session_id: UUID) -> tuple[dict[str, Any] | None, datetime]:
    """The atlases of a session with the state of its gates, None where it has none; and the time."""
    (row,) = await tx.rows(queries.bound, tx.org, session_id)
    return row["bound"], row["now"]


async def lock(tx: Transaction, session_id: UUID) -> None:
    """For a verb that has the lock of one of the session's jobs, before it tells anything: nobody overtakes it."""
    await tx.rows(queries.lock, tx.org, session_id)


async def record(tx: Transaction, session_id: UUID, gates: dict[str, Any]) -> None:
    """Under the lock of the session's job; a conflict where somebody else wrote since they were read."""
    await tx.rows(queries.record, tx.org, session_id, gates)
