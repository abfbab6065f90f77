"""The guides of Telegram and Slack name what the channels need, and connections are made as they say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cortex_plane.channels.discord import DiscordChannel
from cortex_plane.channels.github import GitHubChannel
from cortex_plane.channels.gitlab import GitLabChannel
from cortex_plane.channels.slack.channel import SlackChannel
from cortex_plane.channels.slack.manifest import EVENTS, SCOPES
from cortex_plane.channels.telegram.channel import COMMANDS, TelegramChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.channels.whatsapp import WhatsAppChannel
from cortex_plane.emulators.slack import BOT_TOKEN, SIGNING_SECRET, SlackEmulator
from cortex_plane.emulators.telegram import TOKEN, TelegramEmulator
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.verbs import connections
from tests.fixtures.people import World
from tests.fixtures.vendor_messages import served_by

GUIDES = Path(__file__).parents[2] / "docs" / "channels"
ALLOWED = Allowed.parse("127.0.0.1")


def guide(name: str) -> str:
    return (GUIDES / f"{name}.md").read_text()


CHANNELS: tuple[type[InteractiveChannel], ...] = (
    TelegramChannel, SlackChannel, DiscordChannel, WhatsAppChannel, GitHubChannel, GitLabChannel,
)  # fmt: skip


@pytest.mark.parametrize("channel", CHANNELS)
def test_a_guide_names_every_value(channel: type[InteractiveChannel]) -> None:
    text = guide(channel.channel_type)
    assert [field.name for field in channel.fields if f"`{field.name}`" not in text] == []
    assert "cortex connection create " + channel.channel_type in text


@pytest.mark.parametrize(
    ("name", "prefix"), [("telegram", "/"), ("slack", "/cortex "), ("discord", "/cortex "), ("whatsapp", "/")]
)
def test_a_guide_names_every_command(name: str, prefix: str) -> None:
    text = guide(name)
    assert [command for command in COMMANDS if f"`{prefix}{command}" not in text] == []


def test_the_manifest_of_the_guide_has_the_scopes_that_are_needed() -> None:
    text = guide("slack")
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    manifest = json.loads(block)
    assert manifest["oauth_config"]["scopes"]["bot"] == list(SCOPES)
    assert [event for event in EVENTS if f"`{event}`" not in text] == []


async def test_a_telegram_connection_is_made_as_the_guide_says(world: World) -> None:
    async with TelegramEmulator().serve() as vendor:
        channel = TelegramChannel(VendorClient(ALLOWED))
        served = served_by(channel)
        draft = ConnectionDraft(
            channel_type="telegram", name="bot", config={"api_url": vendor.url}, secrets={"bot_token": TOKEN}
        )
        new = await connections.create_connection(world.db, world.admin.actor, draft, channels=served)
        await channel.close()
    assert (new.account, new.state, new.to_do) == ("@cortex_demo_bot", "ok", [])
    assert new.config["mode"] == "webhook"
    assert vendor.webhook["url"] == f"https://plane.example/v1/connections/{new.id}/inbound"


async def test_a_slack_connection_is_made_as_the_guide_says(world: World) -> None:
    async with SlackEmulator().serve() as vendor:
        channel = SlackChannel(VendorClient(ALLOWED))
        served = served_by(channel)
        draft = ConnectionDraft(
            channel_type="slack", name="workspace", config={"api_url": vendor.api_url},
            secrets={"bot_token": BOT_TOKEN, "signing_secret": SIGNING_SECRET},
        )  # fmt: skip
        new = await connections.create_connection(world.db, world.admin.actor, draft, channels=served)
        await channel.close()
    assert (new.account, new.state) == ("@cortex in Emulated", "ok")
    assert f"https://plane.example/v1/connections/{new.id}/inbound" in new.to_do[0]
