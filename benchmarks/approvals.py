"""From a person's yes to the step that it allows; decisions over HTTP; and what a million pending requests cost."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg

from benchmarks.goals import goal, line, percentiles, table
from benchmarks.ingest import serve
from benchmarks.measuring import seconds_each
from benchmarks.peers.databases import fresh_database
from benchmarks.plane import CALL, KEY, Counter, Plane, counting_app, plane
from benchmarks.wire import Wire
from cortex_plane.agents.model.completions import ModelRequest, Response, TextChunk
from cortex_plane.approvals.model.approvals import ApprovalDecision, ApprovalStatus, Channel, Choice
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.calls.verbs import deadlines
from cortex_plane.db.pool import listen_for_hints
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.verbs import jobs
from cortex_plane.kernel.ids import new_id
from cortex_plane.tenancy.verbs import keys
from cortex_plane.worker.models.backends import Backends, ScriptedModel
from cortex_plane.worker.worker import JobRunner, WorkerSettings

RESUMES, PEER_RESUMES, DECISIONS, EACH = 100, 40, 400, 100
AIM_RATIO = 1.3
FEW, MANY = 1_000, 1_000_000
IDLE_SECONDS = 0.02
_SCRIPT: list[dict[str, Any]] = [{"text": "I act.", "calls": [CALL]}, {"text": "done"}]


class _Asked:
    """The scripted model; tells when it is asked again, which is when the step before is durable."""

    def __init__(self) -> None:
        self.again: asyncio.Queue[float] = asyncio.Queue()

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        if request.turn_index:
            self.again.put_nowait(time.perf_counter())
        async for piece in ScriptedModel().stream(request):
            yield piece


async def own_resumes(url: str, n: int) -> list[float]:
    """Seconds from the call that approves until the step is done: claimed, sent, outcome and checkpoint durable."""
    model, taken = _Asked(), []
    async with plane(url, policies=None) as made:
        await made.agent("asking", _SCRIPT)
        backends = Backends({"scripted": model})
        worker = JobRunner(made.db, [counting_app(Counter())], KEY, WorkerSettings(concurrency=4), backends)
        async with listen_for_hints(made.app_url, worker.work):
            running = asyncio.create_task(worker.run())
            for _ in range(n + 5):
                id = await made.submit("asking")
                asked = await _pending(made, id)
                await asyncio.sleep(IDLE_SECONDS)
                started = time.perf_counter()
                await _approve(made, asked)
                taken.append(await model.again.get() - started)
                await _until(made, id, JobStatus.COMPLETED)
            worker.stop()
            await running
    return taken[5:]


async def _pending(made: Plane, job_id: UUID) -> Any:
    while True:
        page = await approvals.list_approvals(
            made.db, made.actor, None, 1, status=ApprovalStatus.PENDING, job_id=job_id
        )
        if page.items:
            return page.items[0]
        await asyncio.sleep(0.01)


async def _until(made: Plane, id: UUID, status: JobStatus) -> None:
    while (await jobs.get(made.db, made.actor, id)).status is not status:  # noqa: ASYNC110 -- as a client would
        await asyncio.sleep(0.02)


async def _approve(made: Plane, asked: Any) -> None:
    decision = ApprovalDecision(decision=Choice.APPROVED, version=asked.version, input_hash=asked.input_hash)
    await decisions.decide(made.db, made.actor, asked.id, decision, Channel.API)


# Many that wait --------------------------------------------------------------------------------------------------

_CLONE = """
with model as (select * from approval_request where id = $1),
new as (select gen_random_uuid() as s, gen_random_uuid() as j, gen_random_uuid() as a, gen_random_uuid() as c
  from generate_series(1, $2)),
s as (insert into session (org_id, id, kind, user_account_id, agent_id, status, opened_by)
  select x.org_id, n.s, x.kind, x.user_account_id, x.agent_id, x.status, x.opened_by
  from new n, model m join session x on x.org_id = m.org_id and x.id = m.session_id),
h as (insert into session_head (org_id, session_id) select m.org_id, n.s from new n, model m),
j as (insert into job (org_id, id, session_id, agent_id, agent_version, kind, payload, app, status, open_approvals,
    runnable_at, epoch, checkpoint, checkpoint_mac, caused_by)
  select x.org_id, n.j, n.s, x.agent_id, x.agent_version, x.kind, x.payload, x.app, x.status, 1, null, 1, x.checkpoint,
    x.checkpoint_mac, x.caused_by
  from new n, model m join job x on x.org_id = m.org_id and x.id = m.job_id),
c as (insert into tool_call (org_id, id, job_id, step_index, position, tool_name, tool_digest, arguments, input_hash,
    read_only, on_uncertain, verdict, rule, status)
  select x.org_id, n.c, n.j, x.step_index, x.position, x.tool_name, x.tool_digest, x.arguments, x.input_hash, x.read_only,
    x.on_uncertain, x.verdict, x.rule, x.status
  from new n, model m join tool_call x on x.org_id = m.org_id and x.job_id = m.job_id),
a as (insert into approval_request
  select p.* from new n, model m, lateral jsonb_populate_record(null::approval_request, to_jsonb(m) || jsonb_build_object(
    'id', n.a, 'session_id', n.s, 'job_id', n.j)) p)
insert into approval_invocation (org_id, approval_id, call_id, job_id) select m.org_id, n.a, n.c, n.j from new n, model m
"""

_PARK = """
insert into approval_request
select p.* from approval_request m, generate_series($2::bigint, $3) n,
  lateral jsonb_populate_record(null::approval_request, to_jsonb(m) || jsonb_build_object('id', gen_random_uuid(),
    'input_hash', '\\x' || encode(sha256(n::text::bytea), 'hex'), 'deadline', m.deadline + make_interval(secs => n),
    'next_action_at', m.deadline + make_interval(secs => n))) p
where m.id = $1
"""


@asynccontextmanager
async def waiting(url: str) -> AsyncIterator[tuple[Plane, Any, asyncpg.Connection]]:
    """A plane with one job that waits for an approval, to be copied."""
    async with plane(url, policies=None) as made:
        await made.agent("asking", _SCRIPT)
        worker = JobRunner(made.db, [counting_app(Counter())], KEY, WorkerSettings(concurrency=4))
        running = asyncio.create_task(worker.run())
        asked = await _pending(made, await made.submit("asking"))
        worker.stop()
        await running
        connection = await asyncpg.connect(url)
        try:
            yield made, asked, connection
        finally:
            await connection.close()


async def copies(connection: asyncpg.Connection, asked: Any, n: int) -> list[Any]:
    """Fresh requests, each of a waiting job of its own."""
    before = await connection.fetchval("select plane_now()")
    await connection.execute(_CLONE, asked.id, n)
    rows = await connection.fetch(
        "select a.id from approval_request a join session s on s.id = a.session_id"
        " where a.status = 'pending' and s.created_at >= $1 and a.id <> $2",
        before,
        asked.id,
    )
    return [row["id"] for row in rows]


async def decisions_per_second(url: str, n: int, concurrency: int) -> float:
    async with waiting(url) as (made, asked, connection):
        ids = iter(await copies(connection, asked, n + 20))
        secret = str(await keys.issue_key_for_owner(made.db))
        body = {"decision": "approved", "version": asked.version, "input_hash": asked.input_hash}
        server, port = await serve(made.app_url)
        wire = Wire(port, secret)
        try:

            async def one(_: int) -> None:
                await wire.post(f"/v1/approvals/{next(ids)}/decide", body)

            await seconds_each(one, 20, concurrency)
            return 1 / await seconds_each(one, n, concurrency)
        finally:
            await wire.close()
            server.terminate()
            await server.wait()


async def with_pending(url: str, few: int, many: int, *, rounds: int, each: int) -> dict[tuple[str, int], float]:
    """Seconds of a decision and of a look at the clock, with few and with many that merely wait."""
    taken: dict[tuple[str, int], list[float]] = {}
    async with waiting(url) as (made, asked, connection):
        parked, scheduler = 0, new_id()
        for pending in (few, many):
            while parked < pending:
                upto = min(pending, parked + 100_000)
                await connection.execute(_PARK, asked.id, parked + 1, upto)
                parked = upto
            await connection.execute("vacuum analyze")
            for _ in range(rounds):
                ids = iter(await copies(connection, asked, each))

                async def decide(_: int, ids: Any = ids) -> None:
                    decision = ApprovalDecision(
                        decision=Choice.APPROVED, version=asked.version, input_hash=asked.input_hash
                    )
                    await decisions.decide(made.db, made.actor, next(ids), decision, Channel.API)

                taken.setdefault(("decision", pending), []).append(await seconds_each(decide, each, 1))
                taken.setdefault(("tick", pending), []).append(
                    await seconds_each(lambda _: deadlines.tick(made.db, scheduler, "bench"), each, 1)
                )
    return {name: statistics.median(times) for name, times in taken.items()}


# The table -------------------------------------------------------------------------------------------------------

Resumes = Callable[[str, int], Awaitable[list[float]]]


def _peers() -> dict[str, Resumes]:
    found: dict[str, Resumes] = {}
    try:
        from benchmarks.peers import dbos_waits

        found["DBOS"] = dbos_waits.resumes
    except ImportError as missing:
        print(f"DBOS is left out: {missing}")
    try:
        from benchmarks.peers import absurd_waits

        found["Absurd, its worker"] = absurd_waits.resumes
        found["Absurd, claiming without a pause"] = absurd_waits.without_a_pause
    except ImportError as missing:
        print(f"Absurd is left out: {missing}")
    return found


async def run(
    admin_url: str, *, resumes: int = RESUMES, peer_resumes: int = PEER_RESUMES, decisions: int = DECISIONS,
    few: int = FEW, many: int = MANY, each: int = EACH,
) -> bool:  # fmt: skip
    print(f"\n{'approve to next step done':36}{'p50 ms':>10}{'p99 ms':>10}{'ours is':>12}")
    waits: dict[str, list[float]] = {}
    for name, resume in {"ours": own_resumes, **_peers()}.items():
        async with fresh_database(admin_url, "resumes") as url:
            waits[name] = await resume(url, resumes if name == "ours" else peer_resumes)
    ours = statistics.median(waits["ours"]) * 1e3
    for name, seconds in waits.items():
        p50, p99 = statistics.median(seconds) * 1e3, statistics.quantiles(seconds, n=100)[-1] * 1e3
        print(f"{'  ' + name:36}{p50:>10.1f}{p99:>10.1f}{'' if name == 'ours' else f'{p50 / ours:>11.2f}×'}")
        line("resume", name, percentiles(seconds))
    table("approve to next step done, p50", "ms", {name: statistics.median(s) * 1e3 for name, s in waits.items()})
    met = goal("decisions over HTTP at 16", "yes → resumed step, p50", ours, "≤", 8, " ms")

    print(f"\n{'decisions over HTTP':36}{'per second':>10}")
    rates: dict[str, float] = {}
    for concurrency in (1, 16):
        async with fresh_database(admin_url, "decisions") as url:
            rates[f"{concurrency} at once"] = rate = await decisions_per_second(url, decisions, concurrency)
        print(f"{f'  {concurrency} at once':36}{rate:>10.0f}")
    table("decisions over HTTP", "per second", rates)
    met = goal("decisions over HTTP at 16", "decisions per second", rates["16 at once"], "≥", 400, "/s") and met

    async with fresh_database(admin_url, "pending") as url:
        taken = await with_pending(url, few, many, rounds=3, each=each)
    print(f"\n{'with so many pending':36}{few:>10,}{many:>12,}{'ratio':>8}{'aim':>8}")
    for what in ("decision", "tick"):
        with_few, with_many = taken[what, few] * 1e3, taken[what, many] * 1e3
        missed = with_many / with_few > AIM_RATIO
        met = met and not missed
        print(
            f"{f'  {what}, ms':36}{with_few:>10.2f}{with_many:>12.2f}{with_many / with_few:>8.2f}{f'< {AIM_RATIO}':>8}"
            f"{'  MISSED' if missed else ''}"
        )
    return met
