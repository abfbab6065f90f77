"""Absurd: tasks whose steps are checkpoints written by its stored procedures.

A client of its SDK has one connection, on which concurrent tasks would wait for one another; so every concurrent
worker is a client of its own that claims one task at a time. A worker claims again at once (``work_batch``) instead of
sleeping for the SDK's polling interval of 0.25 s. Both favour Absurd.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg
from absurd_sdk import AsyncAbsurd
from absurdctl import BUNDLED_SCHEMA_SQL

from benchmarks.peers.payloads import TOOL_ARGUMENTS, effect

logging.getLogger("absurd_sdk").setLevel(logging.CRITICAL)
logging.getLogger("psycopg").setLevel(logging.CRITICAL)

TEN = 10
QUEUE = "bench"


async def install(url: str) -> None:
    """The schema as ``absurdctl init`` applies it (which needs psql), unless it is there."""
    connection = await asyncpg.connect(url)
    try:
        if not await connection.fetchval("select to_regnamespace('absurd') is not null"):
            await connection.execute(BUNDLED_SCHEMA_SQL)
    finally:
        await connection.close()


class Workers:
    """Clients of one queue, and how many tasks they began and ended."""

    def __init__(self, clients: list[Any]) -> None:
        self.clients = clients
        self.begun = self.ended = 0
        for client in clients:
            client.register_task("job")(self._job)

    async def seconds_each(self, jobs: int, steps: int) -> float:
        """Seconds per job. Each client creates a job and works one; who works whose is up to the queue."""
        self.begun = self.ended = 0
        numbers = iter(range(jobs))

        async def lane(client: Any) -> None:
            for _ in numbers:
                await client.spawn("job", {"arguments": TOOL_ARGUMENTS, "steps": steps})
                await client.work_batch(batch_size=1)
            while self.begun < jobs:  # a claim can come back empty while another takes our job
                await client.work_batch(batch_size=1)

        started = time.perf_counter()
        await asyncio.gather(*(lane(client) for client in self.clients))
        taken = time.perf_counter() - started
        if self.ended != jobs:
            raise RuntimeError(f"Absurd finished {self.ended} of {jobs} jobs")
        return taken / jobs

    async def _job(self, params: dict[str, Any], ctx: Any) -> str:
        self.begun += 1
        for number in range(params["steps"]):
            await ctx.step(f"step-{number}", lambda: effect(params["arguments"]))
        self.ended += 1
        return "done"


@asynccontextmanager
async def _workers(url: str, count: int) -> AsyncIterator[Workers]:
    await install(url)
    async with AsyncExitStack() as stack:
        clients = [AsyncAbsurd(url, queue_name=QUEUE) for _ in range(count)]
        for client in clients:
            stack.push_async_callback(client.close)
        await clients[0].create_queue()
        yield Workers(clients)


async def side_effecting_step(url: str, n: int, concurrency: int) -> float:
    """Steps per second of ``concurrency`` long jobs that share ``n`` steps: what one more step costs."""
    each = n // concurrency
    async with _workers(url, concurrency) as workers:
        await workers.seconds_each(concurrency, 3)
        return each / await workers.seconds_each(concurrency, each)


async def ten_step_jobs(url: str, n: int, concurrency: int) -> float:
    """Steps per second of ``n`` whole jobs, from their creation to their completion."""
    async with _workers(url, concurrency) as workers:
        await workers.seconds_each(concurrency, TEN)
        return TEN / await workers.seconds_each(n, TEN)
