"""Slack passes what every channel must pass, and what every channel must on which people act."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.channels.slack import history
from cortex_plane.channels.slack.channel import SlackChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.emulators.slack import (
    APP_TOKEN,
    BOT_TOKEN,
    SIGNING_SECRET,
    SlackEmulator,
    SlackMessage,
    WebApiError,
    sign,
)
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.model.channels import InboundAnswer, InboundEvent
from cortex_plane.notify.model.notifications import Target
from cortex_plane.notify.verbs.inbound import VendorRequest
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections
from cortex_plane.worker.channel_listener import ChannelListener
from tests.channels.behaviour import Arrived, Failure, link, without_pace
from tests.channels.interactive_behaviour import InteractiveSuite, ListeningSuite, Plane, SeenMessage
from tests.channels.outage_behaviour import OutageSuite
from tests.channels.streaming_behaviour import LongReplySuite, StreamingSuite
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.vendor_messages import FAULTS, served_by

ROOM = "C0ROOM"


class _AnsweringSlack(SlackChannel):
    """It notes which of the messages at Slack were answers: in direct messages they look like any other."""

    def __init__(self, client: VendorClient, vendor: SlackEmulator) -> None:
        super().__init__(client)
        self._vendor = vendor
        self.answers: list[tuple[str, str]] = []
        self.refs: set[tuple[str, str]] = set()

    async def answer(self, target: Target, event: InboundEvent, answer: InboundAnswer) -> str | None:
        vendor = self._vendor
        before = len(vendor.history), len(vendor.ephemeral), len(vendor.views)
        ref = await super().answer(target, event, answer)
        written, whispers, views = vendor.history[before[0] :], vendor.ephemeral[before[1] :], vendor.views[before[2] :]
        self.refs |= {(message.channel, message.ts) for message in written}
        texts = [message.visible.strip() for message in (*written, *whispers)]
        texts += [view.view["title"]["text"] for view in views]
        self.answers += [(event.sender.id, text) for text in texts]
        return ref


class SlackStage:
    redelivers = True
    pause = timedelta(seconds=7)
    """Slack cannot tell that it has a message already."""

    def __init__(self, vendor: SlackEmulator, channel: _AnsweringSlack, clock: list[float]) -> None:
        self.channel = channel
        self.vendor = self._vendor = vendor
        self._clock = clock
        self._world: World | None = None

    async def connect(self, world: World) -> UUID:
        self._world = world
        self._vendor.add_channel(ROOM, "room")
        draft = ConnectionDraft(
            channel_type="slack", name="app", config={"api_url": self._vendor.api_url},
            secrets={"bot_token": BOT_TOKEN, "signing_secret": SIGNING_SECRET},
        )  # fmt: skip
        new = await connections.create_connection(world.db, world.admin.actor, draft, channels=served_by(self.channel))
        return new.id

    async def connect_listening(self, world: World) -> UUID:
        draft = ConnectionDraft(
            channel_type="slack", name="socket", config={"api_url": self._vendor.api_url},
            secrets={"bot_token": BOT_TOKEN, "app_token": APP_TOKEN},
        )  # fmt: skip
        new = await connections.create_connection(world.db, world.admin.actor, draft, channels=served_by(self.channel))
        return new.id

    async def hold(self, name: str, text: str) -> None:
        """Once somebody has listened, what is written while nobody does is in the history alone."""
        self._vendor.write(self.address(name), text)
        await self._vendor.idle()
        if self._vendor.acknowledged and not self._vendor.is_connected:
            self._vendor.forget_socket()

    def address(self, name: str) -> str:
        user = f"U0{name.upper()}"
        self._vendor.join(user, name)
        return user

    async def arrived(self) -> list[Arrived]:
        return [_arrived(state) for state in self._vendor.history]

    def fail(self, how: Failure, times: int) -> None:
        self._vendor.faults.faults.clear()
        self._vendor.fail(FAULTS[how], times)

    async def messages(self) -> list[SeenMessage]:
        refs = dict.fromkeys((state.channel, state.ts) for state in self._vendor.history)
        now = {(m.channel, m.ts): m for channel, _ in refs for m in self._vendor.messages(channel)}
        return [_seen(now[ref]) for ref in refs if ref not in self.channel.refs]

    async def answers(self, name: str) -> list[str]:
        return [text for user, text in self.channel.answers if user == self.address(name)]

    async def press(self, name: str, message: SeenMessage, label: str, *, private: bool = True) -> VendorRequest:
        shown, button = message.buttons[label]
        return await self._press(name, shown, button, private)

    async def press_data(self, name: str, message: SeenMessage, data: str) -> VendorRequest:
        shown, button = next(iter(message.buttons.values()))
        return await self._press(name, shown, {**button, "value": data}, True)

    async def _press(self, name: str, shown: SlackMessage, button: Mapping[str, Any], private: bool) -> VendorRequest:
        await self._tick()
        self._vendor.send_press(self.address(name), shown if private else replace(shown, channel=ROOM), button)
        return await self._request("interaction")

    async def words(self, name: str, text: str) -> VendorRequest:
        await self._tick()
        form = next(view for view in reversed(self._vendor.views) if view.user == self.address(name))
        self._vendor.submit(form, {"words": text})
        return await self._request("interaction")

    async def write(
        self, name: str, text: str, *, private: bool = True, attachments: tuple[str, ...] = ()
    ) -> VendorRequest:
        await self._tick()
        files = {"files": [{"id": "F1", "name": name} for name in attachments], "subtype": "file_share"}
        if text.startswith("/") and private:
            self._vendor.command(self.address(name), text.removeprefix("/"))
            return await self._request("command")
        if private:
            self._vendor.write(self.address(name), text, fields=files if attachments else None)
        else:
            self._vendor.mention(self.address(name), ROOM, text)
        return await self._request("event")

    def forge(self, request: VendorRequest) -> VendorRequest:
        signature = sign("f" * 32, request.headers["x-slack-request-timestamp"], request.body)
        return replace(request, headers={**request.headers, "x-slack-signature": signature})

    async def _tick(self) -> None:
        """Slack's clock shows what the plane's does."""
        assert self._world is not None
        async with self._world.db.transaction(self._world.org_id) as tx:
            self._clock[0] = (await tx.value("select plane_now()")).timestamp()

    async def _request(self, kind: str) -> VendorRequest:
        await self._vendor.idle()
        name, headers, body, _ = self._vendor.deliveries[-1]
        assert name == kind
        return VendorRequest("POST", {}, {name.lower(): value for name, value in headers.items()}, body)


def _seen(message: SlackMessage) -> SeenMessage:
    state = replace(message)
    buttons = {button["text"]["text"]: (state, button) for button in state.buttons if "value" in button}
    return SeenMessage(
        ref=f"{state.channel}:{state.ts}", chat=state.channel, text=state.visible.strip(), buttons=buttons
    )


def _arrived(state: SlackMessage) -> Arrived:
    (url,) = [button["url"] for button in state.buttons if "url" in button]
    status = "pending" if "needed" in state.text else state.text.split()[0].rstrip(":").lower()
    return Arrived(
        address=f"U{state.channel[1:]}", thread=url, status=status, text=f"{state.text}\n{state.visible}",
        markup=state.text, urls=[url],
    )  # fmt: skip


@asynccontextmanager
async def slack_stage() -> AsyncIterator[SlackStage]:
    clock = [1_800_000_000.0]
    async with SlackEmulator(now=lambda: clock[0], first_retry=0).serve() as vendor:
        channel = _AnsweringSlack(VendorClient(Allowed.parse("127.0.0.0/8"), timeout=1), vendor)
        yield SlackStage(vendor, without_pace(channel), clock)
        await channel.close()


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[SlackStage]:
    async with slack_stage() as stage:
        yield stage


@pytest.mark.proves("D.895")
async def test_history_over_http_has_what_slack_could_not_deliver(
    world: World, admin: asyncpg.Connection, stage: SlackStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage of all processes, and while one listens that Slack cannot reach. Replies in threads are among it."""
    monkeypatch.setattr(history, "LOOK_SECONDS", 0.02)
    plane = Plane(world, stage, await stage.connect(world))
    await admin.execute("update channel_connection set agent_id = $1", world.agent.id)
    bea = stage.address("bea")
    await link(admin, world, plane.connection_id, await world.person(Role.MEMBER, name="Bea"), bea)

    async def heard(*texts: str) -> None:
        async with asyncio.timeout(20):
            while await admin.fetchval("select count(*) from message") < len(texts):
                await plane.handle()
                await asyncio.sleep(0.005)
        assert [row["text"] for row in await admin.fetch("select text from message order by seq")] == list(texts)

    async def look() -> None:
        """Until the history was read once more from its beginning."""
        count = len(stage.vendor.traffic)
        async with asyncio.timeout(20):
            while [name for name, _ in stage.vendor.traffic[count:]].count("conversations.list request") < 2:  # noqa: ASYNC110 -- only the emulator knows
                await asyncio.sleep(0.005)

    await stage.write("bea", "before anybody listened")
    first, second = (ChannelListener(world.db, plane.door.channels, plane.inbox.wake) for _ in range(2))
    await first.beat()
    await look()
    # Its times have whole seconds at the emulator.
    await Clock.install(admin, await admin.fetchval("select clock_timestamp() + interval '5 seconds'"))
    await plane.take(await stage.write("bea", "one"))
    await heard("one")
    await first.leave()
    lost = await stage.write("bea", "two")
    stage.vendor.write(bea, "three", thread=stage.vendor.chat(bea)[1].ts)
    await second.beat()
    await heard("one", "two", "three")
    await stage.write("bea", "four")
    await heard("one", "two", "three", "four")
    await plane.take(lost)
    await look()
    await second.leave()
    assert await admin.fetchval("select count(*) from channel_event") == 4


async def test_health_shows_why_slack_refuses_the_history(
    world: World, admin: asyncpg.Connection, stage: SlackStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> dict[str, Any]:
        raise WebApiError("missing_scope", needed="im:read")

    monkeypatch.setattr(history, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(stage.vendor, "_list_channels", refuse)
    plane = Plane(world, stage, await stage.connect(world))
    listener = ChannelListener(world.db, plane.door.channels, plane.inbox.wake)
    await listener.beat()
    async with asyncio.timeout(20):
        while not await admin.fetchval("select last_error from channel_listener"):  # noqa: ASYNC110 -- only the database knows
            await asyncio.sleep(0.005)
    connection = await connections.get_connection(world.db, world.admin.actor, plane.connection_id)
    assert connection.health.last_error == "Slack answered `missing_scope`: the app needs the scope im:read."
    await listener.leave()


class TestSlack(OutageSuite):
    pass


class TestSlackInteractive(InteractiveSuite):
    pass


class TestSlackListening(ListeningSuite):
    pass


class TestSlackLongReplies(LongReplySuite):
    pass


class TestSlackStreaming(StreamingSuite):
    pass
