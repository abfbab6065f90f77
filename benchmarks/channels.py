"""From a press to the decision and from a message to its job, over the door for vendors; how near sending comes to what vendors allow; and
whether a burst to one vendor delays another.

The vendors are emulated, at the paces that they allow (the smoke form raises them by one factor for all). Mail, which has no pace, is held
to Telegram's.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import orjson

from benchmarks.approvals import copies, waiting
from benchmarks.goals import goal, percentiles, table
from benchmarks.ingest import serve
from benchmarks.outbox import PUBLIC_URL, ask, mail_channel, sink
from benchmarks.peers.databases import fresh_database
from benchmarks.plane import KEY, Counter, Plane, counting_app
from benchmarks.vendors import CHANNELS, emulated_vendors
from cortex_plane.agents.model.completions import ModelRequest, Response, TextChunk
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.db.pool import listen_for_hints
from cortex_plane.emulators.telegram import TOKEN, TelegramEmulator
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model.notifications import Outgoing, Sent
from cortex_plane.notify.verbs.channel_port import ChannelPort, InteractiveChannel
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.store import convert_mappings
from cortex_plane.tenancy.verbs import connections
from cortex_plane.tenancy.verbs.served_channels import ServedChannels
from cortex_plane.worker.models.backends import Backends, ScriptedModel
from cortex_plane.worker.notifier import Notifier
from cortex_plane.worker.scheduler import in_background
from cortex_plane.worker.worker import JobRunner, WorkerSettings

PRESSES, MESSAGES, RECIPIENTS, FASTER = 100, 100, 2_000, 1.0
BURST, ELSEWHERE = 1_000, 20
AIM_MS, AIM_RATIO, AIM_DELAY_MS = 15.0, 1.2, 50.0
LOOPBACK = "127.0.0.1"
IDLE_SECONDS = 0.02
WARM_UP = 5

_MEMBERS = """
insert into user_account (org_id, id, display_name, roles)
select $1, m, 'p' || n, '{approver}' from unnest($2::uuid[]) with ordinality u (m, n)
"""
_MAPPINGS = """
insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id, verified_at)
select $1, gen_random_uuid(), c.id, u.m, c.channel_type, u.a, plane_now()
from channel_connection c, unnest($3::uuid[], $4::text[]) u (m, a) where c.id = $2
"""


# Each of these requests, which wait with jobs of their own, asks one person.
_ASSIGN = """
with assigned as (update approval_request a
  set approvers = jsonb_build_object('owner', false, 'roles', '[]'::jsonb, 'members', jsonb_build_array(u.m))
  from unnest($1::uuid[], $2::uuid[]) u (id, m) where a.id = u.id returning a.org_id, a.id)
select notify_approvers(org_id, id) from assigned
"""
_DECIDED = "select count(*) from approval_request where status = 'approved'"


async def members(connection: asyncpg.Connection, made: Plane, n: int) -> list[UUID]:
    ids = [new_id() for _ in range(n)]
    await connection.execute(_MEMBERS, made.actor.org_id, ids)
    return ids


async def reach(
    connection: asyncpg.Connection, made: Plane, place: UUID, people: Sequence[UUID], addresses: Sequence[str]
) -> None:
    """From now on they are reached there, as if they had proven it."""
    await connection.execute(_MAPPINGS, made.actor.org_id, place, people, addresses)
    async with made.db.transaction(made.actor.org_id) as tx:
        while await convert_mappings(tx):
            pass


async def connect(made: Plane, served: ServedChannels, kind: str, place: dict[str, Any], **more: Any) -> UUID:
    draft = ConnectionDraft(channel_type=kind, name=kind, config=place["config"], secrets=place["secrets"], **more)
    return (await connections.create_connection(made.db, made.actor, draft, channels=served)).id


# In: presses and messages.


class _Heard:
    """The scripted model, which tells when it is asked first: by then its job is claimed."""

    def __init__(self) -> None:
        self.first: asyncio.Queue[float] = asyncio.Queue()

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        self.first.put_nowait(time.perf_counter())
        async for piece in ScriptedModel().stream(replace(request, settings={"script": [{"text": "I hear you."}]})):
            yield piece


@dataclass
class Bot:
    """A bot of the emulated Telegram and the door of its connection, at an API process."""

    telegram: TelegramEmulator
    http: httpx.AsyncClient
    path: str
    secret: str

    async def deliver(self) -> float:
        """What somebody did last, as Telegram delivers it; when it began."""
        update = next(update for kind, update in reversed(self.telegram.traffic) if kind == "Update")
        headers = {"X-Telegram-Bot-Api-Secret-Token": self.secret, "Content-Type": "application/json"}
        body, started = orjson.dumps(update), time.perf_counter()
        answer = await self.http.post(self.path, content=body, headers=headers)
        answer.raise_for_status()
        return started


@asynccontextmanager
async def bot_at_the_door(made: Plane) -> AsyncIterator[tuple[Bot, UUID]]:
    await made.agent("talker", [])
    server, port = await serve(made.app_url, CORTEX_WEBHOOK_ALLOW=LOOPBACK, CORTEX_PUBLIC_URL=PUBLIC_URL)
    try:
        async with TelegramEmulator().serve() as telegram:
            channel = CHANNELS["telegram"](VendorClient(Allowed.parse(LOOPBACK)))
            served = ServedChannels(vendors={"telegram": channel}, public_url=PUBLIC_URL)
            place = {"config": {"api_url": telegram.url, "mode": "webhook"}, "secrets": {"bot_token": TOKEN}}
            id = await connect(made, served, "telegram", place, agent="talker")
            await channel.close()
            secret = telegram.webhook["secret_token"]
            telegram.webhook = {"url": ""}  # what people do is delivered by whoever measures it
            async with httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", trust_env=False) as http:
                yield Bot(telegram, http, f"/v1/connections/{id}/inbound", secret), id
    finally:
        server.terminate()
        await server.wait()


async def inbound(url: str, presses: int, messages: int) -> tuple[list[float], list[float]]:
    """Seconds from the request of the vendor until its press has decided, and until the job of its message is claimed."""
    async with waiting(url) as (made, asked, connection), bot_at_the_door(made) as (bot, place):
        presses, messages = presses + WARM_UP, messages + WARM_UP
        count = max(presses, messages)
        users = [str(user) for user in range(1, count + 1)]
        for user in users:
            bot.telegram.join(int(user), f"p{user}")
        people = await members(connection, made, count)
        await reach(connection, made, place, people, users)
        claimed = await _write_all(made, bot, users[:messages])
        await connection.execute(_ASSIGN, await copies(connection, asked, presses), people[:presses])
        decided = await _press_all(bot, connection, users[:presses])
    return decided[WARM_UP:], claimed[WARM_UP:]


async def _press_all(bot: Bot, connection: asyncpg.Connection, users: Sequence[str]) -> list[float]:
    taken = []
    for user in users:
        async with asyncio.timeout(60):
            while not bot.telegram.live_buttons(int(user)):  # noqa: ASYNC110 -- its card comes at the vendor's pace
                await asyncio.sleep(0.02)
    await asyncio.sleep(1)  # until the last card is written down
    for number, user in enumerate(users):
        await asyncio.sleep(IDLE_SECONDS)
        card = next(message for message in bot.telegram.chat(int(user)) if message.buttons)
        bot.telegram.press(int(user), card.id, "Approve")
        started = await bot.deliver()
        async with asyncio.timeout(10):
            while await connection.fetchval(_DECIDED) <= number:  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.0005)
        taken.append(time.perf_counter() - started)
    return taken


async def _write_all(made: Plane, bot: Bot, users: Sequence[str]) -> list[float]:
    model, taken = _Heard(), []
    backends = Backends({"scripted": model})
    worker = JobRunner(made.db, [counting_app(Counter())], KEY, WorkerSettings(concurrency=4), backends)
    async with listen_for_hints(made.app_url, worker.work):
        running = asyncio.create_task(worker.run())
        for user in users:
            await asyncio.sleep(IDLE_SECONDS)
            bot.telegram.write(int(user), "Is anybody there?")
            started = await bot.deliver()
            async with asyncio.timeout(10):
                taken.append(await model.first.get() - started)
        worker.stop()
        await running
    return taken


# Out: many recipients, and a burst.


@dataclass
class Sending:
    """The channels of a plane, which note when each message was out."""

    faster: float
    at: dict[str, list[float]] = field(default_factory=dict)
    channels: list[ChannelPort] = field(default_factory=list)
    vendors: dict[str, InteractiveChannel] = field(default_factory=dict)
    paces: dict[str, float] = field(default_factory=dict)

    @classmethod
    async def prepare(cls, port: int, faster: float, stack: AsyncExitStack) -> Sending:
        made = cls(faster)
        for kind, channel_type in CHANNELS.items():
            vendor = channel_type(VendorClient(Allowed.parse(LOOPBACK)))
            stack.push_async_callback(vendor.close)
            traits = vendor.traits
            made.paces[kind] = traits.per_second * faster
            vars(vendor)["traits"] = replace(
                traits, per_second=traits.per_second * faster, chat_seconds=traits.chat_seconds / faster
            )
            made.vendors[kind] = vendor
            made._add(kind, vendor)
        mail = mail_channel(port)
        stack.push_async_callback(mail.close)
        made.paces["email"] = made.paces["telegram"]
        made._add("email", mail)
        return made

    def _add(self, kind: str, channel: ChannelPort) -> None:
        send, self.at[kind] = channel.send, []

        async def note(outgoing: Outgoing) -> Sent:
            sent = await send(outgoing)
            self.at[kind].append(time.perf_counter())
            return sent

        vars(channel)["send"] = note
        self.channels.append(channel)

    async def until(self, kind: str, count: int) -> None:
        while len(self.at[kind]) < count:  # noqa: ASYNC110 -- a clock ticks here
            await asyncio.sleep(0.002)


@asynccontextmanager
async def sending(
    url: str, port: int, faster: float, people: int
) -> AsyncIterator[tuple[Plane, Any, asyncpg.Connection, Sending, dict[str, tuple[UUID, list[str]]]]]:
    """A plane with a connection to each vendor; its id and the addresses there, by channel."""
    async with waiting(url) as (made, asked, connection), emulated_vendors(people) as places, AsyncExitStack() as stack:
        out = await Sending.prepare(port, faster, stack)
        served = ServedChannels(vendors=out.vendors)
        places["email"] = {"config": {}, "secrets": {}, "people": [f"p{n}@example.com" for n in range(people)]}
        ids = {kind: (await connect(made, served, kind, place), place["people"]) for kind, place in places.items()}
        yield made, asked, connection, out, ids


async def many(url: str, port: int, recipients: int, faster: float) -> dict[str, tuple[float, float]]:
    """By channel: the seconds that it took to tell everybody, all channels at once, and those that its pace allows."""
    async with sending(url, port, faster, recipients) as (made, asked, connection, out, places):
        people = await members(connection, made, recipients)
        for place, addresses in places.values():
            await reach(connection, made, place, people, addresses)
        await ask(connection, made.actor.org_id, asked, people, 1, recipients)
        await connection.execute("analyze")
        started = time.perf_counter()
        async with in_background(Notifier(made.db, out.channels, PUBLIC_URL).run()):
            for kind in out.at:
                await out.until(kind, recipients)
        return {kind: (at[recipients - 1] - started, recipients / out.paces[kind]) for kind, at in out.at.items()}


async def beside_a_burst(url: str, port: int, backlog: int, times: int) -> float:
    """How long a message over WhatsApp takes while many wait for Telegram, at the paces of the vendors (p95)."""
    async with sending(url, port, 1.0, max(backlog, times)) as (made, asked, connection, out, places):
        crowd, few = await members(connection, made, backlog), await members(connection, made, times)
        await reach(connection, made, places["telegram"][0], crowd, places["telegram"][1][:backlog])
        await reach(connection, made, places["whatsapp"][0], few, places["whatsapp"][1][:times])
        await ask(connection, made.actor.org_id, asked, crowd, 1, backlog)
        delays = []
        async with in_background(Notifier(made.db, out.channels, PUBLIC_URL).run()):
            await out.until("telegram", min(20, backlog))
            for number, person in enumerate(few, 1):
                started = time.perf_counter()
                await ask(connection, made.actor.org_id, asked, [person], backlog + number, 1)
                await out.until("whatsapp", number)
                delays.append(out.at["whatsapp"][-1] - started)
        if len(out.at["telegram"]) >= backlog > times:
            raise RuntimeError("the burst was over before the messages beside it")
    return sorted(delays)[math.ceil(0.95 * len(delays)) - 1]


def _report(name: str, waits: list[float]) -> bool:
    p50, p95 = statistics.median(waits) * 1e3, sorted(waits)[math.ceil(0.95 * len(waits)) - 1] * 1e3
    print(f"{'  ' + name:36}{p50:>10.1f}{p95:>10.1f}")
    table(name, "milliseconds", {f"p{share:g}": ms for ms, share in percentiles(waits) if share in (50, 95)})
    return goal("channels", f"{name}, p50", p50, "≤", AIM_MS, " ms")


async def run(
    admin_url: str, *, presses: int = PRESSES, messages: int = MESSAGES, recipients: int = RECIPIENTS,
    faster: float = FASTER, backlog: int = BURST, times: int = ELSEWHERE,
) -> bool:  # fmt: skip
    try:
        import aiosmtpd  # noqa: F401
    except ImportError as missing:
        print(f"\nchannels are left out: {missing}")
        return True
    print(f"\n{'what people do on channels':36}{'p50 ms':>10}{'p95 ms':>10}")
    async with fresh_database(admin_url, "inbound") as url:
        decided, claimed = await inbound(url, presses, messages)
    met = [_report("press → decided", decided), _report("message in → job claimed", claimed)]
    async with sink() as port:
        async with fresh_database(admin_url, "many") as url:
            took = await many(url, port, recipients, faster)
        async with fresh_database(admin_url, "beside") as url:
            delay = await beside_a_burst(url, port, backlog, times)
    print(f"\n{f'{recipients:,} to each, paces ×{faster:g}':36}{'seconds':>10}{'allowed':>10}")
    for kind, (seconds, allowed) in took.items():
        print(f"{'  ' + kind:36}{seconds:>10.1f}{allowed:>10.1f}")
        met.append(goal("channels", f"{kind}: time to what its pace allows", seconds / allowed, "≤", AIM_RATIO))
    what = f"WhatsApp beside {backlog:,} to Telegram, p95"
    met.append(goal("channels", what, delay * 1e3, "≤", AIM_DELAY_MS, " ms"))
    return all(met)
