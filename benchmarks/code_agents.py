"""An agent written as code, of ten steps: ours, the same rows written bare in as many commits, and the peers.

Each engine runs the same ten functions one after the other and keeps what each returned. The steps are repeatable: they are recorded
once they are over, as those of the peers are, and may run again where a worker dies. A whole job is measured, from its
submission to its end. Ours commits twelve times for it: the submission, the claim, nine steps, and the last with the end.
"""

from __future__ import annotations

import asyncio
import functools
import os
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import orjson

from benchmarks.goals import goal, table
from benchmarks.measuring import Work, seconds_each
from benchmarks.peers.payloads import TOOL_ARGUMENTS, TOOL_RESULT, effect
from benchmarks.peers.rounds import Workload, interleaved, peer_columns
from benchmarks.plane import Plane, plane, working
from benchmarks.steps import completions
from cortex_plane import App, Context

TEN = 10
COMMITS = TEN + 2
CHECKPOINT_BYTES = 3000


def ten_steps() -> App:
    app = App("bench")

    @app.agent("ten")
    async def run(ctx: Context) -> str:
        for _ in range(TEN):
            await ctx.step("effect", effect, TOOL_ARGUMENTS, repeatable=True)
        return "done"

    return app


async def code_agents(url: str, n: int, concurrency: int) -> float:
    """Steps per second of ``n`` whole jobs."""
    async with plane(url) as made:
        slug = f"code-{uuid4().hex[:8]}"
        await made.agent(slug, [], run="ten")
        async with working(made, ten_steps(), concurrency), completions(url) as waiting:

            async def job(_: int) -> None:
                ended = waiting[await made.submit(slug)] = asyncio.Event()
                await ended.wait()

            await seconds_each(job, concurrency, concurrency)
            return TEN / await seconds_each(job, n, concurrency)


async def floor(url: str, n: int, concurrency: int) -> float:
    """As many bare commits with the rows of a step, by a login without row-level security."""
    pool = await asyncpg.create_pool(url, min_size=concurrency, max_size=concurrency)
    try:
        async with plane(url) as made:
            write = await _bare(made, pool, concurrency)
        await seconds_each(write, COMMITS * concurrency, concurrency)
        return TEN / (COMMITS * await seconds_each(write, COMMITS * n, concurrency))
    finally:
        await pool.close()


async def _bare(made: Plane, pool: asyncpg.Pool, concurrency: int) -> Work:
    agent = await made.agent(f"floor-{uuid4().hex[:8]}", [{"text": "done"}])
    places: list[tuple[UUID, UUID, UUID]] = []
    for _ in range(concurrency):
        row = await pool.fetchrow(
            "update job set runnable_at = null where id = $1 returning org_id, session_id, id",
            await made.submit(agent.slug),
        )
        places.append(tuple(row))
    statement = (Path(__file__).parent / "floor_journal.sql").read_text()
    result, checkpoint = (orjson.dumps(v).decode() for v in (TOOL_RESULT, {"filler": "x" * CHECKPOINT_BYTES}))
    mac, digest, body = os.urandom(32), os.urandom(32), os.urandom(400)
    numbers: dict[UUID, int] = {}

    async def write(number: int) -> None:
        org, session, job = places[number % concurrency]
        index = numbers[job] = numbers.get(job, 100) + 1
        await pool.execute(statement, org, session, job, checkpoint, mac, result, digest, body, index)

    return write


async def run(admin_url: str, *, rounds: int = 3, count: int = 32) -> bool:
    met = True
    for concurrency in (1, 16):
        n = count if concurrency == 1 else 3 * count
        columns: dict[str, Workload] = {
            "floor": functools.partial(floor, n=n, concurrency=concurrency),
            "ours": functools.partial(code_agents, n=n, concurrency=concurrency),
            **peer_columns("ten_step_jobs", n, concurrency),
        }
        met = _print(concurrency, await interleaved(admin_url, columns, rounds=rounds)) and met
    return met


def _print(concurrency: int, rates: dict[str, float]) -> bool:
    title = f"code agent of ten steps, {concurrency} at once"
    print(f"\n{title:44}{'steps/s':>10}{'ours is':>10}")
    for name, rate in rates.items():
        print(f"{'  ' + name:44}{rate:>10.0f}{rates['ours'] / rate:>9.2f}×")
    table(title, "steps/s", rates)
    if concurrency == 1 or "Absurd" not in rates:
        return True
    return goal("code agent's step at 16", "ours to Absurd", rates["ours"] / rates["Absurd"], "≥", 1.2)
