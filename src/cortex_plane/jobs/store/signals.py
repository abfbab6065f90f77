"""Signals in SQL, and what jobs wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import orjson

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, one, page
from cortex_plane.jobs.model.signals import Signal, SignalDraft, Wait, Waiter
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import parse

queries = Queries(__file__)


@dataclass(frozen=True, slots=True)
class Reached:
    """Jobs that wait for a signal, each locked; ``more``: others wait, too."""

    waiters: list[Waiter]
    more: bool


async def send(
    tx: Transaction, id: UUID, draft: SignalDraft, sender_id: UUID, sent_by: str, limit: int
) -> tuple[UUID, bool, Reached | None]:
    """The signal's id, whether it is new, and whom it reaches; None where another payload was sent before."""
    (row,) = await tx.call(
        "send_signal", tx.org, id, draft.name, draft.key, orjson.dumps(draft.payload).decode(), sender_id, sent_by, limit
    )  # fmt: skip
    return row["id"], row["made"], _reached(row) if row["same"] else None


async def more_waiters(tx: Transaction, id: UUID, limit: int) -> Reached | None:
    """Whoever else waits; None where the signal is forgotten."""
    rows = await tx.call("more_waiters", tx.org, id, limit)
    return _reached(rows[0]) if rows else None


def _reached(row: Row) -> Reached:
    return Reached([parse(Waiter, each) for each in row["waits"]], row["more"])


async def hear(
    tx: Transaction, id: UUID, reached: Reached, told: Sequence[dict[str, str]], bodies: Sequence[bytes]
) -> None:
    """Tell those that were reached, and wake them. ``told`` and ``bodies`` are their events and audit entries."""
    await tx.call(
        "hear_signal", tx.org, id, [each.session_id for each in reached.waiters],
        [each.job_id for each in reached.waiters], [each.entry for each in reached.waiters],
        list(told), list(bodies), reached.more,
    )  # fmt: skip


async def get(tx: Transaction, id: UUID) -> Signal | None:
    return one(Signal, await tx.row(queries.get, id))


async def list_page(
    tx: Transaction,
    position: Position | None,
    limit: int,
    sees: UUID | None,
    name: str | None,
    key: str | None,
) -> Page[Signal]:
    return page(Signal, await tx.rows(queries.list_page, *after(position), limit + 1, sees, name, key), limit)


async def waits(tx: Transaction, job_id: UUID) -> list[Wait]:
    return [parse(Wait, row) for row in await tx.rows(queries.waits, job_id)]


async def find_untold(db: Database, limit: int) -> list[tuple[UUID, UUID]]:
    """Org and id of signals that not everybody was told of."""
    return [(row["org_id"], row["id"]) for row in await db.call("find_untold_signals", None, limit)]


async def forget(db: Database, older: timedelta, limit: int) -> int:
    (row,) = await db.call("forget_signals", None, older, limit)
    gone: int = row["forget_signals"]
    return gone
