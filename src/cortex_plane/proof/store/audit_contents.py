"""Rows beside what the audit trail says of them, in SQL: comparing what SQL can compare, and streaming what it cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import orjson

from cortex_plane.db.database import Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.policies.model.policy_files import PlacedRow, placed
from cortex_plane.proof.model.audit import RowFault

queries = Queries(__file__)


Faults = list[RowFault]


async def policies(tx: Transaction, limit: int) -> Faults:
    return _faults(await tx.rows(queries.policies, limit))


async def atlases(tx: Transaction, limit: int) -> Faults:
    return _faults(await tx.rows(queries.atlases, limit))


async def decisions(tx: Transaction, limit: int) -> Faults:
    return _faults(await tx.rows(queries.decisions, limit))


async def votes(tx: Transaction, limit: int) -> Faults:
    return _faults(await tx.rows(queries.votes, limit))


async def messages(tx: Transaction, limit: int) -> Faults:
    return _faults(await tx.rows(queries.messages, limit))


async def replies(tx: Transaction, limit: int) -> Faults:
    return _faults(await tx.rows(queries.replies, limit))


def _faults(rows: Sequence[Row]) -> Faults:
    return [RowFault(**row) for row in rows]


async def policy_digests(tx: Transaction) -> dict[str, str]:
    """By version, as text."""
    return {row["version"]: row["digest"] for row in await tx.rows(queries.policy_digests)}


async def policy_rows(tx: Transaction) -> AsyncIterator[tuple[str, PlacedRow | None]]:
    """Version after version, in their order; None where a row cannot be read."""
    async for row in tx.stream(queries.policy_rows):
        yield str(row["version"]), _placed(row["row"])


def _placed(row: str) -> PlacedRow | None:
    try:
        return placed(orjson.loads(row))
    except ValueError:
        return None


def receipts(tx: Transaction) -> AsyncIterator[Row]:
    return tx.stream(queries.receipts)


def results(tx: Transaction) -> AsyncIterator[Row]:
    return tx.stream(queries.results)


def checkpoints(tx: Transaction) -> AsyncIterator[Row]:
    return tx.stream(queries.checkpoints)
