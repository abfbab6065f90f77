"""Socket Mode: Slack sends events over a connection that the app opens, so the plane needs no public address."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from cortex_plane.channels.slack import events, history
from cortex_plane.channels.slack.web_api import SlackApi
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.channels.vendor_socket import connect_socket
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.notify.model.channels import Deliver
from cortex_plane.notify.model.notifications import Target, Undeliverable

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

log = structlog.get_logger()


async def listen(client: VendorClient, api: SlackApi, target: Target, since: float | None, deliver: Deliver) -> None:
    """One connection after the other: Slack closes each after some hours, and says so before. ``since``: what people wrote after it is
    read again, beside the connection, so that nothing is missed in between."""
    reading: asyncio.Task[None] | None = None
    try:
        while True:
            body = (await api.open_socket(target)).require()
            async with connect_socket(client, str(body.get("url", "")), "Socket Mode") as connection:
                if since is not None and (reading is None or reading.done()):
                    reading = asyncio.create_task(_catch_up(api, target, since, deliver))
                await _read(connection, target, deliver)
    finally:
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)


async def _catch_up(api: SlackApi, target: Target, since: float, deliver: Deliver) -> None:
    """The history, in several looks where there are many chats. What could not be read is tried again with the next connection."""
    read: set[str] = set()
    try:
        while True:
            if await history.catch_up(api, target, since, deliver, read) or not read:
                return
            await asyncio.sleep(history.RETRY_SECONDS)
    except Undeliverable as error:
        # The connection hears people all the same.
        log.warning("history not read", connection=str(target.connection_id), error=error.message)


async def _read(connection: ClientConnection, target: Target, deliver: Deliver) -> None:
    """Until Slack wants a new connection. An event is acknowledged once it is stored; else Slack sends it again."""
    async for text in connection:
        try:
            envelope: Any = orjson.loads(text)
        except ValueError:
            continue
        if not isinstance(envelope, dict):
            continue
        if envelope.get("type") == "disconnect":
            return
        if isinstance(id := envelope.get("envelope_id"), str):
            await _take(envelope, target, deliver)
            await connection.send(orjson.dumps({"envelope_id": id}).decode())


async def _take(envelope: dict[str, Any], target: Target, deliver: Deliver) -> None:
    try:
        items = events.read_envelope(target, envelope)
    except InvalidInput as error:
        log.warning("event refused", connection=str(target.connection_id), reason=error.message)
        return
    if items:
        await deliver(items, None)
