"""Resolutions in SQL: what an agent was told that it may do, and what it did under it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.tools import Risk
from cortex_plane.calls.model.resolutions import Resolution
from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.kernel.values import adapter, parse

queries = Queries(__file__)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredResolution:
    """A resolution as it was given."""

    id: UUID
    trace_id: UUID
    session_id: UUID
    request: dict[str, Any]
    answer: Resolution | None
    """None where it was forgotten: what was executed under it stays."""
    atlases: list[dict[str, Any]]
    expires_at: datetime
    expired: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Governed:
    """What the permissions of a session depend on."""

    kind: str
    agent: str
    teams: list[UUID]
    skill_config: dict[str, Any]
    policies: str
    request_policies: list[dict[str, Any]] | None
    bound: dict[str, Any] | None
    now: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Published:
    """A tool of an app, as workers published it last."""

    name: str
    digest: str
    read_only: bool
    risk: Risk
    server: str | None


async def insert(
    tx: Transaction, given: Resolution, asker: UUID, goal_hash: bytes | None, request: dict[str, Any],
    atlases: list[dict[str, Any]], now: datetime,
) -> None:  # fmt: skip
    await tx.rows(
        queries.insert, tx.org, given.id, given.trace_id, given.session_id, asker, goal_hash, request,
        adapter(Resolution).dump_python(given, mode="json"), atlases, given.expires_at, now,
    )  # fmt: skip


async def get(tx: Transaction, id: UUID, asker: UUID | None) -> StoredResolution | None:
    """``asker``: only if they asked for it."""
    row = await tx.row(queries.get, id, asker)
    return None if row is None else parse(StoredResolution, row)


async def count_live(tx: Transaction, session_id: UUID, most: int) -> int:
    """How many of a session hold, counted up to so many."""
    return int(await tx.value(queries.count_live, session_id, most))


async def heard(tx: Transaction, session_id: UUID, goal_hash: bytes) -> bool:
    return bool(await tx.value(queries.heard, session_id, goal_hash))


async def under(tx: Transaction, call_id: UUID) -> UUID | None:
    """The resolution that a call was executed under."""
    found: UUID | None = await tx.value(queries.under, call_id)
    return found


async def governed(tx: Transaction, session_id: UUID, sees: UUID | None) -> Governed | None:
    row = await tx.row(queries.governed, session_id, sees)
    return None if row is None else parse(Governed, row)


async def tools(tx: Transaction, app: str) -> list[Published]:
    return [parse(Published, row) for row in await tx.rows(queries.tools, app)]


async def forget(db: Database, unused: timedelta, used: timedelta, limit: int) -> int:
    """Those under which nothing was executed, and the bodies of the others, so long after they expired; across orgs."""
    (row,) = await db.call("forget_resolutions", None, unused, used, limit)
    return int(row["forget_resolutions"])
