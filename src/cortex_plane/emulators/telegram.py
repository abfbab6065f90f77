"""Telegram's Bot API with one bot, its people in memory, and a side for those people: write, press, reply.

    async with TelegramEmulator().serve() as telegram:
        telegram.url                                  the base address: {url}/bot{token}/{method}
        message = telegram.write(7, "/start")         user 7 writes to the bot
        telegram.press(7, message_id, "Approve")      and presses a button

What happens reaches the bot by its webhook or by `getUpdates`, as with Telegram.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cortex_plane.emulators.server import (
    DeliveryQueue,
    EmulatorFault,
    FaultPlan,
    read_bool,
    read_json,
    read_parameters,
    serving,
)
from cortex_plane.emulators.telegram_markup import MarkupError, read_html, utf16

TOKEN = "123456789:AAEmulatedBotTokenForThisMachineOnly0"  # noqa: S105 -- of an emulator
BOT_ID = 123456789
TEXT_LIMIT = 4096
TOAST_LIMIT = 200
QUERY_SECONDS = 15.0
"""After that a press can no longer be answered."""
LONGEST_POLL = 50.0
_ABILITIES = (
    "can_read_all_group_messages", "supports_inline_queries", "can_connect_to_business", "has_main_web_app",
    "has_topics_enabled", "allows_users_to_create_topics", "can_manage_bots", "supports_join_request_queries",
)  # fmt: skip
_NEW_USER = "A person"
_NOT_MODIFIED = (
    "Bad Request: message is not modified: specified new message content and reply markup are exactly the same as a "
    "current content and reply markup of the message"
)
_TWO_POLLERS = "Conflict: terminated by other getUpdates request; make sure that only one bot instance is running"
_HAS_WEBHOOK = (
    "Conflict: can't use getUpdates method while webhook is active; use deleteWebhook to delete the webhook first"
)


class BotApiError(Exception):
    """An answer with `ok: false`."""

    def __init__(self, status: int, description: str, **parameters: int) -> None:
        super().__init__(description)
        self.status, self.description, self.parameters = status, description, parameters


@dataclass
class TelegramMessage:
    """A message of a chat, as the phone shows it."""

    id: int
    chat: int
    sender: int
    date: int
    text: str
    entities: list[dict[str, Any]] = field(default_factory=list)
    buttons: list[list[dict[str, Any]]] = field(default_factory=list)
    reply_to: int | None = None
    asks_reply: bool = False
    is_edited: bool = False
    thread: int | None = None

    @property
    def is_of_bot(self) -> bool:
        return self.sender == BOT_ID


@dataclass
class CallbackQuery:
    """A press, and what the bot answered to it."""

    id: str
    at: float
    is_answered: bool = False
    text: str = ""
    is_alert: bool = False


@dataclass
class _Chat:
    id: int
    title: str | None = None
    """Of a group; a private chat has none."""
    messages: dict[int, TelegramMessage] = field(default_factory=dict)
    is_blocked: bool = False


class TelegramEmulator:
    def __init__(
        self,
        *,
        token: str = TOKEN,
        username: str = "cortex_demo_bot",
        now: Callable[[], float] = time.time,
        first_retry: float = 1.0,
        first_id: int = 1,
    ) -> None:
        """``first_id``: of messages and updates. A bot that knew an earlier emulator takes ids that it has seen for old ones."""
        self.token, self.username, self.url = token, username, ""
        self.faults = FaultPlan()
        self.history: list[TelegramMessage] = []
        """Every state of the bot's messages, in the order in which they came to be."""
        self.actions: list[tuple[int, str]] = []
        """What the bot showed that it does: `typing`."""
        self.commands: list[dict[str, str]] = []
        self.webhook: dict[str, Any] = {"url": ""}
        self.queries: dict[str, CallbackQuery] = {}
        self.traffic: list[tuple[str, dict[str, Any]]] = []
        """Requests, results and updates, with the name that Telegram has for their types."""
        self._now, self._first_retry = now, first_retry
        self._users: dict[int, str] = {}
        self._chats: dict[int, _Chat] = {}
        self._updates: list[dict[str, Any]] = []
        self._ids = itertools.count(first_id)
        self._update_ids = itertools.count(500_000 + first_id)
        self._arrival, self._end = asyncio.Event(), asyncio.Event()
        self._poll = 0
        self.poller = asyncio.Event()
        """Set while somebody waits for updates."""
        self._queue = DeliveryQueue()
        self._is_delivering = self.is_revoked = False

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/bot{token}/{method}", self._handle, methods=["GET", "POST"])])

    @contextlib.asynccontextmanager
    async def serve(self, port: int = 0) -> AsyncIterator[TelegramEmulator]:
        async with serving(self.app, port) as self.url:
            try:
                yield self
            finally:
                self._end.set()
                self._arrival.set()
                await self._queue.close()

    # The side of people.

    def join(self, user: int, name: str = _NEW_USER) -> None:
        """Somebody whom the bot may write to."""
        self._users[user] = name
        self._chats.setdefault(user, _Chat(user))

    def add_group(self, chat: int, title: str) -> None:
        self._chats[chat] = _Chat(chat, title)

    def write(
        self,
        user: int,
        text: str,
        *,
        chat: int | None = None,
        reply_to: int | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> TelegramMessage:
        """Somebody writes to the bot, or into a group. ``fields``: more of the message, such as `photo`."""
        where = self._chat_of(user, chat)
        message = TelegramMessage(next(self._ids), where.id, user, int(self._now()), text, reply_to=reply_to)
        where.messages[message.id] = message
        self._push({"message": {**self._message(message), **(fields or {})}})
        return message

    def reply(self, user: int, message_id: int, text: str, *, chat: int | None = None) -> TelegramMessage:
        return self.write(user, text, chat=chat, reply_to=message_id)

    def press(self, user: int, message_id: int, button: str, *, chat: int | None = None) -> CallbackQuery:
        """Press the button with this label or data. Raises ``KeyError`` where the message has no such button."""
        where = self._chat_of(user, chat)
        message = where.messages[message_id]
        for option in itertools.chain.from_iterable(message.buttons):
            if button in (option["text"], option.get("callback_data")) and "callback_data" in option:
                return self.send_press(user, message, option["callback_data"])
        raise KeyError(f"message {message_id} has no button {button!r}")

    def send_press(self, user: int, message: TelegramMessage, data: str) -> CallbackQuery:
        """A press with any data, as of a phone that has not seen the last edit."""
        query = CallbackQuery(str(4_000_000_000 + next(self._ids)), self._now())
        self.queries[query.id] = query
        self._push({"callback_query": {
            "id": query.id, "from": self._user(user), "chat_instance": str(message.chat), "data": data,
            "message": self._message(message),
        }})  # fmt: skip
        return query

    def chat(self, user: int) -> Sequence[TelegramMessage]:
        """What a chat shows now."""
        return list(self._chats[user].messages.values())

    def live_buttons(self, user: int) -> list[str]:
        """The labels of all buttons that can be pressed in a chat."""
        rows = itertools.chain.from_iterable(message.buttons for message in self.chat(user))
        return [button["text"] for button in itertools.chain.from_iterable(rows) if "callback_data" in button]

    def block(self, user: int, *, is_blocked: bool = True) -> None:
        """Somebody blocks the bot."""
        self._chats[user].is_blocked = is_blocked

    def revoke(self) -> None:
        """The owner of the bot made a new token: this one is worth nothing."""
        self.is_revoked = True

    def fail(self, how: EmulatorFault | str, times: int = 1, *, after: int = 0) -> None:
        """The next messages of the bot, after so many that arrive."""
        self.faults.add(how, times, after)

    def repeat_updates(self) -> None:
        """Deliver everything again, as Telegram does after an answer that was lost."""
        for _, update in [entry for entry in self.traffic if entry[0] == "Update"]:
            self._updates.append(update)
        self._deliver()

    async def idle(self) -> None:
        """Wait until the webhook took everything."""
        await self._queue.idle()

    # The side of the bot.

    async def _handle(self, request: Request) -> Response:
        try:
            if request.path_params["token"] != self.token or self.is_revoked:
                raise BotApiError(401, "Unauthorized")
            method = self._methods().get(request.path_params["method"].lower())
            if method is None:
                raise BotApiError(404, "Not Found")
            parameters = await read_parameters(request)
            self.traffic.append((f"{request.path_params['method']} request", parameters))
            result = await method(parameters)
        except BotApiError as error:
            problem: dict[str, Any] = {"ok": False, "error_code": error.status, "description": error.description}
            if error.parameters:
                problem["parameters"] = error.parameters
            self.traffic.append(("ApiError", problem))
            return JSONResponse(problem, status_code=error.status)
        except (ValueError, KeyError, TypeError) as error:
            description = f"Bad Request: can't parse parameters: {error}"
            return JSONResponse({"ok": False, "error_code": 400, "description": description}, status_code=400)
        return JSONResponse({"ok": True, "result": result})

    def _methods(self) -> Mapping[str, Callable[[dict[str, Any]], Any]]:
        return {
            "getme": self._get_me, "setwebhook": self._set_webhook, "deletewebhook": self._delete_webhook,
            "getwebhookinfo": self._webhook_info, "getupdates": self._get_updates, "sendmessage": self._send,
            "editmessagetext": self._edit_text, "editmessagereplymarkup": self._edit_markup,
            "answercallbackquery": self._answer, "sendchataction": self._action, "setmycommands": self._set_commands,
        }  # fmt: skip

    async def _get_me(self, _: Mapping[str, Any]) -> dict[str, Any]:
        me = {**self._user(BOT_ID), "can_join_groups": True, **dict.fromkeys(_ABILITIES, False)}
        self.traffic.append(("UserFromGetMe", me))
        return me

    async def _set_webhook(self, parameters: Mapping[str, Any]) -> bool:
        url, secret = str(parameters.get("url", "")), str(parameters.get("secret_token", ""))
        if url and urlsplit(url).scheme not in ("https", "http"):
            raise BotApiError(400, "Bad Request: bad webhook: An HTTPS URL must be provided for webhook")
        if len(secret) > 256 or not all(c.isascii() and (c.isalnum() or c in "_-") for c in secret):
            raise BotApiError(400, "Bad Request: secret token contains unallowed characters")
        self.webhook = {"url": url, "secret_token": secret,
                        "allowed_updates": read_json(parameters.get("allowed_updates") or "[]")}  # fmt: skip
        if read_bool(parameters, "drop_pending_updates"):
            self._updates.clear()
        self._deliver()
        return True

    async def _delete_webhook(self, parameters: Mapping[str, Any]) -> bool:
        return await self._set_webhook({**parameters, "url": "", "secret_token": ""})

    async def _webhook_info(self, _: Mapping[str, Any]) -> dict[str, Any]:
        info = {"url": self.webhook["url"], "has_custom_certificate": False, "pending_update_count": len(self._updates)}
        if self.webhook.get("last_error_message"):
            info |= {name: self.webhook[name] for name in ("last_error_message", "last_error_date")}
        self.traffic.append(("WebhookInfo", info))
        return info

    async def _get_updates(self, parameters: Mapping[str, Any]) -> list[dict[str, Any]]:
        if self.webhook["url"]:
            raise BotApiError(409, _HAS_WEBHOOK)
        offset, limit = int(parameters.get("offset") or 0), int(parameters.get("limit") or 100)
        self._poll += 1
        poll, until = self._poll, time.monotonic() + min(float(parameters.get("timeout") or 0), LONGEST_POLL)
        # Whoever polls already learns of it.
        self._arrival.set()
        self._updates = [update for update in self._updates if update["update_id"] >= offset]
        while not self._updates and not self._end.is_set():
            self._arrival.clear()
            self.poller.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._arrival.wait(), max(until - time.monotonic(), 0))
            if poll != self._poll:
                raise BotApiError(409, _TWO_POLLERS)
            if time.monotonic() >= until:
                break
        self.poller.clear()
        return self._updates[:limit]

    async def _send(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        fault = await self._fault(self.faults.take())
        chat = self._writable(parameters)
        text, entities = _content(parameters)
        buttons, asks_reply = _markup(parameters)
        message = TelegramMessage(
            next(self._ids), chat.id, BOT_ID, int(self._now()), text, entities, buttons, _reply_to(parameters, chat),
            asks_reply, thread=int(parameters["message_thread_id"]) if parameters.get("message_thread_id") else None,
        )  # fmt: skip
        chat.messages[message.id] = message
        return await self._outcome(message, fault)

    async def _edit_text(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        fault = await self._fault(self.faults.take())
        message = self._editable(parameters)
        text, entities = _content(parameters)
        buttons, _ = _markup(parameters)
        if (text, entities, buttons) == (message.text, message.entities, message.buttons):
            raise BotApiError(400, _NOT_MODIFIED)
        message.text, message.entities, message.buttons, message.is_edited = text, entities, buttons, True
        return await self._outcome(message, fault)

    async def _edit_markup(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        fault = await self._fault(self.faults.take())
        message = self._editable(parameters)
        buttons, _ = _markup(parameters)
        if buttons == message.buttons:
            raise BotApiError(400, _NOT_MODIFIED)
        message.buttons, message.is_edited = buttons, True
        return await self._outcome(message, fault)

    async def _answer(self, parameters: Mapping[str, Any]) -> bool:
        query = self.queries.get(str(parameters.get("callback_query_id", "")))
        if query is None or query.is_answered or self._now() - query.at > QUERY_SECONDS:
            raise BotApiError(400, "Bad Request: query is too old and response timeout expired or query ID is invalid")
        text = str(parameters.get("text") or "")
        if len(text) > TOAST_LIMIT:
            raise BotApiError(400, "Bad Request: MESSAGE_TOO_LONG")
        query.is_answered, query.text, query.is_alert = True, text, read_bool(parameters, "show_alert")
        return True

    async def _action(self, parameters: Mapping[str, Any]) -> bool:
        if parameters.get("action") != "typing":
            raise BotApiError(400, "Bad Request: wrong parameter action in request")
        self.actions.append((self._writable(parameters).id, "typing"))
        return True

    async def _set_commands(self, parameters: Mapping[str, Any]) -> bool:
        commands = read_json(parameters.get("commands", "[]"))
        for command in commands:
            if not 1 <= len(command["command"]) <= 32 or not command["command"].isascii():
                raise BotApiError(400, "Bad Request: BOT_COMMAND_INVALID")
            if not 1 <= len(command["description"]) <= 256:
                raise BotApiError(400, "Bad Request: BOT_COMMAND_DESCRIPTION_INVALID")
        self.commands = commands
        return True

    async def _fault(self, fault: EmulatorFault | None) -> EmulatorFault | None:
        match fault:
            case EmulatorFault.FLOOD:
                wait = self.faults.flood_seconds
                raise BotApiError(429, f"Too Many Requests: retry after {wait}", retry_after=wait)
            case EmulatorFault.DOWN:
                raise BotApiError(502, "Bad Gateway")
            case EmulatorFault.REFUSAL:
                raise BotApiError(403, "Forbidden: bot was blocked by the user")
            case EmulatorFault.REVOKED:
                raise BotApiError(401, "Unauthorized")
            case EmulatorFault.HANG:
                await self._end.wait()
        return fault

    async def _outcome(self, message: TelegramMessage, fault: EmulatorFault | None) -> dict[str, Any]:
        self.history.append(TelegramMessage(**vars(message)))
        result = self._message(message)
        self.traffic.append(("Message", result))
        if fault is EmulatorFault.NO_ANSWER:
            await self._end.wait()
        if fault is EmulatorFault.LOST_ANSWER:
            raise BotApiError(502, "Bad Gateway")
        return result

    def _writable(self, parameters: Mapping[str, Any]) -> _Chat:
        try:
            chat = self._chats.get(int(parameters["chat_id"]))
        except (KeyError, ValueError):
            raise BotApiError(400, "Bad Request: chat_id is empty") from None
        if chat is None:
            raise BotApiError(400, "Bad Request: chat not found")
        if chat.is_blocked:
            raise BotApiError(403, "Forbidden: bot was blocked by the user")
        return chat

    def _editable(self, parameters: Mapping[str, Any]) -> TelegramMessage:
        message = self._writable(parameters).messages.get(int(parameters.get("message_id") or 0))
        if message is None:
            raise BotApiError(400, "Bad Request: message to edit not found")
        if not message.is_of_bot:
            raise BotApiError(400, "Bad Request: message can't be edited")
        return message

    # Values of the API.

    def _chat_of(self, user: int, chat: int | None) -> _Chat:
        if user not in self._users:
            self.join(user)
        return self._chats[user if chat is None else chat]

    def _user(self, id: int) -> dict[str, Any]:
        if id == BOT_ID:
            return {"id": id, "is_bot": True, "first_name": "Cortex", "username": self.username}
        return {"id": id, "is_bot": False, "first_name": self._users[id], "language_code": "en"}

    def _message(self, message: TelegramMessage) -> dict[str, Any]:
        chat = self._chats[message.chat]
        where = {"id": chat.id, "type": "private", "first_name": self._users.get(chat.id, _NEW_USER)}
        if chat.title is not None:
            where = {"id": chat.id, "type": "supergroup", "title": chat.title}
        fields: dict[str, Any] = {"message_id": message.id, "date": message.date, "chat": where,
                                  "from": self._user(message.sender)}  # fmt: skip
        if message.text:
            fields["text"] = message.text
        if entities := message.entities or _commands_in(message.text):
            fields["entities"] = entities
        if message.buttons:
            fields["reply_markup"] = {"inline_keyboard": message.buttons}
        if message.is_edited:
            fields["edit_date"] = int(self._now())
        if message.reply_to in chat.messages:
            earlier = chat.messages[message.reply_to]
            fields["reply_to_message"] = {
                name: value for name, value in self._message(earlier).items() if name != "reply_to_message"
            }
        return fields

    def _push(self, content: dict[str, Any]) -> None:
        update = {"update_id": next(self._update_ids), **content}
        allowed = self.webhook.get("allowed_updates")
        if allowed and not allowed.count(next(iter(content))):
            return
        self.traffic.append(("Update", update))
        self._updates.append(update)
        self._deliver()

    def _deliver(self) -> None:
        self._arrival.set()
        if self.webhook["url"] and not self._is_delivering:
            self._is_delivering = True
            self._queue.start(asyncio.create_task(self._post_updates()))

    async def _post_updates(self) -> None:
        wait = self._first_retry
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
                while self._updates and self.webhook["url"]:
                    problem = await self._post(client, self._updates[0])
                    if problem is None:
                        self._updates.pop(0)
                        wait = self._first_retry
                        continue
                    self.webhook |= {"last_error_message": problem, "last_error_date": int(self._now())}
                    await asyncio.sleep(wait)
                    wait = min(wait * 2, 60)
        finally:
            self._is_delivering = False

    async def _post(self, client: httpx.AsyncClient, update: dict[str, Any]) -> str | None:
        headers = {"Content-Type": "application/json"}
        if self.webhook.get("secret_token"):
            headers["X-Telegram-Bot-Api-Secret-Token"] = self.webhook["secret_token"]
        try:
            answer = await client.post(self.webhook["url"], content=orjson.dumps(update), headers=headers)
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        if answer.is_success:
            return None
        return f"Wrong response from the webhook: {answer.status_code} {answer.reason_phrase}"


def _content(parameters: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    source = str(parameters.get("text") or "")
    entities: list[dict[str, Any]] = []
    match str(parameters.get("parse_mode") or "").lower():
        case "":
            text = source
        case "html":
            try:
                text, entities = read_html(source)
            except MarkupError as error:
                raise BotApiError(400, f"Bad Request: can't parse entities: {error}") from None
        case _:
            raise BotApiError(400, "Bad Request: unsupported parse_mode")
    if not text.strip():
        raise BotApiError(400, "Bad Request: message text is empty")
    if utf16(text) > TEXT_LIMIT:
        raise BotApiError(400, "Bad Request: message is too long")
    return text, entities


def _markup(parameters: Mapping[str, Any]) -> tuple[list[list[dict[str, Any]]], bool]:
    """The rows of buttons, and whether the message asks for a reply."""
    value = parameters.get("reply_markup")
    if not value:
        return [], False
    markup = read_json(value)
    if not isinstance(markup, dict):
        raise BotApiError(400, "Bad Request: object expected as reply markup")
    rows = markup.get("inline_keyboard", [])
    for button in itertools.chain.from_iterable(rows):
        _check_button(button)
    return [row for row in rows if row], bool(markup.get("force_reply"))


def _check_button(button: dict[str, Any]) -> None:
    if not button.get("text"):
        raise BotApiError(400, 'Bad Request: can\'t parse inline keyboard button: Field "text" must be of type String')
    if "callback_data" in button:
        if not 1 <= len(str(button["callback_data"]).encode()) <= 64:
            raise BotApiError(400, "Bad Request: BUTTON_DATA_INVALID")
    elif "url" in button:
        url = urlsplit(str(button["url"]))
        if url.scheme not in ("http", "https", "tg") or "." not in (url.hostname or ""):
            raise BotApiError(
                400, f"Bad Request: inline keyboard button URL '{button['url']}' is invalid: Wrong HTTP URL"
            )
    else:
        raise BotApiError(
            400, "Bad Request: can't parse inline keyboard button: Text buttons are unallowed in the inline keyboard"
        )


def _reply_to(parameters: Mapping[str, Any], chat: _Chat) -> int | None:
    value = parameters.get("reply_parameters")
    reply = read_json(value) if value else {"message_id": parameters.get("reply_to_message_id")}
    if not reply.get("message_id"):
        return None
    id = int(str(reply["message_id"]))
    if id not in chat.messages:
        if reply.get("allow_sending_without_reply") or read_bool(parameters, "allow_sending_without_reply"):
            return None
        raise BotApiError(400, "Bad Request: message to be replied not found")
    return id


def _commands_in(text: str) -> list[dict[str, Any]]:
    if not text.startswith("/"):
        return []
    return [{"type": "bot_command", "offset": 0, "length": utf16(text.split()[0])}]
