"""Durable steps with a side effect: ours, the same rows written bare in as many commits, and the peers."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from uuid import UUID, uuid4

import asyncpg
import orjson

from benchmarks.goals import goal, line, table
from benchmarks.lean import lean_step
from benchmarks.measuring import seconds_each
from benchmarks.peers.payloads import TOOL_ARGUMENTS, TOOL_RESULT
from benchmarks.peers.rounds import Workload, interleaved, peer_columns
from benchmarks.plane import CALL, Counter, counting_app, plane, working
from cortex_plane.jobs.model.jobs import Cancellation
from cortex_plane.jobs.verbs import steering

HERE = Path(__file__).parent
TEN = 10
WARM_STEPS = 3
CHECKPOINT_BYTES = 4600


async def side_effecting_step(
    url: str, n: int, concurrency: int, tool: Literal["ask_human", "retry_with_key"], *, deferral: bool = False
) -> float:
    """Steps per second of ``concurrency`` long jobs that share ``n`` steps: what one more step costs."""
    counter = Counter()
    async with plane(url) as made:
        slug = f"endless-{uuid4().hex[:8]}"
        await made.agent(slug, [{"calls": [CALL], "repeat": True}], deferral=deferral)
        ids = [await made.submit(slug) for _ in range(concurrency)]
        counter.expect(WARM_STEPS * concurrency)
        async with working(made, counting_app(counter, tool), concurrency):
            await counter.reached.wait()
            counter.expect(n)
            started = time.perf_counter()
            await counter.reached.wait()
            taken = time.perf_counter() - started
            for id in ids:
                await steering.cancel(made.db, made.actor, id, Cancellation())
    return n / taken


async def ten_step_jobs(url: str, n: int, concurrency: int) -> float:
    """Steps per second of ``n`` whole jobs of nine steps with a side effect and an answer, from submission to end."""
    async with plane(url) as made:
        slug = f"ten-{uuid4().hex[:8]}"
        await made.agent(slug, [*({"calls": [CALL]} for _ in range(TEN - 1)), {"text": "done"}])
        async with working(made, counting_app(Counter()), concurrency), completions(url) as waiting:

            async def job(_: int) -> None:
                ended = waiting[await made.submit(slug)] = asyncio.Event()
                await ended.wait()

            await seconds_each(job, concurrency, concurrency)
            return TEN / await seconds_each(job, n, concurrency)


@asynccontextmanager
async def completions(url: str) -> AsyncIterator[dict[UUID, asyncio.Event]]:
    """Events that are set when their job is complete: one look for all of them every few milliseconds."""
    waiting: dict[UUID, asyncio.Event] = {}
    connection = await asyncpg.connect(url)

    async def look() -> None:
        while True:
            ended = await connection.fetch(
                "select id from job where id = any ($1) and finished_at is not null", list(waiting)
            )
            for row in ended:
                waiting.pop(row["id"]).set()
            await asyncio.sleep(0.004)

    task = asyncio.create_task(look())
    try:
        yield waiting
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await connection.close()


async def floor_step(url: str, n: int, concurrency: int) -> float:
    """The rows of one step, as two bare statements in two commits, by a login without row-level security."""
    pool = await asyncpg.create_pool(url, min_size=concurrency, max_size=concurrency, init=_plain)
    try:
        async with plane(url) as made:
            agent = await made.agent(f"floor-{uuid4().hex[:8]}", [{"text": "done"}])
            places = []
            for _ in range(concurrency):
                id = await made.submit(agent.slug)
                row = await pool.fetchrow(
                    "update job set runnable_at = null where id = $1 returning org_id, session_id", id
                )
                places.append((row["org_id"], row["session_id"], id))
        intent, outcome = (HERE / "floor_intent.sql").read_text(), (HERE / "floor_outcome.sql").read_text()
        arguments, result = orjson.dumps(TOOL_ARGUMENTS).decode(), orjson.dumps(TOOL_RESULT).decode()
        response = orjson.dumps(
            {"text": None, "calls": [{"id": "call_1", "name": "effect", "arguments": TOOL_ARGUMENTS}]}
        ).decode()
        # As large as ours is: the last twenty entries of the log and the call of the step.
        checkpoint = orjson.dumps({"filler": "x" * CHECKPOINT_BYTES}).decode()
        mac, digest, body = os.urandom(32), os.urandom(32), os.urandom(600)
        numbers: dict[Any, int] = {}

        async def step(number: int) -> None:
            org, session, job = places[number % concurrency]
            index = numbers[job] = numbers.get(job, -1) + 1
            call = uuid4()
            await pool.execute(
                intent, org, session, job, checkpoint, mac, index, response, call, arguments, digest, body,
                2 * index + 100,
            )  # fmt: skip
            await pool.execute(outcome, org, session, job, checkpoint, mac, call, result, digest, body, 2 * index + 101)

        await seconds_each(step, WARM_STEPS * concurrency, concurrency)
        return 1 / await seconds_each(step, n, concurrency)
    finally:
        await pool.close()


async def _plain(connection: Any) -> None:
    await connection.execute("set search_path = public")


async def run(admin_url: str, *, rounds: int = 3, count: int = 320, jobs: int = 32) -> bool:
    """``count`` steps, and ``jobs`` of ten steps."""
    met = True
    by_concurrency: dict[str, list[tuple[float, float]]] = {}
    for concurrency in CONCURRENCIES:
        n = count if concurrency == 1 else 3 * count
        rates = await interleaved(admin_url, _columns(n, concurrency), rounds=rounds)
        _show(f"durable step with a side effect, {concurrency} at once", rates)
        for name, rate in rates.items():
            by_concurrency.setdefault(name, []).append((concurrency, rate))
        if concurrency in ABSURD:
            met = all(list(_step_goals(concurrency, rates))) and met
    for name, points in by_concurrency.items():
        line("steps", name, points)
    for concurrency in (1, 16):
        n = jobs if concurrency == 1 else 3 * jobs
        columns: dict[str, Workload] = {"ours": functools.partial(ten_step_jobs, n=n, concurrency=concurrency)}
        columns |= peer_columns("ten_step_jobs", n, concurrency)
        rates = await interleaved(admin_url, columns, rounds=rounds)
        _show(f"whole jobs of ten steps, {concurrency} at once", rates)
        if concurrency == 16 and "Absurd" in rates:
            met = (
                goal("whole jobs of ten steps at 16", "ours to Absurd", rates["ours"] / rates["Absurd"], "≥", 1.2)
                and met
            )
    return met


CONCURRENCIES = (1, 4, 16)
ABSURD = {1: (1.0, 1.3), 16: (1.2, 1.5)}
"""How many times Absurd's rate ours must be: in two commits, and where the outcome goes with the next intent."""
FLOOR, LEAN, LEAN_ONE = "floor: the same rows, bare", "lean floor, two commits", "lean floor, one commit"
ASKS, RETRIES, DEFERS = "ours, ask_human", "ours, retry_with_key", "ours, outcome with the next intent"


def _columns(n: int, concurrency: int) -> dict[str, Workload]:
    ours = functools.partial(side_effecting_step, n=n, concurrency=concurrency)
    lean = functools.partial(lean_step, n=n, concurrency=concurrency)
    columns: dict[str, Workload] = {
        FLOOR: functools.partial(floor_step, n=n, concurrency=concurrency),
        LEAN: functools.partial(lean, commits=2),
        LEAN_ONE: functools.partial(lean, commits=1),
        ASKS: functools.partial(ours, tool="ask_human"),
        RETRIES: functools.partial(ours, tool="retry_with_key"),
        DEFERS: functools.partial(ours, tool="retry_with_key", deferral=True),
    }
    return columns | peer_columns("side_effecting_step", n, concurrency)


def _show(title: str, rates: dict[str, float]) -> None:
    print(f"\n{title:44}{'steps/s':>10}")
    for name, rate in rates.items():
        print(f"{'  ' + name:44}{rate:>10.0f}", flush=True)
    table(title, "steps/s", rates)


def _step_goals(concurrency: int, rates: dict[str, float]) -> Iterator[bool]:
    two, one = ABSURD[concurrency]
    work = f"durable step in two commits, {concurrency} at once"
    for name in (ASKS, RETRIES):
        for peer, bound in (("Absurd", two), ("LangGraph", 2.0), ("DBOS", 2.0)):
            if peer in rates:
                yield goal(work, f"{name} to {peer}", rates[name] / rates[peer], "≥", bound)
        yield goal(work, f"{name}: time to that of the lean floor", rates[LEAN] / rates[name], "≤", 1.5)
    work = f"durable step, outcome with the next intent, {concurrency} at once"
    if "Absurd" in rates:
        yield goal(work, f"{DEFERS} to Absurd", rates[DEFERS] / rates["Absurd"], "≥", one)
