"""A thousand jobs that sleep and a thousand that wait for a signal: what they cost while nothing happens.

Two planes on one server, one without any job and one with two thousand parked ones. In turn a worker process of its own runs
on each for a while, and what it holds and what the server writes is counted; the difference is what the jobs cost. At the end
each of the waiting ones gets its signal and must complete.

    python -m benchmarks.parked URL    # a worker on this database, until its standard input ends
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg

from benchmarks.peers.databases import fresh_database
from benchmarks.plane import Plane, plane, working
from benchmarks.steps import completions
from cortex_plane import App, Context
from cortex_plane.jobs.model.journal import SignalDraft
from cortex_plane.jobs.verbs import steering

EACH = 1000
WINDOW = 15.0
SETTLING = 3.0
AT_ONCE = 16
AWAKE = "select count(*) from job where status <> 'SLEEPING'"
AIMS = (0.0, 2.0, 64.0, 30.0)
"""How much more may be measured: connections, MB of memory, KB of log and rows written per minute."""


def parking_app() -> App:
    app = App("parking")

    @app.agent("sleeper")
    async def sleeper(ctx: Context) -> str:
        await ctx.step("begin", _nothing, repeatable=True)
        await ctx.sleep(7 * 24 * 3600)
        return "slept"

    @app.agent("waiter")
    async def waiter(ctx: Context) -> Any:
        await ctx.step("begin", _nothing, repeatable=True)
        return await ctx.wait_event("bench", key=str(ctx.job_id), timeout=7 * 24 * 3600)

    return app


async def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Cost:
    connections: float
    megabytes: float
    log_kilobytes: float
    rows: float

    @classmethod
    def median(cls, known: list[Cost]) -> Cost:
        return cls(*(statistics.median(values) for values in zip(*map(astuple, known), strict=True)))


# Parking ----------------------------------------------------------------------------------------------------------


async def park(made: Plane, each: int) -> list[UUID]:
    """So many of both, all asleep; returns those that wait."""
    await made.agent("sleeper", [], app="parking", run="sleeper")
    await made.agent("waiter", [], app="parking", run="waiter")
    async with working(made, parking_app(), AT_ONCE):
        waiting: list[UUID] = []
        numbers = iter(range(each))

        async def lane() -> None:
            for _ in numbers:
                await made.submit("sleeper")
                waiting.append(await made.submit("waiter"))

        await asyncio.gather(*(lane() for _ in range(AT_ONCE)))
        observer = await asyncpg.connect(made.admin_url)
        try:
            async with asyncio.timeout(600):
                while await observer.fetchval(AWAKE):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        finally:
            await observer.close()
    return waiting


async def wake(made: Plane, waiting: list[UUID]) -> float:
    """Seconds until each of them was signalled and is complete."""
    async with working(made, parking_app(), AT_ONCE), completions(made.admin_url) as ends:
        ended = [ends.setdefault(id, asyncio.Event()) for id in waiting]
        numbers = iter(waiting)

        async def lane() -> None:
            for id in numbers:
                await steering.send_signal(
                    made.db, made.actor, SignalDraft(name="bench", key=str(id), payload={"n": 1})
                )

        started = time.perf_counter()
        await asyncio.gather(*(lane() for _ in range(AT_ONCE)))
        async with asyncio.timeout(600):
            await asyncio.gather(*(each.wait() for each in ended))
        return time.perf_counter() - started


# Measuring --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def worker(url: str) -> AsyncIterator[int]:
    """The pid of a worker process on this database."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.parked", url,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parent.parent,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        await process.stdout.readline()
        yield process.pid
    finally:
        process.stdin.close()
        await process.wait()


async def _serve(url: str) -> None:
    async with plane(url) as made, working(made, parking_app(), AT_ONCE):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


async def cost(url: str, window: float) -> Cost:
    """What a worker holds after a while, and what is written in a minute while it looks for work."""
    observer = await asyncpg.connect(url)
    try:
        async with worker(url) as pid:
            await asyncio.sleep(SETTLING)
            before, started = await _written(observer), time.perf_counter()
            await asyncio.sleep(window)
            after, minutes = await _written(observer), (time.perf_counter() - started) / 60
            connections = await observer.fetchval(
                "select count(*) from pg_stat_activity where datname = current_database()"
                " and backend_type = 'client backend' and pid <> pg_backend_pid()"
            )
            log, rows = ((b - a) / minutes for a, b in zip(before, after, strict=True))
            return Cost(connections, _resident(pid), log / 1024, rows)
    finally:
        await observer.close()


async def _written(observer: asyncpg.Connection) -> tuple[int, int]:
    """Bytes of the server's log, and rows of this database, since ever."""
    await observer.execute("select pg_stat_clear_snapshot()")
    row = await observer.fetchrow(
        """
        select (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint, tup_inserted + tup_updated + tup_deleted
        from pg_stat_database where datname = current_database()
        """
    )
    return row[0], row[1]


def _resident(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20


async def _calm(url: str) -> None:
    """What the server would write later on account of what was just written is written now."""
    connection = await asyncpg.connect(url)
    await connection.execute("vacuum (freeze, analyze)")
    await connection.execute("checkpoint")
    await connection.close()


async def run(admin_url: str, *, rounds: int = 3, each: int = EACH, window: float = WINDOW) -> bool:
    known: dict[str, list[Cost]] = {"idle": [], "parked": []}
    async with AsyncExitStack() as stack:
        urls = {name: await stack.enter_async_context(fresh_database(admin_url, name)) for name in known}
        async with plane(urls["idle"]), plane(urls["parked"]) as made:
            waiting = await park(made, each)
        for url in urls.values():
            await _calm(url)
        for _ in range(rounds):
            for name, url in urls.items():
                known[name].append(await cost(url, window))
        async with plane(urls["parked"]) as made:
            seconds = await wake(made, waiting)
    return _print(each, Cost.median(known["idle"]), Cost.median(known["parked"]), seconds)


def _print(each: int, idle: Cost, parked: Cost, seconds: float) -> bool:
    title = f"{each} sleep and {each} wait"
    print(f"\n{title:36}{'idle':>10}{'parked':>10}{'more':>10}{'aim':>8}")
    names = ("connections", "memory of the worker, MB", "log per minute, KB", "rows written per minute")
    met = True
    for name, before, now, aim in zip(names, astuple(idle), astuple(parked), AIMS, strict=True):
        missed = now - before > aim
        met = met and not missed
        mark = "  MISSED" if missed else ""
        print(f"{'  ' + name:36}{before:>10.1f}{now:>10.1f}{now - before:>10.1f}{f'≤ {aim:g}':>8}{mark}")
    print(f"{'  signalled and completed, jobs/s':36}{'':>10}{each / seconds:>10.0f}")
    return met


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
