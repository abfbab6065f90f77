"""pgqueuer: claiming and finishing trivial jobs, and how soon a submitted job starts.

Its settings are the fastest of those tried here: the asyncpg driver on a pool, and a batch of 500 where its default
is 10 (which is 4 times slower). One worker claims a whole batch in one statement and its finishing is buffered: finished
jobs are moved to its log in batches too, up to 0.1 s after the job itself; the drain that is timed ends when all are.
Starting and stopping the worker is in the time (about 0.1 s), so give it 10,000 jobs or more.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import AsyncpgPoolDriver, PgQueuer, Queries
from pgqueuer.types import QueueExecutionMode

logging.getLogger("pgqueuer").setLevel(logging.CRITICAL)

BATCH = 500
CONNECTIONS = 4
IDLE_SECONDS = 0.02


@asynccontextmanager
async def _queries(url: str) -> AsyncIterator[Any]:
    """Its storage on a pool of its own, with its tables in place."""
    async with asyncpg.create_pool(url, min_size=CONNECTIONS, max_size=CONNECTIONS) as pool:
        queries = Queries(AsyncpgPoolDriver(pool))
        if not await queries.schema_is_installed():
            await queries.install()
        yield queries


async def claims(url: str, n: int, *, batch_size: int = BATCH) -> float:
    """Jobs per second, from the first claim until the last is finished and recorded as such."""
    done = 0
    async with _queries(url) as submitting, _queries(url) as working:
        await submitting.enqueue(["job"] * n, [None] * n, [0] * n)
        queue = PgQueuer(working.driver)

        async def job(_: Any) -> None:
            nonlocal done
            done += 1

        queue.entrypoint("job")(job)
        started = time.perf_counter()
        await queue.qm.run(batch_size=batch_size, mode=QueueExecutionMode.drain)
        taken = time.perf_counter() - started
    if done != n:
        raise RuntimeError(f"pgqueuer finished {done} of {n} jobs")
    return n / taken


async def leases(url: str, n: int, batch_size: int, *, limit: int = 0) -> float:
    """Jobs per second that are claimed and nothing else; ``limit`` bounds how many may run at once, 0 for no bound."""
    from pgqueuer.ports.repository import EntrypointExecutionParameter

    async with _queries(url) as queries:
        await queries.enqueue(["job"] * n, [None] * n, [0] * n)
        wanted = {"job": EntrypointExecutionParameter(concurrency_limit=limit)}
        taken, claimed = 0.0, 0
        while claimed < n:
            started = time.perf_counter()
            jobs = await queries.dequeue(batch_size, wanted, uuid.uuid4(), None, timedelta(seconds=60))
            taken += time.perf_counter() - started
            claimed += len(jobs)
            await queries.log_jobs([(job, "successful", None) for job in jobs])  # not timed: a slot is free again
        return n / taken


async def submit_to_start(url: str, n: int) -> list[float]:
    """Seconds from the call that submits a job until its first line runs, one job at a time in an idle queue."""
    starts: asyncio.Queue[float] = asyncio.Queue()
    taken = []
    async with _queries(url) as submitting, _queries(url) as working:
        queue = PgQueuer(working.driver)

        async def job(_: Any) -> None:
            starts.put_nowait(time.perf_counter())

        queue.entrypoint("job")(job)
        running = asyncio.create_task(queue.qm.run(batch_size=BATCH))
        try:
            await submitting.enqueue("job", None)
            await starts.get()  # the worker listens now
            for _ in range(n):
                await asyncio.sleep(IDLE_SECONDS)
                submitted = time.perf_counter()
                await submitting.enqueue("job", None)
                taken.append(await starts.get() - submitted)
        finally:
            queue.shutdown.set()
            await running
    return taken
