"""Discord passes what every channel must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest_asyncio

from cortex_plane.channels.discord import DiscordChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.verbs import connections
from tests.channels.behaviour import Arrived, ChannelSuite, Failure
from tests.channels.door import status_in
from tests.emulators.discord import BOT_TOKEN, DiscordEmulator, live_markup, message_text, message_urls
from tests.emulators.vendor_server import VendorFault
from tests.fixtures.people import World

_FAULTS = {
    Failure.TEMPORARY: VendorFault(status=503),
    Failure.PERMANENT: VendorFault(status=403, body={"message": "Cannot send messages to this user", "code": 50007}),
    Failure.HANG: VendorFault(hangs=True),
    Failure.LOST_ANSWER: VendorFault(status=502, is_late=True),
}


class DiscordStage:
    redelivers = False
    """Discord knows a message by its nonce."""

    def __init__(self, discord: DiscordEmulator, channel: DiscordChannel) -> None:
        self.channel = channel
        self.discord = discord

    async def connect(self, world: World) -> UUID:
        draft = ConnectionDraft(
            channel_type="discord",
            name="discord",
            config={"api_url": self.discord.url},
            secrets={"bot_token": BOT_TOKEN},
        )
        return (await connections.create_connection(world.db, world.admin.actor, draft)).id

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


class TestDiscord(ChannelSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[DiscordStage]:
        async with DiscordEmulator().serve() as discord:
            channel = DiscordChannel(VendorClient(Allowed.parse("127.0.0.1")))
            yield DiscordStage(discord, channel)
            await channel.close()
