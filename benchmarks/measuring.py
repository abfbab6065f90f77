"""Interleaved rounds, medians, ratios."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

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


async def compare(rivals: dict[str, Work], *, rounds: int, count: int, concurrency: int) -> dict[str, float]:
    """The median seconds of each, measured in turn so that a slow moment of the machine meets all of them."""
    taken: dict[str, list[float]] = {name: [] for name in rivals}
    for name, work in rivals.items():
        await seconds_each(work, max(count // 4, concurrency), concurrency)  # warm up
        taken[name].clear()
    for _ in range(rounds):
        for name, work in rivals.items():
            taken[name].append(await seconds_each(work, count, concurrency))
    return {name: statistics.median(times) for name, times in taken.items()}
