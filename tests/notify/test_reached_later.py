"""Who is told although they could not be at first, and what becomes of messages whose way was closed for a while."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Choice
from cortex_plane.calls.verbs import deadlines
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model.notifications import Occasion, Outgoing, Undeliverable
from cortex_plane.notify.verbs import deliveries
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.identities import (
    AddressDraft,
    ConnectionChange,
    ConnectionDraft,
    DeliveryStatus,
    LinkDraft,
    MappingDraft,
)
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import connections, links, orgs
from tests.channels.behaviour import Failure, delivery_of, drain
from tests.channels.postbox import Postbox, connect
from tests.fixtures.approvals import decide, shown
from tests.fixtures.clock import Clock
from tests.fixtures.notifications import copies
from tests.fixtures.people import Person, World
from tests.fixtures.workers import whole
from tests.notify.test_outbox import asked_of, card, notifier, one, person, told
from tests.tenancy.test_invitations import code_for

REMINDED = {"remind_before": "1h"}


def id_of(somebody: Person) -> UUID:
    assert somebody.actor.user_account_id is not None
    return somebody.actor.user_account_id


async def reminded(world: World, admin: asyncpg.Connection, asked: Approval) -> None:
    assert asked.deadline is not None
    await Clock.install(admin, asked.deadline - timedelta(hours=1))
    assert (await deadlines.tick(world.db, new_id(), "scheduler")).done == ["reminded"]


# Who ----------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.120")
async def test_a_reminder_reaches_whoever_may_decide_by_now(strict: World, admin: asyncpg.Connection) -> None:
    mail = await connect(strict)
    await person(strict, admin, mail, "Ann")
    late = await person(strict, admin, mail, "Late", Role.MEMBER)
    asked = await asked_of(strict, one(**REMINDED))
    change = MemberChange(roles=[Role.APPROVER])
    await orgs.update_member(strict.db, strict.admin.actor, id_of(late), change, None)
    box = Postbox()
    await drain(notifier(strict, box))
    assert [each.target.member for each in box.received] == ["Ann"]
    await reminded(strict, admin, asked)
    await drain(notifier(strict, box))
    assert {(each.target.member, card(each).occasion) for each in box.received[1:]} == {
        ("Ann", Occasion.REMINDED), ("Late", Occasion.REQUESTED),
    }  # fmt: skip
    assert await whole(strict)


async def test_a_reminder_finds_the_delegate_of_whoever_is_out_of_office_by_now(
    strict: World, admin: asyncpg.Connection
) -> None:
    mail = await connect(strict)
    ann = await person(strict, admin, mail, "Ann")
    cid = await person(strict, admin, mail, "Cid", Role.MEMBER)
    asked = await asked_of(strict, one(**REMINDED))
    await admin.execute(
        """insert into member_absence (org_id, id, user_account_id, delegate_id, starts_at, ends_at, created_by)
        values ($1, $2, $3, $4, plane_now(), plane_now() + interval '1 day', 'Ada')""",
        strict.org_id, new_id(), id_of(ann), id_of(cid),
    )  # fmt: skip
    await reminded(strict, admin, asked)
    assert {d.member for d in await told(strict, asked)} == {"Ann", "Cid"}
    session = (await shown(strict, asked.id)).session_id
    entries = await audit.list_entries(strict.db, strict.admin.actor, session, 0, 1000)
    assert [e.action for e in entries][-2:] == ["approval_reminded", "approval_delegated"]
    assert await whole(strict)


@pytest.mark.proves("D.120")
async def test_whoever_proves_an_address_is_told_what_waits_for_them(strict: World, admin: asyncpg.Connection) -> None:
    ann = await person(strict, admin, None, "Ann")
    nobody = await person(strict, admin, None, "Nobody", Role.MEMBER)
    asked = await asked_of(strict)
    (over,) = await copies(admin, asked, 1, 1)
    await admin.execute(
        "update approval_request set status = 'cancelled', next_action_at = null, resolved_at = plane_now() where id = $1",
        over,
    )
    for somebody in (ann, nobody):
        draft = AddressDraft(email=f"{somebody.actor.name.lower()}@example.com")
        claimed = await connections.add_address(strict.db, somebody.actor, draft, mailing=True)
        assert await told(strict, asked) == [], "an address that is only claimed is told nothing"
        await connections.verify_address(strict.db, await code_for(strict, claimed.id, "address"), somebody.actor)
        if somebody is ann:
            sent = await admin.fetch("delete from notification where kind = 'approval' returning approval_id, address")
            assert [tuple(each) for each in sent] == [(asked.id, "ann@example.com")]
    assert await told(strict, asked) == [], "who may not decide it is not told"
    assert await admin.fetchval("select count(*) from notification where kind = 'approval'") == 0, "nor of what is over"


@pytest.mark.proves("D.120")
async def test_whoever_is_mapped_or_links_a_channel_is_told_what_waits_for_them(
    strict: World, admin: asyncpg.Connection
) -> None:
    ann = await person(strict, admin, None, "Ann")
    bea = await person(strict, admin, None, "Bea")
    asked = await asked_of(strict)
    draft = ConnectionDraft(channel_type="webhook", name="hook", url="https://hook.example/in")
    hook = await connections.create_connection(strict.db, strict.admin.actor, draft)
    mapped = MappingDraft(member_id=id_of(ann), external_user="ann")
    for _ in range(2):
        await connections.map_member(strict.db, strict.admin.actor, hook.id, mapped)
    code = (await links.issue_link_code(strict.db, bea.actor)).code
    typed = LinkDraft(code=code, external_user_id="bea")
    await links.redeem_link_code(strict.db, strict.service.actor, hook.id, typed)
    assert {(d.member, d.address) for d in await told(strict, asked)} == {("Ann", "ann"), ("Bea", "bea")}


async def test_the_newest_two_hundred_are_told_and_nobody_beyond_the_hundredth_person(
    strict: World, admin: asyncpg.Connection
) -> None:
    await person(strict, admin, await connect(strict), "Ann")
    way = await admin.fetchval("select id from channel_mapping")
    asked = await asked_of(strict)
    await admin.execute("update approval_request set requested_at = requested_at - interval '1 hour'")
    await copies(admin, asked, 1, 205)
    await admin.execute("delete from notification")
    newest = await copies(admin, asked, 300, 300)
    await admin.execute("update approval_request set requested_at = plane_now() where id = $1", newest[0])
    await admin.execute("delete from notification")
    assert await admin.fetchval("select notify_mapping($1, $2)", strict.org_id, way) == 200
    assert await admin.fetchval("select count(*) from notification where approval_id = $1", newest[0]) == 1
    assert await admin.fetchval("select notify_mapping($1, $2)", strict.org_id, way) == 0, "once"
    await admin.execute("delete from notification where approval_id = $1", newest[0])
    await admin.execute(
        """with people as (
          insert into user_account (org_id, id, display_name, roles)
          select $1, gen_random_uuid(), 'P' || n, '{approver}' from generate_series(1, 100) n returning id),
        ways as (
          insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id, verified_at)
          select $1, gen_random_uuid(), c.id, p.id, 'email', p.id || '@example.com', plane_now()
          from people p, channel_connection c where c.channel_type = 'email' returning id, user_account_id, connection_id)
        insert into notification (org_id, id, kind, approval_id, connection_id, channel_type, mapping_id, user_account_id,
          address, next_attempt_at, created_at)
        select $1, gen_random_uuid(), 'approval', $2, w.connection_id, 'email', w.id, w.user_account_id, 'p', plane_now(),
          plane_now() from ways w""",
        strict.org_id, newest[0],
    )  # fmt: skip
    assert await admin.fetchval("select notify_mapping($1, $2)", strict.org_id, way) == 0


# What stands somewhere ------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.121")
async def test_a_message_that_stands_is_told_the_end_although_an_update_before_it_died(
    strict: World, admin: asyncpg.Connection
) -> None:
    ann = await person(strict, admin, await connect(strict), "Ann")
    asked = await asked_of(strict)

    async def unwanted(outgoing: Outgoing) -> None:
        if card(outgoing).version == 2:
            raise Undeliverable("554 5.7.1 this text is not wanted")

    box = Postbox(before=unwanted)
    await drain(notifier(strict, box))
    await admin.execute("update approval_request set version = version + 1 where id = $1", asked.id)
    await admin.execute("update notification set attempts = 11")
    await drain(notifier(strict, box))
    kept = await delivery_of(strict, asked)
    assert (kept.status, kept.attempts) == (DeliveryStatus.DEAD, 12)
    await admin.execute("update approval_request set version = version + 1 where id = $1", asked.id)
    await decide(strict, await shown(strict, asked.id), Choice.DENIED, by=ann)
    await drain(notifier(strict, box))
    assert [card(each).status for each in box.received] == [ApprovalStatus.PENDING, ApprovalStatus.DENIED]
    assert (await delivery_of(strict, asked)).status is DeliveryStatus.DELIVERED


async def test_what_stands_at_an_address_that_takes_nothing_any_more_is_left_alone(
    strict: World, admin: asyncpg.Connection
) -> None:
    ann = await person(strict, admin, await connect(strict), "Ann")
    asked = await asked_of(strict)
    box = Postbox()
    await drain(notifier(strict, box))
    box.failures = [Failure.PERMANENT]
    await admin.execute("update approval_request set version = version + 1 where id = $1", asked.id)
    await drain(notifier(strict, box))
    await decide(strict, await shown(strict, asked.id), Choice.DENIED, by=ann)
    await drain(notifier(strict, box))
    assert (await delivery_of(strict, asked)).status is DeliveryStatus.DEAD
    assert len(box.received) == 1


@pytest.mark.proves("D.125")
async def test_only_a_refused_address_gets_no_more(strict: World, admin: asyncpg.Connection) -> None:
    await person(strict, admin, await connect(strict), "Ann")
    asked = await asked_of(strict)
    await copies(admin, asked, 1, 1)

    async def unwanted(outgoing: Outgoing) -> None:
        if card(outgoing).approval_id == asked.id:
            raise Undeliverable("554 5.7.1 this text is not wanted")

    box = Postbox(before=unwanted)
    await drain(notifier(strict, box))
    assert (await delivery_of(strict, asked)).status is DeliveryStatus.DEAD
    assert await admin.fetchval("select suppressed_at from channel_mapping") is None
    assert [card(each).action for each in box.received] == ["number 1"]


# A connection that is disabled ----------------------------------------------------------------------------------------


@pytest.mark.proves("D.125")
async def test_what_goes_over_a_disabled_connection_waits_until_it_is_enabled(
    strict: World, admin: asyncpg.Connection
) -> None:
    mail = await connect(strict)
    await person(strict, admin, mail, "Ann")
    asked = await asked_of(strict)
    await copies(admin, asked, 1, 2)
    clock = await Clock.install(admin, asked.requested_at + timedelta(minutes=1))
    await connections.update_connection(strict.db, strict.admin.actor, mail, ConnectionChange(enabled=False), None)
    box = Postbox()
    for hours in (0, *[1] * 15):
        await clock.advance(timedelta(hours=hours))
        await drain(notifier(strict, box))
    page = await deliveries.list_deliveries(strict.db, strict.admin.actor, None, 10)
    assert {(d.status, d.attempts, d.last_error) for d in page.items} == {
        (DeliveryStatus.PENDING, 0, "The connection post is disabled.")
    }
    assert {d.next_attempt_at for d in page.items} == {
        asked.requested_at + timedelta(minutes=1) + timedelta(hours=16)
    }, "and costs a look every hour"
    assert await admin.fetchval("select count(*) from notification where taken_by is not null") == 0
    await connections.update_connection(strict.db, strict.admin.actor, mail, ConnectionChange(enabled=True), None)
    await drain(notifier(strict, box))
    assert [card(each).action for each in box.received][1:] == ["number 1", "number 2"]


async def test_an_outcome_that_waited_a_day_for_a_disabled_connection_is_given_up(
    strict: World, admin: asyncpg.Connection
) -> None:
    mail = await connect(strict)
    ann = await person(strict, admin, mail, "Ann")
    asked = await asked_of(strict)
    clock = await Clock.install(admin, asked.requested_at + timedelta(minutes=1))
    box = Postbox()
    await drain(notifier(strict, box))
    await connections.update_connection(strict.db, strict.admin.actor, mail, ConnectionChange(enabled=False), None)
    await decide(strict, asked, Choice.DENIED, by=ann)
    await drain(notifier(strict, box))
    assert (await delivery_of(strict, asked)).status is DeliveryStatus.PENDING
    await clock.advance(timedelta(hours=25))
    await drain(notifier(strict, box))
    kept = await delivery_of(strict, asked)
    assert (kept.status, kept.last_error) == (DeliveryStatus.DEAD, "The connection post is disabled.")
