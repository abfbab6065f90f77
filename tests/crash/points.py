"""The points that a worker passes: written down by one that nobody kills, then tried one by one.

`make test` tries every point for one kind of tool. Elsewhere its short form leaves out what is proven by another point:
`apart` drops the second of two points between which nothing happens, `around_effects` what does not depend on the kind of
the tool. `make soak` tries them all.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest

from tests.crash.stage import Run, Stage

extents = pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["short", "whole"]
)
"""The short form of a test, and its whole, which only `make soak` runs."""

AT_ONCE = 48

# Passed again and again while time goes by; the first time is at a known moment.
TIMED = ("beat", "find_leased", "find_orphans", "forget_workers", "claim_jobs")


async def recorded(stage: Stage, run: Run) -> list[str]:
    """All points of a worker from its first statement to its last."""
    worker = await stage.worker(run.app, records=True)
    await stage.finished(run.job_id)
    assert await worker.end() == 0, worker.said()
    return worker.points()


def worth_a_try(points: Sequence[str], *, statements: bool = False) -> list[str]:
    """All but the later repetitions of what happens again and again.

    And but the look for orphans, which a worker takes only once it has been there for a while. And but the window that is
    left: whoever is stopped after its last look at the clock acts when it wakes up. To die at a statement inside of a
    transaction is to die before its commit; those that ask and decide are tried all the same.
    """
    once = [point for point in points if name(point) not in TIMED or point.endswith("#1")]
    left_out = ("act:before", "find_orphans:", *(() if statements else ("statement:",)))
    return [point for point in once if not point.startswith(left_out)]


def apart(points: Sequence[str], passed: Sequence[str]) -> list[str]:
    """Without the points that are reached right after another of them, in the order in which a worker passed them.

    Every statement, commit, model call and tool call lies between a `before` and an `after`. So from an `after` to the next
    `before` a worker changes nothing but its memory, which dies with it: both are the same death. (It is not the same to be
    stopped there, because the memory stays.)
    """
    previous = dict(itertools.pairwise(reversed(passed)))
    return [
        point
        for point in points
        if not (
            ":before#" in point and ":after#" in previous.get(point, "") and previous[point] in set(points)
        )
    ]


def around_effects(points: Sequence[str]) -> list[str]:
    """From the write of an intent to the write of its outcome: only there does it matter how a tool is settled."""
    around: list[str] = []
    for sent in (number for number, point in enumerate(points) if point.startswith("act:sent#")):
        intent = max(n for n in range(sent) if points[n].startswith("advance_job:after#"))
        outcome = min(n for n in range(sent, len(points)) if points[n].startswith("advance_job:before#"))
        around += points[intent : outcome + 1]
    return around


def name(point: str) -> str:
    return point.partition(":")[0]


def from_the_claim_on(points: Sequence[str]) -> Sequence[str]:
    """How a worker starts and ends does not depend on what it runs."""
    return points[points.index("claim_jobs:after#1") : points.index("stop_worker:before#1")]


@contextlib.contextmanager
def naming(point: str) -> Iterator[None]:
    """Whatever fails says at which point."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"killed at {point}")
        raise


async def each(points: Sequence[str], attempt: Callable[[str], Awaitable[None]]) -> None:
    """Several at once: most of the time they wait for a lease to run out."""
    assert points
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(point: str) -> None:
        async with turns:
            with naming(point):
                await attempt(point)

    async with asyncio.TaskGroup() as group:
        for point in points:
            group.create_task(one(point))
