"""Emulated vendors in a process of their own, as what the plane sends to must not slow the plane down.

    python -m benchmarks.vendors --people 2000

prints a line of JSON: where each vendor is, and the ids that its people have there. It ends with its standard input.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from cortex_plane.channels.discord import DiscordChannel
from cortex_plane.channels.slack.channel import SlackChannel
from cortex_plane.channels.telegram.channel import TelegramChannel
from cortex_plane.channels.whatsapp import WhatsAppChannel
from cortex_plane.emulators import slack, telegram

REPOSITORY = Path(__file__).parent.parent
CHANNELS = {
    "telegram": TelegramChannel, "slack": SlackChannel, "discord": DiscordChannel, "whatsapp": WhatsAppChannel,
}  # fmt: skip


async def serve(people: int) -> None:
    # They check all that they are sent against the types that the vendors publish, so they live beside the tests.
    from tests.emulators import discord, whatsapp

    async with AsyncExitStack() as stack:
        telegrams = await stack.enter_async_context(telegram.TelegramEmulator().serve())
        slacks = await stack.enter_async_context(slack.SlackEmulator().serve())
        discords = await stack.enter_async_context(discord.DiscordEmulator().serve())
        discords.burst = 10**6  # the pace is what is measured, not what happens to those who do not keep it
        numbers = await stack.enter_async_context(whatsapp.WhatsAppEmulator().serve())
        users = range(1, people + 1)
        for user in users:
            telegrams.join(user, f"p{user}")
            slacks.join(f"U{user:08}", f"p{user}")
        places: dict[str, dict[str, Any]] = {
            "telegram": {
                "config": {"api_url": telegrams.url, "mode": "polling"},
                "secrets": {"bot_token": telegram.TOKEN},
                "people": [str(user) for user in users],
            },
            "slack": {
                "config": {"api_url": slacks.api_url},
                "secrets": {"bot_token": slack.BOT_TOKEN, "signing_secret": slack.SIGNING_SECRET},
                "people": [f"U{user:08}" for user in users],
            },
            "discord": {
                "config": {"api_url": discords.url},
                "secrets": {"bot_token": discord.BOT_TOKEN},
                "people": [discords.user(f"p{user}") for user in users],
            },
            "whatsapp": {
                "config": {"api_url": numbers.url, "phone_number_id": whatsapp.PHONE_NUMBER_ID},
                "secrets": {"access_token": whatsapp.ACCESS_TOKEN, "app_secret": whatsapp.APP_SECRET},
                "people": [numbers.person(f"p{user}").wa_id for user in users],
            },
        }
        print(json.dumps(places), flush=True)
        await asyncio.to_thread(sys.stdin.buffer.read)


@asynccontextmanager
async def emulated_vendors(people: int) -> AsyncIterator[dict[str, dict[str, Any]]]:
    """By channel: the config and the secrets of a connection, and the ids of the people."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.vendors", "--people", str(people),
        cwd=REPOSITORY, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=2**22,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield json.loads(await process.stdout.readline())
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Emulated vendors, for benchmarks.")
    parser.add_argument("--people", type=int, default=1)
    asyncio.run(serve(parser.parse_args().people))
