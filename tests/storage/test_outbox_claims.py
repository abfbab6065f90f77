"""Who takes which messages: orgs in turn, lanes whole, nothing overtaken, and nothing paid for what is not due."""

from __future__ import annotations

import json
from collections import Counter
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.db.database import NOBODY, Database
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.store import Lane
from cortex_plane.notify.verbs import outbox
from tests.channels.postbox import connect
from tests.fixtures.clock import Clock
from tests.fixtures.people import World

SEED = """
with person as (
  insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id)
  values ($1, $2, $3, $4, 'email', $5) returning id)
insert into notification (org_id, id, kind, connection_id, channel_type, mapping_id, user_account_id, address, status,
  rendered_version, next_attempt_at, created_at)
select $1, gen_random_uuid(), 'invitation', $3, 'email', p.id, $4, $5, case when $8 then 'delivered' else 'pending' end,
  $8::integer, case when not $8 then plane_now() + $7::interval end, plane_now()
from person p, generate_series(1, $6::integer) n order by n
"""
CLAIM = "select * from claim_notifications(gen_random_uuid(), '{email}', $1, '{}', 8, 8, 20, interval '60 s')"
BURST = """
with place as (
  insert into channel_connection (org_id, id, channel_type, name) values ($1, gen_random_uuid(), 'telegram', 'crowd') returning id),
person as (
  insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id)
  select $1, gen_random_uuid(), p.id, $2, 'telegram', 'crowd' from place p returning id, connection_id)
insert into notification (org_id, id, kind, connection_id, channel_type, mapping_id, user_account_id, address, next_attempt_at, created_at)
select $1, gen_random_uuid(), 'invitation', p.connection_id, 'telegram', p.id, $2, 'p' || n, plane_now(), plane_now()
from person p, generate_series(1, $3::integer) n
"""
NO_TIME = timedelta(0)


async def seed(
    world: World, admin: asyncpg.Connection, connection_id: UUID, address: str, count: int,
    *, later: timedelta = NO_TIME, done: bool = False,
) -> None:  # fmt: skip
    await admin.execute(
        SEED, world.org_id, new_id(), connection_id, world.admin.actor.user_account_id, address, count, later, done
    )


async def claim(db: Database, **more: object) -> list[Lane]:
    given: dict[str, object] = {"after": None, "full": [], "lanes": 8, "per_org": 8, "per_lane": 20, **more}
    return await notify_store.claim_deliveries(db, new_id(), ["email"], **given)  # type: ignore[arg-type]


@pytest.mark.proves("D.122")
async def test_a_lane_is_taken_in_order_and_only_so_much_of_it(world: World, admin: asyncpg.Connection) -> None:
    mail = await connect(world)
    await seed(world, admin, mail, "a", 30)
    wanted = [row["id"] for row in await admin.fetch("select id from notification order by seq")]
    (lane,) = await claim(world.db)
    assert list(lane.ids) == wanted[:20]
    assert await claim(world.db) == [], "the rest waits for the first"
    await outbox.release_deliveries(world.db, lane, lane.ids)
    (again,) = await claim(world.db, per_lane=3)
    assert list(again.ids) == wanted[:3]


@pytest.mark.proves("D.127")
async def test_orgs_take_turns_however_much_each_of_them_has(
    world: World, other: World, strict: World, admin: asyncpg.Connection
) -> None:
    for each, count in ((world, 50), (other, 1), (strict, 1)):
        mail = await connect(each)
        for n in range(count):
            await seed(each, admin, mail, f"{n}", 1)
    after, served = None, []
    for _ in range(6):
        (lane,) = await claim(world.db, lanes=1, per_org=1, after=after)
        after = lane.org_id
        served.append(after)
    assert Counter(served) == {world.org_id: 4, other.org_id: 1, strict.org_id: 1}
    assert set(served[:3]) == {world.org_id, other.org_id, strict.org_id}
    assert await claim(world.db, full=[world.org_id]) == [], "who has their share gets nothing more"


async def test_each_lane_has_its_turn_although_the_search_begins_anywhere(
    world: World, admin: asyncpg.Connection
) -> None:
    mail = await connect(world)
    for n in range(20):
        await seed(world, admin, mail, f"{n}", 1)
    found = [lane.lane for _ in range(5) for lane in await claim(world.db, lanes=4)]
    assert len(found) == len(set(found)) == 20
    assert await claim(world.db) == []


@pytest.mark.proves("D.124")
async def test_a_lease_runs_out_and_others_take_over(world: World, admin: asyncpg.Connection, clock: Clock) -> None:
    await seed(world, admin, await connect(world), "a", 3)
    (lane,) = await claim(world.db)
    await clock.advance(timedelta(seconds=59))
    assert await claim(world.db) == []
    async with world.db.transaction(world.org_id) as tx:
        assert await notify_store.begin_delivery(tx, lane.ids[0], lane.claim, lane.lane)
    await clock.advance(timedelta(seconds=59))
    assert await claim(world.db) == [], "a send renews all of it"
    await clock.advance(timedelta(seconds=1))
    (taken,) = await claim(world.db)
    assert taken.ids == lane.ids
    async with world.db.transaction(world.org_id) as tx:
        assert not await notify_store.begin_delivery(tx, lane.ids[0], lane.claim, lane.lane)


@pytest.mark.proves("D.123")
async def test_who_claims_at_the_same_moment_neither_waits_nor_gets_the_same_lane(
    world: World, admin: asyncpg.Connection, app: asyncpg.Connection
) -> None:
    mail = await connect(world)
    await seed(world, admin, mail, "a", 40)
    async with app.transaction():
        first = await app.fetch(CLAIM, NOBODY)
        assert [len(row["ids"]) for row in first] == [20]
        assert await claim(world.db) == [], "while the other has not committed"
        await seed(world, admin, mail, "b", 1)
        (lane,) = await claim(world.db)
        assert len(lane.ids) == 1, "and what is free is not held up"
    assert await claim(world.db) == [], "nor after"


async def test_nothing_overtakes_what_somebody_changes_at_this_moment(
    world: World, admin: asyncpg.Connection, app: asyncpg.Connection
) -> None:
    await seed(world, admin, await connect(world), "a", 5)
    ids = [row["id"] for row in await admin.fetch("select id from notification order by seq")]
    async with app.transaction():
        await app.execute("select set_config('app.org_id', $1, true)", str(world.org_id))
        await app.execute("update notification set desired_version = 2 where id = $1", ids[2])
        (lane,) = await claim(world.db)
        assert list(lane.ids) == ids[:2]
    await outbox.release_deliveries(world.db, lane, lane.ids)
    (lane,) = await claim(world.db)
    assert list(lane.ids) == ids


LOOKUPS = {
    "is anything due": (
        "select from notification n where n.next_attempt_at <= $1", ["idx_notification_due"]
    ),
    "the next org": (
        (
            "select n.org_id from notification n where n.next_attempt_at is not null and n.org_id > $2"
            " order by n.org_id, n.next_attempt_at limit 1"
        ),
        ["idx_notification_org"],
    ),
    "the next lane": (
        (
            "select n.lane from notification n where (n.org_id, n.channel_type, n.lane) > ($2, 'email', $3)"
            " and n.next_attempt_at is not null order by n.org_id, n.channel_type, n.lane, n.next_attempt_at limit 1"
        ),
        ["idx_notification_channel"],
    ),
    "what is first in a lane": (
        (
            "select n.id from notification n where n.org_id = $2 and n.next_attempt_at is not null"
            " and (n.lane, n.next_attempt_at) >= ($3, '-infinity') and (n.lane, n.next_attempt_at) <= ($3, $1)"
            " order by n.lane, n.next_attempt_at, n.seq limit 20"
        ),
        ["idx_notification_lane"],
    ),
    "who has a lane": (
        "select from notification n where n.org_id = $2 and n.lane = $3 and n.taken_until > $1",
        ["idx_notification_taken"],
    ),
    "the messages of a request": (
        "select from notification n where n.org_id = $2 and n.approval_id = $2 and n.status <> 'dead'",
        ["uq_notification_recipient"],
    ),
}  # fmt: skip


@pytest.mark.proves("D.127")
@pytest.mark.fresh_database
async def test_what_is_delivered_or_not_yet_due_costs_nothing(
    world: World, admin: asyncpg.Connection, app: asyncpg.Connection
) -> None:
    mail = await connect(world)
    await seed(world, admin, mail, "done", 4000, done=True)
    await seed(world, admin, mail, "later", 2000, later=timedelta(hours=1))
    await seed(world, admin, mail, "due", 2)
    await admin.execute("analyze notification")
    await admin.execute("set plan_cache_mode = force_generic_plan")
    for number, (what, (statement, indexes)) in enumerate(LOOKUPS.items()):
        types = ["timestamptz", "uuid", "bigint"]
        await admin.execute(f"prepare look{number} ({', '.join(types)}) as {statement}")
        plan = "\n".join(
            row[0] for row in await admin.fetch(f"explain execute look{number} (now(), gen_random_uuid(), 7)")
        )
        assert "Seq Scan" not in plan, f"{what}:\n{plan}"
        assert any(index in plan for index in indexes), f"{what}:\n{plan}"
        assert "Sort" not in plan, f"{what}:\n{plan}"
    # The first call of a connection plans, and reads the catalogue for it.
    warming = app.transaction()
    await warming.start()
    await app.fetch(CLAIM, NOBODY)
    await warming.rollback()
    ((text,),) = await app.fetch(f"explain (analyze, buffers, format json) {CLAIM}", NOBODY)
    plan = json.loads(text)[0]["Plan"]
    assert plan["Actual Rows"] == 1
    read = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert read < 300, f"{read} pages for two messages"


@pytest.mark.proves("D.826")
@pytest.mark.fresh_database
async def test_a_burst_to_one_channel_costs_another_nothing(
    world: World, admin: asyncpg.Connection, app: asyncpg.Connection
) -> None:
    """Everybody of an org waits for Telegram's pace: whoever looks for mails does not walk through them."""
    mail = await connect(world)
    await seed(world, admin, mail, "due", 2)
    await admin.execute(BURST, world.org_id, world.admin.actor.user_account_id, 2000)
    await admin.execute("analyze notification")
    warming = app.transaction()
    await warming.start()
    await app.fetch(CLAIM, NOBODY)
    await warming.rollback()
    ((text,),) = await app.fetch(f"explain (analyze, buffers, format json) {CLAIM}", NOBODY)
    plan = json.loads(text)[0]["Plan"]
    assert plan["Actual Rows"] == 1
    read = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert read < 400, f"{read} pages for two mails"
