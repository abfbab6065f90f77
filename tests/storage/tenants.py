"""Rows of an org in every table, and ways to look at them from inside and from behind row-level security."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg

from cortex_plane.domain.idempotency import Once
from cortex_plane.domain.jobs import JobDraft
from cortex_plane.operations import jobs
from tests.people import World

NOT_A_TENANTS = "schema_migration"


async def populate(world: World) -> None:
    """At least one row in every table of the org."""
    await world.say("Hello")
    once = Once(key=f"{world.org_id}", fingerprint=bytes(32))
    await jobs.submit(world.db, world.admin.actor, JobDraft(agent=world.agent.slug), once)


async def tables(admin: asyncpg.Connection, *, partitions: bool = False) -> list[str]:
    """The tenants' tables; partitions are left out, because their parents show the same rows."""
    rows = await admin.fetch(
        """
        select relname::text from pg_class
        where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and relname <> $1
          and ($2 or not relispartition)
        order by relname
        """,
        NOT_A_TENANTS,
        partitions,
    )
    return [row["relname"] for row in rows]


def org_column(table: str) -> str:
    return "id" if table == "org" else "org_id"


async def digest(admin: asyncpg.Connection, names: list[str], org: UUID | None = None) -> dict[str, str]:
    """One text per table that changes with every write to a row of the org (of any org without one)."""
    parts = [
        f"""
        select '{name}' as name, coalesce(md5(string_agg(t.xmin::text || t::text, ',' order by t::text)), 'empty')
        from {name} t where $1::uuid is null or {org_column(name)} = $1
        """
        for name in names
    ]
    return dict(await admin.fetch(" union all ".join(parts), org))


@asynccontextmanager
async def inside(connection: asyncpg.Connection, org: UUID) -> AsyncIterator[asyncpg.Connection]:
    """A transaction of the org, as the plane opens them."""
    async with connection.transaction():
        await connection.execute("select set_config('app.org_id', $1, true)", str(org))
        yield connection
