"""Discord's Gateway, as far as a channel uses it: sessions that outlive their sockets, a count of events, heartbeats, codes that close."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

from tests.emulators.published_types import check_published

GUILD_MESSAGES, DIRECT_MESSAGES, MESSAGE_CONTENT = 1 << 9, 1 << 12, 1 << 15
_PRIVILEGED = 1 << 1 | 1 << 8 | MESSAGE_CONTENT
_KNOWN = (1 << 26) - 1
MAX_PAYLOAD = 4096
_ENDING = (1000, 1001)
"""Codes with which a client ends its session."""


@dataclass(eq=False)
class Link:
    """One socket."""

    socket: WebSocket
    deflate: Any = None
    heartbeats: list[int | None] = field(default_factory=list)
    close_code: int | None = None
    """With which the client closed it."""

    async def send(self, frame: dict[str, Any], published: str | None = None) -> None:
        if published is not None:
            check_published("discord", published, frame)
        text = orjson.dumps(frame)
        if self.deflate is None:
            await self.socket.send_text(text.decode())
        else:
            await self.socket.send_bytes(self.deflate.compress(text) + self.deflate.flush(zlib.Z_SYNC_FLUSH))


@dataclass(eq=False)
class Session:
    id: str
    intents: int
    frames: list[dict[str, Any]] = field(default_factory=list)
    """All events, from the first one on."""
    link: Link | None = None
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def add(self, kind: str, data: Any, published: str | None = None) -> None:
        async with self.lock:
            frame = {"op": 0, "t": kind, "s": len(self.frames) + 1, "d": data}
            if published is not None:
                check_published("discord", published, frame)
            self.frames.append(frame)
            if self.link is not None:
                await self.link.send(frame)


class DiscordGateway:
    """Of one bot. ``token``, ``bot`` and ``address`` are what they are when somebody asks."""

    def __init__(
        self, application_id: str, token: Callable[[], str], bot: Callable[[], dict[str, Any]], address: Callable[[], str]
    ) -> None:  # fmt: skip
        self._application_id, self._token, self._bot, self._address = application_id, token, bot, address
        self.sessions: dict[str, Session] = {}
        self.links: list[Link] = []
        self.identified: list[dict[str, Any]] = []
        self.resumed: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.heartbeat_ms = 41250
        self.answers_heartbeats = True
        self.remaining = 1000
        """Sessions that may begin today."""
        self.refusal: int | None = None
        """The code that ends the next connection once it has greeted."""
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"{self._address().replace('http', 'ws', 1)}/gateway"

    def routes(self) -> list[WebSocketRoute]:
        return [WebSocketRoute("/gateway", self._serve), WebSocketRoute("/resume", self._serve)]

    def describe(self) -> dict[str, Any]:
        limit = {"total": 1000, "remaining": self.remaining, "reset_after": 14_400_000, "max_concurrency": 1}
        described = {"url": self.url, "shards": 1, "session_start_limit": limit}
        check_published("discord", "GatewayAddress", described)
        return described

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(20), self._changed:
            await self._changed.wait_for(is_so)

    @property
    def open_links(self) -> list[Link]:
        return [session.link for session in self.sessions.values() if session.link is not None]

    async def add_message(self, message: dict[str, Any]) -> None:
        is_direct = "guild_id" not in message
        concerns = is_direct or self._bot()["id"] in [user["id"] for user in message["mentions"]]
        for session in list(self.sessions.values()):
            if session.intents & (DIRECT_MESSAGES if is_direct else GUILD_MESSAGES):
                has_content = concerns or session.intents & MESSAGE_CONTENT
                hidden = {} if has_content else {"content": "", "attachments": [], "embeds": [], "components": []}
                await session.add("MESSAGE_CREATE", {**message, **hidden}, "MessageCreated")

    async def add_interaction(self, payload: dict[str, Any]) -> None:
        for session in list(self.sessions.values()):
            await session.add("INTERACTION_CREATE", payload)

    async def ask_to_reconnect(self) -> None:
        for link in self.open_links:
            await link.send({"op": 7, "s": None, "t": None}, "Reconnect")

    async def drop(self, code: int = 4000) -> None:
        """Every connection; sessions stay."""
        for link in self.open_links:
            await link.socket.close(code)

    def forget_sessions(self) -> None:
        """As after some minutes without a connection."""
        self.sessions.clear()

    async def _serve(self, socket: WebSocket) -> None:
        await socket.accept()
        query = socket.query_params
        assert (query["v"], query["encoding"]) == ("10", "json")
        link = Link(socket, zlib.compressobj() if query.get("compress") == "zlib-stream" else None)
        self.links.append(link)
        self.paths.append(socket.url.path)
        await link.send({"op": 10, "d": {"heartbeat_interval": self.heartbeat_ms}, "s": None, "t": None}, "Hello")
        while (received := await socket.receive())["type"] == "websocket.receive":
            raw = received.get("bytes") or received["text"].encode()
            if len(raw) > MAX_PAYLOAD:
                await socket.close(4002)
                continue
            await self._take(link, orjson.loads(raw))
            await self._notify()
        link.close_code = received.get("code")
        for session in list(self.sessions.values()):
            if session.link is link:
                session.link = None
                if link.close_code in _ENDING:
                    del self.sessions[session.id]
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _take(self, link: Link, frame: dict[str, Any]) -> None:
        match frame["op"]:
            case 1:
                check_published("discord", "Heartbeat", frame)
                link.heartbeats.append(frame["d"])
                if self.answers_heartbeats:
                    await link.send({"op": 11, "s": None, "t": None}, "HeartbeatAck")
            case 2:
                await self._identify(link, frame)
            case 6:
                await self._resume(link, frame)
            case _:
                await link.socket.close(4001)

    async def _refuses(self, link: Link, token: str) -> bool:
        refusal, self.refusal = self.refusal, None
        code = refusal or (None if token == self._token() else 4004)
        if code is not None:
            await link.socket.close(code)
        return code is not None

    async def _identify(self, link: Link, frame: dict[str, Any]) -> None:
        wanted = frame["d"]
        self.identified.append(wanted)
        intents = int(wanted["intents"])
        if await self._refuses(link, wanted["token"]):
            return
        if intents & ~_KNOWN or intents & _PRIVILEGED:
            await link.socket.close(4013 if intents & ~_KNOWN else 4014)
            return
        if self.remaining <= 0:
            await self.refuse_session(link, can_resume=False)
            return
        self.remaining -= 1
        session = Session(f"{len(self.identified):032x}", intents, link=link)
        self.sessions[session.id] = session
        ready = {
            "v": 10, "user": self._bot(), "guilds": [], "session_id": session.id, "shard": [0, 1],
            "resume_gateway_url": self.url.replace("/gateway", "/resume"),
            "application": {"id": self._application_id, "flags": 0, "flags_new": "0"},
        }  # fmt: skip
        await session.add("READY", ready, "Ready")

    async def refuse_session(self, link: Link, *, can_resume: bool) -> None:
        await link.send({"op": 9, "d": can_resume, "s": None, "t": None}, "InvalidSession")

    async def _resume(self, link: Link, frame: dict[str, Any]) -> None:
        check_published("discord", "Resume", frame)
        wanted = frame["d"]
        self.resumed.append(wanted)
        if await self._refuses(link, wanted["token"]):
            return
        session = self.sessions.get(wanted["session_id"])
        if session is None or wanted["seq"] > len(session.frames):
            await self.refuse_session(link, can_resume=False)
            return
        async with session.lock:
            earlier, session.link = session.link, link
            for missed in session.frames[wanted["seq"] :]:
                await link.send(missed)
        await session.add("RESUMED", {"_trace": []})
        if earlier is not None and earlier is not link:
            await earlier.socket.close(4000)
