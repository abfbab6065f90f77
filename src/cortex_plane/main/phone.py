"""The phone of `cortex up`: Telegram's and Slack's emulators, their connections in the org of the plane's owner, and its members as the
people who use them."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from base64 import b32encode
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Protocol

import structlog

from cortex_plane.dashboard.phone import APP_NAMES, PhoneChat
from cortex_plane.db.database import Database
from cortex_plane.emulators.slack import SlackEmulator
from cortex_plane.emulators.telegram import BOT_ID, CallbackQuery, TelegramEmulator
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.main import phone_chats
from cortex_plane.main.demo import CHAT_AGENT
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs import trial_connections
from cortex_plane.tenancy.verbs.trial_connections import TrialConnection

log = structlog.get_logger()

NOTICE_SECONDS = 10.0
"""So long the phone shows what a press was answered with."""


class EmulatedApp(Protocol):
    """One emulator, as a person on it and as `cortex up` use it."""

    @property
    def address(self) -> str:
        """Its host and port."""
        ...

    def sender(self, member: bytes) -> str:
        """The vendor's id of a member, always the same and nobody else's."""
        ...

    def values(self, stored: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
        """What a connection to it needs: `config` and `secrets`. Takes over the secrets of an earlier start."""
        ...

    def attach(self, inbound_url: str) -> None:
        """Post what people do to this address, where the vendor has no call for that."""
        ...

    def join(self, sender: str, name: str) -> None: ...

    def chat(self, sender: str) -> PhoneChat: ...

    def write(self, sender: str, text: str, reply_to: str | None) -> None: ...

    def press(self, sender: str, message: str, data: str) -> None:
        """Raises ``KeyError`` where there is no such button."""
        ...

    def submit(self, sender: str, question: str, words: str | None) -> None:
        """Raises ``KeyError`` where there is no such form."""
        ...


class TelegramApp:
    def __init__(self, emulator: TelegramEmulator) -> None:
        self._emulator = emulator
        self._presses: dict[str, CallbackQuery] = {}

    @property
    def address(self) -> str:
        return self._emulator.url.removeprefix("http://")

    def sender(self, member: bytes) -> str:
        return str(100_000 + int.from_bytes(hashlib.sha256(member).digest()[:6]))

    def values(self, stored: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
        self._emulator.token = stored.get("bot_token") or f"{BOT_ID}:{secrets.token_urlsafe(32)}"
        config = {"api_url": self._emulator.url, "mode": "webhook"}
        return config, {**stored, "bot_token": self._emulator.token}

    def attach(self, inbound_url: str) -> None:
        """Telegram is told by `setWebhook`."""

    def join(self, sender: str, name: str) -> None:
        self._emulator.join(int(sender), name)

    def chat(self, sender: str) -> PhoneChat:
        press = self._presses.get(sender)
        is_new = press is not None and time.time() - press.at < NOTICE_SECONDS
        notice = press.text if press is not None and is_new and press.is_answered else ""
        return phone_chats.telegram_chat(self._emulator.chat(int(sender)), notice)

    def write(self, sender: str, text: str, reply_to: str | None) -> None:
        self._presses.pop(sender, None)
        is_number = reply_to is not None and reply_to.isascii() and reply_to.isdigit()
        self._emulator.write(int(sender), text, reply_to=int(reply_to or "0") if is_number else None)

    def press(self, sender: str, message: str, data: str) -> None:
        id = int(message) if message.isascii() and message.isdigit() else -1
        self._presses[sender] = self._emulator.press(int(sender), id, data)

    def submit(self, sender: str, question: str, words: str | None) -> None:  # noqa: ARG002 -- the port's
        raise KeyError(question)


class SlackApp:
    def __init__(self, emulator: SlackEmulator) -> None:
        self._emulator = emulator

    @property
    def address(self) -> str:
        return self._emulator.url.removeprefix("http://")

    def sender(self, member: bytes) -> str:
        return "U" + b32encode(hashlib.sha256(member).digest()[:10]).decode()

    def values(self, stored: Mapping[str, str]) -> tuple[Mapping[str, str], Mapping[str, str]]:
        emulator = self._emulator
        emulator.bot_token = stored.get("bot_token") or f"xoxb-{secrets.token_hex(24)}"
        emulator.signing_secret = stored.get("signing_secret") or secrets.token_hex(16)
        own = {"bot_token": emulator.bot_token, "signing_secret": emulator.signing_secret}
        return {"api_url": emulator.api_url, "mode": "http"}, {**stored, **own}

    def attach(self, inbound_url: str) -> None:
        """In Slack's settings of an app, a person does this."""
        self._emulator.events_url = inbound_url

    def join(self, sender: str, name: str) -> None:
        self._emulator.join(sender, name)

    def chat(self, sender: str) -> PhoneChat:
        emulator = self._emulator
        whispers = [message for message in emulator.ephemeral if message.only_for == sender]
        view = next((view for view in reversed(emulator.views) if view.user == sender), None)
        return phone_chats.slack_chat(sender, [*emulator.chat(sender), *whispers], view)

    def write(self, sender: str, text: str, reply_to: str | None) -> None:  # noqa: ARG002 -- the port's
        if text.startswith("/"):
            # Slack sends no message that begins so: it is a command, and ours is called /cortex.
            words = text.removeprefix("/").removeprefix("cortex").strip()
            self._emulator.direct(sender)
            self._emulator.command(sender, words)
        else:
            self._emulator.write(sender, text)

    def press(self, sender: str, message: str, data: str) -> None:
        shown = {shown.ts: shown for shown in self._emulator.chat(sender)}[message]
        button = next((button for button in shown.buttons if data and button.get("value") == data), None)
        if button is None:
            raise KeyError(data)
        self._emulator.send_press(sender, shown, button)

    def submit(self, sender: str, question: str, words: str | None) -> None:
        view = {view.id: view for view in self._emulator.views if view.user == sender}[question]
        if words is None:
            self._emulator.views.remove(view)
        else:
            inputs = [block["element"]["action_id"] for block in view.view["blocks"] if block["type"] == "input"]
            self._emulator.submit(view, dict.fromkeys(inputs, words))


class EmulatedPhone:
    """The port of the dashboard's page. Only members of one org use it: that of the plane's owner."""

    def __init__(self, db: Database, owner: Actor, emulators: Mapping[str, EmulatedApp]) -> None:
        self._db, self._owner, self._emulators = db, owner, emulators
        self._connections: dict[str, TrialConnection] = {}

    @property
    def addresses(self) -> str:
        """Where the channels may reach it, as the setting CORTEX_WEBHOOK_ALLOW lists hosts."""
        return ",".join(emulator.address for emulator in self._emulators.values())

    @property
    def apps(self) -> list[str]:
        return list(self._connections)

    async def connect(self, channels: Mapping[str, InteractiveChannel], address: str) -> None:
        """Create the connections of the channels that this plane serves, or lead them to the emulators of this start."""
        for name, emulator in self._emulators.items():
            if name not in channels:
                continue
            try:
                self._connections[name] = await self._connect_one(name, emulator, channels[name], address)
            except (CortexError, TryAgain, Undeliverable) as error:
                log.warning("no emulator to try a channel on", channel=name, error=error.message)

    async def _connect_one(
        self, name: str, emulator: EmulatedApp, channel: InteractiveChannel, address: str
    ) -> TrialConnection:
        stored = await trial_connections.find_trial_connection(self._db, self._owner, name)
        trial = stored or trial_connections.new_trial(name, f"{APP_NAMES[name]} (try it)")
        config, own = emulator.values(trial.secrets)
        trial = replace(trial, config={**trial.config, **config}, secrets=own)
        inbound_url = f"{address.rstrip('/')}/v1/connections/{trial.id}/inbound"
        for sender, member in await trial_connections.list_trial_members(self._db, self._owner, trial.id):
            emulator.join(sender, member)
        emulator.attach(inbound_url)
        target = Target(
            connection_id=trial.id,
            connection=trial.name,
            config=trial.config,
            secrets=trial.secrets,
            address="",
            member="",
        )
        identity = await channel.identify(target, inbound_url)
        await trial_connections.store_trial_connection(self._db, self._owner, trial, identity, CHAT_AGENT)
        return trial

    def is_for(self, actor: Actor) -> bool:
        is_member = actor.org_id == self._owner.org_id and actor.user_account_id is not None
        return is_member and bool(self._connections)

    async def is_linked(self, actor: Actor) -> bool:
        for name, trial in self._connections.items():
            members = await trial_connections.list_trial_members(self._db, actor, trial.id)
            if self._sender(actor, name) not in {sender for sender, _ in members}:
                return False
        return True

    async def link(self, actor: Actor) -> None:
        for name, trial in self._connections.items():
            sender = self._sender(actor, name)
            # Messages are sent as soon as they are linked.
            self._emulators[name].join(sender, actor.name)
            await trial_connections.link_trial_sender(self._db, actor, trial.id, sender)

    def chat(self, actor: Actor, app: str) -> PhoneChat:
        return self._emulators[app].chat(self._sender(actor, app))

    def write(self, actor: Actor, app: str, text: str, reply_to: str | None) -> None:
        self._emulators[app].write(self._sender(actor, app), text, reply_to)

    def press(self, actor: Actor, app: str, message: str, data: str) -> None:
        self._act(lambda: self._emulators[app].press(self._sender(actor, app), message, data))

    def submit(self, actor: Actor, app: str, question: str, words: str | None) -> None:
        self._act(lambda: self._emulators[app].submit(self._sender(actor, app), question, words))

    def _act(self, act: Callable[[], None]) -> None:
        try:
            act()
        except KeyError:
            raise Conflict(
                "The message has changed, so this is not there any more.",
                code="button_unknown", hint="Look at the chat as it is now.",
            ) from None  # fmt: skip

    def _sender(self, actor: Actor, app: str) -> str:
        return self._emulators[app].sender(actor.identity.bytes)


@contextlib.asynccontextmanager
async def emulated_phone(db: Database, owner: Actor) -> AsyncIterator[EmulatedPhone]:
    """Emulators on free ports of this machine, for as long as the block runs. Their chats are in memory."""
    # The plane remembers ids of earlier starts.
    telegram, slack = TelegramEmulator(first_id=int(time.time() * 10)), SlackEmulator()
    async with telegram.serve(), slack.serve():
        yield EmulatedPhone(db, owner, {"telegram": TelegramApp(telegram), "slack": SlackApp(slack)})
