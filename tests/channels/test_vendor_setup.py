"""Connections to Discord and WhatsApp from their creation to the first event, with a plane that their vendors reach over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg

from cortex_plane.channels.discord import DiscordChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.channels.whatsapp import WhatsAppChannel
from cortex_plane.http.app import framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.main.api_process import create_app
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from cortex_plane.notify.verbs.inbound import InboundDoor
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.tenancy.model.identities import ConnectionDraft, NewConnection
from cortex_plane.tenancy.verbs import connections
from cortex_plane.tenancy.verbs.served_channels import ServedChannels
from tests.emulators.discord import BOT_TOKEN, DiscordEmulator
from tests.emulators.vendor_server import served_on_loopback
from tests.emulators.whatsapp import ACCESS_TOKEN, APP_SECRET, PHONE_NUMBER_ID, WhatsAppEmulator
from tests.fixtures.people import World


@asynccontextmanager
async def plane_with(world: World, channel: InteractiveChannel) -> AsyncIterator[ServedChannels]:
    """A plane that vendors on this machine reach, with one channel."""
    metrics = Metrics()
    feed = EventFeed(world.db, poll_seconds=0.05)
    app = create_app(world.db, metrics, feed)
    app.state.inbound = InboundDoor({channel.channel_type: channel})
    async with served_on_loopback(framed(app)) as origin:
        yield ServedChannels(vendors={channel.channel_type: channel}, local_url=origin)
    feed.close()
    metrics.close()


async def create(world: World, served: ServedChannels, draft: ConnectionDraft) -> NewConnection:
    return await connections.create_connection(world.db, world.admin.actor, draft, channels=served)


async def stored_events(admin: asyncpg.Connection, connection_id: UUID) -> int:
    count: int = await admin.fetchval("select count(*) from channel_event where connection_id = $1", connection_id)
    return count


async def test_discord_verifies_the_address_of_a_new_connection(strict: World, admin: asyncpg.Connection) -> None:
    channel = DiscordChannel(VendorClient(Allowed.parse("127.0.0.1")))
    async with DiscordEmulator().serve() as discord, plane_with(strict, channel) as served:
        draft = ConnectionDraft(
            channel_type="discord", name="discord", config={"api_url": discord.url}, secrets={"bot_token": BOT_TOKEN}
        )
        connection = await create(strict, served, draft)
        assert (connection.account, connection.to_do) == ("@cortex", [])
        assert discord.endpoint == connection.inbound_url
        asked = await discord.command(discord.user("ada"), "ask", text="Hello")
        assert asked.response["type"] == 5
        assert await stored_events(admin, connection.id) == 1
        assert await discord.redeliver(asked) == 200
        assert await stored_events(admin, connection.id) == 1
        assert await discord.forge(asked.body) == 401
        await discord.recheck()
        assert discord.endpoint == connection.inbound_url
    await channel.close()


async def test_whatsapp_verifies_the_address_that_a_person_enters(strict: World, admin: asyncpg.Connection) -> None:
    channel = WhatsAppChannel(VendorClient(Allowed.parse("127.0.0.1")))
    async with WhatsAppEmulator().serve() as whatsapp, plane_with(strict, channel) as served:
        config = {"api_url": whatsapp.url, "phone_number_id": PHONE_NUMBER_ID}
        secrets = {"access_token": ACCESS_TOKEN, "app_secret": APP_SECRET}
        connection = await create(
            strict, served, ConnectionDraft(channel_type="whatsapp", name="wa", config=config, secrets=secrets)
        )
        assert connection.account == "+1 555-078-3881 (Cortex)"
        assert connection.inbound_url is not None
        address, _, token = connection.to_do[0].removeprefix("Enter ").partition(" as callback URL and ")
        assert address == connection.inbound_url
        assert await whatsapp.subscribe(address, "another") == 401
        assert await whatsapp.subscribe(address, token.partition(" ")[0]) == 200
        await connections.check_connection(strict.db, strict.admin.actor, connection.id, channels=served)
        again = await connections.get_connection(strict.db, strict.admin.actor, connection.id, channels=served)
        assert again.to_do == []
        body = whatsapp.webhook(whatsapp.text("ada", "one"), whatsapp.text("bea", "two"))
        assert await asyncio.gather(*(whatsapp.post(body) for _ in range(3))) == [200] * 3
        assert await stored_events(admin, connection.id) == 2
        assert await whatsapp.post(body, secret="f" * 32) == 401
    await channel.close()
