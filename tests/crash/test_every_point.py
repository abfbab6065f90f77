"""Killed at every point: a worker dies there, another finishes, and every act happened exactly once.

A first run writes down the points that a worker passes; then a fresh job is killed at each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from signal import SIGKILL

import pytest

from tests.crash.outcomes import judged
from tests.crash.stage import Run, Stage
from tests.crash.tools import Kind

AT_ONCE = 12

# Passed again and again while time goes by; the first time is at a known moment.
TIMED = ("beat", "find_orphans", "forget_workers", "claim_jobs")


async def each_point(points: Sequence[str], kill: Callable[[str], Awaitable[None]]) -> None:
    assert len(points) > 5
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(point: str) -> None:
        async with turns:
            await kill(point)

    async with asyncio.TaskGroup() as group:
        for point in points:
            group.create_task(one(point))


def worth_a_kill(points: Sequence[str]) -> list[str]:
    """All but the later repetitions of what happens again and again."""
    return [p for p in points if p.split(":")[0] not in TIMED or p.endswith("#1")]


async def recorded(stage: Stage, run: Run) -> list[str]:
    """The points of a worker that nobody kills, from its first statement to its last."""
    worker = await stage.worker(run.app, records=True)
    await stage.finished(run.job_id)
    assert await worker.end() == 0, worker.said()
    return worth_a_kill(worker.points())


@pytest.mark.parametrize("kind", Kind)
async def test_killed_at_every_point(stage: Stage, kind: Kind) -> None:
    points = await recorded(stage, await stage.submit(kind, "nothing"))
    if kind is not Kind.WITH_KEY:
        # How a worker starts and ends does not depend on the tool.
        points = points[points.index("claim_jobs:after#1") : points.index("stop_worker:before#1")]

    async def kill(point: str) -> None:
        run = await stage.submit(kind, point)
        victim = await stage.worker(run.app, at=point)
        assert await stage.until_dead(victim, run.job_id) == -SIGKILL, f"{point} was never reached"
        await stage.rescue(run.app)
        await stage.finished(run.job_id)
        stage.leave(run.app)

    await each_point(points, kill)
    table = await judged(stage)
    assert table.clean, f"\n{table}"
