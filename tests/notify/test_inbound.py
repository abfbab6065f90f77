"""What people do on channels: the door for vendors, the order of events, where answers go, and who may listen."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import httpx
import orjson
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.db import crash_points
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model.channels import MAX_EVENT_BYTES, ChatMessage, InboundItem
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable
from cortex_plane.notify.verbs import channel_events, chats, inbound, listeners
from cortex_plane.notify.verbs.inbound import InboundDoor, VendorRequest
from cortex_plane.sessions.model.sessions import MessageDraft
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.identities import ConnectionChange, DeliveryStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections, links
from cortex_plane.worker.channel_inbox import ChannelInbox
from cortex_plane.worker.channel_listener import ChannelListener
from tests.channels.behaviour import ASK, PUBLIC_URL, Deploying, Failure, delivery_of, link
from tests.channels.interactive_behaviour import Plane, SeenMessage
from tests.channels.plain_channel import KIND, SECRET, PlainChannel, PlainStage, vendor
from tests.conftest import _application
from tests.fixtures.approvals import decide, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.workers import call, make_agent, turn, until, working


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[PlainStage]:
    async with vendor() as place:
        stage = PlainStage(place, PlainChannel())
        yield stage
        await stage.channel.close()


async def talking(
    world: World, admin: asyncpg.Connection, stage: PlainStage, *turns: dict[str, Any], **config: str
) -> tuple[Plane, Person]:
    """A connection with an agent, and Bea, who is linked."""
    bea = await world.person(Role.APPROVER, Role.MEMBER, name="Bea")
    connection_id = await stage.connect(world, **config)
    await link(admin, world, connection_id, bea, stage.address("bea"))
    agent = await make_agent(world, turns, slug="talker", ask_people=True)
    await admin.execute("update channel_connection set agent_id = $2 where id = $1", connection_id, agent.id)
    return Plane(world, stage, connection_id), bea


async def asked(world: World, plane: Plane) -> tuple[Any, SeenMessage]:
    await apply_policies(world.db, world.admin.actor, ASK)
    _, (approval,) = await waiting(world, Deploying(), call("deploy", plan={"to": "production"}))
    await plane.send()
    return approval, (await plane.stage.messages())[-1]


async def answered(world: World, admin: asyncpg.Connection, plane: Plane) -> None:
    id = await admin.fetchval("select id from job where kind = 'conversation' order by created_at desc limit 1")
    async with working(world.db, Deploying().app):
        await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    await plane.send()


async def statuses(admin: asyncpg.Connection) -> list[str]:
    return [row["status"] for row in await admin.fetch("select status from channel_event order by seq")]


# The door.


async def post(http: httpx.AsyncClient, plane: Plane, request: VendorRequest, **more: Any) -> httpx.Response:
    _application().state.inbound = InboundDoor({KIND: plane.stage.channel}, plane.inbox.wake)
    url = f"/v1/connections/{plane.connection_id}/inbound"
    return await http.request(request.method, url, content=request.body, headers=dict(request.headers), **more)


async def test_vendor_gets_its_own_answer(
    world: World, admin: asyncpg.Connection, stage: PlainStage, http: httpx.AsyncClient
) -> None:
    plane, _ = await talking(world, admin, stage)
    answer = await post(http, plane, await stage.write("bea", "Hello"))
    assert (answer.status_code, answer.text) == (200, "taken")
    assert await statuses(admin) == ["pending"]
    echo = await post(http, plane, VendorRequest("GET", {}, {}, b""), params={"challenge": "prove it"})
    assert (echo.status_code, echo.text) == (200, "prove it")


@pytest.mark.proves("D.821")
async def test_bad_requests_of_vendors_are_told_apart(
    world: World, admin: asyncpg.Connection, stage: PlainStage, http: httpx.AsyncClient
) -> None:
    plane, _ = await talking(world, admin, stage)
    request = await stage.write("bea", "my secret words")
    with capture_logs() as logs:
        forged = await post(http, plane, stage.forge(request))
        malformed = await post(http, plane, _signed(stage, b'{"events": "my secret words"'))
        strange = await post(http, plane, _signed(stage, b'{"events": [{"kind": "my secret words"}]}'))
        large = await post(http, plane, _signed(stage, b"x" * (MAX_EVENT_BYTES + 1)))
    assert (forged.status_code, forged.json()["code"]) == (401, "event_signature_invalid")
    assert (malformed.status_code, malformed.json()["code"]) == (400, "event_malformed")
    assert (strange.status_code, strange.json()["code"]) == (400, "event_malformed")
    assert large.status_code == 413
    assert "my secret words" not in str(logs)
    assert await statuses(admin) == []


@pytest.mark.proves("D.821")
async def test_unknown_connections_are_answered_as_bad_signatures(
    world: World, admin: asyncpg.Connection, stage: PlainStage, http: httpx.AsyncClient
) -> None:
    plane, _ = await talking(world, admin, stage)
    request = await stage.write("bea", "Hello")
    forged = await post(http, plane, stage.forge(request))
    for id in (new_id(), world.connection.id):
        unknown = await http.post(f"/v1/connections/{id}/inbound", content=request.body, headers=dict(request.headers))
        assert unknown.status_code == 401
        assert unknown.json()["code"] == forged.json()["code"]


def _signed(stage: PlainStage, body: bytes) -> VendorRequest:
    return VendorRequest(
        "POST", {}, {"x-plain-signature": hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()}, body
    )


async def test_disabled_connection_acknowledges_and_stores_nothing(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage)
    change = ConnectionChange(enabled=False)
    await connections.update_connection(world.db, world.admin.actor, plane.connection_id, change, None)
    reply = await plane.store(await stage.write("bea", "Hello"))
    assert reply.status == 200
    assert await statuses(admin) == []


async def test_text_that_the_database_cannot_store_arrives(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage)
    await plane.take(await stage.write("bea", "a\x00b"))
    assert await admin.fetchval("select text from message") == "a\ufffdb"


async def test_event_ids_of_any_length_are_known_again(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage)
    request = stage.signed(stage.event("bea", "text", text="Hello") | {"id": "x" * 5000})
    await plane.take(request)
    await plane.take(request)
    assert await admin.fetchval("select count(*) from message") == 1


# Handling.


async def test_handled_event_keeps_nothing_of_its_content(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage)
    await plane.take(await stage.write("bea", "Hello"))
    row = await admin.fetchrow("select status, payload, last_error from channel_event")
    assert row is not None
    assert tuple(row) == ("done", None, None)


async def test_event_that_always_fails_is_given_up_and_lets_the_next_pass(
    world: World, admin: asyncpg.Connection, stage: PlainStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    plane, _ = await talking(world, admin, stage)
    clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
    bad = stage.event("bea", "text", text="Hello")
    del bad["name"]
    await plane.store(stage.signed(bad))
    await plane.store(await stage.write("sam", "from another chat"))
    await plane.handle()
    assert await statuses(admin) == ["pending", "done"]
    for _ in range(len(channel_events.WAITS)):
        await clock.advance(timedelta(hours=1))
        await plane.handle()
    row = await admin.fetchrow("select status, last_error, attempts from channel_event order by seq limit 1")
    assert row is not None
    assert row["status"] == "failed"
    assert "KeyError" in row["last_error"]
    assert row["attempts"] == len(channel_events.WAITS) + 1


async def test_event_that_kills_whoever_handles_it_is_given_up(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage)
    clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
    await plane.store(await stage.write("bea", "deadly"))
    await plane.store(await stage.write("bea", "Hello"))
    for _ in range(len(channel_events.WAITS) + 1):
        (lane,) = await channel_events.claim_events(world.db, [KIND], 5)
        await channel_events.begin_event(world.db, plane.door.channels, PUBLIC_URL, lane, lane.seqs[0])
        await clock.advance(timedelta(minutes=2))
    await plane.handle()
    assert await statuses(admin) == ["failed", "done"]
    assert "died each time" in await admin.fetchval("select last_error from channel_event where status = 'failed'")


async def test_event_that_cannot_begin_waits_for_its_lease(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage)
    await plane.store(await stage.write("bea", "Hello"))
    await admin.execute("update channel_connection set sealed = 'damaged' where id = $1", plane.connection_id)
    assert await plane.inbox.turn()
    assert not await plane.inbox.turn(), "it is not taken again at once, and again"


async def test_second_event_of_a_chat_waits_for_the_first(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    """The first one is taken by a process that died: nothing of that chat overtakes it."""
    plane, _ = await talking(world, admin, stage)
    clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
    await plane.store(await stage.write("bea", "one"))
    (lane,) = await channel_events.claim_events(world.db, [KIND], 5)
    assert len(lane.seqs) == 1
    await plane.store(await stage.write("bea", "two"))
    await plane.handle()
    assert await admin.fetchval("select count(*) from message") == 0
    await clock.advance(timedelta(minutes=2))
    await plane.handle()
    assert [row["text"] for row in await admin.fetch("select text from message order by seq")] == ["one", "two"]


async def test_flood_of_one_org_keeps_no_other_waiting(
    world: World, other: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    flooded, _ = await talking(world, admin, stage)
    calm, _ = await talking(other, admin, stage)
    for n in range(12):
        await flooded.store(await stage.write(f"person {n}", "Hello"))
    await calm.store(await stage.write("bea", "Hello"))
    lanes = await channel_events.claim_events(world.db, [KIND], 6)
    assert {lane.org_id for lane in lanes} == {world.org_id, other.org_id}
    assert len(await channel_events.claim_events(world.db, [KIND], 6, after=world.org_id)) == 4
    assert await channel_events.claim_events(world.db, [KIND], 6, full=[world.org_id]) == []
    assert len(await channel_events.claim_events(world.db, [KIND], 6, full=[other.org_id])) == 4


async def test_running_inbox_handles_at_once_what_its_process_stored(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage)
    inbox = ChannelInbox(world.db, plane.door.channels, PUBLIC_URL, poll_seconds=3600)
    plane.door = InboundDoor(plane.door.channels, inbox.wake)
    running = asyncio.create_task(inbox.run())
    async with asyncio.timeout(10):
        while inbox._looking is None or not inbox._looking.done():  # noqa: ASYNC110 -- nothing says so
            await asyncio.sleep(0.001)
        await plane.store(await stage.write("bea", "Hello"))
        while await statuses(admin) != ["done"]:  # noqa: ASYNC110 -- only the database knows
            await asyncio.sleep(0.005)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.proves("D.821")
async def test_two_inboxes_handle_every_event_once_and_in_order(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage)
    for n in range(10):
        for name in ("bea", "sam", "tom"):
            await plane.store(await stage.write(name, f"{name} {n}"))
    other = ChannelInbox(world.db, plane.door.channels, PUBLIC_URL)
    async with asyncio.timeout(30):
        while any(await asyncio.gather(plane.inbox.turn(), other.turn())):
            pass
    rows = await admin.fetch("select session_id, text from message order by session_id, seq")
    assert len(rows) == 30
    for name in ("bea", "sam", "tom"):
        assert [row["text"] for row in rows if row["text"].startswith(name)] == [f"{name} {n}" for n in range(10)]


async def test_revoked_connection_is_disabled_with_its_reason(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage)
    await plane.take(stage.signed(stage.event("vendor", "revoked", reason="The app was removed.")))
    row = await connections.get_connection(world.db, world.admin.actor, plane.connection_id)
    assert row.disabled_at is not None
    assert row.disabled_reason == "The app was removed."


async def test_vendor_that_revokes_a_connection_alerts_operators_elsewhere(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage)
    operator = await world.person(Role.OPERATOR, name="Op")
    await link(admin, world, await stage.connect(world), operator, stage.address("op"))
    await admin.execute(
        "insert into channel_connection (org_id, id, channel_type, name) values ($1, $2, 'github', 'nobody in private')",
        world.org_id, public := new_id(),
    )  # fmt: skip
    await link(admin, world, public, operator, "4711")
    await plane.take(stage.signed(stage.event("vendor", "revoked", reason="The app was removed.")))
    (alert,) = await admin.fetch(
        "select user_account_id, data ->> 'alert' as alert from notification where kind = 'alert'"
    )
    assert tuple(alert) == (operator.member_id, "connection_disabled")


async def test_message_that_did_not_arrive_is_a_dead_letter(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(strict, admin, stage)
    approval, message = await asked(strict, plane)
    report = stage.event("vendor", "report", message=message.ref, problem="The number is not on the network.")
    await plane.take(stage.signed(report))
    delivery = await delivery_of(strict, approval)
    assert (delivery.status, delivery.last_error) == (DeliveryStatus.DEAD, "The number is not on the network.")
    events = (await approvals.get_approval(strict.db, strict.admin.actor, approval.id)).events
    assert "undeliverable" in [event.event_type for event in events], "whoever looks at the request sees it"


# Decisions.


@pytest.mark.proves("D.822")
async def test_whoever_set_the_connection_up_and_a_press_through_it_are_one_human(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    """Ada knows the secret and could sign a press as Bea: her own vote and Bea's are one."""
    plane, _ = await talking(strict, admin, stage)
    two = ASK.replace("timeout: 1d", "timeout: 1d, quorum: 2").replace("[approver]", "[approver, admin]")
    await strict.person(Role.APPROVER, name="Cyd")
    await apply_policies(strict.db, strict.admin.actor, two)
    _, (approval,) = await waiting(strict, Deploying(), call("deploy", plan={"to": "production"}))
    await plane.send()
    message = next(m for m in await stage.messages() if m.buttons)
    await plane.take(await stage.press("bea", message, "Approve"))
    await decide(strict, await shown(strict, approval.id), by=strict.admin)
    details = await approvals.get_approval(strict.db, strict.admin.actor, approval.id)
    assert details.approval.status is ApprovalStatus.PENDING
    assert strict.admin.member_id in next(v for v in details.votes if v.member == "Bea").behind


@pytest.mark.proves("D.822")
async def test_sender_who_was_unlinked_decides_nothing(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, bea = await talking(strict, admin, stage)
    approval, message = await asked(strict, plane)
    mapping = await admin.fetchval("select id from channel_mapping where user_account_id = $1", bea.member_id)
    await connections.unlink_member(strict.db, strict.admin.actor, bea.member_id, mapping)
    await plane.take(await stage.press("bea", message, "Approve"))
    assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING
    assert "do not know who you are" in (await stage.answers("bea"))[-1]


async def test_mapping_made_by_hand_decides_nothing(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, bea = await talking(strict, admin, stage)
    approval, message = await asked(strict, plane)
    await admin.execute(
        "update channel_mapping set channel_user_id = $1 where user_account_id = $2", "u-eve", bea.member_id
    )
    await plane.take(await stage.press("eve", message, "Approve"))
    assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING
    assert "do not know who you are" in (await stage.answers("eve"))[-1]


@pytest.mark.proves("D.822")
async def test_button_of_another_connection_is_none(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, bea = await talking(strict, admin, stage)
    approval, message = await asked(strict, plane)
    other = await stage.connect(strict)
    await link(admin, strict, other, bea, stage.address("bea"))
    await Plane(strict, stage, other).take(await stage.press("bea", message, "Approve"))
    assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING
    assert "belongs to no request" in (await stage.answers("bea"))[-1]


@pytest.mark.proves("D.823")
async def test_high_risk_is_denied_but_not_approved_or_answered_by_a_press(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(strict, admin, stage)
    policies = ASK.replace("timeout: 1d", "timeout: 1d, template: critical_path")
    await apply_policies(strict.db, strict.admin.actor, policies)
    _, (approval,) = await waiting(strict, Deploying(), call("deploy", plan={"to": "production"}))
    await plane.send()
    message = (await stage.messages())[-1]
    assert set(message.buttons) == {"Deny"}
    for action in ("c1:a:", "c1:r:"):
        data = message.buttons["Deny"].replace("c1:d:", action)
        await plane.take(await stage.press_data("bea", message, data))
        assert "high risk" in (await stage.answers("bea"))[-1]
        assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING
    await plane.take(await stage.press("bea", message, "Deny"))
    await plane.take(await stage.words("bea", "no"))
    assert (await shown(strict, approval.id)).status is ApprovalStatus.DENIED


async def test_answer_that_fits_no_choice_is_asked_for_again(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, bea = await talking(
        strict, admin, stage, turn(call("plane_ask_person", question="Which?", choices=["Berlin", "Paris"]))
    )
    await apply_policies(strict.db, strict.admin.actor, ASK)
    await plane.take(await stage.write("bea", "Book it"))
    id = await admin.fetchval("select id from job where kind = 'conversation'")
    async with working(strict.db, Deploying().app):
        await until(strict, id, JobStatus.WAITING_FOR_APPROVAL)
    await plane.send()
    card = next(message for message in await stage.messages() if message.buttons)
    assert set(card.buttons) == {"Deny", "Respond"}
    await plane.take(await stage.press("bea", card, "Respond"))
    asked_by = (await stage.answers("bea"))[-1]
    assert "- Berlin" in asked_by
    prompt = stage.vendor.shown["u-bea"][-1]["id"]
    await plane.take(stage.signed(stage.event("bea", "text", text="Rome", reply_to=prompt)))
    assert "does not fit" in (await stage.answers("bea"))[-1]
    await plane.take(stage.signed(stage.event("bea", "text", text="paris", reply_to=prompt)))
    assert (await stage.answers("bea"))[-1] == "Your answer was sent."
    approval = await admin.fetchval("select answer from approval_request")
    assert orjson.loads(approval) == "Paris"
    assert bea.member_id


# Conversations.


@pytest.mark.proves("D.820")
async def test_reply_goes_to_where_its_person_wrote_last(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    """A question over one connection, a follow-up over another, and one from the dashboard: one session."""
    plane, bea = await talking(world, admin, stage, turn(text="an answer"))
    await plane.take(await stage.write("bea", "one"))
    await answered(world, admin, plane)
    async with vendor() as place:
        second = PlainStage(place, stage.channel)
        other = Plane(world, second, await second.connect(world))
        await admin.execute(
            "update channel_connection c set agent_id = o.agent_id from channel_connection o where c.id = $1 and o.id = $2",
            other.connection_id, plane.connection_id,
        )  # fmt: skip
        await link(admin, world, other.connection_id, bea, second.address("bea"))
        await other.take(await second.write("bea", "two"))
        await answered(world, admin, other)
        assert [message.text for message in await stage.messages()] == ["an answer"]
        assert [message.text for message in await second.messages()] == ["an answer"]
        (session,) = await admin.fetch("select id from session where kind = 'conversation'")
        await sessions.post_message(world.db, bea.actor, session["id"], MessageDraft(text="three"))
        await answered(world, admin, other)
        assert len(await stage.messages()) + len(await second.messages()) == 2, "it is read where it was asked"
    assert await admin.fetchval("select count(*) from message where role = 'assistant'") == 3


@pytest.mark.proves("D.826")
async def test_reply_that_failed_arrives_before_the_next_one(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    """Words of an agent are read in their order. One that is refused again and again keeps the others waiting for a while only."""
    plane, _ = await talking(world, admin, stage, turn(text="on {message}"))
    clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
    stage.fail(Failure.TEMPORARY, 1)
    for words in ("one", "two"):
        await plane.take(await stage.write("bea", words))
        await answered(world, admin, plane)
        await clock.advance(timedelta(microseconds=1))
    assert await stage.messages() == []
    await clock.advance(timedelta(minutes=1))
    await plane.send()
    assert [message.text for message in await stage.messages()] == ["on one", "on two"]


async def test_reply_does_not_follow_somebody_who_left(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, bea = await talking(world, admin, stage, turn(text="a private answer"))
    await plane.take(await stage.write("bea", "one"))
    mapping = await admin.fetchval("select id from channel_mapping where user_account_id = $1", bea.member_id)
    await connections.unlink_member(world.db, world.admin.actor, bea.member_id, mapping)
    await answered(world, admin, plane)
    assert await stage.messages() == []
    assert await admin.fetchval("select status from notification") == "dead"


async def test_reply_to_a_guest_reaches_the_member_whom_they_turned_out_to_be(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    """Bea has a conversation with this agent already, so the guest's stays beside it."""
    plane, bea = await talking(world, admin, stage, turn(text="an answer"))
    await plane.take(await stage.write("bea", "from my own chat"))
    await answered(world, admin, plane)
    await plane.take(await stage.write("guest", "from a new phone"))
    code = await links.issue_link_code(world.db, bea.actor)
    await plane.take(await stage.write("guest", f"/link {code.code}"))
    (claim,) = await links.list_own_claims(world.db, bea.actor)
    await links.confirm_link(world.db, bea.actor, claim.id)
    await answered(world, admin, plane)
    assert [message.chat for message in await stage.messages()] == ["dm-u-bea", "dm-u-guest"]


class BusyChannel(PlainChannel):
    """It shows that an agent works, or fails to."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error = error
        self.shown: list[str] = []

    async def show_activity(self, target: Target, event: ChatMessage) -> None:
        assert target.secrets
        self.shown.append(event.text)
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, TryAgain("Slow down.", after_seconds=9), Undeliverable("No."), TimeoutError()])
async def test_activity_is_shown_for_a_message_that_an_agent_got(
    world: World, admin: asyncpg.Connection, error: Exception | None
) -> None:
    async with vendor() as place:
        stage = PlainStage(place, channel := BusyChannel(error))
        plane, _ = await talking(world, admin, stage)
        for text in ("/status", "Hello"):
            await plane.take(await stage.write("bea", text))
        assert channel.shown == ["Hello"]
        assert await admin.fetchval("select count(*) from message") == 1
        assert await statuses(admin) == ["done", "done"], "nobody waits because it failed"
        await channel.close()


async def test_chosen_agent_hears_this_chat_alone(world: World, admin: asyncpg.Connection, stage: PlainStage) -> None:
    plane, _ = await talking(world, admin, stage)
    chosen = await make_agent(world, [], slug="chosen")
    await plane.take(await stage.write("bea", "/agents Agent chosen"))
    await plane.take(await stage.write("bea", "for the chosen one"))
    await plane.take(await stage.write("bea", "for the other one", private=False))
    rows = await admin.fetch(
        "select m.text, s.agent_id from message m join session s on s.id = m.session_id order by m.text"
    )
    assert [row["agent_id"] == chosen.id for row in rows] == [True, False]


async def test_agent_that_is_not_among_those_listed_is_chosen_by_its_slug(
    world: World, admin: asyncpg.Connection, stage: PlainStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chats, "MAX_LISTED", 1)
    plane, _ = await talking(world, admin, stage)
    for slug in ("older", "newer"):
        await make_agent(world, [], slug=slug)
    await plane.take(await stage.write("bea", "/agents older"))
    assert "goes to Agent older" in (await stage.answers("bea"))[-1]


async def test_code_works_in_a_private_chat_and_waits_for_its_member(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, bea = await talking(world, admin, stage)
    code = await links.issue_link_code(world.db, bea.actor)
    await plane.take(await stage.write("new", f"/link {code.code}", private=False))
    assert "private chats only" in (await stage.answers("new"))[-1]
    await plane.take(await stage.write("new", "/link 0000000000"))
    assert "does not work" in (await stage.answers("new"))[-1]
    await plane.take(await stage.write("new", f"/link {code.code}"))
    assert "confirm on the dashboard, under Your channels, that `New` is you" in (await stage.answers("new"))[-1]
    (claim,) = await links.list_own_claims(world.db, bea.actor)
    await plane.take(await stage.write("new", "/status"))
    assert "do not know who you are" in (await stage.answers("new"))[-1], "not before it is confirmed"
    await links.confirm_link(world.db, bea.actor, claim.id)
    await plane.take(await stage.write("new", "/start"))
    assert (await stage.answers("new"))[-1].startswith("Hello, Bea.")


async def test_cause_of_a_request_is_whoever_set_the_connection_up_too(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    """They could have made the message that the agent acts on."""
    plane, bea = await talking(strict, admin, stage, turn(call("deploy", plan={"to": "production"})))
    await apply_policies(strict.db, strict.admin.actor, ASK)
    await plane.take(await stage.write("bea", "Deploy"))
    id = await admin.fetchval("select id from job where kind = 'conversation'")
    async with working(strict.db, Deploying().app):
        await until(strict, id, JobStatus.WAITING_FOR_APPROVAL)
    causes = await admin.fetchval("select causes from approval_request")
    assert {bea.member_id, strict.admin.member_id} <= set(causes)


# Listeners.


async def heard(admin: asyncpg.Connection, count: int) -> None:
    async with asyncio.timeout(10):
        while await admin.fetchval("select count(*) from channel_event") < count:  # noqa: ASYNC110 -- only the database knows
            await asyncio.sleep(0.005)


@pytest.mark.proves("D.825")
async def test_one_process_listens_to_a_connection(
    world: World, db: Database, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage, mode="polling")
    first, second = (ChannelListener(db, plane.door.channels, plane.inbox.wake) for _ in range(2))
    await first.beat()
    await second.beat()
    assert (len(first.connections), len(second.connections)) == (1, 0)
    await stage.hold("bea", "one")
    await stage.hold("bea", "two")
    await heard(admin, 2)
    await plane.handle()
    assert [row["text"] for row in await admin.fetch("select text from message order by seq")] == ["one", "two"]
    assert stage.vendor.pollers <= 1
    await first.leave()
    await second.beat()
    await stage.hold("bea", "three")
    await heard(admin, 3)
    assert await admin.fetchval("select cursor from channel_listener") == "3"
    await second.leave()


@pytest.mark.proves("D.825")
async def test_listener_that_was_stopped_past_its_lease_is_not_believed(
    world: World, db: Database, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage, mode="polling")
    clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
    owner, heir = new_id(), ChannelListener(db, plane.door.channels, plane.inbox.wake)
    (lease,) = await listeners.claim_listeners(db, owner, [KIND], 5)
    item = InboundItem(event_id="e-1", payload=stage.event("bea", "text", text="in time"))
    assert await listeners.store_heard(db, lease, stage.channel, [item], "1") == 1
    await heir.beat()
    assert heir.connections == []
    await clock.advance(timedelta(minutes=1))
    await heir.beat()
    assert heir.connections == [plane.connection_id]
    late = InboundItem(event_id="e-2", payload=stage.event("bea", "text", text="too late"))
    with pytest.raises(Conflict) as refused:
        await listeners.store_heard(db, lease, stage.channel, [late], "9")
    assert refused.value.code == "listener_lost"
    assert await listeners.renew_listeners(db, owner, [lease]) == set()
    assert await admin.fetchval("select count(*) from channel_event") == 1
    assert await admin.fetchval("select cursor from channel_listener") == "1"
    await heir.leave()


async def test_stopped_listener_stops_at_once_when_it_goes_on(
    world: World, db: Database, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage, mode="polling")
    clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
    first, second = (ChannelListener(db, plane.door.channels, plane.inbox.wake) for _ in range(2))
    await first.beat()
    await clock.advance(timedelta(minutes=1))
    await second.beat()
    await first.beat()
    assert first.connections == []
    assert second.connections == [plane.connection_id]
    await second.leave()


async def test_disabled_connection_is_not_listened_to(
    world: World, db: Database, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage, mode="polling")
    listener = ChannelListener(db, plane.door.channels, plane.inbox.wake)
    await listener.beat()
    assert listener.connections == [plane.connection_id]
    change = ConnectionChange(enabled=False)
    await connections.update_connection(world.db, world.admin.actor, plane.connection_id, change, None)
    await listener.beat()
    assert listener.connections == []
    await listener.leave()


async def test_listener_begins_anew_after_an_error_where_it_stopped(
    world: World, db: Database, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage, mode="polling")
    listener = ChannelListener(db, plane.door.channels, plane.inbox.wake, pauses=(0.01,))
    stage.vendor.failing = 3
    await listener.beat()
    await stage.hold("bea", "one")
    await heard(admin, 1)
    assert await admin.fetchval("select last_error from channel_listener") is None, "it goes well again"
    await listener.leave()


async def test_old_events_are_forgotten(world: World, admin: asyncpg.Connection, stage: PlainStage) -> None:
    plane, _ = await talking(world, admin, stage)
    await plane.take(await stage.write("bea", "Hello"))
    await plane.store(await stage.write("bea", "waits"))
    clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
    await clock.advance(timedelta(days=29))
    await channel_events.forget_events(world.db)
    assert len(await statuses(admin)) == 2
    await clock.advance(timedelta(days=2))
    await channel_events.forget_events(world.db)
    assert await statuses(admin) == ["pending"], "what was not handled stays"


class Died(BaseException):
    """In the place of a process that is killed."""


async def test_dead_at_any_point_a_press_decides_once_and_is_answered(
    strict: World, admin: asyncpg.Connection, stage: PlainStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between taking an event, deciding, answering and settling it: every statement and every commit in turn."""
    plane, _ = await talking(strict, admin, stage)
    await apply_policies(strict.db, strict.admin.actor, ASK)
    clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
    left = 0

    def reached(_: str) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Died

    monkeypatch.setattr(crash_points, "reached", reached)
    for n in range(12):
        _, (approval,) = await waiting(strict, Deploying(), call("deploy", plan={"to": str(n)}), slug=f"deployer-{n}")
        await plane.send()
        message = (await stage.messages())[-1]
        await plane.store(await stage.press("bea", message, "Approve"))
        monkeypatch.setattr(crash_points, "armed", True)
        left = 3 * n + 1
        with contextlib.suppress(Died):
            (lane,) = await channel_events.claim_events(strict.db, [KIND], 5)
            event = await channel_events.begin_event(strict.db, plane.door.channels, PUBLIC_URL, lane, lane.seqs[0])
            assert event is not None
            await inbound.handle(strict.db, event)
            await channel_events.settle_event(strict.db, lane, event.seq)
        monkeypatch.setattr(crash_points, "armed", False)
        await clock.advance(timedelta(minutes=5))
        await plane.handle()
        await plane.send()
        details = await approvals.get_approval(strict.db, strict.admin.actor, approval.id)
        assert details.approval.status is ApprovalStatus.APPROVED
        assert [event.event_type for event in details.events].count("approved") == 1
        assert (await stage.answers("bea"))[-1] == "Approved."
    assert set(await statuses(admin)) == {"done"}


async def test_names_with_hidden_characters_are_read(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, _ = await talking(world, admin, stage)
    await plane.take(stage.signed(stage.event("sam", "text", text="Hello") | {"name": "Sam\n\u202e \u200b"}))
    await plane.take(stage.signed(stage.event("tom", "text", text="Hello") | {"name": "\u200b"}))
    names = await admin.fetch("select display_name from user_account where roles = '{guest}' order by display_name")
    assert [row["display_name"] for row in names] == ["Sam", "u-tom"]
