"""The points that a worker passes: written down by one that nobody kills, then tried one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from tests.crash.stage import Run, Stage

AT_ONCE = 16

# Passed again and again while time goes by; the first time is at a known moment.
TIMED = ("beat", "find_leased", "find_orphans", "forget_workers", "claim_jobs")


async def recorded(stage: Stage, run: Run) -> list[str]:
    """The points of a worker from its first statement to its last."""
    worker = await stage.worker(run.app, records=True)
    await stage.finished(run.job_id)
    assert await worker.end() == 0, worker.said()
    return worth_a_try(worker.points())


def worth_a_try(points: Sequence[str], *, statements: bool = False) -> list[str]:
    """All but the later repetitions of what happens again and again.

    And but the look for orphans, which a worker takes only once it has been there for a while. And but the window that is
    left: whoever is stopped after its last look at the clock acts when it wakes up. To die at a statement inside of a
    transaction is to die before its commit; those that ask and decide are tried all the same.
    """
    once = [point for point in points if name(point) not in TIMED or point.endswith("#1")]
    left_out = ("act:before", "find_orphans:", *(() if statements else ("statement:",)))
    return [point for point in once if not point.startswith(left_out)]


def name(point: str) -> str:
    return point.partition(":")[0]


def from_the_claim_on(points: Sequence[str]) -> Sequence[str]:
    """How a worker starts and ends does not depend on what it runs."""
    return points[points.index("claim_jobs:after#1") : points.index("stop_worker:before#1")]


async def each(points: Sequence[str], attempt: Callable[[str], Awaitable[None]]) -> None:
    """Several at once: most of the time they wait for a lease to run out."""
    assert points
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(point: str) -> None:
        async with turns:
            await attempt(point)

    async with asyncio.TaskGroup() as group:
        for point in points:
            group.create_task(one(point))
