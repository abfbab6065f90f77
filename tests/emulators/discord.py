"""Discord: its REST API for bots and its interactions, as far as a channel uses them, with the checks and limits of the real one."""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import httpx
import orjson
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.emulators.discord_gateway import DiscordGateway
from tests.emulators.published_types import check_published
from tests.emulators.vendor_server import VendorFault, VendorFaults, served_on_loopback

BOT_TOKEN = "MTIz.emulated.discord-bot-token"
ANSWER_SECONDS = 3.0
_EPOCH = 1420070400000
_EPHEMERAL, _LOADING = 64, 128
_DM, _GUILD_TEXT = 1, 0
_ANSWERS = {1: {1}, 2: {4, 5, 9}, 3: {4, 5, 6, 7, 9}, 5: {4, 5, 6, 7}}
"""Types of responses that fit each type of interaction."""
_INTERACTIONS = {2: "SlashCommand", 3: "Press", 5: "Form"}


class InteractionFailed(Exception):
    """What the person sees as "This interaction failed"."""


class DiscordError(Exception):
    def __init__(self, status: int, code: int, message: str, errors: Any = None) -> None:
        super().__init__(message)
        self.status, self.body = status, {"message": message, "code": code}
        if errors is not None:
            self.body["errors"] = errors


def _invalid(path: str, code: str, message: str) -> DiscordError:
    errors: Any = {"_errors": [{"code": code, "message": message}]}
    for part in reversed(path.split(".")):
        errors = {part: errors}
    return DiscordError(400, 50035, "Invalid Form Body", errors)


def _require(condition: bool, path: str, message: str) -> None:
    if not condition:
        raise _invalid(path, "BASE_TYPE_BAD_VALUE", message)


@dataclass(kw_only=True)
class Interaction:
    """One interaction, as its person sees it."""

    body: bytes
    payload: dict[str, Any]
    response: dict[str, Any] = field(default_factory=dict)
    original: dict[str, Any] | None = None
    followups: list[dict[str, Any]] = field(default_factory=list)
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    """Its person was told that it failed."""

    @property
    def modal(self) -> dict[str, Any] | None:
        return self.response["data"] if self.response.get("type") == 9 else None

    @property
    def shown(self) -> list[str]:
        """What the person reads below it, and nobody else where it is ephemeral."""
        messages = [*([self.original] if self.original else []), *self.followups]
        return [message["content"] for message in messages if not message["flags"] & _LOADING]


class DiscordEmulator:
    """One application with its bot, and the people that it can reach."""

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        self._ids, self._now = itertools.count(1), now
        self.key = Ed25519PrivateKey.generate()
        self.application_id, self.bot_id, self.guild_id = self.new_id(), self.new_id(), self.new_id()
        self.token = BOT_TOKEN
        self.endpoint: str | None = None
        self.commands: list[dict[str, Any]] = []
        self.users: dict[str, dict[str, Any]] = {}
        self.channels: dict[str, dict[str, Any]] = {}
        self.messages: dict[str, dict[str, Any]] = {}
        """All by id, in order; those that were deleted are gone."""
        self.written: dict[str, dict[str, Any]] = {}
        """What people wrote, by id."""
        self.versions: list[dict[str, Any]] = []
        """Every state of every message, as it came about."""
        self.typing: list[str] = []
        self.unreachable: set[str] = set()
        """People who take no direct messages."""
        self.interactions: dict[str, Interaction] = {}
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.faults = VendorFaults()
        """Of requests that send or change messages."""
        self.burst = 1000
        """Requests that a route takes within its window."""
        self._windows: dict[str, list[float]] = {}
        self._nonces: dict[tuple[str, str], str] = {}
        self.url = ""
        self.gateway = DiscordGateway(
            self.application_id, lambda: self.token, self._bot, lambda: self.url.removesuffix("/api/v10")
        )

    # Python API

    def new_id(self) -> str:
        return str(((int(time.time() * 1000) - _EPOCH) << 22) + next(self._ids))

    @property
    def public_key(self) -> str:
        raw = self.key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
        return raw.hex()

    def user(self, name: str) -> str:
        """The id of a person of this name."""
        for user in self.users.values():
            if user["username"] == name:
                return str(user["id"])
        id = self.new_id()
        self.users[id] = _user(id, name, name.capitalize())
        return id

    def guild_channel(self, name: str) -> str:
        id = self.new_id()
        self.channels[id] = {"id": id, "type": _GUILD_TEXT, "guild_id": self.guild_id, "name": name}
        return id

    def direct_channel(self, user: str) -> str:
        for channel in self.channels.values():
            if channel["type"] == _DM and channel["recipients"][0]["id"] == user:
                return str(channel["id"])
        id = self.new_id()
        self.channels[id] = {"id": id, "type": _DM, "recipients": [self.users[user]], "last_message_id": None}
        return id

    def history(self, channel: str) -> list[dict[str, Any]]:
        return [message for message in self.messages.values() if message["channel_id"] == channel]

    def messages_to(self, user: str) -> list[dict[str, Any]]:
        return self.history(self.direct_channel(user))

    def delete(self, message: dict[str, Any]) -> None:
        del self.messages[message["id"]]

    def fail(self, fault: VendorFault, times: int = 1, after: int = 0) -> None:
        self.faults.add(fault, times, after)

    async def write(
        self, user: str, text: str, channel: str | None = None, *, mentions: tuple[str, ...] = (), attachments: tuple[str, ...] = (),
        reply_to: dict[str, Any] | None = None, **fields: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Somebody writes to the bot, or into a channel; ``mentions``: ids that the text names as `<@id>`, or whose message it replies to."""
        place = self.channels[channel or self.direct_channel(user)]
        people = [self._bot() if id == self.bot_id else self.users[id] for id in mentions]
        message: dict[str, Any] = {
            **self._message(place["id"], {"content": text}), "author": self.users[user], "mentions": people,
            "attachments": [
                {"id": self.new_id(), "filename": name, "size": 7, "url": "https://cdn.example/1", "proxy_url": "https://cdn.example/1"}
                for name in attachments
            ],
        }  # fmt: skip
        if reply_to is not None:
            reference = {"type": 0, "channel_id": place["id"], "message_id": reply_to["id"]}
            message |= {"type": 19, "message_reference": reference, "referenced_message": reply_to}
        message |= fields
        check_published("discord", "Message", message)
        self.written[message["id"]] = message
        event = {**message, "channel_type": place["type"]}
        if place["type"] == _GUILD_TEXT:
            member = {name: v for name, v in _member(self.users[user]).items() if name not in ("user", "permissions")}
            mentioned = [{**person, "member": member} for person in people]
            event |= {"guild_id": self.guild_id, "member": member, "mentions": mentioned}
        await self.gateway.add_message(event)
        return message

    async def press(self, user: str, message: dict[str, Any], label: str) -> Interaction:
        (button,) = [button for button in live_buttons(message) if button["label"] == label]
        return await self.press_data(user, message, button["custom_id"])

    async def press_data(self, user: str, message: dict[str, Any], custom_id: str) -> Interaction:
        """A press of a button that may not be there any more: a client can be late, or modified."""
        data = {"component_type": 2, "custom_id": custom_id}
        return await self._interact(3, user, message["channel_id"], data, message=message)

    async def submit(self, user: str, opened: Interaction, note: str) -> Interaction:
        """The form that an interaction opened, filled in."""
        modal = opened.modal
        assert modal is not None, "a form is open"
        (label,) = modal["components"]
        text = label["component"]
        assert len(note) <= text.get("max_length", 4000)
        assert note or not text.get("required", True), "Discord does not send a form without what is required"
        component = {"type": 4, "id": 2, "custom_id": text["custom_id"], "value": note}
        data = {"custom_id": modal["custom_id"], "components": [{"type": 18, "id": 1, "component": component}]}
        return await self._interact(5, user, opened.payload["channel_id"], data, message=opened.payload.get("message"))

    async def command(self, user: str, verb: str, channel: str | None = None, **options: str) -> Interaction:
        """`/cortex VERB`, in the direct channel where no other is named."""
        (command,) = [command for command in self.commands if command["name"] == "cortex"]
        (known,) = [option for option in command["options"] if option["name"] == verb]
        names = {option["name"] for option in known.get("options", ())}
        assert set(options) <= names, f"Discord's client offers only {names}"
        values = [{"name": name, "type": 3, "value": value} for name, value in options.items()]
        data = {
            "id": command["id"], "name": "cortex", "type": 1,
            "options": [{"name": verb, "type": 1, "options": values}],
        }  # fmt: skip
        return await self._interact(2, user, channel or self.direct_channel(user), data)

    async def redeliver(self, interaction: Interaction) -> int:
        """The same bytes again; the status."""
        return (await self._post(interaction.body)).status_code

    async def forge(self, body: bytes) -> int:
        """A request that another key signed; the status."""
        return (await self._post(body, key=Ed25519PrivateKey.generate())).status_code

    async def recheck(self) -> None:
        """What Discord does now and then: an endpoint that takes a bad signature is removed."""
        if not await self._is_verified(self.endpoint or ""):
            self.endpoint = None

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[DiscordEmulator]:
        async with served_on_loopback(self.app()) as origin:
            self.url = f"{origin}/api/v10"
            yield self

    # Interactions

    async def _interact(
        self, kind: int, user: str, channel: str, data: dict[str, Any], message: dict[str, Any] | None = None
    ) -> Interaction:
        interaction = self.begin(kind, user, channel, data, message)
        if self.endpoint is None:
            return await self._send_over_gateway(interaction)
        try:
            answer = await self._post(interaction.body)
        except httpx.TimeoutException:
            raise InteractionFailed(f"no response within {ANSWER_SECONDS:g} s") from None
        if answer.status_code != 200:
            raise InteractionFailed(f"HTTP {answer.status_code}")
        self.respond(interaction, answer.json())
        return interaction

    async def _send_over_gateway(self, interaction: Interaction) -> Interaction:
        await self.gateway.add_interaction(interaction.payload)
        try:
            async with asyncio.timeout(ANSWER_SECONDS if self.gateway.open_links else 0):
                await interaction.answered.wait()
        except TimeoutError:
            interaction.is_over = True
            raise InteractionFailed(f"no response within {ANSWER_SECONDS:g} s") from None
        return interaction

    def begin(
        self, kind: int, user: str, channel: str, data: dict[str, Any], message: dict[str, Any] | None = None
    ) -> Interaction:
        """What somebody did, before its request is sent."""
        token = f"aW50ZXJhY3Rpb24{self.new_id()}"
        place = self.channels[channel]
        is_direct = place["type"] == _DM
        payload: dict[str, Any] = {
            "app_permissions": "562949953601536", "application_id": self.application_id, "attachment_size_limit": 524288000,
            "authorizing_integration_owners": {"0": "0" if is_direct else self.guild_id}, "channel": {"flags": 0, **place},
            "channel_id": channel, "context": 1 if is_direct else 0, "data": data, "entitlements": [], "id": self.new_id(),
            "locale": "en-US", "token": token, "type": kind, "version": 1,
        }  # fmt: skip
        if is_direct:
            payload["user"] = self.users[user]
        else:
            payload["guild_id"], payload["guild_locale"] = self.guild_id, "en-US"
            payload["guild"] = {"id": self.guild_id, "features": [], "locale": "en-US"}
            payload["member"] = _member(self.users[user])
        if message is not None:
            payload["message"] = message
        check_published("discord", _INTERACTIONS[kind], payload)
        interaction = Interaction(body=orjson.dumps(payload), payload=payload)
        self.interactions[token] = interaction
        return interaction

    def respond(self, interaction: Interaction, response: dict[str, Any]) -> None:
        """What the application answers at first."""
        check_published("discord", "InteractionAnswer", response)
        interaction.response = response
        kind, data = interaction.response["type"], interaction.response.get("data", {})
        if kind not in _ANSWERS[interaction.payload["type"]]:
            raise InteractionFailed(
                f"a response of type {kind} to an interaction of type {interaction.payload['type']}"
            )
        if kind in (4, 5):
            flags = data.get("flags", 0) | (_LOADING if kind == 5 else 0)
            interaction.original = self._interaction_message(interaction, {**data, "flags": flags})
        elif kind in (6, 7):
            message = interaction.payload.get("message")
            interaction.original = None
            if kind == 7 and message is not None:
                self._store({**message, **data})
        elif kind == 9:
            _check_modal(data)

    def _interaction_message(self, interaction: Interaction, draft: dict[str, Any]) -> dict[str, Any]:
        return self._message(interaction.payload["channel_id"], {"content": "", **draft})

    async def _post(
        self, body: bytes, *, key: Ed25519PrivateKey | None = None, url: str | None = None
    ) -> httpx.Response:
        async with httpx.AsyncClient(timeout=ANSWER_SECONDS, trust_env=False) as client:
            return await client.post(url or self.endpoint or "", content=body, headers=self.signed(body, key=key))

    def signed(self, body: bytes, *, key: Ed25519PrivateKey | None = None, at: float | None = None) -> dict[str, str]:
        """The headers of a request."""
        timestamp = str(int(self._now() if at is None else at))
        return {
            "content-type": "application/json", "user-agent": "Discord-Interactions/1.0 (+https://discord.com)",
            "x-signature-ed25519": (key or self.key).sign(timestamp.encode() + body).hex(),
            "x-signature-timestamp": timestamp,
        }  # fmt: skip

    async def _is_verified(self, url: str) -> bool:
        """Discord's check: a PING with a good signature, and one with a bad signature that must be refused."""
        ping = orjson.dumps({
            "app_permissions": "0", "application_id": self.application_id, "entitlements": [], "id": self.new_id(),
            "token": "ping", "type": 1, "user": _user(self.new_id(), "discord", "Discord"), "version": 1,
        })  # fmt: skip
        try:
            good = await self._post(ping, url=url)
            bad = await self._post(ping, key=Ed25519PrivateKey.generate(), url=url)
        except httpx.HTTPError:
            return False
        return good.status_code == 200 and good.json() == {"type": 1} and bad.status_code == 401

    # REST

    def app(self) -> Starlette:
        bot: list[tuple[str, str, Callable[[Request], Awaitable[Any]]]] = [
            ("GET", "/applications/@me", self._get_application),
            ("PATCH", "/applications/@me", self._change_application),
            ("GET", "/oauth2/applications/@me", self._get_application),
            ("GET", "/users/@me", self._get_bot),
            ("POST", "/users/@me/channels", self._open_channel),
            ("GET", "/applications/{application}/commands", self._list_commands),
            ("PUT", "/applications/{application}/commands", self._put_commands),
            ("GET", "/gateway/bot", self._get_gateway),
            ("POST", "/channels/{channel}/typing", self._type),
            ("GET", "/channels/{channel}/messages/{message}", self._get_message),
            ("POST", "/channels/{channel}/messages", self._create_message),
            ("PATCH", "/channels/{channel}/messages/{message}", self._change_message),
        ]
        webhooks: list[tuple[str, str, Callable[[Request], Awaitable[Any]]]] = [
            ("POST", "/webhooks/{application}/{token}", self._follow_up),
            ("PATCH", "/webhooks/{application}/{token}/messages/@original", self._change_original),
            ("POST", "/interactions/{interaction}/{token}/callback", self._call_back),
        ]
        routes = [Route(f"/api/v10{path}", self._guarded(act, True), methods=[method]) for method, path, act in bot]
        routes += [
            Route(f"/api/v10{path}", self._guarded(act, False), methods=[method]) for method, path, act in webhooks
        ]
        return Starlette(routes=[*routes, *self.gateway.routes()])

    def _guarded(
        self, act: Callable[[Request], Awaitable[Any]], is_bot: bool
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            self.requests.append((request.method, request.url.path, dict(request.headers)))
            if not request.headers.get("user-agent", "").startswith("DiscordBot ("):
                return Response("<html>error 1010: banned by browser signature</html>", 403, media_type="text/html")
            if is_bot and request.headers.get("authorization") != f"Bot {self.token}":
                return JSONResponse({"message": "401: Unauthorized", "code": 0}, 401)
            wait = self._wait(f"{request.method} {request.url.path}")
            if wait is not None:
                body = {"message": "You are being rate limited.", "retry_after": wait, "global": False}
                check_published("discord", "RateLimit", body)
                return JSONResponse(body, 429, {**self._limits(request), "Retry-After": str(int(wait) + 1)})
            if request.method != "GET" and ("/messages" in request.url.path or request.url.path.endswith("/typing")):
                return await self.faults.around(lambda: self._act(act, request))
            return await self._act(act, request)

        return handle

    async def _act(self, act: Callable[[Request], Awaitable[Any]], request: Request) -> Response:
        try:
            result = await act(request)
        except DiscordError as error:
            check_published("discord", "ErrorAnswer", error.body)
            return JSONResponse(error.body, error.status, self._limits(request))
        if result is None:
            return Response(status_code=204, headers=self._limits(request))
        return JSONResponse(result, headers=self._limits(request))

    def _wait(self, route: str) -> float | None:
        window = self._windows.setdefault(route, [])
        now = time.monotonic()
        window[:] = [at for at in window if at > now - 5]
        if len(window) >= self.burst:
            return round(window[0] + 5 - now, 3)
        window.append(now)
        return None

    def _limits(self, request: Request) -> dict[str, str]:
        window = self._windows.get(f"{request.method} {request.url.path}", [])
        after = max(window[0] + 5 - time.monotonic(), 0) if window else 5.0
        return {
            "X-RateLimit-Limit": str(self.burst), "X-RateLimit-Remaining": str(max(self.burst - len(window), 0)),
            "X-RateLimit-Reset": f"{time.time() + after:.3f}", "X-RateLimit-Reset-After": f"{after:.3f}",
            "X-RateLimit-Bucket": "abcd1234",
        }  # fmt: skip

    async def _get_application(self, request: Request) -> dict[str, Any]:
        application: dict[str, Any] = {
            "id": self.application_id, "name": "Cortex", "icon": None, "description": "", "summary": "", "flags_new": "0",
            "bot": self._bot(), "bot_public": False, "bot_require_code_grant": False, "verify_key": self.public_key,
            "flags": 0, "rpc_origins": [], "redirect_uris": [], "team": None,
            "interactions_endpoint_url": self.endpoint, "owner": _user(self.application_id, "owner", "Owner"),
            "approximate_guild_count": 1, "approximate_user_install_count": 0, "integration_types_config": {"0": {}},
        }  # fmt: skip
        check_published("discord", "Application", application)
        return application

    async def _change_application(self, request: Request) -> dict[str, Any]:
        change = await request.json()
        if "interactions_endpoint_url" in change:
            url = change["interactions_endpoint_url"] or None
            if url is not None and not await self._is_verified(url):
                raise _invalid(
                    "interactions_endpoint_url", "APPLICATION_INTERACTIONS_ENDPOINT_URL_INVALID",
                    "The specified interactions endpoint url could not be verified.",
                )  # fmt: skip
            self.endpoint = url
        return await self._get_application(request)

    async def _get_bot(self, request: Request) -> dict[str, Any]:
        return self._bot()

    def _bot(self) -> dict[str, Any]:
        user = {**_user(self.bot_id, "cortex", None), "bot": True, "verified": True, "mfa_enabled": True, "flags": 0}
        check_published("discord", "User", user)
        return user

    async def _get_gateway(self, request: Request) -> dict[str, Any]:
        return self.gateway.describe()

    async def _call_back(self, request: Request) -> None:
        interaction = self.interactions.get(request.path_params["token"])
        is_known = interaction is not None and interaction.payload["id"] == request.path_params["interaction"]
        if interaction is None or not is_known or interaction.is_over:
            raise DiscordError(404, 10062, "Unknown interaction")
        if interaction.response:
            raise DiscordError(400, 40060, "Interaction has already been acknowledged.")
        self.respond(interaction, await request.json())
        interaction.answered.set()

    async def _open_channel(self, request: Request) -> dict[str, Any]:
        recipient = (await request.json()).get("recipient_id")
        _require(str(recipient).isdecimal(), "recipient_id", f'Value "{recipient}" is not snowflake.')
        if str(recipient) not in self.users:
            raise DiscordError(400, 50033, "Invalid Recipient(s)")
        return self.channels[self.direct_channel(str(recipient))]

    async def _list_commands(self, request: Request) -> list[dict[str, Any]]:
        return self.commands

    async def _put_commands(self, request: Request) -> list[dict[str, Any]]:
        commands = await request.json()
        check_published("discord", "Commands", commands)
        for command in commands:
            _check_command(command)
        self.commands = [
            {"id": self.new_id(), "application_id": self.application_id, "version": self.new_id(), "type": 1,
             "default_member_permissions": None, "nsfw": False, "dm_permission": True, "contexts": None,
             "integration_types": [0], "name_localizations": None, "description_localizations": None, **command}
            for command in commands
        ]  # fmt: skip
        return self.commands

    async def _type(self, request: Request) -> None:
        self.typing.append(self._channel(request)["id"])

    async def _get_message(self, request: Request) -> dict[str, Any]:
        return self._known_message(request)

    async def _create_message(self, request: Request) -> dict[str, Any]:
        channel, draft = self._channel(request), await request.json()
        check_published("discord", "MessageDraft", draft)
        if channel["type"] == _DM and channel["recipients"][0]["id"] in self.unreachable:
            raise DiscordError(403, 50007, "Cannot send messages to this user")
        _check_message(draft)
        nonce = draft.get("nonce")
        if nonce is not None and draft.get("enforce_nonce"):
            known = self._nonces.get((channel["id"], str(nonce)))
            if known in self.messages:
                return self.messages[known]
        reference = draft.get("message_reference")
        if reference and self._referenced(reference) is None and reference.get("fail_if_not_exists", True):
            raise _invalid("message_reference", "MESSAGE_REFERENCE_UNKNOWN_MESSAGE", "Unknown message")
        message = self._store(self._message(channel["id"], draft))
        if nonce is not None:
            self._nonces[channel["id"], str(nonce)] = message["id"]
        return message

    async def _change_message(self, request: Request) -> dict[str, Any]:
        message, change = self._known_message(request), await request.json()
        check_published("discord", "MessageChange", change)
        _check_message({**{name: message[name] for name in ("content", "embeds", "components")}, **change})
        return self._store(self._changed(message, change))

    async def _follow_up(self, request: Request) -> dict[str, Any]:
        interaction, draft = self._interaction(request), await request.json()
        check_published("discord", "Followup", draft)
        _check_message(draft)
        message = self._interaction_message(interaction, draft)
        interaction.followups.append(message)
        return message

    async def _change_original(self, request: Request) -> dict[str, Any]:
        interaction, change = self._interaction(request), await request.json()
        check_published("discord", "MessageChange", change)
        _check_message(change)
        if interaction.original is None:
            if interaction.response.get("type") not in (6, 7) or "message" not in interaction.payload:
                raise DiscordError(404, 10008, "Unknown Message")
            return self._store(self._changed(interaction.payload["message"], change))
        flags = interaction.original["flags"] & ~_LOADING
        interaction.original = {**self._changed(interaction.original, change), "flags": flags}
        return interaction.original

    def _interaction(self, request: Request) -> Interaction:
        interaction = self.interactions.get(request.path_params["token"])
        if interaction is None or request.path_params["application"] != self.application_id:
            raise DiscordError(404, 10015, "Unknown Webhook")
        return interaction

    def _channel(self, request: Request) -> dict[str, Any]:
        channel = self.channels.get(request.path_params["channel"])
        if channel is None:
            raise DiscordError(404, 10003, "Unknown Channel")
        return channel

    def _known_message(self, request: Request) -> dict[str, Any]:
        message = self.messages.get(request.path_params["message"])
        if message is None or message["channel_id"] != self._channel(request)["id"]:
            raise DiscordError(404, 10008, "Unknown Message")
        return message

    def _store(self, message: dict[str, Any]) -> dict[str, Any]:
        check_published("discord", "Message", message)
        self.messages[message["id"]] = message
        self.versions.append(message)
        return message

    def _message(self, channel: str, draft: dict[str, Any]) -> dict[str, Any]:
        message: dict[str, Any] = {
            "id": self.new_id(), "channel_id": channel, "author": self._bot(), "content": draft.get("content", ""),
            "timestamp": datetime.now(UTC).isoformat(), "edited_timestamp": None, "tts": False, "mention_everyone": False,
            "mentions": [], "mention_roles": [], "attachments": [], "pinned": False, "type": 0,
            "flags": draft.get("flags", 0), "embeds": [_embed(embed) for embed in draft.get("embeds", ())],
            "components": _numbered(draft.get("components", [])),
        }  # fmt: skip
        if "nonce" in draft:
            message["nonce"] = draft["nonce"]
        if reference := draft.get("message_reference"):
            message |= {
                "type": 19,
                "message_reference": {"type": 0, "channel_id": channel, "message_id": reference["message_id"]},
            }
            message["referenced_message"] = self._referenced(reference)
        if draft.get("allowed_mentions") != {"parse": []}:
            message["mention_everyone"] = "@everyone" in message["content"]
        return message

    def _referenced(self, reference: dict[str, Any]) -> dict[str, Any] | None:
        id = reference["message_id"]
        return self.messages.get(id) or self.written.get(id)

    def _changed(self, message: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = {name: change[name] for name in ("content", "flags") if name in change}
        if "embeds" in change:
            fields["embeds"] = [_embed(embed) for embed in change["embeds"]]
        if "components" in change:
            fields["components"] = _numbered(change["components"])
        return {**message, **fields, "edited_timestamp": datetime.now(UTC).isoformat()}


def live_buttons(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Those that can be pressed; links are none."""
    buttons = (button for row in message["components"] for button in row["components"])
    return [button for button in buttons if "custom_id" in button and not button.get("disabled")]


def message_text(message: dict[str, Any]) -> str:
    """All that a reader sees of it, with its escapes taken back."""
    return _unescaped(markup(message))


def markup(message: dict[str, Any]) -> str:
    texts = [message["content"]]
    for embed in message["embeds"]:
        texts += [embed.get("title", ""), embed.get("description", ""), embed.get("footer", {}).get("text", "")]
        texts += [f"{field['name']}\n{field['value']}" for field in embed.get("fields", ())]
    return "\n".join(text for text in texts if text)


def live_markup(message: dict[str, Any]) -> str:
    """What Discord's clients would interpret: without blocks of code and escaped signs."""
    return re.sub(r"\\[^0-9A-Za-z\s]", "", re.sub(r"```.*?```", "", markup(message), flags=re.DOTALL))


def message_urls(message: dict[str, Any]) -> list[str]:
    buttons = (button for row in message["components"] for button in row["components"])
    return [button["url"] for button in buttons if "url" in button]


def _unescaped(text: str) -> str:
    characters: Iterator[str] = iter(text)
    plain = []
    for character in characters:
        following = next(characters, "") if character == "\\" else ""
        is_escape = bool(following) and not following.isalnum() and not following.isspace()
        plain.append(following if is_escape else character + following)
    return "".join(plain)


def _user(id: str, name: str, display: str | None) -> dict[str, Any]:
    return {
        "id": id, "username": name, "global_name": display, "discriminator": "0", "avatar": None, "public_flags": 0,
        "avatar_decoration_data": None,
    }  # fmt: skip


def _member(user: dict[str, Any]) -> dict[str, Any]:
    return {
        "user": user, "roles": [], "premium_since": None, "permissions": "2248473465835073", "pending": False, "nick": None,
        "mute": False, "deaf": False, "joined_at": "2024-01-01T00:00:00+00:00", "flags": 0, "avatar": None,
        "communication_disabled_until": None,
    }  # fmt: skip


def _embed(embed: dict[str, Any]) -> dict[str, Any]:
    return {"type": "rich", **embed}


def _numbered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    numbers = itertools.count(1)
    return [
        {**row, "id": next(numbers), "components": [{**each, "id": next(numbers)} for each in row["components"]]}
        for row in rows
    ]


def _check_message(draft: dict[str, Any]) -> None:
    content, embeds, rows = draft.get("content") or "", draft.get("embeds") or [], draft.get("components") or []
    if not content and not embeds and not rows:
        raise DiscordError(400, 50006, "Cannot send an empty message")
    _require(len(content) <= 2000, "content", "Must be 2000 or fewer in length.")
    _require(len(embeds) <= 10, "embeds", "Must be 10 or fewer in length.")
    for number, embed in enumerate(embeds):
        _check_embed(embed, f"embeds.{number}")
    _require(sum(map(_embed_size, embeds)) <= 6000, "embeds", "Embed size exceeds maximum size of 6000")
    _require(len(str(draft.get("nonce", ""))) <= 25, "nonce", "Must be 25 or fewer in length.")
    _check_components(rows)


def _check_embed(embed: dict[str, Any], path: str) -> None:
    _require(len(embed.get("title", "")) <= 256, f"{path}.title", "Must be 256 or fewer in length.")
    _require(len(embed.get("description", "")) <= 4096, f"{path}.description", "Must be 4096 or fewer in length.")
    _require(len(embed.get("fields", ())) <= 25, f"{path}.fields", "Must be 25 or fewer in length.")
    for item in embed.get("fields", ()):
        _require(0 < len(item["name"]) <= 256, f"{path}.fields", "Must be between 1 and 256 in length.")
        _require(0 < len(item["value"]) <= 1024, f"{path}.fields", "Must be between 1 and 1024 in length.")
    footer = embed.get("footer", {}).get("text", "")
    _require(len(footer) <= 2048, f"{path}.footer.text", "Must be 2048 or fewer in length.")
    _require(
        0 <= embed.get("color", 0) <= 0xFFFFFF, f"{path}.color", "int value should be less than or equal to 16777215."
    )


def _embed_size(embed: dict[str, Any]) -> int:
    texts = [embed.get("title", ""), embed.get("description", ""), embed.get("footer", {}).get("text", "")]
    texts += [item["name"] + item["value"] for item in embed.get("fields", ())]
    return sum(map(len, texts))


def _check_components(rows: list[dict[str, Any]]) -> None:
    _require(len(rows) <= 5, "components", "Must be 5 or fewer in length.")
    ids: list[str] = []
    for row in rows:
        _require(row["type"] == 1, "components", "Only action rows stand at the top.")
        _require(1 <= len(row["components"]) <= 5, "components", "Must be between 1 and 5 in length.")
        for button in row["components"]:
            _require(button["type"] == 2, "components", "Only buttons are emulated.")
            _require(1 <= len(button["label"]) <= 80, "components.label", "Must be between 1 and 80 in length.")
            if button["style"] == 5:
                _require(
                    "custom_id" not in button, "components.custom_id", "A custom id and url cannot both be specified"
                )
                _require(1 <= len(button["url"]) <= 512, "components.url", "Must be 512 or fewer in length.")
            else:
                _require(button["style"] in (1, 2, 3, 4), "components.style", "Value must be one of (1, 2, 3, 4).")
                _require(
                    1 <= len(button["custom_id"]) <= 100, "components.custom_id", "Must be between 1 and 100 in length."
                )
                ids.append(button["custom_id"])
    _require(len(ids) == len(set(ids)), "components.custom_id", "Component custom id cannot be duplicated")


def _check_modal(data: dict[str, Any]) -> None:
    if not (1 <= len(data["custom_id"]) <= 100 and 1 <= len(data["title"]) <= 45 and 1 <= len(data["components"]) <= 5):
        raise InteractionFailed("the form has a bad id, title or number of components")
    for label in data["components"]:
        text = label["component"]
        if (
            label["type"] != 18
            or not 1 <= len(label["label"]) <= 45
            or text["type"] != 4
            or text["style"] not in (1, 2)
        ):
            raise InteractionFailed("the form has a bad component")


def _check_command(command: dict[str, Any]) -> None:
    for item in (command, *command.get("options", ())):
        _require(1 <= len(item["name"]) <= 32 and item["name"].islower(), "name", "Command name is invalid")
        _require(1 <= len(item["description"]) <= 100, "description", "Must be between 1 and 100 in length.")
    _require(len(command.get("options", ())) <= 25, "options", "Must be 25 or fewer in length.")
    for verb in command.get("options", ()):
        for option in verb.get("options", ()):
            _require(1 <= len(option["description"]) <= 100, "description", "Must be between 1 and 100 in length.")
            _require(option.get("max_length", 6000) <= 6000, "max_length", "Must be at most 6000.")
