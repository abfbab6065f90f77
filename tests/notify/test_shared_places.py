"""Cards in places that several people read: a channel of a team, an issue, a merge request."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import ApprovalStatus, Choice
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.verbs import deadlines
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model.notifications import Card, Occasion, Undeliverable
from cortex_plane.notify.verbs import deliveries
from cortex_plane.policies.model.places import fewer_channels
from cortex_plane.tenancy.model.identities import ConnectionChange, Delivery, DeliveryStatus
from cortex_plane.tenancy.model.orgs import OrgChange, OrgSettingsChange, Role
from cortex_plane.tenancy.verbs import connections, orgs
from cortex_plane.worker.notifier import Notifier
from tests.channels.behaviour import PUBLIC_URL, drain, link
from tests.channels.postbox import Postbox, connect
from tests.fixtures.approvals import Shipping, decide, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import whole


def policy(channels: str, more: str = "") -> str:
    return (
        "policies:\n  - name: one\n    target: ship\n    effect: requires_approval\n"
        f"    approvers: {{roles: [approver]}}\n    timeout: 10h\n    channels: {channels}\n{more}"
    )


async def request(world: World, channels: str, more: str = "") -> UUID:
    await apply_policies(world.db, world.admin.actor, policy(channels, more))
    _, (approval,) = await waiting(world, Shipping())
    return approval.id


async def deliveries_of(world: World, approval_id: UUID) -> list[Delivery]:
    return (await deliveries.list_deliveries(world.db, world.admin.actor, None, 200, approval_id=approval_id)).items


async def problems(world: World, approval_id: UUID) -> list[tuple[str | None, str, str]]:
    events = (await approvals.get_approval(world.db, world.admin.actor, approval_id)).events
    return [
        (event.channel, event.payload["member"], event.payload["reason"])
        for event in events
        if event.event_type == "undeliverable"
    ]


def notifier(world: World, *boxes: Postbox) -> Notifier:
    return Notifier(world.db, boxes, PUBLIC_URL)


def cards(box: Postbox) -> list[Card]:
    return [message.content for message in box.received if isinstance(message.content, Card)]


@pytest.mark.proves("D.829")
async def test_place_gets_the_card_besides_the_approvers(strict: World, admin: asyncpg.Connection) -> None:
    mail, chat = await connect(strict), await connect(strict, "slack", "team chat")
    ann = await strict.person(Role.APPROVER, name="Ann")
    await link(admin, strict, mail, ann, "ann@example.com")
    await link(admin, strict, chat, ann, "U1")
    id = await request(strict, '[email, {slack: "#deploys"}]')
    assert {(d.channel_type, d.address, d.member, d.member_id) for d in await deliveries_of(strict, id)} == {
        ("email", "ann@example.com", "Ann", ann.actor.user_account_id), ("slack", "#deploys", "#deploys", None),
    }  # fmt: skip
    box = Postbox("slack")
    await drain(notifier(strict, Postbox(), box))
    (message,) = box.received
    (card,) = cards(box)
    assert message.target.address == "#deploys"
    assert (card.occasion, card.status, card.deciders) == (Occasion.REQUESTED, ApprovalStatus.PENDING, ("Ann",))
    assert (card.token, card.approve_url, card.deny_url, card.respond_url) == (None, None, None, None)
    assert set((await shown(strict, id)).channels_dispatched) == {"dashboard", "email", "slack"}
    assert await whole(strict)


async def test_place_instead_of_the_approvers_addresses(strict: World, admin: asyncpg.Connection) -> None:
    mail = await connect(strict)
    await connect(strict, "slack", "team chat")
    await link(admin, strict, mail, await strict.person(Role.APPROVER, name="Ann"), "ann@example.com")
    id = await request(strict, '[{slack: "#deploys"}]')
    assert [(d.channel_type, d.address) for d in await deliveries_of(strict, id)] == [("slack", "#deploys")]


@pytest.mark.proves("D.829", "D.824")
@pytest.mark.parametrize("end", ["denied", "expired"])
async def test_place_follows_the_request_to_its_end(strict: World, admin: asyncpg.Connection, end: str) -> None:
    await connect(strict, "slack", "team chat")
    ann = await strict.person(Role.APPROVER, name="Ann")
    await strict.person(Role.OPERATOR, name="Op")
    more = "    remind_before: 1h\n    escalate_before: 6h\n    escalate_to: [{roles: [operator]}]\n"
    id = await request(strict, '[{slack: "#deploys"}]', more)
    box = Postbox("slack")
    sending = notifier(strict, box)
    await drain(sending)
    approval = await shown(strict, id)
    assert approval.deadline is not None
    clock = await Clock.install(admin, approval.deadline - timedelta(hours=6))
    for left in (6, 1):
        await clock.set(approval.deadline - timedelta(hours=left))
        await deadlines.tick(strict.db, new_id(), "scheduler")
        await drain(sending)
    if end == "denied":
        await decide(strict, await shown(strict, id), Choice.DENIED, by=ann, reason="not today")
    else:
        await clock.set(approval.deadline)
        await deadlines.tick(strict.db, new_id(), "scheduler")
    await drain(sending)
    occasions = [card.occasion for card in cards(box)]
    assert occasions == [Occasion.REQUESTED, Occasion.ESCALATED, Occasion.REMINDED, Occasion.RESOLVED]
    assert cards(box)[-1].status == end
    assert len({message.id for message in box.received}) == 1
    assert box.received[-1].earlier == str(box.received[0].id)


async def test_place_is_told_once(strict: World, admin: asyncpg.Connection) -> None:
    await connect(strict, "slack", "team chat")
    await strict.person(Role.APPROVER)
    id = await request(
        strict, '[{slack: "#deploys"}, {slack: {connection: team chat, place: "#deploys"}}, {slack: "#ops"}]'
    )
    assert sorted(d.address for d in await deliveries_of(strict, id)) == ["#deploys", "#ops"]
    assert await admin.fetchval("select notify_approvers($1, $2)", strict.org_id, id) == 0


async def test_connection_of_a_place_is_the_only_one_or_the_named_one(strict: World) -> None:
    await connect(strict, "slack", "a")
    await connect(strict, "slack", "b")
    await strict.person(Role.APPROVER)
    channels = '[{slack: "#deploys"}, {slack: {connection: b, place: "#ops"}}, {slack: {connection: c, place: "#c"}}]'
    id = await request(strict, channels)
    assert [(d.connection, d.address) for d in await deliveries_of(strict, id)] == [("b", "#ops")]
    assert sorted(await problems(strict, id)) == [
        ("slack", "#c", "There is no such connection, or it is disabled."),
        ("slack", "#deploys", "Several connections could post there, and the policy names none."),
    ]


async def test_missing_connection_is_written_on_the_request_once(strict: World, admin: asyncpg.Connection) -> None:
    await strict.person(Role.APPROVER)
    id = await request(strict, '[{github: "acme/shop#12"}]')
    assert await admin.fetchval("select notify_approvers($1, $2)", strict.org_id, id) == 0
    assert await problems(strict, id) == [("github", "acme/shop#12", "There is no such connection, or it is disabled.")]
    assert await deliveries_of(strict, id) == []


async def test_disabled_connection_delays_a_place(strict: World) -> None:
    chat = await connect(strict, "slack", "team chat")
    await strict.person(Role.APPROVER)
    id = await request(strict, '[{slack: "#deploys"}]')
    await connections.update_connection(strict.db, strict.admin.actor, chat, ConnectionChange(enabled=False), None)
    box = Postbox("slack")
    await drain(notifier(strict, box))
    assert box.received == []
    await connections.update_connection(strict.db, strict.admin.actor, chat, ConnectionChange(enabled=True), None)
    await drain(notifier(strict, box))
    assert [card.approval_id for card in cards(box)] == [id]


async def test_org_that_dropped_a_channel_posts_nothing_there(strict: World) -> None:
    await connect(strict, "slack", "team chat")
    await strict.person(Role.APPROVER)
    change = OrgChange(settings=OrgSettingsChange(approval_channels=("email",)))
    await orgs.update_org(strict.db, strict.admin.actor, change, None)
    id = await request(strict, '[{slack: "#deploys"}]')
    assert (await deliveries_of(strict, id), await problems(strict, id)) == ([], [])


async def test_members_get_no_card_on_a_channel_without_private_messages(
    strict: World, admin: asyncpg.Connection
) -> None:
    """A GitHub user can be identified there, and cannot be written to."""
    hub = await connect(strict, "github", "acme")
    ann = await strict.person(Role.APPROVER, name="Ann")
    await link(admin, strict, hub, ann, "583231")
    id = await request(strict, '[github, {github: "acme/shop#12"}]')
    assert [(d.channel_type, d.address) for d in await deliveries_of(strict, id)] == [("github", "acme/shop#12")]
    mapping = await admin.fetchval("select id from channel_mapping where connection_id = $1", hub)
    assert await admin.fetchval("select notify_mapping($1, $2)", strict.org_id, mapping) == 0


async def test_refused_place_is_a_dead_letter_and_suppresses_nobody(strict: World) -> None:
    await connect(strict, "slack", "team chat")
    await strict.person(Role.APPROVER)
    id = await request(strict, '[{slack: "#deploys"}]')
    box = Postbox("slack")

    async def refuse(_: object) -> None:
        raise Undeliverable("There is no channel #deploys.", address=True)

    refusing = Postbox("slack", refuse)
    await drain(notifier(strict, refusing))
    (delivery,) = await deliveries_of(strict, id)
    assert (delivery.status, delivery.last_error) == (DeliveryStatus.DEAD, "There is no channel #deploys.")
    assert await problems(strict, id) == [("slack", "#deploys", "There is no channel #deploys.")]
    await deliveries.resend_delivery(strict.db, strict.admin.actor, delivery.id)
    await drain(notifier(strict, box))
    assert len(box.received) == 1
    assert await whole(strict)


@pytest.mark.parametrize(
    ("channels", "limit", "both"),
    [
        (None, ("slack:#a",), ("slack:#a",)),
        (("slack:#a", "email"), ("slack",), ("slack:#a",)),
        (("slack",), ("slack:#a", "email"), ("slack:#a",)),
        (("slack:#a",), ("slack:#b",), ()),
        (("slack:#a", "slack:#b"), ("slack:#b", "email"), ("slack:#b",)),
        (("slack",), ("slack", "slack:#a"), ("slack", "slack:#a")),
        (("slack@x:#a",), ("slack:#a",), ()),
    ],
)
def test_limit_on_channels_covers_their_places(
    channels: tuple[str, ...] | None, limit: tuple[str, ...], both: tuple[str, ...]
) -> None:
    assert fewer_channels(channels, limit) == both
