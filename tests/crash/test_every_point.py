"""Killed at every point: a worker dies there, another finishes, and every act happened exactly once.

A first run writes down the points that a worker passes; then a fresh job is killed at each of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from tests.crash.outcomes import judged
from tests.crash.stage import Run, Stage
from tests.crash.tools import Kind
from tests.runtime.planes import call, turn

AT_ONCE = 16

# Passed again and again while time goes by; the first time is at a known moment.
TIMED = ("beat", "find_orphans", "forget_workers", "claim_jobs")


async def each_point(points: Sequence[str], kill: Callable[[str], Awaitable[None]]) -> None:
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


async def clean(stage: Stage) -> None:
    table = await judged(stage)
    assert table.clean, f"\n{table}"


@pytest.mark.parametrize("kind", Kind)
async def test_killed_at_every_point(stage: Stage, kind: Kind) -> None:
    points = await recorded(stage, await stage.submit(kind, "nothing"))
    if kind is not Kind.WITH_KEY:
        # How a worker starts and ends does not depend on the tool.
        points = points[points.index("claim_jobs:after#1") : points.index("stop_worker:before#1")]

    async def kill(point: str) -> None:
        run = await stage.submit(kind, point)
        await stage.killed(run, point)
        await stage.rescue(run.app)
        await stage.finished(run.job_id)
        stage.leave(run.app)

    await each_point(points, kill)
    await clean(stage)


FIRST_DEATHS = {
    Kind.WITH_KEY: "tool:after#2",  # it acted: the same key again
    Kind.PROBED: "tool:before#2",  # it did not act: the probe says so, and it is sent again
    Kind.ASKED: "tool:before#2",  # it did not act: a person says so, and it is sent again
    Kind.OR_FAIL: "tool:after#2",
}


@pytest.mark.parametrize("kind", Kind)
async def test_whoever_takes_over_is_killed_at_every_point_too(stage: Stage, kind: Kind) -> None:
    """The first worker dies in its first effect, the second wherever it gets to while it settles that effect."""

    async def orphan(label: str) -> Run:
        run = await stage.submit(kind, label)
        await stage.killed(run, FIRST_DEATHS[kind])
        return run

    # Adoption is anybody's, and how often an idle worker claims is nobody's business.
    points = [
        point
        for point in await recorded(stage, await orphan("nothing"))
        if point.split(":")[0] in ("advance_job", "tool", "act", "probe", "model")
    ]
    # From the second step on it is a run like any other.
    points = points[: points.index("model:after#1") + 1] if "model:after#1" in points else points

    async def kill(point: str) -> None:
        run = await orphan(f"{FIRST_DEATHS[kind]}, then at {point}")
        await stage.killed(run, point)
        await stage.rescue(run.app)
        await stage.finished(run.job_id)
        stage.leave(run.app)

    await each_point(points, kill)
    await clean(stage)


@pytest.mark.parametrize("point", ["adopt_job:before#1", "adopt_job:after#1"])
async def test_killed_while_adopting(lonely_stage: Stage, point: str) -> None:
    """Nobody else is there to adopt, so it is this worker that does, and dies of it."""
    stage = lonely_stage
    run = await stage.submit(Kind.PROBED, f"tool:after#2, then at {point}")
    await stage.killed(run, "tool:after#2")
    await stage.killed(run, point)
    third = await stage.worker(run.app)
    await stage.finished(run.job_id)
    assert await third.end() == 0
    await clean(stage)


def heard(stage: Stage, delay_ms: int) -> list[dict[str, Any]]:
    return [
        turn(call("look", at="here"), call(Kind.WITH_KEY, word="a")),
        turn(text="I heard: {message}", repeat=True, delay_ms=delay_ms),
    ]


@pytest.mark.parametrize("while_it_speaks", [False, True], ids=["after_the_death", "while_it_speaks"])
async def test_a_conversation_is_killed_at_every_point(stage: Stage, while_it_speaks: bool) -> None:
    """A second message comes: when the worker is dead, or while the model answers the first one."""

    async def begin(label: str) -> Run:
        agent, app = await stage.agent(heard(stage, 400 if while_it_speaks else 0))
        session_id, job_id = await stage.say(agent, "hello")
        return stage.add(Run(label, Kind.WITH_KEY, app, agent, job_id, [(0, "a")], None, session_id))

    async def say_more(run: Run) -> None:
        """The job that reads it is the open one, or a new one."""
        _, job_id = await stage.say(run.agent, "and more")
        if job_id != run.job_id:
            stage.add(
                Run(
                    run.label,
                    run.kind,
                    run.app,
                    run.agent,
                    job_id,
                    [(0, "a")],
                    None,
                    session_id=run.session_id,
                )
            )

    async def interrupt(run: Run) -> None:
        await stage.until(
            "select 1 from job where id = $1 and (step_index = 0 or finished_at is not null)", run.job_id
        )
        await say_more(run)

    async def all_finished(run: Run) -> None:
        for each in [each for each in stage.runs if each.session_id == run.session_id]:
            await stage.finished(each.job_id)

    first = await begin("nothing")
    worker = await stage.worker(first.app, records=True)
    if while_it_speaks:
        await interrupt(first)
    await all_finished(first)
    assert await worker.end() == 0, worker.said()
    points = worth_a_kill(worker.points())
    points = points[points.index("claim_jobs:after#1") : points.index("stop_worker:before#1")]
    if not while_it_speaks:
        await say_more(first)
        await stage.rescue(first.app)
        await all_finished(first)

    async def kill(point: str) -> None:
        run = await begin(point)
        speaking = asyncio.create_task(interrupt(run)) if while_it_speaks else None
        await stage.killed(run, point)
        await stage.rescue(run.app)
        await (speaking or say_more(run))
        await all_finished(run)
        stage.leave(run.app)

    await each_point(points, kill)
    await clean(stage)
    for run in stage.runs:
        said = [(row["role"], row["text"]) for row in await stage.rows(
            "select role, text from message where session_id = $1 order by seq", run.session_id
        )]  # fmt: skip
        assert said[0] == ("user", "hello"), run.label
        # The last word is the answer to the last message, and no answer is given twice.
        assert said[-1] == ("assistant", "I heard: and more"), (run.label, said)
        assert len(said) == len(set(said)), (run.label, said)
        assert set(said) <= {
            ("user", "hello"), ("user", "and more"),
            ("assistant", "I heard: hello"), ("assistant", "I heard: and more"),
        }, (run.label, said)  # fmt: skip
