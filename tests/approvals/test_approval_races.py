"""Everybody at once on the same requests: one outcome each, the job follows it, and what was approved happens once.

make soak                                     a thousand rounds
CORTEX_APPROVAL_ROUNDS=100 pytest -m soak …   fewer of them
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents.model.agents import Agent
from cortex_plane.approvals.model.approvals import Approval, ApprovalDecision, Channel, Choice, RecordResult
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import JobStatus, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.acceptance.test_campaign import INVARIANTS
from tests.approvals.approval_racer import CLIENTS
from tests.conftest import Urls
from tests.fixtures.approvals import pending
from tests.fixtures.people import World, apply_policies
from tests.fixtures.servers import VAULT
from tests.fixtures.workers import call, job_of, make_agent, submit, turn, working

ROUNDS = int(os.environ.get("CORTEX_APPROVAL_ROUNDS", "1000"))
PAIRS = int(os.environ.get("CORTEX_APPROVAL_PAIRS", "1000"))
PROCESSES = 2
BATCH = 20

W = JobStatus.WAITING_FOR_APPROVAL
POLICIES = """
policies:
  - {name: ask, target: ship, effect: requires_approval, approvers: {roles: [approver]}, timeout: 1d}
"""

# What each of them may be told. Whoever is not first is told so; nobody is told to send it again.
DECISIONS = {"OK", "DUPLICATE", "approval_conflict", "approval_expired"}
ANSWERS = {
    "approve": DECISIONS,
    "deny": DECISIONS,
    "respond": DECISIONS,
    "expire": {"expired", "nothing"},
    "tick": {"expired", "nothing", "expired, expired"},
    "cancel": {"changed", "unchanged", "job_finished"},
    "hold": {"changed", "unchanged", "job_finished"},
}
OPEN = "select count(*) from job where id = any ($1) and finished_at is null"
WINS = ("approved", "denied", "responded", "expired", "cancelled")
DECIDED = {"approved": "approve", "denied": "deny", "responded": "respond"}
ENDS = {"approve": "approved", "deny": "denied", "respond": "responded", "expire": "expired"}

# Each query must find nothing, whoever was first.
PROMISES = {
    "a decided request without exactly the votes that decide it": """
        select r.id from approval_request r where kind = 'call' and (
          r.status = 'approved' and (select count(*) from approval_vote v where v.approval_id = r.id
            and v.version = r.version and v.decision = 'approved') <> (r.quorum ->> 'votes')::integer
          or (r.status = 'denied')::integer <> (select count(*) from approval_vote v where v.approval_id = r.id
            and v.decision = 'denied')
          or (r.status = 'responded')::integer <> (select count(*) from approval_vote v where v.approval_id = r.id
            and v.decision = 'responded'))""",
    "an answer that is not the result of each of its calls": """
        select 1 from approval_request r join approval_invocation i on i.approval_id = r.id join tool_call c on c.id = i.call_id
        where c.status = 'answered' and (r.answer is null or c.result is distinct from r.answer or c.granted)
          -- Where two jobs waited for one request, and one of them ended before, the answer is for the other alone.
          or r.answer is not null and c.status <> 'answered' and not exists (
            select from job j where j.id = c.job_id and j.status in ('CANCELLED', 'FAILED') and c.status = 'rejected'
            and c.settled_by = 'cancelled' and c.finished_at <= r.resolved_at)""",
    "a vote on what nobody decided": """
        select 1 from approval_vote v join approval_request r on r.id = v.approval_id
        where (r.quorum ->> 'votes')::integer = 1
          and (r.status not in ('approved', 'denied', 'responded') or v.version <> r.version)""",
    "a vote on a version that never was": """
        select 1 from approval_vote v join approval_request r on r.id = v.approval_id where v.version > r.version
        or v.decision <> 'approved' and v.version <> r.version""",
    "a vote of somebody who had handed their part on": """
        select 1 from approval_vote v join approval_request r on r.id = v.approval_id
        join approval_delegation d on d.approval_id = v.approval_id and d.from_member_id = v.user_account_id
        where v.version = r.version or v.created_at > d.created_at""",
    "a part that is handed on and not": """
        select 1 from approval_request r where cardinality(r.delegated) <> (
          select count(*) from approval_delegation d where d.approval_id = r.id and d.from_member_id = any (r.delegated))
        or exists (select from approval_delegation d where d.approval_id = r.id
          and not r.approvers -> 'members' ? d.to_member_id::text)""",
    "a level that was not reached exactly once": """
        select r.id from approval_request r where r.escalation_level <> (
          select count(distinct e.payload ->> 'level') from approval_event e
          where e.approval_id = r.id and e.event_type = 'escalated')
        or r.escalation_level <> (select count(*) from approval_event e
          where e.approval_id = r.id and e.event_type = 'escalated')""",
    "a token that outlived the vote of its person": """
        select 1 from approval_token t join approval_vote v on v.approval_id = t.approval_id
          and v.user_account_id = t.user_account_id
        where t.notification_id is null and t.used_at is null and t.created_at < v.created_at""",
    "a decision without a receipt, or the other way round": """
        select 1 from approval_request r full join approval_receipt p on p.approval_id = r.id
        where r.kind is distinct from 'uncertain_effect'
          and (r.status in ('approved', 'denied', 'responded')) is distinct from (p.approval_id is not null)""",
    "a message that does not know how its request ended": """
        select 1 from notification n join approval_request r on r.id = n.approval_id
        where r.status <> 'pending' and n.status <> 'dead' and n.rendered_version = n.desired_version
          and n.tried_at is not null and n.said ->> 'status' is distinct from r.status""",
    "an approved request that did not grant each of its calls": """
        select 1 from approval_request r join approval_invocation i on i.approval_id = r.id
        where r.kind = 'call' and r.status = 'approved' and not exists (
          select from approval_grant g where g.approval_id = r.id and g.call_id = i.call_id)
        and not exists (select from tool_call c where c.id = i.call_id and c.settled_by = 'cancelled')""",
    "a grant that no approval gave": """
        select 1 from approval_grant g join approval_request r on r.id = g.approval_id where r.status <> 'approved'
        or g.input_hash <> r.input_hash""",
    "a job that counts other open approvals than it has": """
        select 1 from job j where j.open_approvals <> (
          select count(distinct i.approval_id) from approval_invocation i
          join approval_request r on r.id = i.approval_id and r.status = 'pending'
          join tool_call c on c.id = i.call_id and c.status = 'awaiting' where i.job_id = j.id)""",
    "a request that nobody waits for": """
        select 1 from approval_request r where r.kind = 'call' and r.status = 'pending' and not exists (
          select from approval_invocation i join tool_call c on c.id = i.call_id and c.status = 'awaiting'
          where i.approval_id = r.id)""",
    "a request without exactly one end": """
        select r.id from approval_request r where r.kind = 'call' and ((
          select count(*) from approval_event e where e.approval_id = r.id
          and e.event_type in ('approved', 'denied', 'responded', 'expired', 'cancelled')) <> (r.status <> 'pending')::integer
        or not exists (select from approval_event e where e.approval_id = r.id and e.event_type = 'requested')
        or (r.status <> 'pending' and not exists (
          select from approval_event e where e.approval_id = r.id and e.event_type = r.status)))""",
    "a job that nobody runs, nobody can claim and nobody holds": """
        select 1 from job where status = 'RUNNING' and worker_id is null and runnable_at is null""",
    "a job that left the waiting more than once": """
        select job_id from job_history where previous_status = 'WAITING_FOR_APPROVAL' group by 1 having count(*) > 1""",
}


class Outside:
    """What truly happened, by job."""

    def __init__(self) -> None:
        self.shipped: Counter[UUID] = Counter()
        self.app = App("tests")

        @self.app.tool(risk="high", timeout=5, on_uncertain="retry_with_key")
        async def ship(version: str, ctx: ToolContext) -> str:
            """Ship a version."""
            self.shipped[ctx.job_id] += 1
            return "out"


@dataclass
class Round:
    jobs: list[UUID]
    asked: list[Approval]
    acts: list[dict[str, Any]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)


@asynccontextmanager
async def racers(urls: Urls, secrets: Sequence[str]) -> AsyncIterator[list[asyncio.subprocess.Process]]:
    started = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.approvals.approval_racer", urls.app, urls.admin, *secrets,
            cwd=Path(__file__).parents[2],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(PROCESSES)
    ]  # fmt: skip
    try:
        for racer in started:
            assert racer.stdout is not None
            assert await racer.stdout.readline() == b"ready\n"
        yield started
    finally:
        for racer in started:
            assert racer.stdin is not None
            racer.stdin.close()
        assert [await racer.wait() for racer in started] == [0] * PROCESSES


async def _all_wait(world: World, jobs: Sequence[UUID], outside: Outside) -> None:
    async with working(world.db, outside.app, concurrency=16), asyncio.timeout(120):
        for job in jobs:
            while (await job_of(world, job)).status is not W:  # noqa: ASYNC110 -- a worker moves it
                await asyncio.sleep(0.02)


async def _rounds(world: World, outside: Outside, agents: list[Agent], count: int) -> list[Round]:
    """Jobs that wait for one request, for two, and two jobs that wait for the same one."""
    rounds = []
    for number in range(count):
        agent = agents[number % 3 == 1]
        jobs = [await submit(world, agent)]
        if number % 3 == 2:
            jobs.append(await submit(world, agent, session_id=(await job_of(world, jobs[0])).session_id))
        rounds.append(Round(jobs, []))
    await _all_wait(world, [job for each in rounds for job in each.jobs], outside)
    for each in rounds:
        each.asked = await pending(world, each.jobs[0]) or await pending(world, each.jobs[1])
        assert [a.invocations for a in each.asked] in ([1], [1, 1], [2])
    return rounds


def _acts(each: Round, people: Sequence[str], admin: str, chance: random.Random, first: str) -> list[Any]:
    """Sixty-four clients. One kind of act has a few milliseconds' start, another one in each round: not all of them are
    equally quick to their first lock, and each is to win sometimes."""
    # Whose time must first be moved needs a head start.
    late = (0.03, 0.08) if first == "expire" else (0.0, 0.03)

    def act(what: str) -> dict[str, Any]:
        asked = chance.choice(each.asked)
        return {
            "act": what, "by": chance.choice(people) if what in DECIDED.values() else admin,
            "approval": str(asked.id), "version": asked.version, "input_hash": asked.input_hash,
            "job": str(chance.choice(each.jobs)), "after": 0 if what == first else chance.uniform(*late),
        }  # fmt: skip

    many = (
        ["approve"] * 20
        + ["deny"] * 12
        + ["respond"] * 8
        + ["expire"] * 8
        + ["tick"] * 4
        + ["cancel"] * 6
        + ["hold"] * 6
    )
    chance.shuffle(many)
    return [act(what) for what in many]


async def _race(each: Round, started: list[asyncio.subprocess.Process]) -> None:
    async def one(racer: asyncio.subprocess.Process, acts: list[Any]) -> list[str]:
        assert racer.stdin is not None
        assert racer.stdout is not None
        racer.stdin.write(json.dumps(acts).encode() + b"\n")
        await racer.stdin.drain()
        async with asyncio.timeout(60):
            answers: list[str] = json.loads(await racer.stdout.readline())
        return answers

    hands = [each.acts[n : n + CLIENTS] for n in range(0, len(each.acts), CLIENTS)]
    assert len(hands) == len(started)
    for answers in await asyncio.gather(*map(one, started, hands)):
        each.answers += answers


async def _judge(world: World, admin: asyncpg.Connection, each: Round) -> set[str]:
    """One winner per request, who is what the request says it is; the job went where that leads."""
    told = list(zip(each.acts, each.answers, strict=True))
    for act, answer in told:
        assert answer in ANSWERS[act["act"]], (act["act"], answer)
    ends: dict[UUID, str] = {}
    for asked in each.asked:
        row = await admin.fetchrow("select status from approval_request where id = $1", asked.id)
        ends[asked.id] = row["status"]
        mine = [(act["act"], answer) for act, answer in told if act["approval"] == str(asked.id)]
        # A tick is about whatever is due, not about one request.
        winners = {ENDS[act] for act, answer in mine if act in ENDS and answer in ("OK", "expired")}
        ticked = any(act["act"] == "tick" and "expired" in answer for act, answer in told)
        counts = Counter(answer for act, answer in mine if act in DECIDED.values())
        assert counts["OK"] <= 1
        assert counts["OK"] == (row["status"] in DECIDED)
        assert winners <= {row["status"]}
        assert row["status"] != "expired" or winners or ticked
        same = DECIDED.get(row["status"])
        assert all(act == same for act, answer in mine if answer == "DUPLICATE")
        await _trail_agrees(admin, asked, counts, row["status"])
    for job in each.jobs:
        await _job_follows(admin, job, set(ends.values()))
    return set(ends.values())


async def _trail_agrees(admin: asyncpg.Connection, asked: Approval, answers: Counter[str], status: str) -> None:
    """The read model and the audit trail tell of every attempt, and tell the same."""
    found = await admin.fetch("select event_type, times from approval_event where approval_id = $1", asked.id)
    events, rows_of = (Counter(row[0] for row in found for _ in range(row[1])), Counter(row[0] for row in found))
    assert events["channel_duplicate"] == answers["DUPLICATE"]
    assert events["channel_conflict"] == answers["approval_conflict"]
    assert events["refused"] == answers["approval_expired"]
    rows = await admin.fetch(
        "select action, count(*) from audit_entry where session_id = $1"
        " and convert_from(body, 'utf8')::jsonb -> 'data' ->> 'approval' = $2 group by 1",
        asked.session_id, str(asked.id),
    )  # fmt: skip
    said: Counter[str] = Counter(dict(rows))
    assert said["approval_duplicate"] == rows_of["channel_duplicate"]
    assert said["approval_refused"] == rows_of["channel_conflict"] + rows_of["refused"]
    ends = {action: said[f"approval_{action}"] for action in ("decision", "expired", "cancelled")}
    decided = "decision" if status in DECIDED else status
    assert ends == {action: int(action == decided) for action in ends}
    assert (said["approval_requested"], said["approval_joined"]) == (1, asked.invocations - 1)


async def _job_follows(admin: asyncpg.Connection, job: UUID, ends: set[str]) -> None:
    row = await admin.fetchrow("select status, holds, open_approvals, runnable_at from job where id = $1", job)
    history = await admin.fetch("select new_status from job_history where job_id = $1 and previous_status = $2", job, W)
    assert len(history) == 1, "it left the waiting once"
    (left,) = history[0]
    assert row["open_approvals"] == 0
    if ends & {"denied", "expired"} and left != "CANCELLED":
        assert left == row["status"] == "FAILED"
    elif left == "CANCELLED":
        assert row["status"] == "CANCELLED"
    else:
        assert ends <= {"approved", "responded"}
        assert left in ("RUNNING", "PAUSED")
        # Whoever came after the decision could still hold it or cancel it.
        assert row["status"] in ("RUNNING", "PAUSED", "CANCELLED")
        assert (row["status"] == "PAUSED") == bool(row["holds"])
        assert (row["status"] == "RUNNING") == (row["runnable_at"] is not None)


async def _finish(world: World, admin: asyncpg.Connection, outside: Outside, rounds: list[Round]) -> None:
    """Whatever may go on does, and only what was approved happened, once."""
    jobs = [job for each in rounds for job in each.jobs]
    for job in jobs:
        if (await job_of(world, job)).status is JobStatus.PAUSED:
            await steering.resume(world.db, world.admin.actor, job, Resumption())
    async with working(world.db, outside.app, concurrency=16), asyncio.timeout(120):
        while await admin.fetchval(OPEN, jobs):  # noqa: ASYNC110 -- a worker ends them
            await asyncio.sleep(0.02)
    for each in rounds:
        for job in each.jobs:
            status = (await job_of(world, job)).status
            yes = await admin.fetchval(
                "select count(*) from approval_request where id = any ($1) and status = 'approved'",
                [a.id for a in each.asked],
            )
            wanted = yes if status is JobStatus.COMPLETED else 0
            assert outside.shipped[job] == wanted, status
    grants = await admin.fetchrow(
        "select count(*) filter (where consumed_at is not null) as used from approval_grant g"
        " join approval_invocation i on i.call_id = g.call_id and i.approval_id = g.approval_id where i.job_id = any ($1)",
        jobs,
    )
    assert grants["used"] == sum(outside.shipped[job] for job in jobs)


async def _campaign(urls: Urls, world: World, admin: asyncpg.Connection, rounds: int, seed: int) -> None:
    chance, outside = random.Random(seed), Outside()
    people = [(await world.person(Role.APPROVER, name=f"Pat {n}")).secret for n in range(8)]
    await apply_policies(world.db, world.admin.actor, POLICIES)
    limits = {"max_concurrent_jobs": 100}
    agents = [
        await make_agent(world, [turn(call("ship", version="1"))], slug="one", limits=limits),
        await make_agent(
            world, [turn(call("ship", version="1"), call("ship", version="2"))], slug="two", limits=limits
        ),
    ]
    seen: Counter[str] = Counter()
    async with racers(urls, [*people, world.admin.secret]) as started:
        begun = 0
        # Who wins is chance: a short campaign goes on until each of them has.
        while begun < rounds or (begun < 4 * rounds and any(not seen[end] for end in WINS)):
            batch = await _rounds(world, outside, agents, min(BATCH, rounds))
            begun += len(batch)
            for number, each in enumerate(batch):
                first = ("approve", "deny", "respond", "expire", "cancel", "hold")[number % 6]
                each.acts = _acts(each, people, world.admin.secret, chance, first)
                await _race(each, started)
                seen.update(await _judge(world, admin, each))
            await _promises(admin)
            await _finish(world, admin, outside, batch)
            await _promises(admin)
    assert min(seen[end] for end in WINS) >= max(1, rounds // 20), seen
    await admin.execute("select pg_stat_force_next_flush()")
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert await admin.fetchval(deadlocks) == 0
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


async def _promises(admin: asyncpg.Connection) -> None:
    assert await broken_promises(admin) == []


async def broken_promises(admin: asyncpg.Connection) -> list[str]:
    return [name for name, query in (INVARIANTS | PROMISES).items() if await admin.fetch(query)]


@pytest.mark.proves("D.100")
async def test_sixty_four_clients_race_for_the_same_requests(
    urls: Urls, strict: World, admin: asyncpg.Connection
) -> None:
    await _campaign(urls, strict, admin, 10, seed=1)


@pytest.mark.soak
async def test_they_race_for_a_thousand_rounds(urls: Urls, strict: World, admin: asyncpg.Connection) -> None:
    await _campaign(urls, strict, admin, ROUNDS, seed=int(os.environ.get("CORTEX_SOAK_SEED", "2")))


# The last two decisions of a job -----------------------------------------------------------------------------


async def _pairs(urls: Urls, world: World, admin: asyncpg.Connection, count: int) -> None:
    outside = Outside()
    first, second = [await Database.open(urls.app, min_size=4, max_size=4, vault=VAULT) for _ in range(2)]
    script = [turn(call("ship", version="1"), call("ship", version="2"))]
    agent = await make_agent(world, script, limits={"max_concurrent_jobs": 100})
    try:
        for begun in range(0, count, 100):
            jobs = [await submit(world, agent) for _ in range(min(100, count - begun))]
            await _all_wait(world, jobs, outside)
            asked: dict[UUID | None, list[Approval]] = defaultdict(list)
            for approval in (await approvals.list_approvals(world.db, world.admin.actor, None, 200)).items:
                asked[approval.job_id].append(approval)
            turns = asyncio.Semaphore(4)

            async def together(job: UUID, turns: asyncio.Semaphore = turns, asked: Any = asked) -> None:
                async with turns:
                    one, other = asked[job]
                    results = await asyncio.gather(_yes(first, world, one), _yes(second, world, other))
                    assert list(results) == [RecordResult.OK] * 2

            await asyncio.gather(*map(together, jobs))
            rows = await admin.fetch(
                "select j.id, j.status, j.open_approvals, j.runnable_at is not null as ready,"
                " array(select h.new_status from job_history h where h.job_id = j.id order by h.id) as moves,"
                " (select count(*) from audit_entry a where a.session_id = j.session_id"
                "    and a.action = 'session_resumed') as resumed"
                " from job j where j.id = any ($1)",
                jobs,
            )
            assert len(rows) == len(jobs)
            for row in rows:
                assert (row["status"], row["open_approvals"], row["ready"]) == ("RUNNING", 0, True)
                assert row["moves"] == ["PENDING", "RUNNING", "WAITING_FOR_APPROVAL", "RUNNING"]
                assert row["resumed"] == 1
            async with working(world.db, outside.app, concurrency=16), asyncio.timeout(120):
                while await admin.fetchval("select count(*) from job where finished_at is null"):  # noqa: ASYNC110 -- a worker ends them
                    await asyncio.sleep(0.02)
            assert [outside.shipped[job] for job in jobs] == [2] * len(jobs)
    finally:
        await first.close()
        await second.close()
    await _promises(admin)
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


async def _yes(db: Database, world: World, asked: Approval) -> RecordResult:
    decision = ApprovalDecision(decision=Choice.APPROVED, version=asked.version, input_hash=asked.input_hash)
    return (await decisions.decide(db, world.admin.actor, asked.id, decision, Channel.API)).result


@pytest.mark.proves("D.101")
async def test_the_last_two_decisions_at_the_same_instant_resume_the_job_once(
    urls: Urls, strict: World, admin: asyncpg.Connection
) -> None:
    await _pairs(urls, strict, admin, 30)


@pytest.mark.soak
async def test_the_last_two_decisions_a_thousand_times(urls: Urls, strict: World, admin: asyncpg.Connection) -> None:
    await _pairs(urls, strict, admin, PAIRS)
