"""A new plane gets statistics within seconds: until it has some, the planner takes any index that begins with the org."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from cortex_plane.db.database import Database
from cortex_plane.kernel.ids import new_id
from cortex_plane.worker.scheduler import CHORES, Chore, Scheduler, gather_statistics, in_background
from tests.fixtures.people import World

ROWS = 400
_TEAMS = "insert into team (org_id, id, slug, name) select $1, id, 'team-' || n, 'Team' from unnest($2::uuid[]) with ordinality t (id, n)"
_KNOWN = "select reltuples from pg_class where relname = 'team'"


async def add_teams(admin: asyncpg.Connection, world: World, count: int = ROWS) -> None:
    await admin.execute(_TEAMS, world.org_id, [new_id() for _ in range(count)])
    await count_rows(admin)


async def count_rows(admin: asyncpg.Connection) -> None:
    """The server counts rows that were written a moment later otherwise."""
    await admin.execute("select pg_stat_force_next_flush()")
    await admin.fetchval("select 1")


async def analyzed(db: Database) -> int:
    (row,) = await db.call("analyze_grown_tables", None)
    count: int = row["analyze_grown_tables"]
    return count


@pytest.mark.proves("D.640")
@pytest.mark.fresh_database
async def test_a_table_that_grew_is_analyzed_once(world: World, admin: asyncpg.Connection) -> None:
    while await analyzed(world.db):
        pass
    assert await admin.fetchval(_KNOWN) < ROWS
    await add_teams(admin, world)
    assert await analyzed(world.db) == 1
    assert await admin.fetchval(_KNOWN) >= ROWS
    assert await analyzed(world.db) == 0
    found = "explain (format json) select from team where org_id = $1 and id = $2"
    assert "team_pkey" in await admin.fetchval(found, world.org_id, new_id())


@pytest.mark.fresh_database
async def test_a_table_that_somebody_changes_is_left_for_the_next_look(world: World, admin: asyncpg.Connection) -> None:
    while await analyzed(world.db):
        pass
    await add_teams(admin, world)
    async with admin.transaction():
        await admin.execute("lock table team in share update exclusive mode")
        assert await analyzed(world.db) == 0
    assert await analyzed(world.db) == 1


@pytest.mark.fresh_database
async def test_a_scheduler_gathers_them(world: World, admin: asyncpg.Connection) -> None:
    await add_teams(admin, world)
    assert gather_statistics.__name__ in {chore.verb.rpartition(":")[2] for chore in CHORES}
    soon = Chore("statistics", 0.01, "worker.scheduler:gather_statistics")
    async with in_background(Scheduler(world.db, poll_seconds=0.01, chores=[soon]).run()), asyncio.timeout(20):
        while await admin.fetchval(_KNOWN) < ROWS:  # noqa: ASYNC110 -- the scheduler tells nobody
            await asyncio.sleep(0.01)
