"""Interleaved rounds, medians, ratios."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import asyncpg

Work = Callable[[int], Awaitable[object]]


async def seconds_each(work: Work, count: int, concurrency: int) -> float:
    """Seconds per piece of work, with ``concurrency`` under way at any time."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await work(number)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    return (time.perf_counter() - started) / count


async def analyze(url: str) -> None:
    """As the plane does within seconds, and autovacuum within a minute: a database that is used longer than a round has statistics."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("analyze")
    finally:
        await connection.close()


async def compare(rivals: dict[str, Work], *, rounds: int, count: int, concurrency: int, url: str) -> dict[str, float]:
    """The median seconds of each, measured in turn so that a slow moment of the machine meets all of them. ``url``: of the database,
    which has statistics after the warm-up."""
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for work in rivals.values():
        await seconds_each(work, max(count // 4, concurrency), concurrency)  # warm up
    await analyze(url)
    for _ in range(rounds):
        for name, work in rivals.items():
            taken[name].append(await seconds_each(work, count, concurrency))
    return {name: statistics.median(times) for name, times in taken.items()}
