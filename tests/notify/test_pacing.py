"""A vendor that asks for a pause, or is away for an hour: nobody is flooded, nothing is lost, and other connections go on."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.db.database import Database
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.model.notifications import Outgoing, Sent
from cortex_plane.tenancy.model.identities import Connection, ConnectionChange, ConnectionState, DeliveryStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections
from cortex_plane.worker.notifier import NOTIFIER_LIFE, Notifier
from cortex_plane.worker.pacing import Pacing
from tests.channels.behaviour import PUBLIC_URL, drain, link
from tests.channels.postbox import Postbox, connect
from tests.fixtures.clock import Clock
from tests.fixtures.notifications import copies
from tests.fixtures.people import World
from tests.fixtures.receivers import Got, Reply
from tests.fixtures.vendors import VendorStage, limited, vendor_stage
from tests.notify.test_outbox import asked_of, told
from tests.storage.test_outbox_claims import seed

MINUTE = timedelta(minutes=1)


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[VendorStage]:
    async with vendor_stage() as stage:
        yield stage


async def people(world: World, admin: asyncpg.Connection, connection_id: UUID, count: int, prefix: str = "p") -> None:
    for number in range(count):
        person = await world.person(Role.APPROVER, name=f"{prefix}{number}")
        await link(admin, world, connection_id, person, f"{prefix}{number}")


async def started(strict: World, admin: asyncpg.Connection) -> tuple[Approval, Clock]:
    asked = await asked_of(strict)
    return asked, await Clock.install(admin, asked.requested_at + MINUTE)


def one_by_one(world: World, stage: VendorStage) -> Notifier:
    return Notifier(world.db, [stage.channel], PUBLIC_URL, concurrency=1)


async def shown(world: World, stage: VendorStage, id: UUID) -> Connection:
    return await connections.get_connection(world.db, world.admin.actor, id, channels=stage.served)


@pytest.mark.proves("D.826")
async def test_a_vendor_that_asks_for_a_pause_gets_one_from_everybody(
    strict: World, admin: asyncpg.Connection, stage: VendorStage
) -> None:
    bot = await stage.connect_id(strict)
    await people(strict, admin, bot, 5)
    asked, clock = await started(strict, admin)
    stage.vendor.trouble = [limited(90)]
    for _ in range(3):
        await drain(one_by_one(strict, stage))
    sends = [got for got in stage.vendor.got if got.target == "/send"]
    assert len(sends) == 1, "nobody asked again"
    health = await shown(strict, stage, bot)
    assert (health.state, health.health.pause_reason) == (ConnectionState.PAUSED, "The vendor asked for a pause.")
    assert health.health.paused_until == asked.requested_at + MINUTE + timedelta(seconds=90)
    assert (health.health.waiting, health.health.last_error) == (5, "The vendor asked for a pause.")
    await clock.advance(timedelta(seconds=89))
    await drain(one_by_one(strict, stage))
    assert stage.vendor.messages == []
    await clock.advance(timedelta(seconds=1))
    await drain(one_by_one(strict, stage))
    assert sorted(message["to"] for message in stage.vendor.messages) == [f"p{number}" for number in range(5)]
    health = await shown(strict, stage, bot)
    assert (health.state, health.health.waiting, health.health.paused_until) == (ConnectionState.OK, 0, None)
    assert health.health.last_outbound_at == asked.requested_at + MINUTE + timedelta(seconds=90)


async def test_a_message_that_was_on_its_way_ends_no_pause(
    strict: World, admin: asyncpg.Connection, stage: VendorStage
) -> None:
    """Another notifier was asked for a pause while this one was sending."""
    bot = await stage.connect_id(strict)
    await people(strict, admin, bot, 1)
    _, clock = await started(strict, admin)
    send = stage.channel.send

    async def send_slowly(outgoing: Outgoing) -> Sent:
        await admin.execute(
            "update channel_connection set failures = 1, failing_since = plane_now(), pause_reason = 'It asked.',"
            " paused_until = plane_now() + interval '90 s' where id = $1", bot,
        )  # fmt: skip
        return await send(outgoing)

    stage.channel.send = send_slowly  # type: ignore[method-assign]
    await drain(one_by_one(strict, stage))
    assert len(stage.vendor.messages) == 1
    health = await shown(strict, stage, bot)
    assert (health.state, health.failing_since) == (ConnectionState.PAUSED, None)
    assert health.health.pause_reason == "It asked."
    await clock.advance(timedelta(seconds=91))
    assert (await shown(strict, stage, bot)).state is ConnectionState.OK


@pytest.mark.proves("D.826")
async def test_limit_of_a_chat_holds_back_that_chat_alone_and_keeps_its_order(
    strict: World, admin: asyncpg.Connection, stage: VendorStage
) -> None:
    bot = await stage.connect_id(strict)
    await people(strict, admin, bot, 2)
    asked, clock = await started(strict, admin)
    await copies(admin, asked, 1, 2)
    ids = [str(row["id"]) for row in await admin.fetch("select id from notification where address = 'p0' order by seq")]
    stage.vendor.busy_chats = {"p0"}

    def sends(to: str) -> list[Got]:
        return [got for got in stage.vendor.got if got.target == "/send" and got.json["to"] == to]

    for number in range(1, 8):
        await drain(one_by_one(strict, stage))
        await admin.execute("update approval_request set version = version + 1 where id = $1", asked.id)
        await clock.advance(timedelta(seconds=89))
        await drain(one_by_one(strict, stage))
        assert len(sends("p0")) == number, "what changes meanwhile is not sent sooner"
        assert len(sends("p1")) == 3 + number
        await clock.advance(timedelta(seconds=1))
    health = await shown(strict, stage, bot)
    assert (health.state, health.failing_since) == (ConnectionState.OK, None)
    assert {delivery.attempts for delivery in await told(strict, asked)} == {0}
    stage.vendor.busy_chats = set()
    await drain(one_by_one(strict, stage))
    assert [message["id"] for message in stage.vendor.messages if message["to"] == "p0"] == ids


@pytest.mark.proves("D.826")
async def test_held_messages_show_their_next_attempt_and_go_at_once_over_an_enabled_connection(
    strict: World, admin: asyncpg.Connection, stage: VendorStage
) -> None:
    bot = await stage.connect_id(strict)
    await people(strict, admin, bot, 2)
    asked, clock = await started(strict, admin)
    # Another notifier is sending it.
    await admin.execute(
        "update notification set taken_by = gen_random_uuid(), taken_until = plane_now() + interval '1 h', attempts = 1"
        " where address = 'p1'"
    )
    stage.vendor.busy_chats = {"p0"}
    await drain(one_by_one(strict, stage))
    until = asked.requested_at + MINUTE + timedelta(seconds=90)
    async with strict.db.transaction(strict.org_id) as tx:
        page = (await notify_store.list_deliveries(tx, None, 10)).items
        read = [await notify_store.get_delivery(tx, each.id) for each in page]
    for each in (*await told(strict, asked), *page, *read):
        assert each is not None
        assert (each.next_attempt_at == until) == (each.address == "p0"), each
    stage.vendor.busy_chats = set()
    await clock.advance(MINUTE)
    await drain(one_by_one(strict, stage))
    assert stage.vendor.messages == []
    change = ConnectionChange(enabled=True)
    await connections.update_connection(strict.db, strict.admin.actor, bot, change, None, channels=stage.served)
    await drain(one_by_one(strict, stage))
    assert [message["to"] for message in stage.vendor.messages] == ["p0"], "nobody takes what another notifier sends"


@pytest.mark.proves("D.826")
async def test_an_hour_without_the_vendor_loses_nothing_and_floods_nobody(
    strict: World, admin: asyncpg.Connection, stage: VendorStage
) -> None:
    bot = await stage.connect_id(strict)
    await people(strict, admin, bot, 12)
    asked, clock = await started(strict, admin)
    stage.vendor.outage = Reply(503)
    for _ in range(120):
        await drain(Notifier(strict.db, [stage.channel], PUBLIC_URL))
        await clock.advance(timedelta(seconds=30))
    tries = len([got for got in stage.vendor.got if got.target == "/send"])
    assert tries < 120, "without a pause twelve messages would be tried many more times"
    assert (await shown(strict, stage, bot)).state is ConnectionState.PAUSED
    stage.vendor.outage = None
    for _ in range(26):
        await clock.advance(5 * MINUTE)
        await drain(Notifier(strict.db, [stage.channel], PUBLIC_URL))
    assert Counter(message["to"] for message in stage.vendor.messages) == {f"p{number}": 1 for number in range(12)}
    assert {delivery.status for delivery in await told(strict, asked)} == {DeliveryStatus.DELIVERED}
    health = await shown(strict, stage, bot)
    assert (health.state, health.failing_since) == (ConnectionState.OK, None)


@pytest.mark.proves("D.826")
async def test_another_connection_and_another_channel_go_on(
    strict: World, admin: asyncpg.Connection, stage: VendorStage
) -> None:
    bad, good, mail = await stage.connect_id(strict), await stage.connect_id(strict, "good"), await connect(strict)
    await people(strict, admin, bad, 3, "bad")
    await people(strict, admin, good, 3, "good")
    await people(strict, admin, mail, 3, "mail")
    await started(strict, admin)
    await admin.execute(
        "update channel_connection set paused_until = plane_now() + interval '1 hour', pause_reason = 'test' where id = $1",
        bad,
    )
    box = Postbox()
    await drain(Notifier(strict.db, [stage.channel, box], PUBLIC_URL))
    assert sorted(message["to"] for message in stage.vendor.messages) == ["good0", "good1", "good2"]
    assert sorted(each.target.address for each in box.received) == ["mail0", "mail1", "mail2"]


async def test_a_check_that_succeeds_ends_the_pause(
    strict: World, admin: asyncpg.Connection, stage: VendorStage
) -> None:
    bot = await stage.connect_id(strict)
    await people(strict, admin, bot, 1)
    await started(strict, admin)
    stage.vendor.trouble = [limited(3600)]
    await drain(one_by_one(strict, stage))
    assert (await shown(strict, stage, bot)).state is ConnectionState.PAUSED
    checked = await connections.check_connection(strict.db, strict.admin.actor, bot, channels=stage.served)
    assert checked.state is ConnectionState.OK
    await drain(one_by_one(strict, stage))
    assert len(stage.vendor.messages) == 1


async def test_thousands_of_lanes_that_wait_for_a_pause_hide_nobody(
    db: Database, strict: World, admin: asyncpg.Connection
) -> None:
    paused, free = await connect(strict), await connect(strict, "email", "free")
    for number in range(300):
        await seed(strict, admin, paused, f"a{number}", 1)
    await seed(strict, admin, free, "b", 1)
    await admin.execute(
        "update channel_connection set paused_until = plane_now() + interval '1 hour' where id = $1", paused
    )
    lanes = await notify_store.claim_deliveries(
        db, new_id(), ["email"], after=None, full=[], lanes=8, per_org=8, per_lane=20
    )
    assert [len(lane.ids) for lane in lanes] == [1]


def test_messages_of_a_connection_are_spread_over_time() -> None:
    pacing, bot, other = Pacing(), uuid4(), uuid4()
    waits = [pacing.reserve(bot, f"p{n}", 100.0, per_second=4, chat_seconds=0) for n in range(5)]
    assert waits == [0, 0.25, 0.5, 0.75, 1.0]
    assert pacing.reserve(other, "p0", 100.0, per_second=4, chat_seconds=0) == 0, "each connection has its own"
    assert pacing.reserve(bot, "p9", 200.0, per_second=4, chat_seconds=0) == 0, "what was not used is not saved up"
    assert pacing.reserve(bot, "p9", 200.0, per_second=4, chat_seconds=0) == 0.25


def test_messages_into_one_chat_keep_their_distance() -> None:
    pacing, bot = Pacing(), uuid4()
    waits = [pacing.reserve(bot, "group", 100.0, per_second=30, chat_seconds=3) for _ in range(3)]
    assert waits == [0, 3, 6]
    other = pacing.reserve(bot, "somebody", 100.0, per_second=30, chat_seconds=3)
    assert other == pytest.approx(0.1), "another chat waits for the connection alone"


def test_a_pause_ends_by_itself() -> None:
    pacing, bot = Pacing(), uuid4()
    pacing.pause(bot, 160.0)
    pacing.pause(bot, 130.0)
    assert pacing.is_paused(bot, 159.0)
    assert not pacing.is_paused(bot, 160.0)
    assert not pacing.is_paused(uuid4(), 100.0)


def test_processes_share_the_pace_of_a_connection() -> None:
    pacing, bot = Pacing(), uuid4()
    pacing.processes = 3
    waits = [pacing.reserve(bot, f"p{n}", 100.0, per_second=30, chat_seconds=0) for n in range(3)]
    assert waits == pytest.approx([0, 0.1, 0.2])


async def test_notifiers_know_how_many_they_are(strict: World, admin: asyncpg.Connection, stage: VendorStage) -> None:
    """Each of N processes sends at an N-th of what the vendor takes; who died is not counted any more."""
    first, second = (one_by_one(strict, stage) for _ in range(2))
    await first.share_pace()
    assert first.pacing.processes == 1
    await second.share_pace()
    assert second.pacing.processes == 2
    now = await admin.fetchval("select plane_now()")
    await Clock.install(admin, now + 2 * NOTIFIER_LIFE)
    third = one_by_one(strict, stage)
    await third.share_pace()
    assert third.pacing.processes == 1
