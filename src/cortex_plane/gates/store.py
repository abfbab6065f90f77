"""Atlases and the gate state of sessions in SQL."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Queries, Row, Transaction, many, one
from cortex_plane.gates.model.atlases import AtlasSummary, NumberedVersion
from cortex_plane.gates.model.gates import OF_THE_PLANE
from cortex_plane.gates.rules.replays import GovernedCall
from cortex_plane.tenancy.model.access import Actor, Forged, MacKind

queries = Queries("gates")
CALLS_AT_ONCE = 100


async def sign_atlas_version(tx: Transaction, version: NumberedVersion) -> None:
    """Its MAC, as it stands: published, or retired."""
    written = {
        "org_id": tx.org, "atlas_id": version.atlas_id, "version": version.version, "number": version.number,
        "digest": version.digest, "access": version.access, "api_keys": version.api_keys,
        "retired": version.retired_at is not None,
    }  # fmt: skip
    mac = tx.credential_key.mac(MacKind.ATLAS_VERSION, written)
    await tx.rows(queries.sign_atlas_version, version.atlas_id, version.version, mac)


async def require_true_atlas(tx: Transaction, atlas_id: str, version: str) -> None:
    """Raises ``Forged`` where this version was not published by the plane, or a newer one not retired by it."""
    for row in await tx.rows(queries.require_true_atlas, atlas_id, version):
        if not tx.credential_key.is_true(MacKind.ATLAS_VERSION, row, row["mac"]):
            raise Forged(MacKind.ATLAS_VERSION, tx.org, f"{atlas_id} {row['version']}")


async def get_atlas(tx: Transaction, atlas_id: str) -> AtlasSummary | None:
    return one(AtlasSummary, await tx.row(queries.get_atlas, atlas_id))


async def list_atlases(tx: Transaction, above: str | None, limit: int) -> list[AtlasSummary]:
    return many(AtlasSummary, await tx.rows(queries.list_atlases, above, limit))


@dataclass(frozen=True, kw_only=True, slots=True)
class Ownership:
    """Whose an atlas is, as far as somebody's new version is concerned."""

    is_own: bool
    """It is theirs or their team's, or there is no such atlas yet."""
    stewards: list[UUID]
    """The members who say yes to somebody else's version, beside admins."""


async def get_ownership(tx: Transaction, atlas_id: str, actor: Actor) -> Ownership:
    row = one(Ownership, await tx.row(queries.get_ownership, tx.org, atlas_id, actor.identity))
    return row or Ownership(is_own=True, stewards=[])


async def list_governed_calls(
    tx: Transaction, atlas_id: str, since: datetime, until: datetime, limit: int
) -> AsyncGenerator[list[GovernedCall], None]:
    """The calls of sessions that are bound to an atlas, newest first, a few at a time."""
    rows: list[Row] = []
    values = (atlas_id, since, until, limit, sorted(OF_THE_PLANE))
    async for row in tx.stream(queries.list_governed_calls, *values, batch=CALLS_AT_ONCE):
        rows.append(row)
        if len(rows) == CALLS_AT_ONCE:
            yield many(GovernedCall, rows)
            rows = []
    if rows:
        yield many(GovernedCall, rows)


async def get_atlas_version(tx: Transaction, atlas_id: str, version: str) -> NumberedVersion | None:
    return one(NumberedVersion, await tx.row(queries.get_atlas_version, atlas_id, version))


async def capabilities_without_holder(tx: Transaction, atlas_ids: Sequence[str]) -> list[str]:
    """Those of which no version holds."""
    return [atlas_ids[row["place"] - 1] for row in await tx.rows(queries.capabilities_without_holder, list(atlas_ids))]


async def unmatched_keys(tx: Transaction, globs: Sequence[str]) -> list[str]:
    """Those that no key fits which works today."""
    return [globs[row["place"] - 1] for row in await tx.rows(queries.unmatched_keys, list(globs))]


async def missing_webhooks(tx: Transaction, names: Sequence[str]) -> list[str]:
    """Those that no enabled webhook connection has."""
    return [names[row["place"] - 1] for row in await tx.rows(queries.missing_webhooks, list(names))]


async def bind_atlases(tx: Transaction, session_id: UUID, atlas_ids: Sequence[str], *, by_caller: bool) -> None:
    """To the newest version of each that holds; what the session is bound to already stays as it is. ``by_caller``:
    somebody who writes no atlases chose them."""
    await tx.rows(queries.bind_atlases, tx.org, session_id, list(atlas_ids), by_caller)


async def bound_atlas_ids(tx: Transaction, session_id: UUID) -> list[str]:
    return [row["atlas_id"] for row in await tx.rows(queries.bound_atlas_ids, session_id)]


async def forget_atlas_minutes(db: Database, older: timedelta, limit: int) -> int:
    """Delete minutes of any org that were over longer ago than that; how many."""
    rows = await db.call("forget_atlas_minutes", None, older, limit)
    return int(rows[0]["forget_atlas_minutes"])


async def bound_atlases(tx: Transaction, session_id: UUID) -> tuple[dict[str, Any] | None, datetime]:
    """The atlases of a session with the state of its gates, None where it has none; and the time."""
    (row,) = await tx.rows(queries.bound_atlases, tx.org, session_id)
    return row["bound"], row["now"]


async def record_gates(tx: Transaction, session_id: UUID, gates: dict[str, Any]) -> None:
    """Under the lock of the session's job; a conflict where somebody else wrote since they were read."""
    await tx.rows(queries.record_gates, tx.org, session_id, gates)
