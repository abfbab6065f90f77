"""Discord's Gateway, version 10: a socket over which Discord sends what people write, and what they press where it has no address to post
it to.

Discord counts what it sends in a session. A session outlives its socket by some minutes: whoever resumes it, in this process or in another
one, gets everything after the count that they name. So the count is stored with what came before it, and nothing needs to be acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, IntEnum
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import orjson
import structlog

from cortex_plane.channels.discord import interactions, messages
from cortex_plane.channels.discord.api import UNKNOWN_INTERACTION, DiscordApi, api_url
from cortex_plane.channels.vendor_http import LONGEST_WAIT, VendorClient
from cortex_plane.channels.vendor_socket import OPEN_SECONDS, connect_socket
from cortex_plane.notify.model.channels import Deliver, InboundItem
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

INTENTS = 1 << 9 | 1 << 12
"""Messages in servers and direct messages. The content of those that concern the bot comes without the privileged intent."""
RESUMABLE = 4000
"""The code with which the plane closes: 1000 and 1001 would end the session."""
RESPONSE_SECONDS = 3.0
"""So long Discord waits for the first response to an interaction."""
PAUSE_SECONDS = (1.0, 5.0)
"""Between these Discord wants a wait, by chance, after a session that it does not know."""
MOST_WAITING = 1000
"""Events that were read and are not stored yet. Nothing more is read then."""
SLOW_DOWN_SECONDS = 60.0
_NO_SESSION = "{}"
_NAME = "Discord's Gateway"
_TOO_FAST = 4008
_SESSION_OVER: Final = frozenset({4003, 4007, 4009})
_PORTAL = "in the Developer Portal under Bot"
_FINAL: Final = {
    4004: "Discord does not accept the token of the bot any more.",
    4010: "Discord refuses the shard of the plane: update the plane.",
    4011: "The bot is in more servers (2,500) than one connection may have: use another application with fewer.",
    4012: "Discord does not speak version 10 of its Gateway any more: update the plane.",
    4013: "Discord refuses the intents of the plane: update the plane.",
    4014: f"Discord does not allow the bot to receive messages: check the intents {_PORTAL}, and that the bot is not quarantined.",
}
"""Codes after which a new connection would be refused as well. Somebody must act."""
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, IndexError)

log = structlog.get_logger()


class Op(IntEnum):
    """What a frame is."""

    DISPATCH = 0
    HEARTBEAT = 1
    IDENTIFY = 2
    RESUME = 6
    RECONNECT = 7
    INVALID_SESSION = 9
    HELLO = 10
    HEARTBEAT_ACK = 11


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewaySession:
    id: str
    seq: int
    """The count of the last event that is stored."""
    url: str
    """Where it can be resumed; empty where nobody answers there any more."""
    api: str
    """The API that it belongs to: no other server gets the token."""

    @property
    def cursor(self) -> str:
        return orjson.dumps({"session": self.id, "seq": self.seq, "url": self.url, "api": self.api}).decode()


def read_cursor(cursor: str | None, api: str) -> GatewaySession | None:
    try:
        values = orjson.loads(cursor or _NO_SESSION)
        session = GatewaySession(
            id=str(values["session"]), seq=int(values["seq"]), url=str(values["url"]), api=str(values["api"])
        )
    except _MALFORMED:
        return None
    return session if session.api == api else None


class _End(Enum):
    """Why a connection is over, where another one follows at once."""

    RECONNECT = "reconnect"
    INVALID = "invalid"
    """The session is not known."""
    LATER = "later"
    """The session can be resumed soon."""


class DiscordGateway:
    def __init__(
        self, client: VendorClient, api: DiscordApi, *, pause_seconds: tuple[float, float] = PAUSE_SECONDS
    ) -> None:
        self._client, self._api, self._pauses = client, api, pause_seconds

    async def find(self, target: Target, *, is_new: bool = True) -> str:
        """Its address. Raises ``TryAgain`` where Discord allows no new session for now: the token would be reset after too many."""
        body = await self._api.call(target, "GET", "/gateway/bot")
        try:
            url, limit = str(body["url"]), body["session_start_limit"]
            remaining, reset_seconds = int(limit["remaining"]), float(limit["reset_after"]) / 1000
        except _MALFORMED:
            raise TryAgain(f"{_NAME} has no address.") from None
        if is_new and remaining <= 0:
            raise TryAgain(
                "Discord allows the bot no new session for now: it began too many today.",
                after_seconds=min(max(reset_seconds, 1.0), LONGEST_WAIT),
            )
        return url

    async def listen(self, target: Target, cursor: str | None, deliver: Deliver) -> None:
        """One connection after the other, until cancelled. Raises ``TryAgain`` to be called again with the newest cursor."""
        api = api_url(target)
        session = read_cursor(cursor, api)
        while True:
            url = (session.url if session else "") or await self.find(target, is_new=session is None)
            is_new = session is None
            try:
                conversation = _Conversation(self._api, target, session, deliver)
                end = await self._hold(url, conversation)
            except (TryAgain, Undeliverable):
                if session is None or not session.url or conversation.is_open:
                    raise
                # Of the place for resuming; the other one knows the session, too.
                session = replace(session, url="")
                continue
            session = conversation.session
            if is_new if end is _End.INVALID else end is _End.RECONNECT and not conversation.is_ready:
                raise TryAgain(f"{_NAME} began no session.")
            if end is _End.INVALID:
                session = None
            if end is not _End.RECONNECT:
                await asyncio.sleep(random.uniform(*self._pauses))  # noqa: S311 -- jitter

    async def _hold(self, url: str, conversation: _Conversation) -> _End:
        async with connect_socket(
            self._client, gateway_address(url, conversation.target), _NAME, ping_seconds=None
        ) as connection:
            try:
                return await conversation.hold(connection)
            finally:
                await connection.close(RESUMABLE)


class _Conversation:
    """One socket, from HELLO to its end.

    Three tasks: one reads and answers presses at once, because Discord waits three seconds for that; one stores, in order; one sends
    heartbeats.
    """

    def __init__(self, api: DiscordApi, target: Target, session: GatewaySession | None, deliver: Deliver) -> None:
        self.target, self.session = target, session
        self.is_open = self.is_ready = False
        self._api, self._deliver = api, deliver
        self._bot_id = str(target.config.get("bot_id", ""))
        self._frames: asyncio.Queue[tuple[dict[str, Any], asyncio.Task[bool] | None] | None] = asyncio.Queue(
            MOST_WAITING
        )
        self._responses: set[asyncio.Task[bool]] = set()
        self._received: int | None = session.seq if session else None
        self._stored_seq = session.seq if session else 0
        self._is_acknowledged = True

    async def hold(self, connection: ClientConnection) -> _End:
        async with asyncio.timeout(OPEN_SECONDS):
            hello = _frame(await connection.recv())
        try:
            if hello["op"] == Op.RECONNECT:
                return _End.RECONNECT
            interval = max(float(hello["d"]["heartbeat_interval"]) / 1000, 0.001)
        except _MALFORMED:
            raise TryAgain(f"{_NAME} did not say hello.") from None
        self.is_open = True
        await _send(connection, *self._greeting())
        storing = asyncio.create_task(self._store())
        pending: set[asyncio.Task[Any]] = {
            storing, asyncio.create_task(self._read(connection)), asyncio.create_task(self._beat(connection, interval))
        }  # fmt: skip
        tasks = set(pending)
        try:
            while not storing.done():
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            end = storing.result()
        finally:
            tasks |= self._responses
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return end if end is not None else await self._judge_close(connection.close_code)

    def _greeting(self) -> tuple[Op, dict[str, Any]]:
        token = self.target.secrets.get("bot_token", "")
        if self.session is not None:
            return Op.RESUME, {"token": token, "session_id": self.session.id, "seq": self.session.seq}
        properties = {"os": sys.platform, "browser": "cortex-plane", "device": "cortex-plane"}
        return Op.IDENTIFY, {"token": token, "intents": INTENTS, "properties": properties}

    async def _beat(self, connection: ClientConnection, interval: float) -> None:
        await asyncio.sleep(interval * random.random())  # noqa: S311 -- jitter
        while True:
            if not self._is_acknowledged:
                raise TryAgain(f"{_NAME} does not answer heartbeats.")
            self._is_acknowledged = False
            await _send(connection, Op.HEARTBEAT, self._received)
            await asyncio.sleep(interval)

    async def _read(self, connection: ClientConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        try:
            async for text in connection:
                frame = _frame(text)
                match frame.get("op"):
                    case Op.HEARTBEAT:  # it asks for one
                        await _send(connection, Op.HEARTBEAT, self._received)
                        continue
                    case Op.HEARTBEAT_ACK:
                        self._is_acknowledged = True
                    case Op.DISPATCH if isinstance(frame.get("s"), int):
                        self._received = frame["s"]
                await self._frames.put((frame, self._begin_response(frame)))
        except ConnectionClosed:
            pass
        await self._frames.put(None)

    def _begin_response(self, frame: Mapping[str, Any]) -> asyncio.Task[bool] | None:
        if frame.get("t") != "INTERACTION_CREATE":
            return None
        task = asyncio.create_task(self._respond(frame.get("d")))
        self._responses.add(task)
        task.add_done_callback(self._responses.discard)
        return task

    async def _respond(self, payload: Any) -> bool:
        """The first response. False where the person was told that it failed: what comes again after a downtime is too old."""
        try:
            response, _ = interactions.begin(payload)
            path = f"/interactions/{payload['id']}/{payload['token']}/callback"
            async with asyncio.timeout(RESPONSE_SECONDS):
                await self._api.call(self.target, "POST", path, response)
        except _MALFORMED:
            return False
        except Undeliverable as error:
            return error.vendor_code != UNKNOWN_INTERACTION
        except (TryAgain, TimeoutError) as error:
            log.warning("interaction not answered", connection=str(self.target.connection_id), error=str(error))
        return True

    async def _store(self) -> _End | None:
        """Until the connection is over; None where it was closed."""
        while (entry := await self._frames.get()) is not None:
            frame, response = entry
            match frame.get("op"):
                case Op.RECONNECT:
                    return _End.RECONNECT
                case Op.INVALID_SESSION:
                    return _End.LATER if frame.get("d") is True else _End.INVALID
                case Op.HEARTBEAT_ACK:
                    # Other events are counted, too, and a session that is resumed far behind its end is not resumed at all.
                    if self.session is not None and self.session.seq > self._stored_seq:
                        await self._keep(())
                case Op.DISPATCH:
                    await self._store_event(frame, response is None or await response)
        return None

    async def _store_event(self, frame: Mapping[str, Any], counts: bool) -> None:
        name, seq = frame.get("t"), frame.get("s")
        data: Any = frame.get("d")
        if name == "READY":
            try:
                id, url = str(data["session_id"]), str(data["resume_gateway_url"])
                self.session = GatewaySession(id=id, seq=0, url=url, api=api_url(self.target))
            except _MALFORMED:
                raise TryAgain(f"{_NAME} began no session.") from None
        items = self._items(str(name), data) if counts else ()
        if self.session is not None and isinstance(seq, int):
            self.session = replace(self.session, seq=seq)
        if name in ("READY", "RESUMED"):
            self.is_ready = True
        if items or name in ("READY", "RESUMED"):
            await self._keep(items)

    def _items(self, name: str, data: Any) -> tuple[InboundItem, ...]:
        try:
            match name:
                case "MESSAGE_CREATE":
                    item = messages.message_item(data, self._bot_id)
                    return () if item is None else (item,)
                case "INTERACTION_CREATE":
                    return interactions.begin(data)[1]
        except _MALFORMED as error:
            log.warning(
                "event does not have the vendor's form",
                connection=str(self.target.connection_id),
                error=type(error).__name__,
            )
        return ()

    async def _keep(self, items: tuple[InboundItem, ...]) -> None:
        if self.session is not None:
            await self._deliver(items, self.session.cursor)
            self._stored_seq = self.session.seq

    async def _judge_close(self, code: int | None) -> _End:
        if code in _FINAL:
            raise Undeliverable(f"{_FINAL[code]} (Close code {code}.)", vendor_code=code, gone=True)
        if code in _SESSION_OVER and self.session is not None:
            await self._deliver((), _NO_SESSION)
        raise TryAgain(
            f"{_NAME} closed the connection with code {code}.",
            after_seconds=SLOW_DOWN_SECONDS if code == _TOO_FAST else None,
        )


def gateway_address(url: str, target: Target) -> str:
    """With what the plane speaks. Where the API is encrypted, this is, too: the token goes over it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise TryAgain(f"{_NAME} has no address.") from None
    if api_url(target).startswith("https:") and parts.scheme != "wss":
        raise TryAgain(f"{_NAME} named an address without encryption.")
    return urlunsplit((parts.scheme, parts.netloc, parts.path or "/", "v=10&encoding=json", ""))


def _frame(text: str | bytes) -> dict[str, Any]:
    try:
        frame = orjson.loads(text)
    except ValueError:
        return {}
    return frame if isinstance(frame, dict) else {}


async def _send(connection: ClientConnection, op: Op, data: Any) -> None:
    """Nothing where it is closed by now: whoever reads it finds out why."""
    from websockets.exceptions import ConnectionClosed

    with contextlib.suppress(ConnectionClosed):
        await connection.send(orjson.dumps({"op": op, "d": data}).decode())
