"""Audit chains in SQL: the tails of every verb, and reading them back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.kernel.values import parse
from cortex_plane.proof.model.audit import AuditEntry, ChainHead, Fact

queries = Queries(__file__)


async def append_to_session(
    tx: Transaction,
    session_id: UUID,
    facts: Sequence[Fact],
    events: Sequence[tuple[str, UUID | None, dict[str, Any]]] = (),
    *,
    job: UUID | None = None,
) -> None:
    """The last statement of a verb on a session: its events and its audit entries; ``job`` is of those that name none."""
    tx.told = tx.told or bool(events)
    await tx.rows(
        queries.append_to_session,
        tx.org,
        session_id,
        [kind for kind, _, _ in events],
        [job for _, job, _ in events],
        [data for _, _, data in events],
        [fact.action for fact in facts],
        [fact.body for fact in facts],
        [fact.job or job for fact in facts],
    )


async def append_to_org(tx: Transaction, *facts: Fact) -> None:
    """The last statement of a verb on the org: its audit entries."""
    await tx.rows(
        queries.append_to_org, tx.org, [fact.action for fact in facts], [fact.body for fact in facts]
    )


async def entries(tx: Transaction, chain_id: UUID, above: int, limit: int) -> list[AuditEntry]:
    return [parse(AuditEntry, row) for row in await tx.rows(queries.entries, chain_id, above, limit)]


async def everything(tx: Transaction, session_id: UUID | None = None) -> AsyncIterator[AuditEntry]:
    """Each entry, chain after chain; with ``session_id`` those of its chain."""
    async for row in tx.stream(queries.everything) if session_id is None else of_session(tx, session_id):
        yield AuditEntry(**row)


def of_session(tx: Transaction, session_id: UUID) -> AsyncIterator[Row]:
    return tx.stream(queries.of_session, session_id)


async def heads(tx: Transaction, session_id: UUID | None = None) -> AsyncIterator[ChainHead]:
    """Where each chain must end, in the same order."""
    async for row in tx.stream(queries.heads) if session_id is None else head_of_session(tx, session_id):
        yield ChainHead(**row)


def head_of_session(tx: Transaction, session_id: UUID) -> AsyncIterator[Row]:
    return tx.stream(queries.head_of_session, session_id)


async def now(tx: Transaction) -> datetime:
    at: datetime = await tx.value(queries.now)
    return at
