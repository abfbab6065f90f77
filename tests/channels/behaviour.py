"""What every channel must do, whatever it speaks. A channel's own tests bring a stage and inherit the suite:

class TestEmail(ChannelSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[ChannelStage]: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any, Protocol, TypeVar
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Choice
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.verbs import deadlines
from cortex_plane.jobs.model.jobs import Cancellation
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.verbs import deliveries
from cortex_plane.notify.verbs.channel_port import ChannelPort, InteractiveChannel
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.identities import ConnectionChange, Delivery, DeliveryStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections
from cortex_plane.worker.notifier import SEND_SECONDS, Notifier
from tests.fixtures.approvals import Shipping, decide, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.macs import sign_mappings
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.workers import call

PUBLIC_URL = "https://plane.example"
ASK = """
policies:
  - {name: ask, target: "*", effect: requires_approval, approvers: {roles: [approver]}, timeout: 1d}
"""
HANGING_SECONDS = 0.5
"""How long the suite's notifier waits for an answer that nobody gives."""
DECIDING_SECONDS = 2.0
"""The same where somebody decides meanwhile."""


class Failure(StrEnum):
    """What the other side does to the next messages."""

    TEMPORARY = "temporary"
    """It says: not now."""
    PERMANENT = "permanent"
    """It says: never."""
    HANG = "hang"
    """It takes the connection and says nothing."""
    LOST_ANSWER = "lost_answer"
    """It takes the message, and its answer is lost."""
    NO_ANSWER = "no_answer"
    """It takes the message, and keeps the connection open without an answer."""
    RATE_LIMITED = "rate_limited"
    """It asks for a pause, in its own form, of ``ChannelStage.pause``."""
    REVOKED = "revoked"
    """It does not know the connection any more."""


@dataclass(frozen=True, kw_only=True)
class Arrived:
    """One message as its reader has it."""

    address: str
    """To whom."""
    thread: str
    """The same for all messages about one request to one person."""
    status: str
    """What it says has become of the request: `pending`, `approved`, `denied`, `expired` or `cancelled`."""
    text: str
    """All that a reader sees, decoded."""
    markup: str = ""
    """The same as markup, where the channel has any: what a browser would interpret."""
    urls: Sequence[str] = field(default_factory=list)


class ChannelStage(Protocol):
    """A channel with somebody at its other end."""

    @property
    def channel(self) -> ChannelPort: ...

    redelivers: bool
    """Whether a lost answer makes a second message; False where the other side can tell that it has it already."""

    @property
    def pause(self) -> timedelta | None:
        """What the other side asks for when it is RATE_LIMITED; None for mail, whose servers neither ask for a pause nor end a connection."""
        ...

    async def connect(self, world: World) -> UUID:
        """An enabled connection of this channel in this org."""
        ...

    def address(self, name: str) -> str:
        """Where a person of this name is reached."""
        ...

    async def arrived(self) -> list[Arrived]:
        """What has arrived so far, in order."""
        ...

    def fail(self, how: Failure, times: int) -> None:
        """From now on, so many times; with 0 everything works again. Raises ``NotImplementedError`` for what cannot happen there."""
        ...


class Deploying(Shipping):
    """An app whose arguments may be anything."""

    def __init__(self) -> None:
        super().__init__()

        @self.app.tool(risk="high", timeout=5, on_uncertain="retry_with_key")
        async def deploy(plan: dict[str, Any]) -> str:
            """Deploy by a plan."""
            return "done"


Paced = TypeVar("Paced", bound=InteractiveChannel)


def without_pace(channel: Paced) -> Paced:
    """A channel that does not wait between two messages: that second would be most of what a test takes, and pacing is
    tested in tests/notify/test_pacing.py."""
    vars(channel)["traits"] = replace(channel.traits, chat_seconds=0.0, per_second=0.0)
    return channel


async def link(admin: asyncpg.Connection, world: World, connection_id: UUID, person: Person, address: str) -> UUID:
    """A way to reach somebody that they have proven."""
    id = new_id()
    await admin.execute(
        """insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id, verified_at)
        select c.org_id, $1, c.id, $3, c.channel_type, $4, plane_now() from channel_connection c where c.id = $2""",
        id, connection_id, person.actor.user_account_id, address,
    )  # fmt: skip
    assert world.org_id == person.actor.org_id
    await sign_mappings(world.db, world.org_id)
    return id


async def drain(notifier: Notifier, seconds: float = 30) -> None:
    """Send all that is due."""
    async with asyncio.timeout(seconds):
        while await notifier.turn():
            pass


async def delivery_of(world: World, approval: Approval) -> Delivery:
    page = await deliveries.list_deliveries(world.db, world.admin.actor, None, 10, approval_id=approval.id)
    (only,) = page.items
    return only


async def told(world: World, approval: Approval) -> list[str]:
    """What the audit trail of a request's session says."""
    entries = await audit.list_entries(world.db, world.admin.actor, approval.session_id, 0, 1000)
    return [entry.action for entry in entries]


async def dispatches(world: World, approval: Approval) -> list[str]:
    """The channels on which the audit trail says that a request reached somebody, besides the inbox."""
    entries = await audit.list_entries(world.db, world.admin.actor, approval.session_id, 0, 1000)
    bodies = [entry.body for entry in entries if entry.action == "approval_dispatched" and entry.body]
    return [body["data"]["channel"] for body in bodies if "delivery" in body["data"]]


class ChannelSuite:
    """Every test has one approver, Bea, with one address on the stage's channel."""

    async def _bea(self, world: World, admin: asyncpg.Connection, stage: ChannelStage) -> Person:
        bea = await world.person(Role.APPROVER, name="Bea")
        await apply_policies(world.db, world.admin.actor, ASK)
        connection_id = await stage.connect(world)
        await link(admin, world, connection_id, bea, stage.address("bea"))
        return bea

    def _recipient(self, stage: ChannelStage) -> str:
        return "Bea"

    def _notifier(self, world: World, stage: ChannelStage, send_seconds: float = SEND_SECONDS) -> Notifier:
        return Notifier(world.db, [stage.channel], PUBLIC_URL, send_seconds=send_seconds)

    async def _asked(self, world: World, **plan: Any) -> Approval:
        _, (asked,) = await waiting(world, Deploying(), call("deploy", plan=plan or {"to": "production"}))
        return asked

    async def test_a_request_reaches_its_approver_and_says_so(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage
    ) -> None:
        await self._bea(strict, admin, stage)
        asked = await self._asked(strict)
        await drain(self._notifier(strict, stage))
        (message,) = await stage.arrived()
        assert (message.address, message.status) == (stage.address("bea"), "pending")
        assert "deploy" in message.text
        assert "production" in message.text
        assert f"{PUBLIC_URL}/approvals/{asked.id}" in message.urls
        kept = await delivery_of(strict, asked)
        assert (kept.status, kept.attempts, kept.member) == (DeliveryStatus.DELIVERED, 0, self._recipient(stage))
        assert kept.sent_at is not None
        details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
        assert stage.channel.channel_type in details.approval.channels_dispatched
        dispatched = [e.channel for e in details.events if e.event_type == "dispatched"]
        assert dispatched[-1] == stage.channel.channel_type
        assert await dispatches(strict, asked) == [stage.channel.channel_type]

    @pytest.mark.parametrize("end", ["approved", "denied", "expired", "cancelled"])
    async def test_however_it_ends_its_message_says_so(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage, end: str
    ) -> None:
        bea = await self._bea(strict, admin, stage)
        asked = await self._asked(strict)
        notifier = self._notifier(strict, stage)
        await drain(notifier)
        match end:
            case "approved" | "denied":
                await decide(strict, asked, Choice(end), by=bea, reason="as it should be")
            case "expired":
                assert asked.deadline is not None
                await Clock.install(admin, asked.deadline)
                await deadlines.tick(strict.db, new_id(), "scheduler")
            case "cancelled":
                assert asked.job_id is not None
                await steering.cancel(strict.db, strict.admin.actor, asked.job_id, Cancellation())
        assert (await shown(strict, asked.id)).status == end
        await drain(notifier)
        before, after = await stage.arrived()
        assert (before.status, after.status) == ("pending", end)
        assert after.thread == before.thread
        assert after.address == before.address
        assert not _deciding_urls(after), "nothing to press any more"
        kept = await delivery_of(strict, asked)
        assert (kept.status, kept.rendered_version) == (DeliveryStatus.DELIVERED, kept.desired_version)
        assert await dispatches(strict, asked) == [stage.channel.channel_type]
        await drain(notifier)
        assert len(await stage.arrived()) == 2, "and says it once"

    async def test_what_fails_for_now_is_tried_again_until_it_arrives(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage
    ) -> None:
        await self._bea(strict, admin, stage)
        asked = await self._asked(strict)
        clock = await Clock.install(admin, asked.requested_at + timedelta(minutes=1))
        notifier = self._notifier(strict, stage)
        stage.fail(Failure.TEMPORARY, 2)
        await drain(notifier)
        kept = await delivery_of(strict, asked)
        assert (kept.status, kept.attempts) == (DeliveryStatus.PENDING, 1)
        assert kept.last_error
        assert kept.next_attempt_at is not None
        await drain(notifier)
        assert (await delivery_of(strict, asked)).attempts == 1, "not before its time"
        for _ in range(2):
            kept = await delivery_of(strict, asked)
            assert kept.next_attempt_at is not None
            await clock.set(kept.next_attempt_at)
            await drain(notifier)
        kept = await delivery_of(strict, asked)
        assert (kept.status, kept.attempts, kept.last_error) == (DeliveryStatus.DELIVERED, 0, None)
        assert [message.status for message in await stage.arrived()] == ["pending"]

    async def test_who_never_answers_is_tried_again(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage
    ) -> None:
        await self._bea(strict, admin, stage)
        asked = await self._asked(strict)
        clock = await Clock.install(admin, asked.requested_at + timedelta(minutes=1))
        stage.fail(Failure.HANG, 1)
        await drain(self._notifier(strict, stage, send_seconds=HANGING_SECONDS))
        kept = await delivery_of(strict, asked)
        assert (kept.status, kept.attempts) == (DeliveryStatus.PENDING, 1)
        assert kept.next_attempt_at is not None
        await clock.set(kept.next_attempt_at)
        await drain(self._notifier(strict, stage))
        assert (await delivery_of(strict, asked)).status is DeliveryStatus.DELIVERED
        assert len(await stage.arrived()) == 1

    async def test_what_fails_for_good_is_a_dead_letter_that_can_be_sent_again(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage
    ) -> None:
        await self._bea(strict, admin, stage)
        asked = await self._asked(strict)
        notifier = self._notifier(strict, stage)
        try:
            stage.fail(Failure.PERMANENT, 1)
        except NotImplementedError:
            pytest.skip("nobody refuses one message for good on this channel")
        await drain(notifier)
        kept = await delivery_of(strict, asked)
        assert (kept.status, kept.next_attempt_at) == (DeliveryStatus.DEAD, None)
        assert kept.last_error
        dead = await deliveries.list_deliveries(strict.db, strict.admin.actor, None, 10, status=DeliveryStatus.DEAD)
        assert [each.id for each in dead.items] == [kept.id]
        details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
        assert "undeliverable" in [event.event_type for event in details.events]
        assert "approval_undeliverable" in await told(strict, asked)
        await drain(notifier)
        assert await stage.arrived() == []
        await enable_connections(strict)
        again = await deliveries.resend_delivery(strict.db, strict.admin.actor, kept.id)
        assert again.status is DeliveryStatus.PENDING
        await drain(notifier)
        assert (await delivery_of(strict, asked)).status is DeliveryStatus.DELIVERED
        assert [message.status for message in await stage.arrived()] == ["pending"]
        assert (await told(strict, asked))[-2:] == ["delivery_resent", "approval_dispatched"]

    async def test_a_lost_answer_may_make_it_come_twice_and_never_loses_it(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage
    ) -> None:
        await self._bea(strict, admin, stage)
        asked = await self._asked(strict)
        clock = await Clock.install(admin, asked.requested_at + timedelta(minutes=1))
        notifier = self._notifier(strict, stage)
        stage.fail(Failure.LOST_ANSWER, 1)
        await drain(notifier)
        kept = await delivery_of(strict, asked)
        assert kept.next_attempt_at is not None
        await clock.set(kept.next_attempt_at)
        await drain(notifier)
        assert (await delivery_of(strict, asked)).status is DeliveryStatus.DELIVERED
        messages = await stage.arrived()
        assert len(messages) == (2 if stage.redelivers else 1)
        assert len({message.thread for message in messages}) == 1
        assert {message.status for message in messages} == {"pending"}

    async def test_secrets_stay_behind_at_any_depth(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage
    ) -> None:
        await self._bea(strict, admin, stage)
        await self._asked(
            strict,
            to="production",
            password="hunter2-in-plain",
            nested=[{"Api_Key": {"value": "deep-secret-value"}, "region": "eu-central"}],
            header="Authorization: Bearer abcdefgh-12345678",
        )
        await drain(self._notifier(strict, stage))
        (message,) = await stage.arrived()
        for secret in ("hunter2-in-plain", "deep-secret-value", "abcdefgh-12345678"):
            assert secret not in message.text
            assert secret not in message.markup
        assert "[redacted]" in message.text
        assert "eu-central" in message.text

    async def test_what_is_long_is_cut_and_leads_to_the_whole(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage
    ) -> None:
        await self._bea(strict, admin, stage)
        asked = await self._asked(strict, aaa="the beginning", body="x" * 50_000, zzz="the very end")
        await drain(self._notifier(strict, stage))
        (message,) = await stage.arrived()
        assert "the beginning" in message.text
        assert "the very end" not in message.text
        assert len(message.text) < 20_000
        assert f"{PUBLIC_URL}/approvals/{asked.id}" in message.urls

    async def test_hostile_text_is_data(self, strict: World, admin: asyncpg.Connection, stage: ChannelStage) -> None:
        await self._bea(strict, admin, stage)
        hostile = "<script>alert(1)</script><img src=x onerror=y> \u202egpj.exe\u200b {{7*7}} \r\nBcc: x@y"
        await self._asked(strict, to=hostile)
        await drain(self._notifier(strict, stage))
        (message,) = await stage.arrived()
        assert message.address == stage.address("bea")
        assert "<script" not in message.markup
        assert "<img src=x" not in message.markup
        for hidden in "\u202e\u200b":
            assert hidden not in message.text
            assert hidden not in message.markup
        assert "202e" in message.text.lower(), "what is hidden is shown"
        assert "{{7*7}}" in message.text

    async def test_one_person_is_told_in_order(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage
    ) -> None:
        await self._bea(strict, admin, stage)
        deploying = Deploying()
        calls = [call("deploy", plan={"step": f"number-{n}"}) for n in range(5)]
        _, asked = await waiting(strict, deploying, *calls)
        assert len(asked) == 5
        await drain(self._notifier(strict, stage))
        assert [step_of(message) for message in await stage.arrived()] == await steps_asked(admin, stage)

    async def test_an_update_that_comes_while_it_is_sent_is_not_lost(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage
    ) -> None:
        """The request ends while its first message hangs: the next one says how."""
        bea = await self._bea(strict, admin, stage)
        asked = await self._asked(strict)
        notifier = self._notifier(strict, stage, send_seconds=DECIDING_SECONDS)
        stage.fail(Failure.HANG, 1)
        sending = asyncio.create_task(notifier.turn())
        async with asyncio.timeout(10):
            while not await admin.fetchval("select count(*) from notification where tried_at is not null"):  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.01)
        await decide(strict, asked, by=bea)
        await sending
        kept = await delivery_of(strict, asked)
        assert (kept.status, kept.attempts) == (DeliveryStatus.PENDING, 1)
        await drain(notifier)
        assert (await stage.arrived())[-1].status == ApprovalStatus.APPROVED
        assert (await delivery_of(strict, asked)).status is DeliveryStatus.DELIVERED


def _deciding_urls(message: Arrived) -> list[str]:
    return [url for url in message.urls if "decision=" in url or "/callback" in url]


async def steps_asked(admin: asyncpg.Connection, stage: ChannelStage) -> list[str]:
    """The steps of all requests, in the order of their messages."""
    rows = await admin.fetch(
        "select r.arguments #>> '{plan,step}' as step from notification n join approval_request r on r.id = n.approval_id"
        " where n.channel_type = $1 order by n.seq", stage.channel.channel_type,
    )  # fmt: skip
    return [row["step"] for row in rows]


def step_of(message: Arrived) -> str:
    (found,) = {word for n in range(5) if (word := f"number-{n}") in message.text}
    return found


async def enable_connections(world: World) -> None:
    """What an admin does after the other side said for good that it takes no more."""
    page = await connections.list_connections(world.db, world.admin.actor, None, 10)
    for each in page.items:
        if each.disabled_reason is not None:
            await connections.update_connection(
                world.db, world.admin.actor, each.id, ConnectionChange(enabled=True), None
            )
