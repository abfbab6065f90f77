"""Policies in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.db.database import Queries, Row, Transaction
from cortex_plane.kernel.values import parse
from cortex_plane.policies.model.policies import PolicyRow
from cortex_plane.policies.model.policy_files import PlacedRow, PolicyVersion, placed, placed_as_json
from cortex_plane.tenancy.rules import Forged, Kind, rows_digest
from cortex_plane.tenancy.store.orgs import in_force_mac

queries = Queries(__file__)


async def version(tx: Transaction) -> str | None:
    """The org's and the platform's, as `policies_version` writes them."""
    found: str | None = await tx.value(queries.version, tx.org)
    return found


@dataclass(frozen=True, slots=True)
class InForce:
    version: int
    newest: int
    """The highest version that there is. Another one is in force only where somebody put it there by hand."""
    true: bool
    """The plane itself put it in force, with the rows that it has."""


async def lock_version(tx: Transaction) -> InForce | None:
    """The org's version; nobody changes it before this transaction ends."""
    row = await tx.row(queries.lock_version, tx.org)
    if row is None:
        return None
    try:
        if await in_force(tx):
            await true_rows(tx, row["policy_version"])
        true = True
    except Forged:
        true = False
    return InForce(row["policy_version"], max(row["newest"], row["policy_version"]), true)


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
    await sign_version(tx, version)
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


async def sign_version(tx: Transaction, version: int) -> None:
    """Its MAC, over its rows as they are read back."""
    written = _version_fields(tx, version, await tx.rows(queries.rows, version, None))
    await tx.rows(queries.sign_version, version, tx.credential_key.mac(Kind.POLICY_VERSION, written))


def _version_fields(tx: Transaction, version: int, rows: Sequence[Row]) -> Row:
    return {"org_id": tx.org, "version": version, "rows_digest": rows_digest(rows)}


async def set_version(tx: Transaction, version: int) -> None:
    await tx.rows(queries.set_version, tx.org, version, in_force_mac(tx, version))


async def in_force(tx: Transaction) -> int | None:
    """The org's version. Raises ``Forged`` where somebody else than the plane put it in force."""
    row = await tx.row(queries.in_force, tx.org)
    if row is None:
        return None
    if not tx.credential_key.is_true(Kind.POLICY_IN_FORCE, row, row["policy_mac"]):
        raise Forged(Kind.POLICY_IN_FORCE, tx.org, str(row["policy_version"]))
    version: int = row["policy_version"]
    return version


async def version_mac(tx: Transaction, version: int) -> bytes | None:
    mac: bytes | None = await tx.value(queries.version_mac, version)
    return mac


async def true_rows(tx: Transaction, version: int) -> list[PlacedRow]:
    """As ``rows``. Raises ``Forged`` where they are not those that were applied."""
    try:
        kept = await tx.rows(queries.rows, version, None)
    except ValueError:  # JSON that nobody can read
        raise Forged(Kind.POLICY_VERSION, tx.org, str(version)) from None
    written = _version_fields(tx, version, kept)
    if not tx.credential_key.is_true(Kind.POLICY_VERSION, written, await version_mac(tx, version)):
        raise Forged(Kind.POLICY_VERSION, tx.org, str(version))
    return [placed(row) for row in kept]


async def rows(tx: Transaction, version: int, limit: int | None = None) -> list[PlacedRow]:
    return [placed(row) for row in await tx.rows(queries.rows, version, limit)]


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
