"""Durable steps with a side effect, by a worker beside the database and by one that only reaches the API: what one more step costs.

Both are processes as in production. The remote worker's attempts run in the process of the API, and each call crosses its link.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import sys
import time
from collections.abc import AsyncIterator
from uuid import uuid4

import asyncpg

from benchmarks.goals import goal, table
from benchmarks.ingest import MASTER_KEY, serve
from benchmarks.peers.rounds import Workload, interleaved
from benchmarks.plane import CALL, Plane, counting_app, plane
from benchmarks.plane import Counter as Acts
from cortex_plane.jobs.model.jobs import Cancellation
from cortex_plane.jobs.verbs import steering
from cortex_plane.tenancy.model.access import KeyDraft
from cortex_plane.tenancy.verbs import keys

app = counting_app(Acts(), "ask_human")
WARM_STEPS = 5
LOCAL, REMOTE = "worker beside the database", "remote worker"


async def run(admin_url: str, *, rounds: int = 3, count: int = 300) -> bool:
    met = True
    for concurrency in (1, 8):
        columns: dict[str, Workload] = {
            LOCAL: functools.partial(steps_per_second, n=count, concurrency=concurrency, remote=False),
            REMOTE: functools.partial(steps_per_second, n=count, concurrency=concurrency, remote=True),
        }
        rates = await interleaved(admin_url, columns, rounds=rounds)
        title = f"durable step with a side effect, {concurrency} at once"
        print(f"\n{title:44}{'steps/s':>10}")
        for name, rate in rates.items():
            print(f"{'  ' + name:44}{rate:>10.0f}", flush=True)
        table(f"{title}: local and remote", "steps/s", rates)
        met = goal(title, "time of a remote step to a local one", rates[LOCAL] / rates[REMOTE], "≤", 2.0) and met
    return met


async def steps_per_second(url: str, n: int, concurrency: int, *, remote: bool) -> float:
    async with plane(url) as made, remote_process(made) if remote else local_process(made):
        slug = f"endless-{uuid4().hex[:8]}"
        await made.agent(slug, [{"calls": [CALL], "repeat": True}])
        ids = [await made.submit(slug) for _ in range(concurrency)]
        connection = await asyncpg.connect(url)
        try:
            begin = await _steps(connection, WARM_STEPS * concurrency)
            started = time.perf_counter()
            end = await _steps(connection, begin + n)
            taken = time.perf_counter() - started
        finally:
            await connection.close()
        for id in ids:
            await steering.cancel(made.db, made.actor, id, Cancellation())
    return (end - begin) / taken


async def _steps(connection: asyncpg.Connection, least: int) -> int:
    """How many steps of open jobs are complete, once there are at least so many."""
    while True:
        done: int = await connection.fetchval(
            "select count(*) from tool_call c join job j on j.id = c.job_id where c.finished_at is not null and j.finished_at is null"
        )
        if done >= least:
            return done
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def local_process(made: Plane) -> AsyncIterator[None]:
    async with _process(DATABASE_URL=made.app_url, CORTEX_MASTER_KEY=MASTER_KEY, CORTEX_PROCESSES="1"):
        yield


@contextlib.asynccontextmanager
async def remote_process(made: Plane) -> AsyncIterator[None]:
    new = await keys.create_key(made.db, made.actor, KeyDraft(name="bench", apps=[app.name]))
    server, port = await serve(made.app_url)
    try:
        async with _process(
            CORTEX_URL=f"http://127.0.0.1:{port}", CORTEX_KEY=str(new.secret), CORTEX_HOME="/nonexistent"
        ):
            yield
    finally:
        server.terminate()
        await server.wait()


@contextlib.asynccontextmanager
async def _process(**environment: str) -> AsyncIterator[None]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CORTEX_", "DATABASE_"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cortex_plane", "worker", "--app", "benchmarks.remote_steps:app",
        env={**clean, "CORTEX_LOG_LEVEL": "error", **environment}, stderr=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield
    finally:
        process.terminate()
        await process.wait()
