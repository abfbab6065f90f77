"""Claiming jobs, one worker's batches against pgqueuer's; and how soon a submitted job takes its first step."""

from __future__ import annotations

import asyncio
import statistics
import time
from datetime import timedelta
from typing import Any

import asyncpg

from benchmarks.goals import goal, line, percentiles, table
from benchmarks.peers.databases import fresh_database
from benchmarks.plane import Plane, plane
from cortex_plane.calls.verbs import steps
from cortex_plane.db.database import NOBODY
from cortex_plane.db.pool import listen_for_hints
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import JobDraft, JobStatus
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.jobs.verbs import jobs
from cortex_plane.kernel.ids import new_id
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.worker import JobRunner, WorkerSettings

JOBS = 2_000
STARTS = 100
BATCHES = (1, 10, 100)
AIM_MS = 6.0
IDLE_SECONDS = 0.02


async def own_claims(url: str, n: int, batch: int) -> float:
    """Jobs per second that are claimed, each with its lease, its history and its event; the limit of the agent is exact."""
    async with plane(url) as made:
        slug = f"claimed-{batch}"
        await made.agent(slug, [{"text": "done"}])
        await _fill(url, made, slug, n)
        worker = new_id()
        await jobs_store.register_worker(made.db, worker, "bench", "bench", 1, ["bench"], 1, timedelta(hours=1))
        taken, done = 0.0, 0
        while done < n:
            started = time.perf_counter()
            claimed, _ = await jobs_store.claim_jobs(made.db, worker, ["bench"], batch, NOBODY)
            taken += time.perf_counter() - started
            done += len(claimed)
            await asyncio.gather(*(_finish(made, given, worker) for given in claimed))  # not timed
        return n / taken


async def _finish(made: Plane, given: Any, worker: Any) -> None:
    write = StepWrite(status=JobStatus.COMPLETED, events=[("status", {"status": "COMPLETED"})])
    if await steps.advance(made.db, given, worker, 1, write, 2.0) is None:
        raise RuntimeError("the job was lost")


async def _fill(url: str, made: Plane, slug: str, n: int) -> None:
    """Jobs in sessions of their own, written in one statement: submitting is not what is measured here."""
    first = await made.submit(slug)
    connection = await asyncpg.connect(url)
    await connection.execute(
        """
        with model as (select * from job where id = $1),
        new as (select gen_random_uuid() as session, gen_random_uuid() as job from generate_series(2, $2)),
        s as (
          insert into session (org_id, id, kind, agent_id, status, opened_by)
          select m.org_id, n.session, 'programmatic', m.agent_id, 'ACTIVE', gen_random_uuid() from model m, new n),
        h as (insert into session_head (org_id, session_id) select m.org_id, n.session from model m, new n)
        insert into job (org_id, id, session_id, agent_id, agent_version, kind, payload, app)
        select m.org_id, n.job, n.session, m.agent_id, m.agent_version, m.kind, m.payload, m.app from model m, new n
        """,
        first,
        n,
    )
    await connection.execute("analyze")
    await connection.close()


async def own_submit_to_start(url: str, n: int) -> list[float]:
    """Seconds from the call that submits a job until its tool runs, one at a time on an idle worker."""
    starts: asyncio.Queue[float] = asyncio.Queue()
    app = App("bench")

    @app.tool(read_only=True)
    async def begin() -> None:
        """The first step."""
        starts.put_nowait(time.perf_counter())

    taken = []
    async with plane(url) as made:
        await made.agent("starter", [{"calls": [{"tool": "begin"}]}, {"text": "done"}])
        worker = JobRunner(made.db, [app], bytes(32), WorkerSettings(concurrency=4))
        async with listen_for_hints(made.app_url, worker.work):
            running = asyncio.create_task(worker.run())
            draft = JobDraft(agent="starter", payload={"text": "go"})
            await jobs.submit(made.db, made.actor, draft)
            await starts.get()
            for _ in range(n):
                await asyncio.sleep(IDLE_SECONDS)
                submitted = time.perf_counter()
                await jobs.submit(made.db, made.actor, draft)
                taken.append(await starts.get() - submitted)
            worker.stop()
            await running
    return taken


async def run(admin_url: str, *, rounds: int = 3, jobs: int = JOBS, starts: int = STARTS) -> bool:
    met = True
    try:
        from benchmarks.peers import pgqueuer_claims as peer
    except ImportError as missing:
        print(f"pgqueuer is left out: {missing}")
        peer = None  # type: ignore[assignment]
    print(f"\n{'claim, limits exact':36}{'jobs/s':>10}{'ours is':>10}")
    for batch in BATCHES:
        rates: dict[str, list[float]] = {"ours": [], "pgqueuer": []}
        for _ in range(rounds):
            async with fresh_database(admin_url, "claims") as url:
                rates["ours"].append(await own_claims(url, jobs, batch))
            if peer is not None:
                async with fresh_database(admin_url, "claims") as url:
                    rates["pgqueuer"].append(await peer.leases(url, jobs, batch, limit=10_000))
        ours = statistics.median(rates["ours"])
        print(f"{f'  ours, batches of {batch}':36}{ours:>10.0f}")
        if rates["pgqueuer"]:
            theirs = statistics.median(rates["pgqueuer"])
            print(f"{f'  pgqueuer, batches of {batch}':36}{theirs:>10.0f}{ours / theirs:>9.2f}×")
            table(f"claims in batches of {batch}", "jobs/s", {"ours": ours, "pgqueuer": theirs})
            if batch == 10:
                met = goal("claims in batches of 10", "ours to pgqueuer", ours / theirs, "≥", 0.8) and met
    print(f"\n{'submit to first step':36}{'p50 ms':>10}{'p95 ms':>10}")
    async with fresh_database(admin_url, "starts") as url:
        met = _print_waits("ours", await own_submit_to_start(url, starts), AIM_MS) and met
    if peer is not None:
        async with fresh_database(admin_url, "starts") as url:
            _print_waits("pgqueuer (job starts)", await peer.submit_to_start(url, starts), None)
    return met


def _print_waits(name: str, waits: list[float], aim: float | None) -> bool:
    p50 = statistics.median(waits) * 1e3
    p95 = statistics.quantiles(waits, n=20)[-1] * 1e3
    print(f"{'  ' + name:36}{p50:>10.1f}{p95:>10.1f}")
    line("starts", name, percentiles(waits))
    return aim is None or goal("submit → first step", "p50", p50, "≤", aim, " ms")
