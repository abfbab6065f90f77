"""What people wrote to the app while the plane was away: Slack keeps it in their direct messages, and sends its events again for some
minutes at most.

A message that is read here has the id of its event, so that it counts once, however often it is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import structlog

from cortex_plane.channels.slack import events
from cortex_plane.channels.slack.web_api import SlackApi
from cortex_plane.kernel.errors import CortexError
from cortex_plane.notify.model.channels import Deliver
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable

MOST_SECONDS = 24 * 3600.0
"""Nobody waits for an answer to what is older, or stands in a thread that began before."""
RETRY_SECONDS = 600.0
"""So long Slack may send an event again over HTTP, with some minutes to spare."""
LOOK_SECONDS = 3600.0
"""Over HTTP: between two looks of a process that was there all the time, as Slack may not have reached the plane."""
BEAT_SECONDS = 30.0
MOST_CHATS = 1000
MOST_PAGES = 20
"""Of one chat, or of the list of chats."""
PAGE = 200
TRIES = 3
WAIT_SECONDS = 30.0
"""After an error that does not say how long to wait."""
log = structlog.get_logger()


async def watch(api: SlackApi, target: Target, since: float | None, deliver: Deliver) -> None:
    """Over HTTP: read the history now, after each gap in which this process did not run, and once an hour. ``since``: until when people's
    words have arrived for certain; None where nobody listened to the connection yet, because what is older was written to nobody."""
    while True:
        begin = time.time()
        is_read = since is None or await catch_up(api, target, max(since, begin - MOST_SECONDS), deliver)
        if is_read:
            # What Slack may still try to deliver is read once more in the next look.
            since = begin if since is None else max(since, begin - RETRY_SECONDS)
            await deliver((), f"{since:.6f}")
        await _rest(LOOK_SECONDS if is_read else RETRY_SECONDS)


async def _rest(seconds: float) -> None:
    """Shorter where this process was stopped meanwhile."""
    end = time.time() + seconds
    while (beat := time.time()) < end:
        await asyncio.sleep(min(BEAT_SECONDS, seconds))
        if time.time() - beat > RETRY_SECONDS:
            return


async def catch_up(api: SlackApi, target: Target, since: float, deliver: Deliver) -> bool:
    """Deliver what people wrote in direct messages since then, chat by chat, oldest first; whether all of it was read. What Slack does not
    let the app read is left."""
    for _ in range(TRIES):
        try:
            await _read_chats(api, target, since, deliver)
        except CortexError as error:
            log.warning("history not read", connection=str(target.connection_id), error=error.message)
            if isinstance(error, Undeliverable) or error.code == "listener_lost":
                return False
            await asyncio.sleep(WAIT_SECONDS)
        else:
            return True
    return False


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
    # Replies stand apart from the chat, and are found by what they reply to.
    oldest = min(since, time.time() - MOST_SECONDS)
    messages: dict[str, Any] = {}
    try:
        async for page in _pages(api, target, "conversations.history", channel=channel, oldest=f"{oldest:.6f}"):
            messages |= _by_time(page)
        for ts in [ts for ts, message in messages.items() if _number(message.get("latest_reply")) > since]:
            thread = {"channel": channel, "ts": ts, "oldest": f"{since:.6f}"}
            async for page in _pages(api, target, "conversations.replies", **thread):
                messages |= _by_time(page)
    except Undeliverable as error:
        # One chat that cannot be read: the others can.
        log.warning("history not read", connection=str(target.connection_id), error=error.message)
        return
    new = [messages[ts] for ts in sorted(messages, key=_number) if _number(ts) > since]
    items = [item for message in new for item in events.history_items(target, channel, message)]
    if items:
        await deliver(items, None)


def _by_time(page: Mapping[str, Any]) -> dict[str, Any]:
    messages = (message for message in page.get("messages", ()) if isinstance(message, dict))
    return {str(message.get("ts")): message for message in messages}


def _number(ts: Any) -> float:
    """The seconds of a `ts`; 0 for what is none."""
    try:
        return float(ts)
    except (TypeError, ValueError):
        return 0.0


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
