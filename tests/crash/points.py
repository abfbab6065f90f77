"""The points that a worker passes: written down by one that nobody kills, then tried one by one.

`make test` tries every point for one kind of tool. Elsewhere its short form leaves out what is proven by another point:
`apart` takes one of the points between which nothing happens, `around_effects` those that depend on the kind of the tool, and
`every_third_statement` some of those that one transaction undoes. `make soak` tries them all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest

from tests.crash.stage import Run, Stage

extents = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["short", "whole"])
"""The short form of a test, and its whole, which only `make soak` runs."""

AT_ONCE = 48

# Passed again and again while time goes by; the first time is at a known moment.
TIMED = ("beat", "find_leased", "find_orphans", "forget_workers", "claim_jobs")

# What only reads, renews a lease or asks the model; and statements, which a transaction undoes unless it is committed.
TRACELESS = (
    "beat", "find_leased", "find_orphans", "forget_workers", "job_journal", "job_past", "model", "statement",
)  # fmt: skip


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
    """One of those points between which nothing is written and nothing is sent, in the order in which a worker passed them.

    Every statement, commit, model call and tool call lies between its `before` and its `after`, and what a worker does
    elsewhere changes only its memory, which dies with it. So whoever dies at one of them leaves behind what it would have left
    at the others. (It is not the same to be stopped there, because then the memory stays.)
    """
    wanted, chosen = set(points), []
    deeds, last = 0, -1
    for point in passed:
        if name(point) not in TRACELESS and ":before#" not in point:
            deeds += 1
        if point in wanted and deeds != last:
            chosen.append(point)
            last = deeds
    return chosen


def without_statements_after(points: Sequence[str]) -> list[str]:
    """To die after a statement is to die before the next one, or before the commit."""
    return [point for point in points if not point.startswith("statement:after#")]


def every_third_statement(points: Sequence[str], first: int) -> list[str]:
    """All other points, and a third of the statements; ``first`` is 0, 1 or 2, so that similar deeds die at different ones."""
    statements = [point for point in points if point.startswith("statement:")]
    chosen = set(statements[first % 3 :: 3])
    return [point for point in points if not point.startswith("statement:") or point in chosen]


def last_transaction(points: Sequence[str]) -> list[str]:
    """Every point of the last transaction: the one that writes what others were read for."""
    commits = [number for number, point in enumerate(points) if point.startswith("commit:after#")]
    return list(points[commits[-2] if len(commits) > 1 else 0 :])


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
        error.add_note(f"at {point}")
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
