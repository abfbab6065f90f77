"""The warm database of the tests themselves: what one test leaves must never reach the next."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.tenancy.verbs import frame
from tests.fixtures import warm_databases
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.servers import TestServer
from tests.fixtures.warm_databases import LeftBehind, WarmDatabase
from tests.fixtures.workers import whole

_IS_NOW = "select plane_now() between now() - interval '1 minute' and now() + interval '1 minute'"


@pytest_asyncio.fixture
async def own(server: TestServer) -> AsyncIterator[WarmDatabase]:
    warm = await WarmDatabase.create(server)
    yield warm
    await warm.drop()


async def test_nothing_of_a_test_is_left_and_the_platform_keeps_its_rows(own: WarmDatabase) -> None:
    admin = await own.admin()
    platform = await admin.fetch("select * from platform_policy order by 1")
    await World.create(await own.database(), "acme")
    await admin.execute("delete from platform_policy")

    assert await own.empty()

    await World.create(await own.database(), "acme")
    assert await admin.fetchval("select count(*) from org") == 1
    assert await admin.fetch("select * from platform_policy order by 1") == platform


async def test_the_clock_goes_again(own: WarmDatabase) -> None:
    admin = await own.admin()
    await Clock.install(admin, datetime(2020, 1, 1, tzinfo=UTC))
    assert await own.empty()
    assert await admin.fetchval(_IS_NOW)

    await admin.execute(
        "create or replace function plane_now() returns timestamptz language sql"
        " return clock_timestamp() + interval '1 hour'"
    )
    assert await own.empty()
    assert await admin.fetchval(_IS_NOW)


async def test_an_org_that_is_put_back_is_as_it_was_made(own: WarmDatabase) -> None:
    admin = await own.admin()
    await own.world(await own.database(), "acme")
    counts = await _counts(admin)
    assert await own.empty()
    assert await admin.fetchval("select count(*) from org") == 0

    before: dict[str, str] = {}
    for _ in range(2):
        world = await own.world(await own.database(), "acme")
        assert await _counts(admin) == counts
        assert (await digests(admin)) == (before or await digests(admin))
        before = await digests(admin)
        assert await whole(world)
        assert (await frame.authenticate_key(world.db, world.service.secret)).org_id == world.org_id
        await own.world(await own.database(), "rival")
        await apply_policies(world.db, world.admin.actor, "policies: []")
        assert await own.empty()


async def test_an_org_is_made_anew_where_a_test_has_a_time_of_its_own(own: WarmDatabase) -> None:
    first = await own.world(await own.database(), "acme")
    assert await own.empty()
    admin = await own.admin()
    await Clock.install(admin, datetime(2020, 1, 1, tzinfo=UTC))
    again = await own.world(await own.database(), "acme")
    assert again.org_id != first.org_id
    assert await admin.fetchval("select created_at from org") == datetime(2020, 1, 1, tzinfo=UTC)


async def _counts(admin: asyncpg.Connection) -> dict[str, int]:
    tables = await admin.fetch(
        "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'"
    )
    return {name: await admin.fetchval(f"select count(*) from {name}") for (name,) in tables}


@pytest.mark.parametrize(
    "change",
    [
        "alter table org add column extra text",
        "create table extra (id integer)",
        "grant select on org to public",
        "drop policy if exists tenant on org; create policy extra on org using (true)",
        "create or replace function extra() returns integer language sql return 1",
        "create index extra on job (status)",
        "alter table org disable trigger all",
    ],
)
async def test_a_changed_schema_serves_no_other_test(own: WarmDatabase, change: str) -> None:
    await (await own.admin()).execute(change)
    assert not await own.empty()


async def test_a_role_that_a_test_took_is_given_back(own: WarmDatabase) -> None:
    admin = await own.admin()
    before = await admin.fetchval("select current_user")
    await admin.execute("set role cortex_scheduler; set search_path = pg_catalog")

    assert await own.empty()

    assert await admin.fetchval("select current_user") == before


async def test_a_connection_that_a_test_left_open_fails_it(own: WarmDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_databases, "LEAVING_SECONDS", 0)
    left = await asyncpg.connect(own.server.app(own.name))
    await left.execute("select 'left open'")
    with pytest.raises(LeftBehind, match="left open"):
        await own.empty()
    await left.close()


async def test_a_connection_that_is_still_in_use_ends_the_database(own: WarmDatabase) -> None:
    db = await own.database()
    connection = await db._pool.acquire()
    assert not await own.empty()
    await db._pool.release(connection)


async def test_after_a_hundred_tests_comes_a_new_one(own: WarmDatabase) -> None:
    own.tests = warm_databases.MOST_TESTS - 1
    assert not await own.empty()
