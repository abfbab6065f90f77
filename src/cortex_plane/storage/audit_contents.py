"""Rows beside what the audit trail says of them, in SQL: comparing what SQL can compare, and streaming what it cannot."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cortex_plane.domain.audit import RowFault
from cortex_plane.domain.policy_files import PlacedRow
from cortex_plane.storage.database import Row, Transaction
from cortex_plane.storage.policies import placed
from cortex_plane.storage.queries import Queries

queries = Queries("audit_contents")


async def contradictions(tx: Transaction, limit: int) -> list[RowFault]:
    """What contradicts the trail and can be seen in SQL: at most ``limit`` of each kind."""
    compared = (
        queries.policies, queries.atlases, queries.decisions, queries.votes, queries.messages, queries.replies,
    )  # fmt: skip
    return [RowFault(**row) for query in compared for row in await tx.rows(query, limit)]


async def policy_digests(tx: Transaction) -> dict[str, str]:
    """By version, as text."""
    return {row["version"]: row["digest"] for row in await tx.rows(queries.policy_digests)}


async def policy_rows(tx: Transaction) -> AsyncIterator[tuple[int, PlacedRow]]:
    """Version after version, in their order."""
    async for row in tx.stream(queries.policy_rows):
        yield row["version"], placed(row)


def receipts(tx: Transaction) -> AsyncIterator[Row]:
    return tx.stream(queries.receipts)


def results(tx: Transaction) -> AsyncIterator[Row]:
    return tx.stream(queries.results)


def checkpoints(tx: Transaction) -> AsyncIterator[Row]:
    return tx.stream(queries.checkpoints)
