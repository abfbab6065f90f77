"""The agent loop from the submission of a job to its end, on a real database."""

from __future__ import annotations

import asyncpg
import pytest

from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.verbs import steering
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.verbs import sessions
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.fixtures.people import World
from tests.fixtures.workers import call, make_agent, submit, turn, until, working


def an_app(sent: list[str]) -> App:
    app = App("tests")

    @app.tool(read_only=True)
    async def look(at: str) -> str:
        """Looks."""
        return f"saw {at}"

    @app.tool(on_uncertain="retry_with_key")
    async def act(what: str, ctx: ToolContext) -> dict[str, str]:
        """Acts."""
        sent.append(what)
        return {"acted": what, "key": ctx.idempotency_key}

    return app


@pytest.mark.proves("S1.6")
async def test_a_job_runs_its_steps_and_ends(world: World, admin: asyncpg.Connection) -> None:
    sent: list[str] = []
    script = [
        turn(call("look", at="a"), call("look", at="b"), call("act", what="x"), text="I look."),
        turn(call("act", what="y")),
    ]
    agent = await make_agent(world, script)
    id = await submit(world, agent)
    async with working(world.db, an_app(sent)):
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.status, job.error_message, job.result) == (JobStatus.COMPLETED, None, {"text": "done"})
    assert sent == ["x", "y"]
    steps = await steering.list_steps(world.db, world.admin.actor, id, -1, 10)
    assert [[c.tool_name for c in s.calls] for s in steps] == [["look", "look", "act"], ["act"], []]
    assert steps[0].calls[0].result == "saw a"
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


async def test_a_conversation_is_answered(world: World) -> None:
    delivery = await world.say("Hello there")
    async with working(world.db):
        job = await until(world, delivery.job_id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert job.error_message is None
    said = await sessions.list_messages(world.db, world.admin.actor, delivery.session_id, 0, 10)
    assert [(m.role, m.text) for m in said] == [("user", "Hello there"), ("assistant", "You said: Hello there")]
