"""Workers in SQL."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from cortex_plane.db.database import NOBODY, Database, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.jobs.model.workers import Worker
from cortex_plane.kernel.values import parse

queries = Queries(__file__)


async def register(
    db: Database,
    id: UUID,
    name: str,
    host: str,
    pid: int,
    apps: list[str],
    concurrency: int,
    lease: timedelta,
) -> None:
    await db.call("register_worker", None, id, name, host, pid, apps, concurrency, lease)


async def beat(db: Database, id: UUID, lease: timedelta) -> tuple[datetime, list[UUID]] | None:
    """The new end of the lease and the jobs to stop; None where the worker was forgotten."""
    rows = await db.call("beat", None, id, lease)
    return (rows[0]["expires_at"], rows[0]["cancelled"]) if rows else None


async def stop(db: Database, id: UUID) -> None:
    await db.call("stop_worker", None, id)


async def forget(db: Database) -> None:
    await db.call("forget_workers", None)


async def list_all(db: Database) -> list[Worker]:
    async with db.transaction(NOBODY) as tx:
        return [parse(Worker, row) for row in await tx.rows(queries.list_all)]


async def key_fingerprint(db: Database, mine: bytes) -> bytes:
    """The fingerprint of the master key that this database knows; the first one to ask sets it."""
    async with db.transaction(NOBODY) as tx:
        await remember_key(tx, mine)
        known: bytes = await tx.value(queries.key_fingerprint)
    return known


async def known_key(db: Database) -> bytes | None:
    """The same for whoever only looks: None where no process of a plane has started on it yet."""
    async with db.transaction(NOBODY) as tx:
        known: bytes | None = await tx.value(queries.key_fingerprint)
    return known


async def remember_key(tx: Transaction, mine: bytes) -> None:
    """Two that start at once take turns here, so that both read the same one afterwards."""
    await tx.rows(queries.remember_key, mine)
