"""Killed at every point of a job that compacts its window: no message and no fact is lost, no summary is made twice, and
every act happens once."""

from __future__ import annotations

from uuid import UUID

import pytest

from cortex_plane.agents.model.agents import Agent
from tests.crash.outcomes import require_clean
from tests.crash.points import apart, each, extents, from_the_claim_on, name, worth_a_try
from tests.crash.stage import Run, Stage
from tests.crash.tools import Kind
from tests.fixtures.windows import memories_of, small_agent
from tests.fixtures.workers import call, turn

FACTS = ["Remember that Ann likes tea.", "Remember that Bea likes coffee."]
BEFORE = "\n".join(FACTS)
LAST = "Remember nothing of this, and act."
LOOK = call("look", at="here")
SCRIPT = [
    turn(LOOK, call(Kind.WITH_KEY, word="a")), turn(LOOK), turn(LOOK), turn(call(Kind.WITH_KEY, word="b")),
]  # fmt: skip
STEPS = len(SCRIPT) + 1


async def _conversation(stage: Stage, label: str) -> Run:
    """A message that was answered, and a second one, whose job must make room on its way."""
    app = stage.new_app()
    agent = await small_agent(
        stage.world, SCRIPT, context_turns=4, slug=app, app=app, model="scripted", limits={"max_iterations": 20}
    )
    before = _reads(stage, "before", app, agent, *await stage.say(agent, BEFORE))
    await stage.bring(before, "select 1 from job where id = $1 and finished_at is not null")
    return _reads(stage, label, app, agent, *await stage.say(agent, LAST))


async def _remembered(stage: Stage, run: Run) -> list[tuple[int, int, list[str], list[str]]]:
    """The session's memories; what tools answered names the job, and is left out."""
    return [
        (
            memory.number,
            memory.message_seq,
            memory.facts,
            [line for line in memory.summary.splitlines() if line.startswith(("user:", "agent:"))],
        )
        for memory in await memories_of(stage.world, run.session_id)
    ]


def _reads(stage: Stage, label: str, app: str, agent: Agent, session_id: UUID, job_id: UUID) -> Run:
    return stage.add(
        Run(
            label=label, kind=Kind.WITH_KEY, app=app, agent=agent, job_id=job_id, session_id=session_id,
            acts=[(0, "a"), (3, "b")], steps=STEPS,
        )
    )  # fmt: skip


@extents
@pytest.mark.proves("D.236")
async def test_a_conversation_is_killed_at_every_point_of_its_compactions(stage: Stage, whole: bool) -> None:
    first = await _conversation(stage, "nothing")
    worker = await stage.worker(first.app, records=True)
    await stage.finished(first.job_id)
    assert await worker.end() == 0, worker.said()
    points = [
        point
        for point in from_the_claim_on(worth_a_try(worker.points()))
        if name(point) in ("job_past", "model", "advance_job")
    ]
    memories = await _remembered(stage, first)
    asked = len([point for point in points if point.startswith("model:before#")])
    assert asked >= STEPS + 2, "it makes room at least twice"
    assert memories[-1][2] == [*FACTS, LAST]

    async def kill(point: str) -> None:
        run = await _conversation(stage, point)
        await stage.killed(run, point)
        await stage.rescued(run)

    await each(points if whole else apart(points, worker.points()), kill)
    await require_clean(stage)
    for run in stage.runs:
        if run.label == "before":
            continue
        # Whoever takes over writes down exactly what would have been written.
        assert await _remembered(stage, run) == memories, run.label
        rows = await stage.rows("select role, text from message where session_id = $1 order by seq", run.session_id)
        said = [(row["role"], row["text"]) for row in rows]
        assert [text for role, text in said if role == "user"] == [BEFORE, LAST], run.label
        assert said[-1] == ("assistant", f"Re: {LAST}"), run.label
        events = await stage.rows(
            "select 1 from event where session_id = $1 and type = 'context_compacted'", run.session_id
        )
        assert len(events) == len(memories), run.label
