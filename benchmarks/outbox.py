"""Messages per second against the bare SMTP client, and what a burst in one org costs another's first message."""

from __future__ import annotations

import asyncio
import math
import socket
import statistics
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from email.message import EmailMessage
from typing import Any
from uuid import UUID

import asyncpg

from benchmarks.approvals import _pending as pending
from benchmarks.approvals import waiting
from benchmarks.goals import goal, table
from benchmarks.measuring import analyze, seconds_each
from benchmarks.peers.databases import fresh_database
from benchmarks.plane import CALL, KEY, Counter, Plane, counting_app
from cortex_plane.db.database import Database
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model.notifications import Card, Outgoing, Sent
from cortex_plane.notify.verbs.channel_port import ChannelPort
from cortex_plane.policies.model.versions import PolicyFile
from cortex_plane.policies.verbs import policies
from cortex_plane.tenancy.model.orgs import OrgDraft
from cortex_plane.tenancy.store import convert_mappings
from cortex_plane.tenancy.verbs import frame, orgs
from cortex_plane.worker.notifier import Notifier
from cortex_plane.worker.scheduler import in_background
from cortex_plane.worker.worker import JobRunner, WorkerSettings

MAILS, ROUNDS, LINES = 400, 3, 4
BURST = 10_000
ELSEWHERE = 20
"""Messages of another org beside a burst, one after the other."""
AIM_RATE, AIM_DELAY = 600, 0.05
HOST, PUBLIC_URL = "127.0.0.1", "https://plane.example"

_ANYBODY = 'policies: [{name: ask, target: "*", effect: requires_approval, approvers: {roles: [approver, admin]}}]'
_APPROVER = """
with c as (insert into channel_connection (org_id, id, channel_type, name) values ($1, gen_random_uuid(), 'email', $2)
  returning id),
u as (insert into user_account (org_id, id, display_name, roles) values ($1, $3, $2, '{approver}') returning id)
insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id, verified_at)
select $1, gen_random_uuid(), c.id, u.id, 'email', $2 || '@example.com', plane_now() from c, u
"""
# Each asks one of these members; the others are not told.
_ASK = """
with new as (insert into approval_request
  select p.* from approval_request m, generate_series($3::integer, $4) n, lateral jsonb_populate_record(
    null::approval_request, to_jsonb(m) || jsonb_build_object('id', gen_random_uuid(), 'action', 'number ' || n,
      'approvers', jsonb_build_object('owner', false, 'roles', '[]'::jsonb,
        'members', jsonb_build_array(($2::uuid[])[n % cardinality($2::uuid[]) + 1])),
      'terms_hash', '\\x' || encode(sha256(n::text::bytea), 'hex'))) p
  where m.id = $1 returning org_id, id, action)
select array_agg(id order by substr(action, 8)::integer) from new
"""
_TELL = "select notify_approvers($1, a) from unnest($2::uuid[]) with ordinality t (a, n) order by n"


@asynccontextmanager
async def sink() -> AsyncIterator[int]:
    """A mail server in a process of its own that forgets everything; its port."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aiosmtpd", "-n", "-l", f"{HOST}:{port}", "-c", "aiosmtpd.handlers.Sink",
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while True:
            try:
                _, writer = await asyncio.open_connection(HOST, port)
                writer.close()
                break
            except OSError:
                await asyncio.sleep(0.05)
        yield port
    finally:
        server.terminate()
        await server.wait()


class Timed:
    """A channel, and when each message went through it."""

    channel_type = "email"

    def __init__(self, inner: ChannelPort) -> None:
        self._inner = inner
        self.sent: list[tuple[float, UUID, str]] = []
        self.target = 0
        self.reached = asyncio.Event()

    def concerns(self, card: Card, shown: Mapping[str, Any]) -> bool:
        return self._inner.concerns(card, shown)

    async def send(self, outgoing: Outgoing) -> Sent:
        sent = await self._inner.send(outgoing)
        said = outgoing.content.action if isinstance(outgoing.content, Card) else ""
        self.sent.append((time.perf_counter(), outgoing.org_id, said))
        if len(self.sent) >= self.target:
            self.reached.set()
        return sent


async def bare(port: int, n: int) -> float:
    """Seconds for each mail of the bare client, over as many conversations as the plane has."""
    import aiosmtplib

    lines = [aiosmtplib.SMTP(hostname=HOST, port=port, start_tls=False) for _ in range(LINES)]
    for line in lines:
        await line.connect()
    free = list(lines)
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "plane@example.com", "ann@example.com", "number 1"
    mail.set_content("x" * 3000)

    async def one(_: int) -> None:
        line = free.pop()
        await line.send_message(mail)
        free.append(line)

    try:
        return await seconds_each(one, n, LINES)
    finally:
        for line in lines:
            await line.quit()


def mail_channel(port: int) -> Any:
    from cortex_plane.channels.email import EmailChannel
    from cortex_plane.channels.mail_servers import SmtpServer

    return EmailChannel(SmtpServer.parse(f"smtp://{HOST}:{port}"), "plane@example.com")


async def _people(db: Database, connection: asyncpg.Connection, org_id: UUID, n: int) -> list[UUID]:
    ids = [new_id() for _ in range(n)]
    for number, id in enumerate(ids):
        await connection.execute(_APPROVER, org_id, f"p{number}", id)
    async with db.transaction(org_id) as tx:
        while await convert_mappings(tx):
            pass
    return ids


async def ask(connection: asyncpg.Connection, org_id: UUID, asked: Any, people: list[UUID], first: int, n: int) -> None:
    ids = await connection.fetchval(_ASK, asked.id, people, first, first + n - 1)
    await connection.execute(_TELL, org_id, ids)


async def throughput(url: str, port: int, rounds: int, mails: int) -> tuple[float, float]:
    """Seconds for each mail: ours, the bare client's."""
    ours: list[float] = []
    theirs: list[float] = []
    async with waiting(url) as (made, asked, connection):
        channel = mail_channel(port)
        people = await _people(made.db, connection, made.actor.org_id, LINES)
        for number in range(rounds + 1):
            await ask(connection, made.actor.org_id, asked, people, 1 + number * mails, mails)
            timed = Timed(channel)
            timed.target = mails
            started = time.perf_counter()
            async with in_background(Notifier(made.db, [timed], PUBLIC_URL, concurrency=4 * LINES).run()):
                await timed.reached.wait()
                ours.append((time.perf_counter() - started) / mails)
            theirs.append(await bare(port, mails))
            await analyze(url)
        await channel.close()
    return statistics.median(ours[1:]), statistics.median(theirs[1:])


async def burst(url: str, port: int, backlog: int, times: int) -> tuple[float, bool]:
    """How long another org's message takes beside a burst to one person (p95), and whether the burst is in order."""
    async with waiting(url) as (made, asked, connection):
        channel = mail_channel(port)
        timed = Timed(channel)
        (person,) = await _people(made.db, connection, made.actor.org_id, 1)
        await ask(connection, made.actor.org_id, asked, [person], 1, backlog)
        other, first = await _waiting_elsewhere(made)
        people = await _people(made.db, connection, other, 1)
        ids = await connection.fetchval(_ASK, first, people, 1, times)
        timed.target = min(200, backlog)
        delays = []
        async with in_background(Notifier(made.db, [timed], PUBLIC_URL).run()):
            await timed.reached.wait()
            timed.target = 10**9
            for number, id in enumerate(ids, 1):
                started = time.perf_counter()
                await connection.execute("select notify_approvers($1, $2)", other, id)
                while sum(org == other for _, org, _ in timed.sent) < number:  # noqa: ASYNC110 -- a clock ticks here
                    await asyncio.sleep(0.002)
                delays.append(next(at for at, org, said in reversed(timed.sent) if org == other) - started)
        await channel.close()
        numbers = [int(said.removeprefix("number ")) for _, org, said in timed.sent if org != other]
    return sorted(delays)[math.ceil(0.95 * len(delays)) - 1], numbers == sorted(numbers)


async def _waiting_elsewhere(made: Plane) -> tuple[UUID, UUID]:
    """Another org, and a request in it that nobody was told of yet."""
    new = await orgs.bootstrap_plane(made.db, OrgDraft(slug="other", name="Other"))
    there = replace(made, actor=await frame.authenticate_key(made.db, str(new.key.secret)))
    await policies.apply_policies(there.db, there.actor, PolicyFile(text=_ANYBODY))
    await there.agent("asking", [{"text": "I act.", "calls": [CALL]}, {"text": "done"}])
    worker = JobRunner(there.db, [counting_app(Counter())], KEY, WorkerSettings(concurrency=1))
    running = asyncio.create_task(worker.run())
    asked = await pending(there, await there.submit("asking"))
    worker.stop()
    await running
    return there.actor.org_id, asked.id


async def run(
    admin_url: str, *, rounds: int = ROUNDS, mails: int = MAILS, backlog: int = BURST, times: int = ELSEWHERE
) -> bool:
    try:
        import aiosmtpd  # noqa: F401
    except ImportError as missing:
        print(f"\nthe outbox is left out: {missing}")
        return True
    async with sink() as port:
        async with fresh_database(admin_url, "outbox") as url:
            ours, theirs = await throughput(url, port, rounds, mails)
        async with fresh_database(admin_url, "burst") as url:
            delay, in_order = await burst(url, port, backlog, times)
    print(f"\n{'mails over SMTP, ' + str(LINES) + ' at once':36}{'per second':>10}{'ratio':>12}")
    print(f"{'  the bare client':36}{1 / theirs:>10.0f}")
    print(f"{'  the outbox: rendered, sent, audited':36}{1 / ours:>10.0f}{ours / theirs:>11.2f}×")
    table("mails over SMTP", "per second", {"the bare client": 1 / theirs, "the outbox": 1 / ours})
    is_fast = goal("outbox", "mails per second to a local sink", 1 / ours, "≥", AIM_RATE, "/s")
    is_fair = delay <= AIM_DELAY and in_order
    print(
        f"{f'  beside {backlog:,} to one person, p95':36}{delay * 1e3:>7.0f} ms{f'≤ {AIM_DELAY * 1e3:g} ms':>22}"
        f"{'' if in_order else '  OUT OF ORDER'}{'' if is_fair else '  MISSED'}"
    )
    return is_fast and is_fair
