"""DBOS: workflows whose steps are recorded in its system database.

Everything is its default: a pool of 20 connections (enough for 16 jobs), LISTEN/NOTIFY, the workflow started in the
process that asked for it (no queue, the cheapest way). An async step is recorded before the workflow goes on; there is
no weaker mode to choose. Without Conductor, its commercial service; nothing leaves the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

from dbos import DBOS

from benchmarks.measuring import seconds_each
from benchmarks.peers.payloads import TOOL_ARGUMENTS, effect

TEN = 10


async def _act(arguments: dict[str, Any]) -> dict[str, Any]:
    return await effect(arguments)


step = DBOS.step()(_act)


async def _job(arguments: dict[str, Any], steps: int) -> str:
    for _ in range(steps):
        await step(arguments)
    return "done"


workflow = DBOS.workflow()(_job)


def _launch(url: str) -> None:
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "CRITICAL"})
    DBOS.launch()


@asynccontextmanager
async def launched(url: str) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(1) as aside:  # launching migrates and destroying joins threads: both block
        await loop.run_in_executor(aside, _launch, url)
        try:
            yield
        finally:
            await loop.run_in_executor(aside, DBOS.destroy)
            # DBOS made its own threads the loop's default ones, and has ended them now.
            loop.set_default_executor(ThreadPoolExecutor())


async def _run(steps: int) -> None:
    handle = await DBOS.start_workflow_async(workflow, TOOL_ARGUMENTS, steps)
    await handle.get_result()


async def side_effecting_step(url: str, n: int, concurrency: int) -> float:
    """Steps per second of ``concurrency`` long jobs that share ``n`` steps: what one more step costs."""
    each = n // concurrency
    async with launched(url):
        await seconds_each(lambda _: _run(3), concurrency, concurrency)
        return each / await seconds_each(lambda _: _run(each), concurrency, concurrency)


async def ten_step_jobs(url: str, n: int, concurrency: int) -> float:
    """Steps per second of ``n`` whole jobs, from their creation to their completion."""
    async with launched(url):
        await seconds_each(lambda _: _run(TEN), concurrency, concurrency)
        return TEN / await seconds_each(lambda _: _run(TEN), n, concurrency)
