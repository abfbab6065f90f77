"""Policies and what simulations read in SQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime

from cortex_plane.db.database import Queries, Row, Transaction, many
from cortex_plane.policies.model.policies import PolicyRow
from cortex_plane.policies.model.versions import PlacedRow, PolicyVersion, placed
from cortex_plane.policies.rules.simulations import PastCall
from cortex_plane.tenancy.model.access import Forged, MacKind, rows_digest
from cortex_plane.tenancy.store import in_force_mac

queries = Queries("policies")


async def current_version(tx: Transaction) -> str | None:
    """The org's and the platform's, as `policies_version` writes them."""
    version: str | None = await tx.value(queries.current_version, tx.org)
    return version


@dataclass(frozen=True, slots=True)
class InForce:
    version: int
    newest: int
    """The highest version that there is. Another one is in force only where somebody put it there by hand."""
    true: bool
    """The plane itself put it in force, with the rows that it has."""
    asks: bool = False
    """The org wants a second person to approve changes of its policies."""


async def lock_policy_version(tx: Transaction) -> InForce | None:
    """The org's version; nobody changes it before this transaction ends."""
    row = await tx.row(queries.lock_policy_version, tx.org)
    if row is None:
        return None
    try:
        if await policies_in_force(tx):
            await require_true_rows(tx, row["policy_version"])
        true = True
    except Forged:
        true = False
    return InForce(row["policy_version"], max(row["newest"], row["policy_version"]), true, row["asks"])


async def sign_policy_version(tx: Transaction, version: int) -> None:
    """Its MAC, over its rows as they are read back."""
    written = _version_fields(tx, version, await tx.rows(queries.list_rows, version, None))
    await tx.rows(queries.sign_policy_version, version, tx.credential_key.mac(MacKind.POLICY_VERSION, written))


def _version_fields(tx: Transaction, version: int, rows: Sequence[Row]) -> Row:
    return {"org_id": tx.org, "version": version, "rows_digest": rows_digest(rows)}


async def set_policy_version(tx: Transaction, version: int) -> None:
    await tx.rows(queries.set_policy_version, tx.org, version, in_force_mac(tx, version))


async def policies_in_force(tx: Transaction) -> int | None:
    """The org's version. Raises ``Forged`` where somebody else than the plane put it in force."""
    row = await tx.row(queries.policies_in_force, tx.org)
    if row is None:
        return None
    if not tx.credential_key.is_true(MacKind.POLICY_IN_FORCE, row, row["policy_mac"]):
        raise Forged(MacKind.POLICY_IN_FORCE, tx.org, str(row["policy_version"]))
    version: int = row["policy_version"]
    return version


async def require_true_rows(tx: Transaction, version: int) -> list[PlacedRow]:
    """As ``rows``. Raises ``Forged`` where they are not those that were applied."""
    try:
        rows = await tx.rows(queries.list_rows, version, None)
    except ValueError:  # JSON that nobody can read
        raise Forged(MacKind.POLICY_VERSION, tx.org, str(version)) from None
    written = _version_fields(tx, version, rows)
    if not tx.credential_key.is_true(MacKind.POLICY_VERSION, written, await tx.value(queries.version_mac, version)):
        raise Forged(MacKind.POLICY_VERSION, tx.org, str(version))
    return [placed(row) for row in rows]


async def list_rows(tx: Transaction, version: int, limit: int | None = None) -> list[PlacedRow]:
    return [placed(row) for row in await tx.rows(queries.list_rows, version, limit)]


async def platform_rows(tx: Transaction) -> list[PolicyRow]:
    return many(PolicyRow, await tx.rows(queries.platform_rows))


async def list_policy_versions(tx: Transaction, below: int | None, limit: int) -> list[PolicyVersion]:
    return many(PolicyVersion, await tx.rows(queries.list_policy_versions, below, limit))


async def list_past_calls(
    tx: Transaction, since: datetime, until: datetime, limit: int, batch: int
) -> AsyncGenerator[list[PastCall], None]:
    """Newest first, a few at a time: arguments may be large."""
    rows: list[Row] = []
    async for row in tx.stream(queries.list_past_calls, since, until, limit, batch=batch):
        rows.append(row)
        if len(rows) == batch:
            yield many(PastCall, rows)
            rows = []
    if rows:
        yield many(PastCall, rows)
