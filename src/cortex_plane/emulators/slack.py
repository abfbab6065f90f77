"""Slack's Web API with one app in one workspace, its people in memory, and a side for those people.

    async with SlackEmulator().serve() as slack:
        slack.api_url                                 the base address of the methods
        await slack.install(url)                      where the app takes events, presses and commands
        slack.write("U0BEA", "hello")                 in the direct messages with the app
        slack.press("U0BEA", message, "Approve")

What happens is posted to that address, signed as Slack signs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import html
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import httpx
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from cortex_plane.emulators.server import DeliveryQueue, EmulatorFault, FaultPlan, read_json, read_parameters, serving
from cortex_plane.emulators.slack_blocks import (
    LONGEST_BLOCKS,
    LONGEST_MESSAGE,
    block_problems,
    text_length,
    view_problems,
    visible_text,
)

BOT_TOKEN = "xoxb-100000000001-emulated-on-this-machine"  # noqa: S105 -- of an emulator
APP_TOKEN = "xapp-1-A0EMULATED-100000000002-emulated"  # noqa: S105 -- of an emulator
SIGNING_SECRET = "0123456789abcdef0123456789abcdef"  # noqa: S105 -- of an emulator
TEAM, APP, BOT, BOT_USER = "T0EMULATED", "A0EMULATED", "B0CORTEX", "U0CORTEX"
TRIGGER_SECONDS = 3.0
MOST_RETRIES = 3
MOST_RESPONSES = 5


class WebApiError(Exception):
    """An answer with `ok: false`."""

    def __init__(self, error: str, **fields: Any) -> None:
        super().__init__(error)
        self.error, self.fields = error, fields


@dataclass
class SlackMessage:
    channel: str
    ts: str
    user: str
    text: str
    blocks: list[dict[str, Any]] = field(default_factory=list)
    thread: str | None = None
    is_edited: bool = False
    only_for: str | None = None
    """Of an ephemeral message: who sees it."""

    @property
    def visible(self) -> str:
        return visible_text(self.blocks) if self.blocks else html.unescape(self.text)

    @property
    def buttons(self) -> list[dict[str, Any]]:
        return [part for block in self.blocks if block["type"] == "actions" for part in block["elements"]]

    @property
    def live_buttons(self) -> list[str]:
        return [button["text"]["text"] for button in self.buttons if "value" in button]


@dataclass
class SlackView:
    """A modal that somebody looks at."""

    id: str
    user: str
    view: dict[str, Any]


@dataclass
class _Channel:
    id: str
    name: str
    user: str | None = None
    """Of direct messages with the app: the person."""
    messages: dict[str, SlackMessage] = field(default_factory=dict)


class SlackEmulator:
    def __init__(self, *, now: Callable[[], float] = time.time, first_retry: float = 1.0) -> None:
        self.bot_token, self.signing_secret, self.url = BOT_TOKEN, SIGNING_SECRET, ""
        self.events_url = ""
        self.faults = FaultPlan()
        self.history: list[SlackMessage] = []
        """Every state of the app's messages, in the order in which they came to be."""
        self.ephemeral: list[SlackMessage] = []
        self.views: list[SlackView] = []
        self.deliveries: list[tuple[str, dict[str, str], bytes, int]] = []
        """What was posted to the app: its kind, headers, body and the status of the answer."""
        self.traffic: list[tuple[str, dict[str, Any]]] = []
        """Requests, results and payloads, with the name that Slack has for their types."""
        self.is_revoked = False
        self._now, self._first_retry = now, first_retry
        self._users: dict[str, str] = {}
        self._channels: dict[str, _Channel] = {}
        self._numbers = itertools.count(1)
        self._triggers: dict[str, tuple[str, float]] = {}
        self._responses: dict[str, tuple[_Channel, str, SlackMessage | None, list[int]]] = {}
        self._end = asyncio.Event()
        self._is_socket_mode = False
        self._socket: WebSocket | None = None
        self._envelopes: dict[str, dict[str, Any]] = {}
        self.acknowledged: list[str] = []
        """The events that the app took by Socket Mode."""
        self._queue = DeliveryQueue()

    @property
    def api_url(self) -> str:
        return f"{self.url}/api/"

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[
            Route("/api/{method}", self._handle, methods=["GET", "POST"]),
            Route("/response/{id}", self._respond, methods=["POST"]),
            WebSocketRoute("/socket", self._serve_socket),
        ])  # fmt: skip

    @contextlib.asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[SlackEmulator]:
        async with serving(self.app, port) as self.url:
            try:
                yield self
            finally:
                self._end.set()
                await self._queue.close()

    # The side of people.

    async def install(self, url: str) -> bool:
        """Save the address of the app, as its manifest does: Slack first asks whether it answers a challenge."""
        challenge = f"challenge-{next(self._numbers)}"
        payload = {"token": "verification", "challenge": challenge, "type": "url_verification"}
        answer = await self._post(url, "url_verification", orjson.dumps(payload), "application/json")
        text = "" if answer is None or not answer.is_success else answer.text
        with contextlib.suppress(ValueError, AttributeError):
            text = orjson.loads(text).get("challenge", "")
        if text == challenge:
            self.events_url = url
        return text == challenge

    def join(self, user: str, name: str = "A person") -> None:
        self._users[user] = name

    def add_channel(self, id: str, name: str) -> None:
        """A channel that the app is a member of."""
        self._channels[id] = _Channel(id, name)

    def direct(self, user: str) -> str:
        """The id of the direct messages between somebody and the app."""
        id = f"D{user[1:]}"
        self._channels.setdefault(id, _Channel(id, "directmessage", user))
        return id

    def write(
        self, user: str, text: str, *, thread: str | None = None, fields: Mapping[str, Any] | None = None
    ) -> SlackMessage:
        """In the direct messages with the app. ``fields``: more of the event, such as `files`."""
        self._users.setdefault(user, "A person")
        message = self._add(self._channels[self.direct(user)], user, html.escape(text, quote=False), thread=thread)
        self._send_event({**self._event(message, "message"), "channel_type": "im", **(fields or {})})
        return message

    def mention(self, user: str, channel: str, text: str, *, thread: str | None = None) -> SlackMessage:
        """`@Cortex text` in a channel."""
        self._users.setdefault(user, "A person")
        words = f"<@{BOT_USER}> {html.escape(text, quote=False)}"
        message = self._add(self._channels[channel], user, words, thread=thread)
        self._send_event(self._event(message, "app_mention"))
        return message

    def command(self, user: str, text: str, *, channel: str | None = None, command: str = "/cortex") -> None:
        self._users.setdefault(user, "A person")
        where = self._channels[channel or self.direct(user)]
        form = {
            "token": "verification", "team_id": TEAM, "team_domain": "emulated", "channel_id": where.id,
            "channel_name": where.name, "user_id": user, "user_name": self._users[user].lower(), "command": command,
            "text": text, "api_app_id": APP, "is_enterprise_install": "false", "trigger_id": self._trigger(user),
            "response_url": self._response_url(where, user, None),
        }  # fmt: skip
        self.traffic.append(("SlashCommand", form))
        if self._is_socket_mode:
            self._start(self._send_envelope("slash_commands", form))
        else:
            self._start(self._post_form("command", form))

    def press(self, user: str, message: SlackMessage, label: str) -> None:
        """Press a button. Raises ``KeyError`` where the message has none of this label."""
        for button in message.buttons:
            if button["text"]["text"] == label:
                return self.send_press(user, message, button)
        raise KeyError(f"the message has no button {label!r}")

    def send_press(self, user: str, message: SlackMessage, button: Mapping[str, Any]) -> None:
        """A press of any button, as of a screen that has not seen the last change."""
        self._users.setdefault(user, "A person")
        where = self._channels[message.channel]
        action = {name: value for name, value in button.items() if name in ("action_id", "text", "value", "type")}
        self._send_interaction({
            "type": "block_actions", "user": self._person(user), "trigger_id": self._trigger(user),
            "container": {"type": "message", "message_ts": message.ts, "channel_id": where.id, "is_ephemeral": False},
            "channel": {"id": where.id, "name": where.name}, "message": self._message(message),
            "state": {"values": {}}, "response_url": self._response_url(where, user, message),
            "actions": [{**action, "block_id": "actions", "action_ts": self._ts()}],
        })  # fmt: skip

    def submit(self, view: SlackView, values: Mapping[str, str | None]) -> None:
        """Submit a modal; the values by the ids of their inputs."""
        self.views.remove(view)
        state = {
            block["block_id"]: {
                block["element"]["action_id"]: {
                    "type": "plain_text_input", "value": values.get(block["element"]["action_id"]),
                }
            }
            for block in view.view["blocks"] if block["type"] == "input"
        }  # fmt: skip
        fields = {name: value for name, value in view.view.items() if name in _VIEW_FIELDS}
        self._send_interaction({
            "type": "view_submission", "user": {"id": view.user, "name": self._users[view.user].lower(), "team_id": TEAM}, "trigger_id": self._trigger(view.user),
            "view": {"id": view.id, "team_id": TEAM, "state": {"values": state}, "hash": "1.a", "app_id": APP,
                     "bot_id": BOT, "root_view_id": view.id, "previous_view_id": None, "external_id": "",
                     "app_installed_team_id": TEAM, "clear_on_close": False, "notify_on_close": False, **fields},
            "response_urls": [],
        })  # fmt: skip

    def chat(self, user: str) -> Sequence[SlackMessage]:
        """What the direct messages with the app show now."""
        return self.messages(self.direct(user))

    def messages(self, channel: str) -> Sequence[SlackMessage]:
        return list(self._channels[channel].messages.values())

    def uninstall(self) -> None:
        """Somebody removes the app from the workspace."""
        self._send_event({"type": "app_uninstalled"})
        self.is_revoked = True

    def fail(self, how: EmulatorFault | str, times: int = 1, *, after: int = 0) -> None:
        """The next messages of the app, after so many that arrive."""
        self.faults.add(how, times, after)

    async def repeat(self, number: int = -1) -> None:
        """Deliver something again that was delivered already."""
        kind, headers, body, _ = self.deliveries[number]
        await self._post(self.events_url, kind, body, headers["Content-Type"], {"X-Slack-Retry-Num": "1",
                         "X-Slack-Retry-Reason": "http_timeout"})  # fmt: skip

    async def idle(self) -> None:
        """Wait until the app took everything, or failed to for good."""
        await self._queue.idle()

    # The side of the app.

    async def _handle(self, request: Request) -> Response:
        try:
            parameters = await read_parameters(request)
            self.traffic.append((f"{request.path_params['method']} request", parameters))
            token = request.headers.get("authorization", "").removeprefix("Bearer ") or parameters.get("token")
            if not token:
                raise WebApiError("not_authed")
            wanted = APP_TOKEN if request.path_params["method"] == "apps.connections.open" else self.bot_token
            if token != wanted:
                raise WebApiError("invalid_auth")
            if self.is_revoked:
                raise WebApiError("account_inactive")
            method = self._methods().get(request.path_params["method"])
            if method is None:
                raise WebApiError("unknown_method", req_method=request.path_params["method"])
            fault = await self._fault(request.path_params["method"])
            result = method(parameters)
            self.traffic.append((f"{request.path_params['method']} result", {"ok": True, **result}))
        except WebApiError as error:
            return JSONResponse({"ok": False, "error": error.error, **error.fields})
        except (ValueError, TypeError):
            return JSONResponse({"ok": False, "error": "invalid_arguments"})
        except _Flooded:
            wait = str(self.faults.flood_seconds)
            return JSONResponse({"ok": False, "error": "ratelimited"}, status_code=429, headers={"Retry-After": wait})
        except _Down:
            return PlainTextResponse("upstream connect error", status_code=503)
        if fault is EmulatorFault.NO_ANSWER:
            await self._end.wait()
        if fault is EmulatorFault.LOST_ANSWER:
            return PlainTextResponse("upstream request timeout", status_code=504)
        return JSONResponse({"ok": True, **result})

    def _methods(self) -> Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]]:
        return {
            "auth.test": self._auth_test, "chat.postMessage": self._post_message, "chat.update": self._update,
            "chat.postEphemeral": self._post_ephemeral, "conversations.open": self._open,
            "conversations.history": self._history, "conversations.replies": self._replies, "conversations.list": self._list_channels, "views.open": self._open_view, "users.info": self._user_info,
            "apps.connections.open": self._open_socket,
        }  # fmt: skip

    async def _fault(self, method: str) -> EmulatorFault | None:
        fault = self.faults.take() if method in ("chat.postMessage", "chat.update") else None
        match fault:
            case EmulatorFault.FLOOD:
                raise _Flooded
            case EmulatorFault.DOWN:
                raise _Down
            case EmulatorFault.REFUSAL:
                raise WebApiError("channel_not_found")
            case EmulatorFault.REVOKED:
                raise WebApiError("account_inactive")
            case EmulatorFault.HANG:
                await self._end.wait()
        return fault

    def _auth_test(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"url": "https://emulated.slack.com/", "team": "Emulated", "user": "cortex", "team_id": TEAM,
                "user_id": BOT_USER, "bot_id": BOT, "is_enterprise_install": False}  # fmt: skip

    def _post_message(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        channel = self._channel(str(parameters.get("channel") or ""))
        text, blocks = _content(parameters)
        thread = parameters.get("thread_ts") or None
        if thread is not None and thread not in channel.messages:
            raise WebApiError("thread_not_found")
        message = self._add(channel, BOT_USER, text, blocks=blocks, thread=thread)
        self.history.append(SlackMessage(**vars(message)))
        return {"channel": channel.id, "ts": message.ts, "message": self._message(message)}

    def _update(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        channel = self._channel(str(parameters.get("channel") or ""))
        message = channel.messages.get(str(parameters.get("ts") or ""))
        if message is None:
            raise WebApiError("message_not_found")
        if message.user != BOT_USER:
            raise WebApiError("cant_update_message")
        message.text, message.blocks = _content(parameters)
        message.is_edited = True
        self.history.append(SlackMessage(**vars(message)))
        return {"channel": channel.id, "ts": message.ts, "text": message.text, "message": self._message(message)}

    def _post_ephemeral(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        channel, user = self._channel(str(parameters.get("channel") or "")), str(parameters.get("user") or "")
        if user not in self._users:
            raise WebApiError("user_not_in_channel")
        text, blocks = _content(parameters)
        ts = self._ts()
        self.ephemeral.append(
            SlackMessage(channel.id, ts, BOT_USER, text, blocks, parameters.get("thread_ts"), only_for=user)
        )
        return {"message_ts": ts}

    def _open(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        user = str(parameters.get("users") or "")
        if user not in self._users:
            raise WebApiError("user_not_found")
        return {"channel": {"id": self.direct(user)}}

    def _history(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        channel = self._channel(str(parameters.get("channel") or ""))
        oldest, limit = float(parameters.get("oldest") or 0), int(parameters.get("limit") or 100)
        newer = [message for message in channel.messages.values() if float(message.ts) > oldest and not message.thread]
        messages = [self._message(message) for message in reversed(newer)]
        return {**_page(messages, limit, parameters), "pin_count": 0}

    def _replies(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """The message that began a thread, and the replies to it, oldest first."""
        channel, ts = self._channel(str(parameters.get("channel") or "")), str(parameters.get("ts") or "")
        if ts not in channel.messages:
            raise WebApiError("thread_not_found")
        oldest, limit = float(parameters.get("oldest") or 0), int(parameters.get("limit") or 1000)
        replies = [message for message in self._thread(channel, ts) if float(message.ts) > oldest]
        return _page([self._message(message) for message in (channel.messages[ts], *replies)], limit, parameters)

    def _thread(self, channel: _Channel, ts: str) -> list[SlackMessage]:
        return [message for message in channel.messages.values() if message.thread == ts]

    def _list_channels(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        if str(parameters.get("types")) != "im":
            raise WebApiError("missing_scope", needed="channels:read", provided="im:read")
        direct = [channel for channel in self._channels.values() if channel.user is not None]
        page, begin = int(parameters.get("limit") or 100), int(parameters.get("cursor") or 0)
        rows = [
            {"id": channel.id, "is_im": True, "user": channel.user, "is_user_deleted": False, "created": 0}
            for channel in direct[begin : begin + page]
        ]
        following = str(begin + page) if begin + page < len(direct) else ""
        return {"channels": rows, "response_metadata": {"next_cursor": following}}

    def _open_view(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        user, at = self._triggers.pop(str(parameters.get("trigger_id") or ""), ("", 0.0))
        if not user:
            raise WebApiError("invalid_trigger_id")
        if self._now() - at > TRIGGER_SECONDS:
            raise WebApiError("expired_trigger_id")
        view = read_json(parameters.get("view") or "{}")
        if problems := view_problems(view):
            raise WebApiError("invalid_arguments", response_metadata={"messages": problems})
        for number, block in enumerate(view["blocks"]):
            block.setdefault("block_id", f"block{number}")
        shown = SlackView(f"V{next(self._numbers):08}", user, view)
        self.views.append(shown)
        return {"view": {"id": shown.id, **view}}

    def _user_info(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        user = str(parameters.get("user") or "")
        if user not in self._users:
            raise WebApiError("user_not_found")
        name = self._users[user]
        return {"user": {"id": user, "team_id": TEAM, "name": name.lower(), "real_name": name, "deleted": False,
                         "is_bot": False, "tz": "Europe/Berlin", "profile": {"display_name": name}}}  # fmt: skip

    async def _respond(self, request: Request) -> Response:
        """A message to the address of one press or one command."""
        entry = self._responses.get(request.path_params["id"])
        content = await read_parameters(request)
        if entry is None or len(entry[3]) >= MOST_RESPONSES:
            return JSONResponse({"ok": False, "error": "used_url"}, status_code=404)
        channel, user, message, uses = entry
        uses.append(1)
        text, blocks = _content(content)
        if content.get("replace_original") and message is not None:
            message.text, message.blocks, message.is_edited = text, blocks, True
        elif content.get("response_type", "ephemeral") == "in_channel":
            self._add(channel, BOT_USER, text, blocks=blocks)
        else:
            self.ephemeral.append(SlackMessage(channel.id, self._ts(), BOT_USER, text, blocks, only_for=user))
        return PlainTextResponse("ok")

    # Socket Mode.

    def _open_socket(self, _: Mapping[str, Any]) -> dict[str, Any]:
        self._is_socket_mode = True
        return {"url": f"{self.url.replace('http', 'ws', 1)}/socket"}

    async def _serve_socket(self, socket: WebSocket) -> None:
        await socket.accept()
        self._socket = socket
        await socket.send_json({"type": "hello", "num_connections": 1, "connection_info": {"app_id": APP}})
        for envelope in list(self._envelopes.values()):
            await socket.send_json({**envelope, "retry_attempt": 1, "retry_reason": "timeout"})
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                answer = await socket.receive_json()
                if self._envelopes.pop(str(answer.get("envelope_id")), None) is not None:
                    self.acknowledged.append(str(answer["envelope_id"]))
        if self._socket is socket:
            self._socket = None

    async def refresh_socket(self) -> None:
        """Ask the app to connect anew, as Slack does every few hours."""
        if self._socket is not None:
            await self._socket.send_json({"type": "disconnect", "reason": "refresh_requested", "debug_info": {}})

    @property
    def is_connected(self) -> bool:
        """Somebody listens by Socket Mode."""
        return self._socket is not None

    def forget_socket(self) -> None:
        """Events that nobody took are not sent again, as Slack does after some minutes."""
        self._envelopes.clear()

    async def _send_envelope(self, kind: str, payload: Mapping[str, Any]) -> None:
        id = f"envelope-{next(self._numbers)}"
        envelope = {
            "envelope_id": id,
            "type": kind,
            "accepts_response_payload": kind != "events_api",
            "payload": payload,
        }
        self._envelopes[id] = envelope
        if self._socket is not None:
            await self._socket.send_json(envelope)

    # Values of the API.

    def _ts(self) -> str:
        return f"{int(self._now())}.{next(self._numbers):06}"

    def _trigger(self, user: str) -> str:
        id = f"{next(self._numbers)}.{int(self._now())}.{TEAM[1:]}.{hashlib.sha256(user.encode()).hexdigest()[:32]}"
        self._triggers[id] = (user, self._now())
        return id

    def _response_url(self, channel: _Channel, user: str, message: SlackMessage | None) -> str:
        id = f"r{next(self._numbers)}"
        self._responses[id] = (channel, user, message, [])
        return f"{self.url}/response/{id}"

    def _channel(self, name: str) -> _Channel:
        """By its id, its `#name`, or the id of a person."""
        if name in self._users:
            name = self.direct(name)
        by_name = {f"#{channel.name}": channel for channel in self._channels.values()}
        channel = self._channels.get(name) or by_name.get(name)
        if channel is None:
            raise WebApiError("channel_not_found")
        return channel

    def _add(
        self, channel: _Channel, user: str, text: str, *, blocks: list[dict[str, Any]] | None = None,
        thread: str | None = None,
    ) -> SlackMessage:  # fmt: skip
        message = SlackMessage(channel.id, self._ts(), user, text, blocks or [], thread)
        channel.messages[message.ts] = message
        return message

    def _message(self, message: SlackMessage) -> dict[str, Any]:
        fields: dict[str, Any] = {"type": "message", "user": message.user, "text": message.text, "ts": message.ts}
        if message.user == BOT_USER:
            fields |= {"bot_id": BOT, "app_id": APP, "team": TEAM, "blocks": message.blocks}
        if message.thread:
            fields["thread_ts"] = message.thread
        elif replies := self._thread(self._channels[message.channel], message.ts):
            users = list(dict.fromkeys(reply.user for reply in replies))
            fields |= {"thread_ts": message.ts, "reply_count": len(replies), "latest_reply": replies[-1].ts,
                       "reply_users": users, "reply_users_count": len(users)}  # fmt: skip
        if message.is_edited:
            fields["edited"] = {"user": BOT, "ts": message.ts}
        return fields

    def _event(self, message: SlackMessage, kind: str) -> dict[str, Any]:
        return {
            **self._message(message),
            "type": kind,
            "channel": message.channel,
            "event_ts": message.ts,
            "team": TEAM,
        }

    def _person(self, user: str) -> dict[str, str]:
        name = self._users[user]
        return {"id": user, "username": name.lower(), "name": name.lower(), "team_id": TEAM}

    def _send_event(self, event: dict[str, Any]) -> None:
        payload = {
            "token": "verification", "team_id": TEAM, "api_app_id": APP, "event": event, "type": "event_callback",
            "event_id": f"Ev{int(self._now())}{next(self._numbers):06}", "event_time": int(self._now()), "is_ext_shared_channel": False,
            "authorizations": [{"enterprise_id": None, "team_id": TEAM, "user_id": BOT_USER, "is_bot": True,
                                "is_enterprise_install": False}],
        }  # fmt: skip
        self.traffic.append(("EnvelopedEvent", payload))
        if self._is_socket_mode:
            self._start(self._send_envelope("events_api", payload))
        else:
            self._start(self._post_event(orjson.dumps(payload)))

    def _send_interaction(self, payload: dict[str, Any]) -> None:
        full = {**payload, "team": {"id": TEAM, "domain": "emulated"}, "api_app_id": APP, "token": "verification",
                "is_enterprise_install": False}  # fmt: skip
        self.traffic.append((payload["type"], full))
        if self._is_socket_mode:
            self._start(self._send_envelope("interactive", full))
        else:
            self._start(self._post_form("interaction", {"payload": orjson.dumps(full).decode()}))

    def _start(self, delivery: Any) -> None:
        self._queue.start(asyncio.create_task(delivery))

    async def _post_form(self, kind: str, form: Mapping[str, str]) -> None:
        """Once: the person is told where nobody takes it."""
        await self._post(self.events_url, kind, urlencode(form).encode(), "application/x-www-form-urlencoded")

    async def _post_event(self, body: bytes) -> None:
        extra: dict[str, str] = {}
        for number in range(MOST_RETRIES + 1):
            answer = await self._post(self.events_url, "event", body, "application/json", extra)
            if answer is not None and answer.is_success:
                return
            reason = "http_timeout" if answer is None else "http_error"
            extra = {"X-Slack-Retry-Num": str(number + 1), "X-Slack-Retry-Reason": reason}
            await asyncio.sleep(self._first_retry * number)

    async def _post(
        self, url: str, kind: str, body: bytes, content_type: str, extra: Mapping[str, str] | None = None
    ) -> httpx.Response | None:
        timestamp = str(int(self._now()))
        headers = {
            "Content-Type": content_type, "User-Agent": "Slackbot 1.0 (+https://api.slack.com/robots)",
            "X-Slack-Request-Timestamp": timestamp, "X-Slack-Signature": sign(self.signing_secret, timestamp, body),
            **(extra or {}),
        }  # fmt: skip
        status, answer = 0, None
        if url:
            with contextlib.suppress(httpx.HTTPError):
                async with httpx.AsyncClient(trust_env=False, timeout=TRIGGER_SECONDS) as client:
                    answer = await client.post(url, content=body, headers=headers)
                    status = answer.status_code
        self.deliveries.append((kind, headers, body, status))
        return answer


def _page(messages: Sequence[Any], limit: int, parameters: Mapping[str, Any]) -> dict[str, Any]:
    begin = int(parameters.get("cursor") or 0)
    is_more = len(messages) > begin + limit
    answer = {"messages": messages[begin : begin + limit], "has_more": is_more}
    return {**answer, "response_metadata": {"next_cursor": str(begin + limit)}} if is_more else answer


class _Flooded(Exception):
    pass


class _Down(Exception):
    pass


_VIEW_FIELDS = ("type", "title", "submit", "close", "blocks", "private_metadata", "callback_id")


def sign(secret: str, timestamp: str, body: bytes) -> str:
    return "v0=" + hmac.new(secret.encode(), f"v0:{timestamp}:".encode() + body, hashlib.sha256).hexdigest()


def _content(parameters: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    text, blocks = str(parameters.get("text") or ""), read_json(parameters.get("blocks") or "[]")
    if problems := block_problems(blocks):
        raise WebApiError("invalid_blocks", response_metadata={"messages": problems})
    if not text and not blocks:
        raise WebApiError("no_text")
    if len(text) > LONGEST_MESSAGE:
        raise WebApiError("msg_too_long")
    if text_length(blocks) > LONGEST_BLOCKS:
        raise WebApiError("msg_blocks_too_long")
    return text, blocks
