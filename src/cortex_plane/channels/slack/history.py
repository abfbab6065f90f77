"""What people wrote to the app while the plane was away: Slack keeps it in their direct messages, and sends its events again for some
minutes at most.

A message that is read here has the id of its event, so that it counts once, however often it is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
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
"""In one look. The next look reads the others."""
MOST_PAGES = 20
"""Of one chat."""
MOST_LIST_PAGES = 500
"""Of the list of chats."""
PAGE = 200
TRIES = 3
WAIT_SECONDS = 30.0
"""After an error that does not say how long to wait."""
log = structlog.get_logger()


async def watch(api: SlackApi, target: Target, since: float | None, deliver: Deliver) -> None:
    """Over HTTP: read the history now, after each gap in which this process did not run, and once an hour. ``since``: until when people's
    words have arrived for certain; None where nobody listened to the connection yet, because what is older was written to nobody. Raises
    ``Undeliverable`` where Slack lets the app read nothing."""
    while True:
        begin, read = time.time(), set[str]()
        while since is not None and not await catch_up(api, target, since, deliver, read):
            await _rest(RETRY_SECONDS)
        # What Slack may still try to deliver is read once more in the next look.
        since = begin if since is None else max(since, begin - RETRY_SECONDS)
        await deliver((), f"{since:.6f}")
        await _rest(LOOK_SECONDS)


async def _rest(seconds: float) -> None:
    """Shorter where this process was stopped meanwhile."""
    end = time.time() + seconds
    while (beat := time.time()) < end:
        await asyncio.sleep(min(BEAT_SECONDS, seconds))
        if time.time() - beat > RETRY_SECONDS:
            return


async def catch_up(api: SlackApi, target: Target, since: float, deliver: Deliver, read: set[str]) -> bool:
    """Deliver what people wrote in direct messages since then, chat by chat, oldest first; whether all of it was read. ``read`` has the
    chats that an earlier look has read, and gets those that this one reads. Raises ``Undeliverable`` where Slack lets the app read nothing."""
    since = max(since, time.time() - MOST_SECONDS)
    for _ in range(TRIES):
        try:
            return await _read_chats(api, target, since, deliver, read)
        except Undeliverable:
            raise
        except CortexError as error:
            _warn(target, error)
            if error.code == "listener_lost":
                return False
            await asyncio.sleep(WAIT_SECONDS)
    return False


def _warn(target: Target, error: CortexError) -> None:
    log.warning("history not read", connection=str(target.connection_id), error=error.message)


async def _read_chats(api: SlackApi, target: Target, since: float, deliver: Deliver, read: set[str]) -> bool:
    chats, is_all = await _direct_messages(api, target)
    unread = [channel for channel in chats if channel not in read]
    for channel in unread[:MOST_CHATS]:
        try:
            is_whole = await _read_chat(api, target, channel, since, deliver)
        except Undeliverable as error:
            # One chat that is gone: the others are read. What is wrong with all chats is for whoever looks after the connection.
            if error.gone or not (error.address or read):
                raise
            _warn(target, error)
            is_whole = error.address
        if is_whole:
            read.add(channel)
        else:
            is_all = False
    if len(unread) > MOST_CHATS:
        log.info("the next look reads more direct messages", connection=str(target.connection_id), chats=len(unread))
        return False
    if not is_all:
        # Chats that were read must not wait for one that cannot be: the next look begins anew.
        read.clear()
    return is_all


async def _direct_messages(api: SlackApi, target: Target) -> tuple[list[str], bool]:
    pages, is_all = await _pages(api, target, "conversations.list", MOST_LIST_PAGES, types="im")
    channels = (channel for page in pages for channel in page.get("channels", ()) if isinstance(channel, dict))
    ids = [channel.get("id") for channel in channels if not channel.get("is_user_deleted")]
    return [id for id in ids if isinstance(id, str)], is_all


async def _read_chat(api: SlackApi, target: Target, channel: str, since: float, deliver: Deliver) -> bool:
    """Whether all of it was read."""
    # Replies stand apart from the chat, and are found by what they reply to.
    oldest = f"{min(since, time.time() - MOST_SECONDS):.6f}"
    pages, is_whole = await _pages(api, target, "conversations.history", MOST_PAGES, channel=channel, oldest=oldest)
    messages = _by_time(pages)
    for ts in [ts for ts, message in messages.items() if _number(message.get("latest_reply")) > since]:
        thread = {"channel": channel, "ts": ts, "oldest": f"{since:.6f}"}
        pages, is_whole_thread = await _pages(api, target, "conversations.replies", MOST_PAGES, **thread)
        messages |= _by_time(pages)
        is_whole = is_whole and is_whole_thread
    if not is_whole:
        log.warning("too many direct messages to read all", connection=str(target.connection_id), chat=channel)
    new = [messages[ts] for ts in sorted(messages, key=_number) if _number(ts) > since]
    items = [item for message in new for item in events.history_items(target, channel, message)]
    if items:
        await deliver(items, None)
    return is_whole


def _by_time(pages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    messages = (message for page in pages for message in page.get("messages", ()) if isinstance(message, dict))
    return {str(message.get("ts")): message for message in messages}


def _number(ts: Any) -> float:
    """The seconds of a `ts`; 0 for what is none."""
    try:
        return float(ts)
    except (TypeError, ValueError):
        return 0.0


async def _pages(
    api: SlackApi, target: Target, method: str, most: int, **parameters: str
) -> tuple[list[dict[str, Any]], bool]:
    """The pages, at most so many, and whether these are all."""
    pages: list[dict[str, Any]] = []
    cursor = ""
    while len(pages) < most:
        page = await _call(api, target, method, {**parameters, "limit": str(PAGE), "cursor": cursor})
        pages.append(page)
        metadata = page.get("response_metadata")
        cursor = str(metadata.get("next_cursor") or "") if isinstance(metadata, dict) else ""
        if not cursor:
            return pages, True
    return pages, False


async def _call(api: SlackApi, target: Target, method: str, parameters: Mapping[str, str]) -> dict[str, Any]:
    for attempt in range(TRIES):
        try:
            return dict((await api.read(target, method, parameters)).require())
        except TryAgain as error:
            if attempt + 1 == TRIES:
                raise
            await asyncio.sleep(WAIT_SECONDS if error.after_seconds is None else error.after_seconds)
    raise AssertionError("the last try returns or raises")
