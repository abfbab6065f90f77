"""What stewards let run in a minute: counted over all sessions, in the write that sends the calls."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from cortex_plane.db.database import Database
from cortex_plane.gates.rules.effects import minutes_of
from cortex_plane.gates.verbs import atlas_cache, session_lifecycle
from cortex_plane.gates.verbs.atlas_cache import AtlasCache
from cortex_plane.kernel.errors import Conflict
from cortex_plane.sessions.model.sessions import SessionDraft
from tests.fixtures.atlases import ATLAS, manifest, publish, steward
from tests.fixtures.clock import Clock
from tests.fixtures.people import World

START = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
OTHER = "com.acme.billing"


async def count(db: Database, world: World, minutes: dict[str, Any], at: datetime) -> None:
    async with db.transaction(world.org_id) as tx:
        await tx.rows("select count_atlas_minute($1, $2, $3)", world.org_id, minutes, at)


async def counts(admin: asyncpg.Connection) -> dict[str, int]:
    return dict(await admin.fetch("select atlas_id, sum(calls)::integer from atlas_minute group by atlas_id"))


@pytest.mark.proves("D.333", "S5.24")
async def test_the_call_after_the_last_is_refused_until_the_minute_is_over(
    world: World, other: World, admin: asyncpg.Connection
) -> None:
    for _ in range(3):
        await count(world.db, world, {ATLAS: 3}, START)
    with pytest.raises(Conflict) as refused:
        await count(world.db, world, {ATLAS: 3}, START + timedelta(seconds=29))
    assert refused.value.code == "atlas_rate_limited"
    assert "2026-03-01T12:01:00Z" in refused.value.hint
    assert await counts(admin) == {ATLAS: 3}, "what is refused is not counted"
    await count(other.db, other, {ATLAS: 3}, START)
    await count(world.db, world, {OTHER: 1}, START)
    await count(world.db, world, {ATLAS: 3}, START + timedelta(seconds=30))


@pytest.mark.proves("D.333")
async def test_several_calls_of_one_write_count_each_and_all_or_none(world: World, admin: asyncpg.Connection) -> None:
    await count(world.db, world, {ATLAS: {"limit": 5, "calls": 4}}, START)
    with pytest.raises(Conflict):
        await count(world.db, world, {ATLAS: {"limit": 5, "calls": 2}, OTHER: {"limit": 9, "calls": 2}}, START)
    assert await counts(admin) == {ATLAS: 4}
    await count(world.db, world, {ATLAS: {"limit": 5, "calls": 0}}, START)
    await count(world.db, world, {ATLAS: {"limit": 5, "calls": 1}}, START)
    assert await counts(admin) == {ATLAS: 5}


@pytest.mark.proves("D.333")
async def test_many_at_once_are_counted_exactly_and_nobody_waits_for_ever(
    world: World, admin: asyncpg.Connection
) -> None:
    names = [f"com.acme.a{number}" for number in range(4)]
    orders = [names, names[::-1]] * 10
    done = await asyncio.gather(
        *(count(world.db, world, dict.fromkeys(order, 12), START) for order in orders), return_exceptions=True
    )
    refused = [each for each in done if each is not None]
    assert len(refused) == 8
    assert {each.code for each in refused if isinstance(each, Conflict)} == {"atlas_rate_limited"}
    assert await counts(admin) == dict.fromkeys(names, 12)


@pytest.mark.proves("D.333")
async def test_a_write_counts_what_its_atlases_limit(world: World, admin: asyncpg.Connection) -> None:
    limited = steward(access={"type": "authenticated", "rate_limit": {"requests_per_minute": 2}})
    one = (await publish(world, manifest(steward=limited))).version
    two = (await publish(world, manifest(atlas_id=OTHER))).version
    pins = [{"atlas_id": v.atlas_id, "version": v.version, "digest": v.digest} for v in (one, two)]
    governing = await AtlasCache().at(world.db, world.org_id, pins)
    assert minutes_of(governing, 2) == {ATLAS: {"limit": 2, "calls": 2}}
    session = await session_lifecycle.create(
        world.db, world.admin.actor, SessionDraft(agent="deployer", atlases=[ATLAS])
    )

    async def write(revision: int, calls: int) -> None:
        gates = {"revision": revision, "state": {"executed": 1}, "minutes": minutes_of(governing, calls)}
        async with world.db.transaction(world.org_id) as tx:
            await tx.rows("select record_gates($1, $2, $3, $4)", world.org_id, session.id, gates, START)

    await write(0, 2)
    with pytest.raises(Conflict, match="2 calls run in a minute"):
        await write(1, 1)
    assert await admin.fetchval("select revision from session_gates") == 1, "nothing of the write happened"
    with pytest.raises(Conflict) as stale:
        await write(7, 0)
    assert stale.value.code == "gates_changed"
    assert await counts(admin) == {ATLAS: 2}


@pytest.mark.proves("D.334")
async def test_minutes_that_are_over_are_forgotten(world: World, other: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, START)
    for each in (world, other):
        await count(each.db, each, {ATLAS: 9}, START)
    await clock.advance(timedelta(minutes=50))
    await atlas_cache.forget_minutes(world.db)
    assert await counts(admin) == {ATLAS: 2}
    await count(world.db, world, {ATLAS: 9}, START + timedelta(minutes=50))
    await clock.advance(timedelta(minutes=20))
    await atlas_cache.forget_minutes(world.db)
    assert await admin.fetchval("select count(*) from atlas_minute") == 1
