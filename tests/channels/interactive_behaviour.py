"""What every channel must do on which people act. A channel's own tests bring a stage and inherit the suite:

class TestTelegramInteractive(InteractiveSuite):  # and ListeningSuite, where `traits.listens`
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[InteractiveStage]: ...

A stage is the channel, the vendor's emulator at its other end, and people who use the vendor's app. It has two sides:

- **What people see**: `messages()` and `answers(name)` read the emulator.
- **What people do**: `press`, `words`, `write` return the request that the vendor would send to the address of the connection, signed as
  the vendor signs it. The suite sends it itself, so that it can send it twice, in another order, or forged.

Each call of `press`, `words` and `write` is a new act: its event has an id of its own, unlike any before. All texts of people are plain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

import asyncpg
import pytest
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Channel, Choice
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.verbs import deadlines
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import Unauthenticated
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import Meters, metered
from cortex_plane.notify.model.channels import Button, ButtonAction, InboundReply, ReasonInput
from cortex_plane.notify.verbs import channel_events, inbound
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from cortex_plane.notify.verbs.inbound import InboundDoor, VendorRequest
from cortex_plane.tenancy.model.orgs import OrgChange, OrgSettingsChange, Role
from cortex_plane.tenancy.verbs import orgs
from cortex_plane.worker.channel_inbox import ChannelInbox
from cortex_plane.worker.channel_listener import ChannelListener
from cortex_plane.worker.notifier import Notifier
from tests.channels.behaviour import ASK, PUBLIC_URL, Deploying, Failure, delivery_of, drain, link
from tests.fixtures.approvals import decide, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import call, make_agent, turn, until, working


@dataclass(frozen=True, kw_only=True)
class SeenMessage:
    """One message of the plane as its chat shows it now, after all edits."""

    ref: str
    """The vendor's id of it, unique for the emulator."""
    chat: str
    text: str
    """All that a reader sees, decoded."""
    buttons: Mapping[str, Any] = field(default_factory=dict)
    """What can be pressed, by label (`Approve`, `Deny`, `Respond`), with what the stage needs to press it. Links are not among them.
    A command that the message names, as on GitHub, counts as a button."""


class InteractiveStage(Protocol):
    """A channel, its vendor, and people who use it."""

    @property
    def channel(self) -> InteractiveChannel: ...

    async def connect(self, world: World) -> UUID:
        """An enabled connection of this channel in this org, with its config and secrets, over which the emulator is reached. Use
        `connections.create_connection` or what `tests/channels/plain_channel.py` uses; its default agent is the suite's to set."""
        ...

    def address(self, name: str) -> str:
        """The vendor's id of a person of this name: what `ChannelSender.id` will be. The same name has the same id."""
        ...

    async def messages(self) -> list[SeenMessage]:
        """All messages of the plane to people and chats, oldest first, each as it is now. Answers that only one person sees are not
        among them, and neither are questions for words."""
        ...

    async def answers(self, name: str) -> list[str]:
        """What was shown to this person as an answer to what they did, oldest first: toasts, ephemeral messages, titles of forms,
        and questions for words."""
        ...

    async def press(self, name: str, message: SeenMessage, label: str, *, private: bool = True) -> VendorRequest:
        """This person presses a button of this message as it was when it was read: also one that is not there any more. ``private``:
        in their own chat with the bot, else in a chat of several people."""
        ...

    async def press_data(self, name: str, message: SeenMessage, data: str) -> VendorRequest:
        """The same by a modified client: it sends this ``data`` of a button, which the message may never have had."""
        ...

    async def words(self, name: str, text: str) -> VendorRequest:
        """This person gives the words that they were asked for last: by the form that opened, or as a reply to the message that
        asked."""
        ...

    async def write(
        self, name: str, text: str, *, private: bool = True, attachments: tuple[str, ...] = ()
    ) -> VendorRequest:
        """This person writes to the bot; in a chat of several people they mention it, where the vendor needs that. Raises
        ``NotImplementedError`` where people cannot write (``traits.conversations`` is false), or cannot send attachments."""
        ...

    def forge(self, request: VendorRequest) -> VendorRequest:
        """The same, signed by somebody without the secret."""
        ...

    def fail(self, how: Failure, times: int) -> None:
        """What the vendor does to the next requests of the plane: TEMPORARY answers 5xx."""
        ...


class ListeningStage(InteractiveStage, Protocol):
    """Of a channel that fetches what people send (``traits.listens``)."""

    async def connect_listening(self, world: World) -> UUID:
        """As ``connect``, with the config `mode` that makes the plane fetch."""
        ...

    async def hold(self, name: str, text: str) -> None:
        """This person writes to the bot in private, and the vendor keeps it until somebody fetches it. What is sent over a socket that is
        open reaches whoever has it open."""
        ...


class CountedPresses(Meters):
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []

    def called_back(self, channel: str, result: str) -> None:
        self.calls.append((channel, result))


@dataclass
class Plane:
    """The parts of a plane that serve a channel, without a server: the door, the inbox and the notifier."""

    world: World
    stage: InteractiveStage
    connection_id: UUID

    def __post_init__(self) -> None:
        kind = self.stage.channel.channel_type
        self.door = InboundDoor({kind: self.stage.channel})
        self.inbox = ChannelInbox(self.world.db, self.door.channels, PUBLIC_URL)
        self.notifier = Notifier(self.world.db, [self.stage.channel], PUBLIC_URL)

    async def store(self, request: VendorRequest) -> InboundReply:
        """The vendor delivers it, and nothing more happens yet."""
        return await inbound.receive(self.world.db, self.door, self.connection_id, request)

    async def handle(self) -> None:
        """Everything that is due."""
        async with asyncio.timeout(30):
            while await self.inbox.turn():
                pass

    async def send(self) -> None:
        await drain(self.notifier)

    async def take(self, request: VendorRequest) -> None:
        """The vendor delivers it, it is handled, and whoever is to hear of it hears of it."""
        reply = await self.store(request)
        assert reply.status < 300
        await self.handle()
        await self.send()


class InteractiveSuite:
    """Every test has Bea, an approver, and Mia, a member who may decide nothing. Both are linked; Sam is a stranger."""

    policies = ASK

    async def _plane(self, world: World, admin: asyncpg.Connection, stage: InteractiveStage) -> Plane:
        self.bea = await world.person(Role.APPROVER, name="Bea")
        self.mia = await world.person(Role.MEMBER, name="Mia")
        await apply_policies(world.db, world.admin.actor, self.policies)
        connection_id = await stage.connect(world)
        for person, name in ((self.bea, "bea"), (self.mia, "mia")):
            await link(admin, world, connection_id, person, stage.address(name))
        return Plane(world, stage, connection_id)

    async def _asked(self, plane: Plane, **plan: Any) -> tuple[Approval, SeenMessage]:
        """A request, and the message that Bea has of it."""
        _, (asked,) = await waiting(plane.world, Deploying(), call("deploy", plan=plan or {"to": "production"}))
        await plane.send()
        return asked, (await plane.stage.messages())[-1]

    async def _deny(self, plane: Plane, message: SeenMessage, reason: str) -> None:
        await plane.take(await plane.stage.press("bea", message, "Deny"))
        if plane.stage.channel.traits.reason is not ReasonInput.NONE:
            await plane.take(await plane.stage.words("bea", reason))

    async def _has_live_buttons(self, plane: Plane) -> bool:
        messages = await plane.stage.messages()
        if not plane.stage.channel.traits.edits:
            # What was sent stays as it was; the last word is one without buttons.
            return bool(messages[-1].buttons)
        return any(message.buttons for message in messages)

    async def test_press_approves(self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        assert {"Approve", "Deny"} <= set(message.buttons)
        await plane.take(await stage.press("bea", message, "Approve"))
        details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
        assert details.approval.status is ApprovalStatus.APPROVED
        assert details.approval.resolved_via is Channel(stage.channel.channel_type)
        assert [vote.member_id for vote in details.votes] == [self.bea.member_id]
        assert (await stage.answers("bea"))[-1] == "Approved."
        assert not await self._has_live_buttons(plane)

    async def test_press_denies_with_a_reason(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        await self._deny(plane, message, "not on a Friday")
        approval = await shown(strict, asked.id)
        assert approval.status is ApprovalStatus.DENIED
        if stage.channel.traits.reason is not ReasonInput.NONE:
            assert approval.resolution_reason == "not on a Friday"
        assert (await stage.answers("bea"))[-1] == "Denied."
        assert not await self._has_live_buttons(plane)

    async def test_skip_denies_without_a_reason(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        if stage.channel.traits.reason is not ReasonInput.REPLY:
            pytest.skip("the channel does not ask for a reply")
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        await plane.take(await stage.press("bea", message, "Deny"))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING
        await plane.take(await stage.write("bea", "/skip"))
        approval = await shown(strict, asked.id)
        assert (approval.status, approval.resolution_reason) == (ApprovalStatus.DENIED, None)

    async def test_words_answer_in_the_place_of_the_call(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        if stage.channel.traits.reason is ReasonInput.NONE or "Respond" not in message.buttons:
            pytest.skip("the channel takes no words")
        await plane.take(await stage.press("bea", message, "Respond"))
        await plane.take(await stage.words("bea", "Deploy to staging instead"))
        approval = await shown(strict, asked.id)
        assert (approval.status, approval.answer) == (ApprovalStatus.RESPONDED, "Deploy to staging instead")

    async def test_double_press_decides_once(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        for request in [await stage.press("bea", message, "Approve") for _ in range(2)]:
            await plane.store(request)
        await plane.handle()
        details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
        assert len(details.votes) == 1
        assert [event.event_type for event in details.events].count("approved") == 1
        assert (await stage.answers("bea"))[-1] == "It is approved already by Bea."

    async def test_event_that_comes_several_times_at_once_and_again_counts_once(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        request = await stage.press("bea", message, "Approve")
        await asyncio.gather(*[plane.store(request) for _ in range(3)])
        assert await admin.fetchval("select count(*) from channel_event") == 1
        await asyncio.gather(plane.handle(), Plane(strict, stage, plane.connection_id).handle())
        await plane.send()
        answers = await stage.answers("bea")
        assert answers == ["Approved."]
        with metered(counted := CountedPresses()):
            await plane.take(request)
        assert counted.calls == [(stage.channel.channel_type, "duplicate")]
        assert await stage.answers("bea") == answers
        details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
        assert len(details.votes) == 1

    async def test_press_before_its_message_is_recorded_counts_and_an_older_event_after_it_does_not(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        _, (asked,) = await waiting(strict, Deploying(), call("deploy", plan={"to": "production"}))
        stage.fail(Failure.LOST_ANSWER, 1)
        await plane.send()
        (message,) = await stage.messages()
        assert (await delivery_of(strict, asked)).message_ref is None
        older = await stage.press("bea", message, "Approve")
        await self._deny(plane, message, "not on a Friday")
        assert (await shown(strict, asked.id)).status is ApprovalStatus.DENIED
        await plane.take(older)
        answers = await stage.answers("bea")
        assert len([answer for answer in answers if answer.startswith("It is denied already by Bea")]) == 1
        details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
        assert (details.approval.status, len(details.votes)) == (ApprovalStatus.DENIED, 1)
        assert not (await stage.messages())[-1].buttons
        assert (await delivery_of(strict, asked)).status == "delivered"

    async def test_stranger_decides_nothing(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        await plane.take(await stage.press("sam", message, "Approve", private=False))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING
        assert "do not know who you are" in (await stage.answers("sam"))[-1]

    async def test_member_who_may_not_decide_gets_the_reason(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        for label in ("Approve", "Deny"):
            await plane.take(await stage.press("mia", message, label, private=False))
            assert "not one of those" in (await stage.answers("mia"))[-1]
        assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING
        await plane.take(await stage.press("bea", message, "Approve"))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.APPROVED

    async def test_somebody_elses_decision_is_named(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        cyd = await strict.person(Role.APPROVER, name="Cyd")
        await decide(strict, asked, Choice.DENIED, by=cyd, reason="no")
        await plane.take(await stage.press("bea", message, "Approve"))
        assert (await stage.answers("bea"))[-1] == "It is denied already by Cyd: no."
        assert not await self._has_live_buttons(plane)

    async def test_stale_button_decides_nothing(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        """Somebody edits the arguments: what an older message showed cannot be approved any more."""
        plane = await self._plane(strict, admin, stage)
        cyd = await strict.person(Role.APPROVER, name="Cyd")
        await apply_policies(
            strict.db, strict.admin.actor, self.policies.replace("timeout: 1d", "timeout: 1d, quorum: 2")
        )
        asked, old = await self._asked(plane)
        await decide(strict, asked, by=cyd, arguments={"plan": {"to": "staging"}})
        assert (await shown(strict, asked.id)).version == 2
        await plane.take(await stage.press("bea", old, "Approve"))
        approval = await shown(strict, asked.id)
        assert approval.status is ApprovalStatus.PENDING
        assert "has changed since this message" in (await stage.answers("bea"))[-1]
        new = next(m for m in reversed(await stage.messages()) if m.buttons)
        assert "staging" in new.text
        await plane.take(await stage.press("bea", new, "Approve"))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.APPROVED

    async def test_press_after_expiry_decides_nothing(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        assert asked.deadline is not None
        await Clock.install(admin, asked.deadline)
        request = await stage.press("bea", message, "Approve")
        await plane.take(request)
        assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING, "the scheduler ends it"
        await deadlines.tick(strict.db, new_id(), "scheduler")
        await plane.take(await stage.press("bea", message, "Approve"))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.EXPIRED
        assert "expired" in (await stage.answers("bea"))[-1]
        assert not await self._has_live_buttons(plane)

    async def test_what_is_not_shown_whole_cannot_be_approved(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        """A modified client presses what its message did not have."""
        plane = await self._plane(strict, admin, stage)
        asked, cut = await self._asked(plane, body="x" * 50_000)
        assert "Approve" not in cut.buttons
        assert "Deny" in cut.buttons
        id = (await delivery_of(strict, asked)).id
        approve = Button(action=ButtonAction.APPROVE, notification_id=id, version=asked.version)
        await plane.take(await stage.press_data("bea", cut, approve.data))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING
        assert "cannot show all" in (await stage.answers("bea"))[-1]

    async def test_forged_signature_is_refused_and_counted(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        request = stage.forge(await stage.press("bea", message, "Approve"))
        with metered(counted := CountedPresses()), capture_logs() as logs, pytest.raises(Unauthenticated):
            await plane.store(request)
        assert counted.calls == [(stage.channel.channel_type, "hmac_invalid")]
        assert "Approve" not in str(logs)
        await plane.handle()
        assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING
        assert await admin.fetchval("select count(*) from channel_event") == 0

    async def test_process_that_dies_after_storing_loses_nothing(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        await plane.store(await stage.press("bea", message, "Approve"))
        clock = await Clock.install(admin, asked.requested_at + timedelta(minutes=1))
        (lane,) = await channel_events.claim_events(strict.db, [stage.channel.channel_type], 5)
        await channel_events.begin_event(strict.db, plane.door.channels, PUBLIC_URL, lane, lane.seqs[0])
        await plane.handle()
        assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING, (
            "somebody has it, as far as anybody knows"
        )
        await clock.advance(timedelta(minutes=5))
        await plane.handle()
        assert (await shown(strict, asked.id)).status is ApprovalStatus.APPROVED

    async def test_process_that_dies_after_deciding_answers_as_if_it_had_not(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane)
        clock = await Clock.install(admin, asked.requested_at + timedelta(minutes=1))
        await plane.store(await stage.press("bea", message, "Approve"))
        (lane,) = await channel_events.claim_events(strict.db, [stage.channel.channel_type], 5)
        event = await channel_events.begin_event(strict.db, plane.door.channels, PUBLIC_URL, lane, lane.seqs[0])
        assert event is not None
        await inbound.handle(strict.db, event)
        await clock.advance(timedelta(minutes=5))
        await plane.handle()
        assert (await stage.answers("bea"))[-1] == "Approved."
        details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
        assert len(details.votes) == 1

    async def test_request_is_handed_on_by_its_id(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        if not stage.channel.traits.conversations:
            pytest.skip("people cannot write on this channel")
        plane = await self._plane(strict, admin, stage)
        asked, _ = await self._asked(plane)
        id = (await delivery_of(strict, asked)).id
        code = Button(action=ButtonAction.APPROVE, notification_id=id, version=1).short_id
        await plane.take(await stage.write("bea", f"/delegate {code} Mia"))
        details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
        assert [(hop.from_member, hop.to_member) for hop in details.delegations] == [("Bea", "Mia")]
        assert "Mia decides about deploy instead of you now" in (await stage.answers("bea"))[-1]

    async def test_every_ended_copy_has_no_live_button(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        dan = await strict.person(Role.APPROVER, name="Dan")
        await link(admin, strict, plane.connection_id, dan, stage.address("dan"))
        asked, _ = await self._asked(plane)
        messages = await stage.messages()
        assert len(messages) == 2
        assert all("Approve" in message.buttons for message in messages)
        chat = await self._chat_of(plane, "bea")
        mine = next(message for message in messages if message.chat == chat)
        await plane.take(await stage.press("bea", mine, "Approve"))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.APPROVED
        assert not await self._has_live_buttons(plane)

    async def _chat_of(self, plane: Plane, name: str) -> str:
        """The chat of the message to this person, which is the first of their lane."""
        async with plane.world.db.transaction(plane.world.org_id) as tx:
            ref = await tx.value(
                "select message_ref from notification where address = $1 order by seq limit 1",
                plane.stage.address(name),
            )
        messages = await plane.stage.messages()
        return next(message.chat for message in messages if message.ref == ref)

    async def test_conversation_in_and_out(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        if not stage.channel.traits.conversations:
            pytest.skip("people cannot write on this channel")
        plane = await self._plane(strict, admin, stage)
        await self._talks_with(plane, admin, turn(text="Hello Bea, how can I help?"))
        await plane.take(await stage.write("bea", "Hi there"))
        await self._answered(plane, admin)
        assert "Hello Bea, how can I help?" in (await stage.messages())[-1].text
        said = await admin.fetch("select role, text from message order by seq")
        assert [tuple(row) for row in said] == [("user", "Hi there"), ("assistant", "Hello Bea, how can I help?")]

    async def _talks_with(self, plane: Plane, admin: asyncpg.Connection, *turns: dict[str, Any]) -> None:
        agent = await make_agent(plane.world, turns, slug="talker")
        await admin.execute("update channel_connection set agent_id = $2 where id = $1", plane.connection_id, agent.id)

    async def _answered(self, plane: Plane, admin: asyncpg.Connection) -> None:
        """Until the job of the conversation stopped, and everybody heard of it."""
        id = await admin.fetchval("select id from job where kind = 'conversation' order by created_at desc limit 1")
        async with working(plane.world.db, Deploying().app):
            await until(plane.world, id, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.WAITING_FOR_APPROVAL)
        await plane.send()

    async def test_conversation_says_that_it_waits_and_that_it_failed(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        if not stage.channel.traits.conversations:
            pytest.skip("people cannot write on this channel")
        plane = await self._plane(strict, admin, stage)
        await self._talks_with(plane, admin, turn(call("deploy", plan={"to": "production"})))
        await plane.take(await stage.write("mia", "Deploy it"))
        await self._answered(plane, admin)
        texts = [message.text for message in await stage.messages()]
        assert len([text for text in texts if "I need an approval before I go on." in text]) == 1
        card = next(message for message in await stage.messages() if message.buttons)
        await self._deny(plane, card, "no")
        texts = [message.text for message in await stage.messages()]
        assert len([text for text in texts if "The agent stopped: what it wanted to do was denied." in text]) == 1

    async def test_messages_of_one_chat_keep_their_order(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        if not stage.channel.traits.conversations:
            pytest.skip("people cannot write on this channel")
        plane = await self._plane(strict, admin, stage)
        await self._talks_with(plane, admin)
        for n in range(5):
            await plane.store(await stage.write("bea", f"number {n}"))
        await plane.handle()
        texts = [row["text"] for row in await admin.fetch("select text from message order by seq")]
        assert texts == [f"number {n}" for n in range(5)]

    async def test_guests_are_refused_where_the_org_does_not_allow_them(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        if not stage.channel.traits.conversations:
            pytest.skip("people cannot write on this channel")
        plane = await self._plane(strict, admin, stage)
        await self._talks_with(plane, admin)
        await orgs.update_org(
            strict.db, strict.admin.actor, OrgChange(settings=OrgSettingsChange(guests_may_chat=False)), None
        )
        await plane.take(await stage.write("sam", "Hello"))
        assert "does not let unknown people" in (await stage.answers("sam"))[-1]
        await plane.take(await stage.write("tom", "Hello", private=False))
        assert await stage.answers("tom") == [], "silence where others read it"
        assert await admin.fetchval("select count(*) from message") == 0

    async def test_attachments_are_refused_in_words(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        if not stage.channel.traits.conversations:
            pytest.skip("people cannot write on this channel")
        plane = await self._plane(strict, admin, stage)
        await self._talks_with(plane, admin)
        try:
            request = await stage.write("bea", "Look", attachments=("plan.pdf",))
        except NotImplementedError:
            pytest.skip("nothing can be attached")
        await plane.take(request)
        assert "cannot read attachments" in (await stage.answers("bea"))[-1]
        assert await admin.fetchval("select count(*) from message") == 0

    async def test_commands_steer_the_conversation(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        if not stage.channel.traits.conversations:
            pytest.skip("people cannot write on this channel")
        plane = await self._plane(strict, admin, stage)
        await self._talks_with(plane, admin, turn(text="Hello"), turn(text="Again"))

        async def say(text: str) -> str:
            await plane.take(await stage.write("mia", text))
            answers = await stage.answers("mia")
            return answers[-1] if answers else ""

        assert "no conversation yet" in await say("/status")
        await say("Hello")
        await self._answered(plane, admin)
        assert "Agent talker" in await say("/status")
        assert (await say("/pause")).startswith("Paused. ")
        assert "paused" in await say("/status")
        assert await say("/resume") == "It goes on."
        assert "new conversation" in await say("/new")
        assert "no conversation yet" in await say("/status")
        assert "talker" in await say("/agents")
        assert "from now on" in await say("/agents deployer")
        assert "I do not know /dance" in await say("/dance")


class ListeningSuite:
    """Of channels that fetch what people send, by polls or a socket. Bea is linked, and nothing comes over HTTP."""

    async def _plane(self, world: World, admin: asyncpg.Connection, stage: ListeningStage) -> Plane:
        bea = await world.person(Role.MEMBER, name="Bea")
        plane = Plane(world, stage, await stage.connect_listening(world))
        await link(admin, world, plane.connection_id, bea, stage.address("bea"))
        await admin.execute(
            "update channel_connection set agent_id = $2 where id = $1", plane.connection_id, world.agent.id
        )
        return plane

    def _listener(self, plane: Plane) -> ChannelListener:
        return ChannelListener(plane.world.db, plane.door.channels, plane.inbox.wake, pauses=(0.01,))

    async def _heard(self, plane: Plane, admin: asyncpg.Connection, *texts: str) -> None:
        """Until these messages, and no others, have reached the agent."""
        async with asyncio.timeout(20):
            while await admin.fetchval("select count(*) from message") < len(texts):
                await plane.handle()
                await asyncio.sleep(0.005)
        rows = await admin.fetch("select text from message order by seq")
        assert [row["text"] for row in rows] == list(texts)

    async def test_one_process_listens_and_another_takes_over(
        self, world: World, admin: asyncpg.Connection, stage: ListeningStage
    ) -> None:
        plane = await self._plane(world, admin, stage)
        first, second = self._listener(plane), self._listener(plane)
        await first.beat()
        await second.beat()
        assert (first.connections, second.connections) == ([plane.connection_id], [])
        await stage.hold("bea", "one")
        await self._heard(plane, admin, "one")
        await first.leave()
        await stage.hold("bea", "two")
        await second.beat()
        assert second.connections == [plane.connection_id]
        await self._heard(plane, admin, "one", "two")
        await second.leave()

    async def test_process_that_was_stopped_and_goes_on_loses_nothing_and_repeats_nothing(
        self, world: World, admin: asyncpg.Connection, stage: ListeningStage
    ) -> None:
        plane = await self._plane(world, admin, stage)
        clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
        stopped, heir = self._listener(plane), self._listener(plane)
        await stopped.beat()
        await stage.hold("bea", "one")
        await self._heard(plane, admin, "one")
        await clock.advance(timedelta(minutes=1))
        await heir.beat()
        assert heir.connections == [plane.connection_id]
        await stage.hold("bea", "two")
        await stopped.beat()
        assert stopped.connections == []
        await self._heard(plane, admin, "one", "two")
        await stage.hold("bea", "three")
        await self._heard(plane, admin, "one", "two", "three")
        await heir.leave()
        await stopped.leave()
