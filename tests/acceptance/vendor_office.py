"""A plane whose vendors are all on this machine: Telegram, Slack, Discord, WhatsApp and a mail server, each over HTTP or SMTP in both
directions, with the parts of the API process that serve channels, and a worker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import httpx

from cortex_plane.agents.model.completions import ModelRequest, Response, TextChunk, UserTurn
from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.calls.verbs import deadlines
from cortex_plane.emulators import slack as slack_emulator
from cortex_plane.emulators import telegram as telegram_emulator
from cortex_plane.emulators.slack import BOT_USER, SlackEmulator, SlackMessage
from cortex_plane.emulators.telegram import TelegramEmulator
from cortex_plane.http.app import framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import metered
from cortex_plane.main.api_process import create_app
from cortex_plane.main.reach import reach_of
from cortex_plane.main.settings import Settings
from cortex_plane.notify.verbs.inbound import InboundDoor
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.worker.channel_inbox import ChannelInbox
from cortex_plane.worker.models.backends import Backends, ScriptedModel
from cortex_plane.worker.notifier import Notifier
from cortex_plane.worker.scheduler import in_background
from cortex_plane.worker.tools.app import App
from tests.channels.behaviour import link
from tests.emulators import discord as discord_emulator
from tests.emulators import whatsapp as whatsapp_emulator
from tests.emulators.discord import DiscordEmulator, message_text
from tests.emulators.vendor_server import served_on_loopback
from tests.emulators.whatsapp import WhatsAppEmulator, text_of
from tests.fixtures.approvals import pending
from tests.fixtures.clock import RunningClock
from tests.fixtures.mail_servers import MailServer, mail_server
from tests.fixtures.people import Person, World
from tests.fixtures.workers import call, make_agent, turn, working

T = TypeVar("T")
SECONDS = 20.0
"""Until something is late."""
_REQUEST = re.compile(r"Please refund order (\S+) with (\d+) euros")


class Desk:
    """An agent that refunds orders when it is asked to, and counts what it did outside of the plane."""

    def __init__(self) -> None:
        self.refunds: list[str] = []
        self.app = App("desk")

        @self.app.tool(name="refund", risk="high", timeout=5, on_uncertain="retry_with_key")
        async def refund(order: str, amount: int) -> str:
            """Give a customer their money back."""
            self.refunds.append(f"{order}: {amount}")
            return f"{amount} euros are on their way"

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        """Its model, which follows a script for what was said last."""
        said = next(each.text for each in reversed(request.turns) if isinstance(each, UserTurn))
        wish = _REQUEST.search(said)
        script = [turn(text=f"You said: {said}")]
        if wish is not None:
            order, amount = wish[1], int(wish[2])
            asked = turn(call("refund", order=order, amount=amount))
            script = [asked, turn(text=f"Order {order} is refunded.")]
        async for piece in ScriptedModel().stream(replace(request, settings={"script": script})):
            yield piece


@dataclass
class Copies:
    """What one person has of a request on Slack, on Discord and as mails."""

    slack: SlackMessage
    discord: dict[str, Any]
    mails: list[str]

    @property
    def texts(self) -> list[str]:
        """Of each copy as it is now."""
        return [self.slack.visible, message_text(self.discord), self.mails[-1]]

    @property
    def buttons(self) -> list[str]:
        """All that can be pressed."""
        labels = [button["label"] for button in discord_emulator.live_buttons(self.discord)]
        return [*self.slack.live_buttons, *labels]


@dataclass
class VendorOffice:
    """The plane and its vendors, as a test moves them."""

    world: World
    clock: RunningClock
    http: httpx.AsyncClient
    telegram: TelegramEmulator
    slack: SlackEmulator
    discord: DiscordEmulator
    whatsapp: WhatsAppEmulator
    mail: MailServer
    desk: Desk = field(default_factory=Desk)
    connections: dict[str, UUID] = field(default_factory=dict)
    _worker: AsyncExitStack = field(default_factory=AsyncExitStack)

    # Set-up, as an admin and a member do it.

    async def connect_all(self) -> None:
        agent = (await make_agent(self.world, [], app="desk", slug="desk")).slug
        await self._connect(
            "telegram", {"bot_token": telegram_emulator.TOKEN}, api_url=self.telegram.url, mode="webhook", agent=agent
        )
        secrets = {"bot_token": slack_emulator.BOT_TOKEN, "signing_secret": slack_emulator.SIGNING_SECRET}
        slack = await self._connect("slack", secrets, api_url=self.slack.api_url, agent=agent)
        assert await self.slack.install(slack["inbound_url"])
        discord = await self._connect(
            "discord", {"bot_token": discord_emulator.BOT_TOKEN}, api_url=self.discord.url, agent=agent
        )
        assert self.discord.endpoint == discord["inbound_url"]
        secrets = {"access_token": whatsapp_emulator.ACCESS_TOKEN, "app_secret": whatsapp_emulator.APP_SECRET}
        number = whatsapp_emulator.PHONE_NUMBER_ID
        whatsapp = await self._connect(
            "whatsapp", secrets, api_url=self.whatsapp.url, phone_number_id=number, agent=agent
        )
        address, _, rest = whatsapp["to_do"][0].removeprefix("Enter ").partition(" as callback URL and ")
        assert await self.whatsapp.subscribe(address, rest.partition(" ")[0]) == 200
        await self._connect("email", {})

    async def _connect(self, kind: str, secrets: Mapping[str, str], agent: str | None = None, **config: str) -> Any:
        draft = {"channel_type": kind, "name": kind, "config": config, "secrets": secrets, "agent": agent}
        answer = await self.http.post("/v1/connections", json=draft, headers=self.world.admin.headers)
        assert answer.status_code == 201, answer.text
        self.connections[kind] = UUID(answer.json()["id"])
        return answer.json()

    async def new_code(self, person: Person) -> str:
        answer = await self.http.post("/v1/me/link-codes", headers=person.headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["code"])

    async def confirm_claim(self, person: Person, kind: str, name: str) -> None:
        """They are shown who typed their code, and say that it was they."""

        async def waiting() -> Any:
            answer = await self.http.get("/v1/me/link-claims", headers=person.headers)
            return next(iter(answer.json()["items"]), None)

        claim = await self.until_true(waiting)
        assert (claim["connection"], claim["name"].casefold()) == (kind, name.casefold())
        answer = await self.http.post(f"/v1/me/link-claims/{claim['id']}/confirm", headers=person.headers)
        assert answer.status_code == 200, answer.text

    async def link_mail(self, admin: asyncpg.Connection, person: Person, address: str) -> None:
        await link(admin, self.world, self.connections["email"], person, address)

    # What people do.

    async def write_on_whatsapp(self, name: str, text: str) -> None:
        assert await self.whatsapp.post(self.whatsapp.webhook(self.whatsapp.text(name, text))) == 200

    # What people see.

    def telegram_texts(self, user: int) -> list[str]:
        return [message.text for message in self.telegram.chat(user) if message.is_of_bot]

    def whatsapp_texts(self, name: str) -> list[str]:
        return [text_of(message) for message in self.whatsapp.history(self.whatsapp.person(name))]

    def slack_cards(self, user: str, order: str) -> list[SlackMessage]:
        """Copies of what they have, so that a late press can be made with one of them."""
        messages = [message for message in self.slack.chat(user) if message.user == BOT_USER]
        return [replace(message) for message in messages if f'"{order}"' in message.visible]

    def discord_cards(self, user: str, order: str) -> list[dict[str, Any]]:
        return [message for message in self.discord.messages_to(user) if f'"{order}"' in message_text(message)]

    def mails(self, address: str, order: str) -> list[str]:
        return [mail.text for mail in self.mail.got if mail.recipient == address and f'"{order}"' in mail.text]

    def copies(self, slack: str, discord: str, address: str, order: str) -> Copies | None:
        """None while one of them is missing."""
        cards, messages = self.slack_cards(slack, order), self.discord_cards(discord, order)
        mails = self.mails(address, order)
        return Copies(cards[0], messages[0], mails) if cards and messages and mails else None

    async def asked(self, order: str) -> Approval:
        """The open request about this order."""

        async def waiting() -> Approval | None:
            return next((each for each in await pending(self.world) if each.arguments.get("order") == order), None)

        approval: Approval = await self.until_true(waiting)
        return approval

    # Time.

    @staticmethod
    async def until(look: Callable[[], T | None]) -> T:
        """What ``look`` returns, once that is something."""
        async with asyncio.timeout(SECONDS):
            while not (seen := look()):  # noqa: ASYNC110 -- a vendor tells nobody
                await asyncio.sleep(0.01)
        return seen

    @staticmethod
    async def until_true(look: Callable[[], Awaitable[Any]]) -> Any:
        """The same for what must be asked for."""
        async with asyncio.timeout(SECONDS):
            while not (seen := await look()):  # noqa: ASYNC110 -- only the plane knows
                await asyncio.sleep(0.02)
        return seen

    async def start_worker(self) -> None:
        backends = Backends({"scripted": self.desk})
        await self._worker.enter_async_context(working(self.world.db, self.desk.app, backends=backends))

    async def stop_worker(self) -> None:
        await self._worker.aclose()

    async def pass_time(self, approval: Approval, left: timedelta) -> None:
        """Until so much is left of the time of a request, during the night: nobody works, and the scheduler looks."""
        assert approval.deadline is not None
        await self.stop_worker()
        async with self.world.db.transaction(self.world.org_id) as tx:
            now = await tx.value("select plane_now()")
        await self.clock.advance(approval.deadline - left - now)
        await deadlines.tick(self.world.db, new_id(), "scheduler")
        await self.start_worker()


@asynccontextmanager
async def vendor_office(world: World, admin: asyncpg.Connection) -> AsyncIterator[VendorOffice]:
    clock = await RunningClock.install(admin)
    db, metrics = world.db, Metrics()
    feed = EventFeed(db, poll_seconds=0.05)
    app = create_app(db, metrics, feed)
    async with AsyncExitStack() as stack:
        stack.callback(metrics.close)
        stack.enter_context(metered(metrics.meters))
        stack.callback(feed.close)
        url = await stack.enter_async_context(served_on_loopback(framed(app)))
        mail = await stack.enter_async_context(mail_server())
        settings = Settings(
            webhook_allow="127.0.0.1",
            smtp_url=f"smtp://127.0.0.1:{mail.port}?starttls=never",
            mail_from="Cortex <cortex@plane.example>",
        )
        reach = reach_of(settings, url)
        stack.push_async_callback(reach.close)
        for channel in reach.interactive.values():
            # A second between two messages of a chat would be most of the test; tests of pacing are elsewhere.
            vars(channel)["traits"] = replace(channel.traits, chat_seconds=min(0.05, channel.traits.chat_seconds))
        app.state.channels, app.state.webhooks, app.state.mailing = reach.served, reach.webhooks, True
        inbox = ChannelInbox(db, reach.interactive, reach.public_url, poll_seconds=0.05)
        app.state.inbound = InboundDoor(reach.interactive, inbox.wake)
        await stack.enter_async_context(in_background(inbox.run()))
        notifier = Notifier(db, reach.channels, reach.public_url, poll_seconds=0.02)
        await stack.enter_async_context(in_background(notifier.run()))
        office = VendorOffice(
            world=world,
            clock=clock,
            http=await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=30, trust_env=False)),
            telegram=await stack.enter_async_context(TelegramEmulator(now=clock.seconds, first_retry=0.05).serve()),
            slack=await stack.enter_async_context(SlackEmulator(now=clock.seconds, first_retry=0.05).serve()),
            discord=await stack.enter_async_context(DiscordEmulator(now=clock.seconds).serve()),
            whatsapp=await stack.enter_async_context(WhatsAppEmulator().serve()),
            mail=mail,
        )
        await office.connect_all()
        await office.start_worker()
        stack.push_async_callback(office.stop_worker)
        yield office
