"""Killed at every point: a worker dies there, another finishes, and every act happened exactly once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest

from cortex_plane.agents.model.agents import Agent
from tests.crash.outcomes import require_clean
from tests.crash.points import apart, around_effects, each, extents, from_the_claim_on, name, recorded, worth_a_try
from tests.crash.stage import ACTS, Run, Stage
from tests.crash.tools import Kind
from tests.fixtures.workers import call, turn

OTHERS = tuple(kind for kind in Kind if kind is not Kind.WITH_KEY)
MATRIX = [
    pytest.param((Kind.WITH_KEY,), True, False, id="act_with_key"),
    pytest.param((Kind.WITH_KEY,), True, True, id="outcomes_deferred"),
    pytest.param(OTHERS, False, False, id="others-short"),
    pytest.param(OTHERS, True, False, id="others-whole", marks=pytest.mark.soak),
]
"""Every point for one kind of tool, which is killed while it starts and ends, too; the others where they are settled."""


@pytest.mark.parametrize(("kinds", "whole", "defers"), MATRIX)
@pytest.mark.proves("D.38")
async def test_killed_at_every_point(stage: Stage, kinds: Sequence[Kind], whole: bool, defers: bool) -> None:
    async def kill_each(kind: Kind) -> None:
        passed = await recorded(stage, await stage.submit(kind, "nothing", defer_outcomes=defers))
        points: Sequence[str] = worth_a_try(passed)
        if kind is not Kind.WITH_KEY:
            points = from_the_claim_on(points)
        if not whole:
            points = apart(around_effects(points), passed)
            assert len(points) >= 3 * len(ACTS), "with the intent, sent, and without the outcome"

        async def kill(point: str) -> None:
            run = await stage.submit(kind, point, defer_outcomes=defers)
            await stage.killed(run, point)
            await stage.rescued(run)

        await each(points, kill)

    await asyncio.gather(*map(kill_each, kinds))
    await require_clean(stage)


FIRST_DEATHS = {
    Kind.WITH_KEY: "tool:after#2",  # it acted: the same key again
    Kind.PROBED: "tool:before#2",  # it did not act: the probe says so, and it is sent again
    Kind.ASKED: "tool:before#2",  # it did not act: a person says so, and it is sent again
    Kind.OR_FAIL: "tool:after#2",
}


@extents
async def test_whoever_takes_over_is_killed_at_every_point_too(stage: Stage, whole: bool) -> None:
    """The first worker dies in its first effect, the second wherever it gets to while it settles that effect."""

    async def orphan(kind: Kind, label: str) -> Run:
        run = await stage.submit(kind, label)
        await stage.killed(run, FIRST_DEATHS[kind])
        return run

    async def kill_each(kind: Kind) -> None:
        # Adoption is anybody's, and how often an idle worker claims is nobody's business.
        passed = await recorded(stage, await orphan(kind, "nothing"))
        points = [
            point for point in worth_a_try(passed) if name(point) in ("advance_job", "tool", "act", "probe", "model")
        ]
        if "model:before#1" in points:
            # From the second step on it is a run like any other.
            points = points[: points.index("model:before#1")]
        if not whole:
            # Two kinds are killed at the even points, and two at the odd ones.
            points = apart(points, passed)[list(Kind).index(kind) % 2 :: 2]

        async def kill(point: str) -> None:
            run = await orphan(kind, f"{FIRST_DEATHS[kind]}, then at {point}")
            await stage.killed(run, point)
            await stage.rescued(run)

        await each(points, kill)

    await asyncio.gather(*map(kill_each, Kind))
    await require_clean(stage)


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
    await require_clean(stage)


HELLO, MORE = ("user", "hello"), ("user", "and more")
ANSWER, LAST_ANSWER = ("assistant", "I heard: hello"), ("assistant", "I heard: and more")


def listener(delay_ms: int) -> list[dict[str, Any]]:
    return [
        turn(call("look", at="here"), call(Kind.WITH_KEY, word="a")),
        turn(text="I heard: {message}", repeat=True, delay_ms=delay_ms),
    ]


@extents
@pytest.mark.parametrize("while_it_speaks", [False, True], ids=["after_the_death", "while_it_speaks"])
async def test_a_conversation_is_killed_at_every_point(stage: Stage, while_it_speaks: bool, whole: bool) -> None:
    """A second message comes: when the worker is dead, or while the model answers the first one."""

    def reads(label: str, app: str, agent: Agent, session_id: UUID, job_id: UUID) -> Run:
        return stage.add(
            Run(
                label=label, kind=Kind.WITH_KEY, app=app, agent=agent, job_id=job_id, session_id=session_id,
                acts=[(0, "a")], steps=None,
            )
        )  # fmt: skip

    async def begin(label: str) -> Run:
        agent, app = await stage.agent(listener(400 if while_it_speaks else 0))
        return reads(label, app, agent, *await stage.say(agent, "hello"))

    async def say_more(run: Run) -> None:
        """The job that reads it is the open one, or a new one."""
        session_id, job_id = await stage.say(run.agent, "and more")
        if job_id != run.job_id:
            reads(run.label, run.app, run.agent, session_id, job_id)

    async def interrupt(run: Run) -> None:
        await stage.until("select 1 from job where id = $1 and (step_index = 0 or finished_at is not null)", run.job_id)
        await say_more(run)

    async def all_finished(run: Run) -> None:
        for job_id in [other.job_id for other in stage.runs if other.session_id == run.session_id]:
            await stage.finished(job_id)

    first = await begin("nothing")
    worker = await stage.worker(first.app, records=True)
    await (interrupt(first) if while_it_speaks else stage.finished(first.job_id))
    await all_finished(first)
    assert await worker.end() == 0, worker.said()

    async def kill(point: str) -> None:
        run = await begin(point)
        speaking = asyncio.create_task(interrupt(run)) if while_it_speaks else None
        await stage.killed(run, point)
        stage.rescue(run.app)
        await (speaking or say_more(run))
        await all_finished(run)
        stage.leave(run.app)

    points = from_the_claim_on(worth_a_try(worker.points()))
    await each(points if whole else apart(points, worker.points()), kill)
    await require_clean(stage)
    for run in stage.runs:
        rows = await stage.rows("select role, text from message where session_id = $1 order by seq", run.session_id)
        said = [(row["role"], row["text"]) for row in rows]
        if run.label == "nothing" and not while_it_speaks:
            assert said == [HELLO, ANSWER]
            continue
        # The last word answers the last message, and nothing is said twice.
        assert (said[0], said[-1]) == (HELLO, LAST_ANSWER), (run.label, said)
        assert len(said) == len(set(said)), (run.label, said)
        assert set(said) <= {HELLO, MORE, ANSWER, LAST_ANSWER}, (run.label, said)
