"""Notifiers: in order, one at a time on a lane, fair between orgs, and whatever dies, nothing is lost."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta

import asyncpg
import pytest
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model.notifications import Card, Outgoing
from cortex_plane.notify.verbs import deliveries, outbox
from cortex_plane.tenancy.model.access import scheduler_actor
from cortex_plane.tenancy.model.identities import DeliveryStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.notifier import Notifier
from cortex_plane.worker.scheduler import in_background
from tests.channels.behaviour import ASK, PUBLIC_URL, Failure, delivery_of, drain, link
from tests.channels.postbox import Postbox, connect
from tests.conftest import Urls
from tests.fixtures.approvals import Shipping, decide, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.macs import sign_mappings
from tests.fixtures.notifications import copies
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.workers import whole

OPEN = "select count(*) from notification where status = 'pending'"


def notifier(db: Database, *channels: Postbox, **more: float) -> Notifier:
    return Notifier(db, channels, PUBLIC_URL, poll_seconds=0.05, **more)  # type: ignore[arg-type]


async def approvers(world: World, admin: asyncpg.Connection, *names: str) -> list[Person]:
    """Each with an address of their own on one connection."""
    connection_id = await connect(world)
    found = []
    for name in names:
        found.append(await world.person(Role.APPROVER, name=name))
        await link(admin, world, connection_id, found[-1], f"{name.lower()}@example.com")
    await apply_policies(world.db, world.admin.actor, ASK)
    return found


async def asked_of(world: World) -> Approval:
    _, (asked,) = await waiting(world, Shipping())
    return asked


async def all_sent(admin: asyncpg.Connection, seconds: float = 60) -> None:
    async with asyncio.timeout(seconds):
        while await admin.fetchval(OPEN):  # noqa: ASYNC110 -- only the database knows
            await asyncio.sleep(0.02)


def said(outgoing: Outgoing) -> str:
    assert isinstance(outgoing.content, Card)
    return outgoing.content.action


def by_address(received: Sequence[Outgoing]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for each in received:
        found[each.target.address].append(said(each))
    return found


@pytest.mark.proves("D.123", "D.122")
async def test_two_notifiers_send_everything_once_and_in_order_and_never_share_a_lane(
    strict: World, urls: Urls, admin: asyncpg.Connection
) -> None:
    await approvers(strict, admin, "Ann", "Bea", "Cid")
    asked = await asked_of(strict)
    await copies(admin, asked, 1, 30)
    open_now: Counter[str] = Counter()
    shared: list[str] = []

    async def watch(outgoing: Outgoing) -> None:
        address = outgoing.target.address
        open_now[address] += 1
        if open_now[address] > 1:
            shared.append(address)
        await asyncio.sleep(0.001)
        open_now[address] -= 1

    box = Postbox(before=watch)
    pools = [await Database.open(urls.app, max_size=6, vault=Vault(bytes(range(32)))) for _ in range(2)]
    try:
        async with in_background(notifier(pools[0], box).run()), in_background(notifier(pools[1], box).run()):
            await all_sent(admin)
    finally:
        for pool in pools:
            await pool.close()
    expected = [f"number {n}" for n in range(1, 31)]
    found = by_address(box.received)
    assert set(found) == {"ann@example.com", "bea@example.com", "cid@example.com"}
    for address, messages in found.items():
        assert messages[1:] == expected, address
    assert shared == []
    assert await whole(strict)


@pytest.mark.proves("D.122")
async def test_what_waits_for_its_next_try_does_not_hold_up_what_is_behind_it(
    strict: World, admin: asyncpg.Connection
) -> None:
    await approvers(strict, admin, "Ann")
    asked = await asked_of(strict)
    await copies(admin, asked, 1, 3)
    clock = await Clock.install(admin, asked.requested_at + timedelta(hours=1))
    box = Postbox()
    box.failures = [Failure.TEMPORARY]
    sending = notifier(strict.db, box)
    await drain(sending)
    assert [said(each) for each in box.received] == ["number 1", "number 2", "number 3"]
    await clock.advance(timedelta(seconds=6))
    await drain(sending)
    assert len(box.received) == 4
    assert box.received[-1].content.approval_id == asked.id  # type: ignore[union-attr]


@pytest.mark.proves("D.124")
async def test_it_goes_on_after_the_database_was_away_and_sends_nothing_twice(
    strict: World, urls: Urls, admin: asyncpg.Connection
) -> None:
    """Its connections are cut while a message is on its way: it arrives, and that is written down all the same."""
    await approvers(strict, admin, "Ann")
    asked = await asked_of(strict)
    await copies(admin, asked, 1, 5)
    cut = False
    mine = await admin.fetchval("select pg_backend_pid()")

    async def cut_once(_: Outgoing) -> None:
        nonlocal cut
        if not cut:
            cut = True
            # Not over `admin`, which asks at the same time whether everything was sent.
            cutter = await asyncpg.connect(urls.admin)
            await cutter.fetch(
                "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
                " and pid not in (pg_backend_pid(), $1)",
                mine,
            )
            await cutter.close()

    box = Postbox(before=cut_once)
    pool = await Database.open(urls.app, max_size=4, vault=Vault(bytes(range(32))))
    try:
        with capture_logs():
            async with in_background(notifier(pool, box).run()):
                await all_sent(admin)
    finally:
        await pool.close()
    assert cut
    assert [said(each) for each in box.received][1:] == [f"number {n}" for n in range(1, 6)]


@pytest.mark.proves("D.127")
async def test_a_burst_in_one_org_does_not_delay_another_orgs_first_message(
    strict: World, other: World, admin: asyncpg.Connection
) -> None:
    await approvers(strict, admin, "Ann")
    asked = await asked_of(strict)
    await copies(admin, asked, 1, 300)
    await approvers(other, admin, "Zoe")

    async def slow(_: Outgoing) -> None:
        await asyncio.sleep(0.01)

    box = Postbox(before=slow)
    loop = asyncio.get_running_loop()
    async with in_background(notifier(strict.db, box, concurrency=1).run()):
        async with asyncio.timeout(20):
            while not box.received:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asked_of(other)
        started, before = loop.time(), len(box.received)
        async with asyncio.timeout(20):
            while not any(each.org_id == other.org_id for each in box.received):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        waited = loop.time() - started
        ahead = sum(each.org_id == strict.org_id for each in box.received[before:])
        assert await admin.fetchval(OPEN) > 0, "the burst is still there"
    # With a single place, what has begun to be sent comes first: one turn of the other lane, and no more.
    assert ahead <= 21 + 20, f"{ahead} went first, within {waited:.2f} s"


async def test_an_org_whose_channel_hangs_holds_up_only_itself(
    strict: World, other: World, admin: asyncpg.Connection
) -> None:
    await approvers(strict, admin, "Ann", "Bea", "Cid", "Dan")
    await asked_of(strict)
    await approvers(other, admin, "Zoe")
    await asked_of(other)
    held = asyncio.Event()

    async def hang(outgoing: Outgoing) -> None:
        if outgoing.org_id == strict.org_id:
            await held.wait()

    box = Postbox(before=hang)
    async with in_background(notifier(strict.db, box, concurrency=2).run()):
        async with asyncio.timeout(20):
            while not box.received:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert {each.org_id for each in box.received} == {other.org_id}
        held.set()
        await all_sent(admin)
    assert len(box.received) == 5


@pytest.mark.proves("D.127")
async def test_two_orgs_whose_receivers_hang_hold_up_neither_a_third_nor_another_channel(
    strict: World, other: World, admin: asyncpg.Connection
) -> None:
    """More people wait for them than there are places."""
    third = await World.create(strict.db, "third", policies=None)
    names = [f"P{n}" for n in range(8)]
    for world in (strict, other):
        await approvers(world, admin, *names)
        hook = await connect(world, "webhook", "hook")
        await admin.execute(
            """insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id, verified_at)
            select org_id, gen_random_uuid(), $1, user_account_id, 'webhook', channel_user_id, plane_now()
            from channel_mapping where org_id = $2 and channel_type = 'email'""",
            hook, world.org_id,
        )  # fmt: skip
        await sign_mappings(world.db, world.org_id)
        await asked_of(world)
    await approvers(third, admin, "Zoe")
    held = asyncio.Event()
    hanging: Counter[tuple[str, str]] = Counter()

    def hang(channel: str) -> Callable[[Outgoing], Awaitable[None]]:
        async def wait(outgoing: Outgoing) -> None:
            if outgoing.org_id != third.org_id:
                hanging[channel, str(outgoing.org_id)] += 1
                await held.wait()

        return wait

    mail, hooks = Postbox(before=hang("email")), Postbox("webhook", before=hang("webhook"))
    loop = asyncio.get_running_loop()
    async with in_background(notifier(strict.db, hooks, mail, concurrency=8).run()):
        async with asyncio.timeout(20):
            while hanging.total() < 8:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asked_of(third)
        started = loop.time()
        async with asyncio.timeout(20):
            while not mail.received:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert loop.time() - started < 2
        assert set(hanging.values()) == {2}, "a quarter of the places of each channel"
        held.set()
        await all_sent(admin)


async def test_the_last_place_is_for_an_org_that_has_none(
    strict: World, other: World, admin: asyncpg.Connection
) -> None:
    third = await World.create(strict.db, "third", policies=None)
    for world in (strict, other):
        await approvers(world, admin, "Ann", "Bea", "Cid", "Dan")
        await asked_of(world)
    await approvers(third, admin, "Zoe")
    held, hanging = asyncio.Event(), Counter[str]()

    async def hang(outgoing: Outgoing) -> None:
        if outgoing.org_id != third.org_id:
            hanging[str(outgoing.org_id)] += 1
            await held.wait()

    box = Postbox(before=hang)
    sending = notifier(strict.db, box, concurrency=3)
    sending._share = 2
    async with in_background(sending.run()):
        async with asyncio.timeout(20):
            while hanging.total() < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await asked_of(third)
        async with asyncio.timeout(20):
            while not box.received:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert hanging.total() == 2
        held.set()
        await all_sent(admin)


async def test_a_row_that_cannot_be_made_is_loud_and_the_others_go_on(strict: World, admin: asyncpg.Connection) -> None:
    await approvers(strict, admin, "Ann")
    asked = await asked_of(strict)
    first, second = await copies(admin, asked, 1, 2)
    await admin.execute("alter table approval_request disable trigger all")
    await admin.execute("update approval_request set approvers = '{\"roles\": 7}' where id = $1", first)
    box = Postbox()
    with capture_logs() as logs:
        await drain(notifier(strict.db, box))
    assert [said(each) for each in box.received][1:] == ["number 2"]
    assert [line["log_level"] for line in logs if line["event"] == "message not made"] == ["error"]
    page = await deliveries.list_deliveries(strict.db, strict.admin.actor, None, 10, status=DeliveryStatus.PENDING)
    (broken,) = page.items
    assert (broken.approval_id, broken.attempts) == (first, 1)
    assert "see the log" in (broken.last_error or "")
    assert second


async def test_a_channel_with_a_defect_is_tried_again_and_does_not_look_like_success(
    strict: World, admin: asyncpg.Connection
) -> None:
    await approvers(strict, admin, "Ann")
    asked = await asked_of(strict)

    async def stumble(_: Outgoing) -> None:
        raise KeyError("oops")

    with capture_logs() as logs:
        await drain(notifier(strict.db, Postbox(before=stumble)))
    kept = await delivery_of(strict, asked)
    assert (kept.status, kept.attempts, kept.last_error) == (DeliveryStatus.PENDING, 1, "The channel failed: KeyError.")
    assert "channel failed" in [line["event"] for line in logs]


async def test_whoever_stops_lets_go_of_what_was_not_begun(strict: World, admin: asyncpg.Connection) -> None:
    await approvers(strict, admin, "Ann")
    asked = await asked_of(strict)
    await copies(admin, asked, 1, 5)
    begun, go = asyncio.Event(), asyncio.Event()

    async def stall(_: Outgoing) -> None:
        begun.set()
        await go.wait()

    box = Postbox(before=stall)
    async with in_background(notifier(strict.db, box).run()):
        await begun.wait()
        asyncio.get_running_loop().call_later(0.05, go.set)
    assert len(box.received) == 1, "what was on its way has arrived"
    assert await admin.fetchval("select count(*) from notification where taken_by is not null") == 0
    assert await admin.fetchval(OPEN) == 5


async def test_whoever_stops_while_it_looks_keeps_nothing(strict: World, admin: asyncpg.Connection) -> None:
    await approvers(strict, admin, "Ann")
    await copies(admin, await asked_of(strict), 1, 400)
    for n in range(60):
        async with in_background(notifier(strict.db, Postbox()).run()):
            await asyncio.sleep(n / 10_000)
        assert await admin.fetchval("select count(*) from notification where taken_by is not null") == 0, n


async def test_a_poison_message_is_given_up_although_nobody_lived_to_count(
    strict: World, admin: asyncpg.Connection
) -> None:
    await approvers(strict, admin, "Ann")
    asked = await asked_of(strict)
    await admin.execute("update notification set attempts = 12, tried_at = plane_now()")
    box = Postbox()
    await drain(notifier(strict.db, box))
    kept = await delivery_of(strict, asked)
    assert kept.status is DeliveryStatus.DEAD
    assert "nobody lived" in (kept.last_error or "")
    assert box.received == []


async def test_what_no_process_can_speak_waits_for_one_that_can(strict: World, admin: asyncpg.Connection) -> None:
    (ann,) = await approvers(strict, admin, "Ann")
    asked = await asked_of(strict)
    await drain(notifier(strict.db, Postbox("webhook")))
    await drain(notifier(strict.db))
    kept = await delivery_of(strict, asked)
    assert (kept.status, kept.attempts) == (DeliveryStatus.PENDING, 0)
    await decide(strict, asked, by=ann)
    box = Postbox()
    await drain(notifier(strict.db, box))
    assert box.received == [], "who was never asked is not told how it ended"
    kept = await delivery_of(strict, asked)
    assert (kept.status, kept.sent_at) == (DeliveryStatus.DELIVERED, None)


@pytest.mark.proves("D.121")
async def test_what_changes_while_the_message_before_it_is_sent_is_told_as_it_is(
    strict: World, admin: asyncpg.Connection
) -> None:
    """Messages of a lane are prepared together, and each is looked at again when it is begun."""
    await approvers(strict, admin, "Ann")
    asked = await asked_of(strict)
    first, second, third = await copies(admin, asked, 1, 3)

    async def change(outgoing: Outgoing) -> None:
        if said(outgoing) == "number 1":
            await admin.execute("update approval_request set version = version + 1 where id = $1", second)
        if said(outgoing) == "number 2":
            await admin.execute("update user_account set deactivated_at = plane_now() where display_name = 'Ann'")

    box = Postbox(before=change)
    with capture_logs():
        await drain(notifier(strict.db, box))
    received = [each.content for each in box.received]
    assert [card.approval_id for card in received if isinstance(card, Card)] == [asked.id, first, second]
    assert [card.version for card in received if isinstance(card, Card)] == [1, 1, 2]
    assert await admin.fetchval("select last_error from notification where approval_id = $1", third) == (
        "Ann is deactivated."
    )
    assert await admin.fetchval("select count(*) from notification where tried_at is not null") == 3


async def test_lanes_that_write_together_wait_for_nobody_who_holds_one_of_their_requests(
    strict: World, urls: Urls, admin: asyncpg.Connection
) -> None:
    await approvers(strict, admin, "Ann")
    asked = await asked_of(strict)
    ids = [asked.id, *(await copies(admin, asked, 1, 2))]
    actor = scheduler_actor(strict.org_id, new_id(), "notifier")
    (lane,) = await outbox.claim_deliveries(strict.db, ["email"], after=None, full=[], lanes=1)
    box = Postbox()
    prepared = await outbox.prepare_deliveries(strict.db, {"email": box}, PUBLIC_URL, lane, lane.ids)
    assert [each.approval_id for each in prepared] == ids
    await admin.execute("update notification set tried_at = plane_now()")
    sent = [
        deliveries.Delivered(lane=lane, message=each, receipt=await box.send(each.outgoing))
        for each in prepared
        if each.outgoing is not None
    ]
    other = await asyncpg.connect(urls.admin)
    try:
        async with asyncio.timeout(20):
            for lock in (
                "select from approval_request where id = $1 for update",
                "select from notification where approval_id = $1 for update",
                "select from session_head h join approval_request r using (session_id) where r.id = $1 for update of h",
            ):
                holding = other.transaction()
                await holding.start()
                await other.execute(lock, ids[1])
                records = await deliveries.record_delivered(strict.db, actor, sent[1:2])
                assert records == [None], lock
                alone = asyncio.create_task(deliveries.record_delivered(strict.db, actor, sent[1:2], wait=True))
                await until_waiting(admin)
                alone.cancel()
                await asyncio.wait([alone])
                await holding.rollback()
            async with other.transaction():
                await other.execute("select from approval_request where id = $1 for update", ids[1])
                records = await deliveries.record_delivered(strict.db, actor, sent)
                assert records == [deliveries.DeliveryRecord(True, False), None, deliveries.DeliveryRecord(True, False)]
            assert await deliveries.record_delivered(strict.db, actor, sent[1:2], wait=True) == [
                deliveries.DeliveryRecord(True, False)
            ]
    finally:
        await other.close()
    assert await admin.fetchval("select count(*) from notification where status = 'delivered'") == 3
    assert (
        await admin.fetchval(
            "select count(*) from approval_event where event_type = 'dispatched' and channel = 'email'"
        )
        == 3
    )
    assert await whole(strict)


async def until_waiting(admin: asyncpg.Connection) -> None:
    """Until somebody waits for a lock."""
    while not await admin.fetchval(  # noqa: ASYNC110 -- only the database knows
        "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    ):
        await asyncio.sleep(0.01)
