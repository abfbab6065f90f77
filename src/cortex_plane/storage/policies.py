"""Policies in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.domain.policies import Level, PolicyRow
from cortex_plane.domain.policy_files import PlacedRow, PolicyVersion, placed_as_json
from cortex_plane.domain.values import parse
from cortex_plane.storage.database import Row, Transaction
from cortex_plane.storage.queries import Queries

queries = Queries("policies")


async def version(tx: Transaction) -> str | None:
    """The org's and the platform's, as `policies_version` writes them."""
    found: str | None = await tx.value(queries.version, tx.org)
    return found


async def lock_version(tx: Transaction) -> int | None:
    """The org's version; nobody changes it before this transaction ends."""
    found: int | None = await tx.value(queries.lock_version, tx.org)
    return found


async def insert(
    tx: Transaction,
    version: int,
    rows: Sequence[PlacedRow],
    source: str,
    digest: str,
    note: str | None,
    applied_by: str,
    applied_by_id: UUID | None,
) -> None:
    """A new version with its rows, which hold from now on."""
    await insert_version(tx, version, source, digest, len(rows), note, applied_by, applied_by_id)
    await insert_rows(tx, version, rows)
    await set_version(tx, version)


async def insert_version(
    tx: Transaction,
    version: int,
    source: str,
    digest: str,
    count: int,
    note: str | None,
    applied_by: str,
    applied_by_id: UUID | None,
) -> None:
    await tx.rows(
        queries.insert_version, tx.org, version, source, digest, count, note, applied_by, applied_by_id
    )


async def insert_rows(tx: Transaction, version: int, rows: Sequence[PlacedRow]) -> None:
    await tx.rows(queries.insert_rows, tx.org, version, [placed_as_json(placed) for placed in rows])


async def set_version(tx: Transaction, version: int) -> None:
    await tx.rows(queries.set_version, tx.org, version)


async def rows(tx: Transaction, version: int, limit: int | None = None) -> list[PlacedRow]:
    return [placed(row) for row in await tx.rows(queries.rows, version, limit)]


def placed(row: Row) -> PlacedRow:
    return PlacedRow(
        level=Level(row["level"]),
        team_id=row["team_id"],
        team=row["team"],
        position=row["position"],
        row=parse(PolicyRow, row),
    )


async def platform_rows(tx: Transaction) -> list[PolicyRow]:
    return [parse(PolicyRow, row) for row in await tx.rows(queries.platform_rows)]


async def get_version(tx: Transaction, version: int) -> Row | None:
    return await tx.row(queries.get_version, version)


async def list_versions(tx: Transaction, below: int | None, limit: int) -> list[PolicyVersion]:
    return [parse(PolicyVersion, row) for row in await tx.rows(queries.list_versions, below, limit)]


async def people(tx: Transaction) -> Sequence[Row]:
    """Whoever could decide something at all."""
    return await tx.rows(queries.people)


async def deciding_members(tx: Transaction, ids: Sequence[UUID]) -> set[UUID]:
    """Those of them who are active members, and no guests."""
    return {row["id"] for row in await tx.rows(queries.deciding_members, list(ids))}
