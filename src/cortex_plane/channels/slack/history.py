"""What people wrote to the app while nobody was connected: Slack keeps it in their direct messages, and sends no event again.

A message that is read here has the id of its event, so that it counts once, however often it is read.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import structlog

from cortex_plane.channels.slack import events
from cortex_plane.channels.slack.web_api import SlackApi
from cortex_plane.kernel.errors import CortexError
from cortex_plane.notify.model.channels import Deliver
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable

MOST_SECONDS = 24 * 3600.0
"""Nobody waits for an answer to what is older."""
MOST_CHATS = 1000
MOST_PAGES = 20
"""Of one chat, or of the list of chats."""
PAGE = 200
TRIES = 3
WAIT_SECONDS = 30.0
"""After an error that does not say how long to wait."""
log = structlog.get_logger()


async def catch_up(api: SlackApi, target: Target, since: float, deliver: Deliver) -> None:
    """Deliver what people wrote in direct messages since then, chat by chat, oldest first. What Slack does not let the app read is left."""
    for _ in range(TRIES):
        try:
            await _read_chats(api, target, since, deliver)
        except CortexError as error:
            log.warning("history not read", connection=str(target.connection_id), error=error.message)
            if isinstance(error, Undeliverable) or error.code == "listener_lost":
                return
            await asyncio.sleep(WAIT_SECONDS)
        else:
            return


async def _read_chats(api: SlackApi, target: Target, since: float, deliver: Deliver) -> None:
    count = 0
    async for channel in _direct_messages(api, target):
        count += 1
        if count > MOST_CHATS:
            log.warning("too many direct messages to read all", connection=str(target.connection_id))
            return
        await _read_chat(api, target, channel, since, deliver)


async def _direct_messages(api: SlackApi, target: Target) -> AsyncIterator[str]:
    async for page in _pages(api, target, "conversations.list", types="im"):
        for channel in page.get("channels", ()):
            if isinstance(channel, dict) and isinstance(channel.get("id"), str) and not channel.get("is_user_deleted"):
                yield channel["id"]


async def _read_chat(api: SlackApi, target: Target, channel: str, since: float, deliver: Deliver) -> None:
    messages: list[Any] = []
    try:
        async for page in _pages(api, target, "conversations.history", channel=channel, oldest=f"{since:.6f}"):
            messages += page.get("messages", ())
    except Undeliverable as error:
        # One chat that cannot be read: the others can.
        log.warning("history not read", connection=str(target.connection_id), error=error.message)
        return
    items = [item for message in reversed(messages) for item in events.history_items(target, channel, message)]
    if items:
        await deliver(items, None)


async def _pages(api: SlackApi, target: Target, method: str, **parameters: str) -> AsyncIterator[dict[str, Any]]:
    cursor = ""
    for _ in range(MOST_PAGES):
        page = await _call(api, target, method, {**parameters, "limit": str(PAGE), "cursor": cursor})
        yield page
        metadata = page.get("response_metadata")
        cursor = str(metadata.get("next_cursor") or "") if isinstance(metadata, dict) else ""
        if not cursor:
            return


async def _call(api: SlackApi, target: Target, method: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    for attempt in range(TRIES):
        try:
            return dict((await api.read(target, method, parameters)).require())
        except TryAgain as error:
            if attempt + 1 == TRIES:
                raise
            await asyncio.sleep(WAIT_SECONDS if error.after_seconds is None else error.after_seconds)
    raise AssertionError("the last try returns or raises")
