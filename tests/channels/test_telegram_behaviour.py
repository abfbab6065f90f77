"""Telegram passes what every channel must pass, against its emulator."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

import pytest_asyncio

from cortex_plane.channels.telegram.channel import TelegramChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.emulators.telegram import TOKEN, TelegramEmulator, TelegramMessage
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.verbs import connections
from tests.channels.behaviour import Arrived, ChannelSuite, Failure
from tests.fixtures.people import World

_FAULTS = {
    Failure.TEMPORARY: "down",
    Failure.PERMANENT: "refusal",
    Failure.HANG: "hang",
    Failure.LOST_ANSWER: "lost_answer",
}


class TelegramStage:
    redelivers = True
    """Telegram cannot tell that it has a message already."""

    def __init__(self, vendor: TelegramEmulator, channel: TelegramChannel) -> None:
        self.channel = channel
        self._vendor = vendor

    async def connect(self, world: World) -> UUID:
        draft = ConnectionDraft(
            channel_type="telegram", name="bot", config={"api_url": self._vendor.url}, secrets={"bot_token": TOKEN}
        )
        return (await connections.create_connection(world.db, world.admin.actor, draft)).id

    def address(self, name: str) -> str:
        user = int.from_bytes(name.encode())
        self._vendor.join(user, name)
        return str(user)

    async def arrived(self) -> list[Arrived]:
        return [_arrived(state) for state in self._vendor.history]

    def fail(self, how: Failure, times: int) -> None:
        self._vendor.fail(_FAULTS[how], times)


def _arrived(state: TelegramMessage) -> Arrived:
    heading = state.text.split("\n")[0]
    (url,) = [button["url"] for row in state.buttons for button in row if "url" in button]
    return Arrived(
        address=str(state.chat),
        thread=url,
        status="pending" if "needed" in heading else heading.split()[0].lower(),
        text=state.text,
        urls=[url],
    )


class TestTelegram(ChannelSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[TelegramStage]:
        async with TelegramEmulator().serve() as vendor:
            channel = TelegramChannel(VendorClient(Allowed.parse("127.0.0.0/8"), timeout=1))
            yield TelegramStage(vendor, channel)
            await channel.close()
