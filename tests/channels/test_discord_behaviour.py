"""Discord passes what every channel must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any
from uuid import UUID

import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cortex_plane.channels.discord import DiscordChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.verbs.inbound import VendorRequest
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.verbs import connections
from cortex_plane.tenancy.verbs.served_channels import ServedChannels
from tests.channels.behaviour import Arrived, Failure, without_pace
from tests.channels.door import database_time, status_in
from tests.channels.interactive_behaviour import InteractiveSuite, ListeningSuite, SeenMessage
from tests.channels.outage_behaviour import OutageSuite
from tests.channels.streaming_behaviour import LongReplySuite, StreamingSuite
from tests.emulators.discord import (
    BOT_TOKEN,
    DiscordEmulator,
    Interaction,
    live_buttons,
    live_markup,
    message_text,
    message_urls,
)
from tests.emulators.vendor_server import VendorFault
from tests.fixtures.people import World

_FAULTS = {
    Failure.TEMPORARY: VendorFault(status=503),
    Failure.PERMANENT: VendorFault(status=403, body={"message": "Cannot send messages to this user", "code": 50007}),
    Failure.HANG: VendorFault(hangs=True),
    Failure.LOST_ANSWER: VendorFault(status=502, is_late=True),
    Failure.NO_ANSWER: VendorFault(hangs=True, is_late=True),
    Failure.RATE_LIMITED: VendorFault(
        status=429, body={"message": "You are being rate limited.", "retry_after": 20.5, "global": False}
    ),
    Failure.REVOKED: VendorFault(status=401, body={"message": "401: Unauthorized", "code": 0}),
}


class DiscordStage:
    """People press in their direct channel with the bot, or in a shared one."""

    redelivers = False
    """Discord knows a message by its nonce."""
    pause = timedelta(seconds=20.5)
    """In one chat: what Discord asks of a whole bot is in test_discord."""

    def __init__(self, discord: DiscordEmulator, channel: DiscordChannel) -> None:
        self.channel = channel
        self.discord = discord
        self._room = discord.guild_channel("room")
        self._acts: dict[str, list[Interaction]] = {}
        self._now: Callable[[], Awaitable[float]]

    async def connect(self, world: World) -> UUID:
        return await self._connect(world, "http")

    async def connect_listening(self, world: World) -> UUID:
        return await self._connect(world, "gateway")

    async def hold(self, name: str, text: str) -> None:
        # Discord keeps nothing for a bot that has not begun a session.
        await self.discord.gateway.until(lambda: bool(self.discord.gateway.sessions))
        await self.discord.write(self.address(name), text)

    async def _connect(self, world: World, mode: str) -> UUID:
        draft = ConnectionDraft(
            channel_type="discord", name="discord", config={"api_url": self.discord.url, "mode": mode},
            secrets={"bot_token": BOT_TOKEN}, agent=world.agent.slug,
        )  # fmt: skip
        self._now = partial(database_time, world)
        served = ServedChannels(vendors={"discord": self.channel})
        return (await connections.create_connection(world.db, world.admin.actor, draft, channels=served)).id

    def address(self, name: str) -> str:
        return self.discord.user(name)

    async def arrived(self) -> list[Arrived]:
        return [self._arrived(message) for message in self.discord.versions]

    def _arrived(self, message: dict[str, Any]) -> Arrived:
        channel = self.discord.channels[message["channel_id"]]
        text = message_text(message)
        return Arrived(
            address=channel["recipients"][0]["id"],
            thread=message["id"],
            status=status_in(text),
            text=text,
            markup=live_markup(message),
            urls=message_urls(message),
        )

    def fail(self, how: Failure, times: int) -> None:
        self.discord.fail(_FAULTS[how], times)

    async def messages(self) -> list[SeenMessage]:
        return [
            SeenMessage(
                ref=f"{message['channel_id']}:{message['id']}",
                chat=message["channel_id"],
                text=message_text(message),
                buttons={button["label"]: button["custom_id"] for button in live_buttons(message)},
            )
            for message in self.discord.messages.values()
        ]

    async def answers(self, name: str) -> list[str]:
        acts = self._acts.get(name, [])
        return [message_text({"content": text, "embeds": []}) for act in acts for text in act.shown]

    async def press(self, name: str, message: SeenMessage, label: str, *, private: bool = True) -> VendorRequest:
        return await self._press(name, message, message.buttons[label], private)

    async def press_data(self, name: str, message: SeenMessage, data: str) -> VendorRequest:
        return await self._press(name, message, data, True)

    async def _press(self, name: str, message: SeenMessage, custom_id: str, private: bool) -> VendorRequest:
        data = {"component_type": 2, "custom_id": custom_id}
        pressed = self.discord.messages[message.ref.partition(":")[2]]
        return await self._act(3, name, message.chat if private else self._room, data, pressed)

    async def words(self, name: str, text: str) -> VendorRequest:
        """The form of the button that was pressed last."""
        pressed = self._acts[name][-1].payload
        component = {"type": 4, "id": 2, "custom_id": "note", "value": text}
        data = {
            "custom_id": pressed["data"]["custom_id"],
            "components": [{"type": 18, "id": 1, "component": component}],
        }
        return await self._act(5, name, pressed["channel_id"], data, pressed["message"])

    async def write(
        self, name: str, text: str, *, private: bool = True, attachments: tuple[str, ...] = ()
    ) -> VendorRequest:
        if attachments:
            raise NotImplementedError("a slash command of ours takes no files")
        verb, _, value = text[1:].partition(" ") if text.startswith("/") else ("ask", "", text)
        values = [{"name": "value", "type": 3, "value": value}] if value else []
        data = {"id": "1", "name": "cortex", "type": 1, "options": [{"name": verb, "type": 1, "options": values}]}
        channel = self.discord.direct_channel(self.address(name)) if private else self._room
        return await self._act(2, name, channel, data)

    async def _act(
        self, kind: int, name: str, channel: str, data: dict[str, Any], message: dict[str, Any] | None = None
    ) -> VendorRequest:
        act = self.discord.begin(kind, self.address(name), channel, data, message)
        # The suite posts the request; what Discord is answered at first is tested in test_discord.
        self.discord.respond(act, {"type": 6} if kind == 3 else {"type": 5, "data": {"flags": 64}})
        self._acts.setdefault(name, []).append(act)
        return VendorRequest("POST", {}, self.discord.signed(act.body, at=await self._now()), act.body)

    def forge(self, request: VendorRequest) -> VendorRequest:
        return replace(request, headers=self.discord.signed(request.body, key=Ed25519PrivateKey.generate()))


@asynccontextmanager
async def discord_stage() -> AsyncIterator[DiscordStage]:
    async with DiscordEmulator().serve() as discord:
        # Each look at its clock is an hour later: it remembers no limit, as a process that has just begun.
        channel = DiscordChannel(VendorClient(Allowed.parse("127.0.0.1")), ticks=count(step=3600.0).__next__)
        yield DiscordStage(discord, without_pace(channel))
        await channel.close()


class TestDiscord(OutageSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[DiscordStage]:
        async with discord_stage() as stage:
            yield stage


class TestDiscordInteractive(InteractiveSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[DiscordStage]:
        async with discord_stage() as stage:
            yield stage


class TestDiscordLongReplies(LongReplySuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[DiscordStage]:
        async with discord_stage() as stage:
            yield stage


class TestDiscordStreaming(StreamingSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[DiscordStage]:
        async with discord_stage() as stage:
            yield stage


class TestDiscordListening(ListeningSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[DiscordStage]:
        async with discord_stage() as stage:
            yield stage
