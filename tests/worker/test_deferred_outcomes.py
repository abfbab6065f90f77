"""The outcome of a step that waits for the next response: one commit instead of two, and what must hold all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import asyncpg
import pytest

from cortex_plane.agents.model.completions import ModelRequest, Response, TextChunk
from cortex_plane.calls.verbs import steps
from cortex_plane.jobs.model.jobs import Cancellation, JobStatus, Pause, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import Unavailable
from cortex_plane.worker.attempt import Attempt
from cortex_plane.worker.authorization import CallAuthorizer
from cortex_plane.worker.lease import WriteFailed
from cortex_plane.worker.models.backends import Backends, ScriptedModel
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.fixtures.people import World
from tests.fixtures.workers import call, chains_whole, ended, job_of, leased, make_agent, submit, turn, until, working

LONG = 60.0
"""Seconds that no response takes."""
THREE = [turn(call("act", n=n)) for n in range(3)]


class Acts:
    """An app whose tool counts what it did, by key, and calls ``during`` in its second call."""

    def __init__(self, on_uncertain: str = "retry_with_key", during: Any = None) -> None:
        self.keys: list[str] = []
        self.app = App("tests")

        @self.app.tool(on_uncertain=on_uncertain)
        async def act(ctx: ToolContext, n: int) -> int:
            """Acts."""
            self.keys.append(str(ctx.invocation_id))
            if during is not None and len(self.keys) == 2:
                await during(ctx.job_id)
            return n


async def writes_of(admin: asyncpg.Connection, job: Any) -> int:
    writes: int = await admin.fetchval("select write_seq from job where id = $1", job)
    return writes


@pytest.mark.parametrize(
    ("on_uncertain", "skills", "seconds", "writes"),
    [
        ("retry_with_key", {}, LONG, 4),
        ("retry_with_key", {"defer_outcomes": False}, LONG, 7),
        ("retry_with_key", {"checkpoint_granularity": "per_tool_call"}, LONG, 10),
        ("retry_with_key", {}, 0.0, 7),
        ("ask_human", {}, LONG, 7),
        ("fail", {}, LONG, 7),
    ],
)
@pytest.mark.proves("D.720")
async def test_an_outcome_goes_with_the_next_intent_where_the_call_may_be_repeated(
    world: World, admin: asyncpg.Connection, on_uncertain: str, skills: dict[str, Any], seconds: float, writes: int
) -> None:
    acts = Acts(on_uncertain)
    job = await submit(world, await make_agent(world, THREE, **skills))
    async with working(world.db, acts.app, defer_seconds=seconds):
        await ended(world, job)
    assert (await job_of(world, job)).status is JobStatus.COMPLETED
    assert await writes_of(admin, job) == writes
    assert len(acts.keys) == len(set(acts.keys)) == 3
    rows = await admin.fetch("select status, finished_at from tool_call where job_id = $1", job)
    assert [row["status"] for row in rows] == ["completed"] * 3
    entries = await admin.fetch(
        "select action from audit_entry where job_id = $1 and action like 'step%' order by seq", job
    )
    assert [row["action"] for row in entries] == ["step_responded", "step_completed"] * 3 + ["step_completed"]
    events = await admin.fetch("select type from event where job_id = $1 and type like 'tool%' order by seq", job)
    assert [row["type"] for row in events] == ["tool_call", "tool_result"] * 3
    assert await chains_whole(world)


class HeldModel:
    """The scripted model, whose third answer waits for ``go``."""

    def __init__(self) -> None:
        self.asked, self.go, self._answers = asyncio.Event(), asyncio.Event(), 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        self._answers += 1
        if self._answers == 3:
            self.asked.set()
            await self.go.wait()
        async for piece in ScriptedModel().stream(request):
            yield piece


@pytest.mark.proves("D.720")
async def test_an_outcome_does_not_wait_for_a_slow_model(world: World, admin: asyncpg.Connection) -> None:
    acts, model = Acts(), HeldModel()
    job = await submit(world, await make_agent(world, THREE))
    async with working(world.db, acts.app, backends=Backends({"scripted": model}), defer_seconds=LONG):
        await asyncio.wait_for(model.asked.wait(), 10)
        assert await writes_of(admin, job) == 2, "the second outcome waits for the third answer"
        await steering.cancel(world.db, world.admin.actor, job, Cancellation())
        await ended(world, job)
    assert await writes_of(admin, job) == 4, "the outcome by itself, and the end"
    rows = await admin.fetch("select status from tool_call where job_id = $1 order by step_index", job)
    assert [row["status"] for row in rows] == ["completed"] * 2


@pytest.mark.proves("D.720")
async def test_an_outcome_is_written_by_itself_when_its_time_is_over(world: World, admin: asyncpg.Connection) -> None:
    acts, model = Acts(), HeldModel()
    job = await submit(world, await make_agent(world, THREE))
    async with working(world.db, acts.app, backends=Backends({"scripted": model}), defer_seconds=0.1):
        await asyncio.wait_for(model.asked.wait(), 10)
        done = "select count(*) = 2 from tool_call where job_id = $1 and status = 'completed'"
        while not await admin.fetchval(done, job):  # noqa: ASYNC110 -- it is the database that changes
            await asyncio.sleep(0.01)
        model.go.set()
        await ended(world, job)
    assert (await job_of(world, job)).status is JobStatus.COMPLETED
    assert len(acts.keys) == 3


@pytest.mark.proves("D.720")
async def test_a_job_that_is_held_stops_before_the_next_step(world: World, admin: asyncpg.Connection) -> None:
    async def pause(job: Any) -> None:
        await steering.pause(world.db, world.admin.actor, job, Pause())

    acts = Acts(during=pause)
    job = await submit(world, await make_agent(world, THREE))
    async with working(world.db, acts.app, defer_seconds=LONG):
        await until(world, job, JobStatus.PAUSED)
        assert len(acts.keys) == 2
        assert await admin.fetchval("select max(step_index) from step where job_id = $1", job) == 1
        await steering.resume(world.db, world.admin.actor, job, Resumption())
        await ended(world, job)
    assert (await job_of(world, job)).status is JobStatus.COMPLETED
    assert len(acts.keys) == len(set(acts.keys)) == 3
    assert await chains_whole(world)


@pytest.mark.proves("D.720")
async def test_a_job_that_is_cancelled_stops_before_the_next_step(world: World, admin: asyncpg.Connection) -> None:
    async def cancel(job: Any) -> None:
        await steering.cancel(world.db, world.admin.actor, job, Cancellation())

    acts = Acts(during=cancel)
    job = await submit(world, await make_agent(world, THREE))
    async with working(world.db, acts.app, defer_seconds=LONG):
        await ended(world, job)
    assert (await job_of(world, job)).status is JobStatus.CANCELLED
    assert len(acts.keys) == 2
    rows = await admin.fetch("select status from tool_call where job_id = $1", job)
    assert [row["status"] for row in rows] == ["completed"] * 2
    assert await chains_whole(world)


class UnreadableModel:
    """The scripted model, whose credentials cannot be read the third time it is asked."""

    def __init__(self) -> None:
        self._answers = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        self._answers += 1
        if self._answers == 3:
            raise Unavailable("The database does not answer.")
        async for piece in ScriptedModel().stream(request):
            yield piece


@pytest.mark.proves("D.720")
async def test_an_outcome_is_kept_where_the_attempt_ends_because_a_read_fails(
    world: World, admin: asyncpg.Connection
) -> None:
    acts = Acts()
    job = await submit(world, await make_agent(world, THREE))
    worker, assignment = await leased(world.db, acts.app)
    host = replace(worker._host, backends=Backends({"scripted": UnreadableModel()}), defer_seconds=LONG)
    with pytest.raises(WriteFailed):
        await Attempt(host, assignment).run()
    assert len(acts.keys) == 2
    rows = await admin.fetch("select status from tool_call where job_id = $1", job)
    assert [row["status"] for row in rows] == ["completed"] * 2
    assert await chains_whole(world)


@pytest.mark.proves("D.720")
async def test_a_slow_model_is_asked_while_the_outcome_is_written(world: World, admin: asyncpg.Connection) -> None:
    acts, model = Acts("ask_human"), HeldModel()
    job = await submit(world, await make_agent(world, THREE))
    async with working(world.db, acts.app, backends=Backends({"scripted": model})):
        await asyncio.wait_for(model.asked.wait(), 10)
        while await writes_of(admin, job) != 4:  # noqa: ASYNC110 -- it is the database that changes
            await asyncio.sleep(0.01)
        model.go.set()
        await ended(world, job)
    assert (await job_of(world, job)).status is JobStatus.COMPLETED
    assert len(acts.keys) == 3


# A write in the background -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_hold", [True, False])
@pytest.mark.proves("D.720")
async def test_a_job_stops_where_its_outcome_is_written_while_the_next_calls_are_authorised(
    world: World, monkeypatch: pytest.MonkeyPatch, is_hold: bool
) -> None:
    async def during(job: Any) -> None:
        if is_hold:
            await steering.pause(world.db, world.admin.actor, job, Pause())
        else:
            await steering.cancel(world.db, world.admin.actor, job, Cancellation())

    authorize = CallAuthorizer.authorize

    async def waiting(self: CallAuthorizer, calls: Any) -> None:
        await asyncio.sleep(0.06)  # longer than an outcome waits
        await authorize(self, calls)

    monkeypatch.setattr(CallAuthorizer, "authorize", waiting)
    acts = Acts(during=during)
    job = await submit(world, await make_agent(world, THREE))
    async with working(world.db, acts.app, defer_seconds=0.02):
        await until(world, job, JobStatus.PAUSED if is_hold else JobStatus.CANCELLED)
    assert len(acts.keys) == 2


class EndlessModel:
    """The scripted model, whose second answer never comes."""

    def __init__(self) -> None:
        self.asked = 0

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        self.asked += 1
        if self.asked == 2:
            await asyncio.Event().wait()
        async for piece in ScriptedModel().stream(request):
            yield piece


@pytest.mark.parametrize("is_lost", [False, True])
@pytest.mark.proves("D.720")
async def test_a_model_is_interrupted_where_the_write_beside_it_stops_the_job(
    world: World, admin: asyncpg.Connection, is_lost: bool
) -> None:
    job = await submit(world, await make_agent(world, THREE))
    app = App("tests")

    @app.tool(on_uncertain="retry_with_key")
    async def act(ctx: ToolContext, n: int) -> int:
        """Acts, and is stopped meanwhile."""
        if is_lost:
            await admin.execute("update job set epoch = epoch + 1 where id = $1", job)
        else:
            await steering.pause(world.db, world.admin.actor, job, Pause())
        return n

    worker, assignment = await leased(world.db, app)
    host = replace(worker._host, backends=Backends({"scripted": EndlessModel()}), defer_seconds=0.005)
    await asyncio.wait_for(Attempt(host, assignment).run(), 10)
    assert (await job_of(world, job)).status is (JobStatus.RUNNING if is_lost else JobStatus.PAUSED)


@pytest.mark.proves("D.720")
async def test_an_attempt_has_one_write_under_way_at_a_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await submit(world, await make_agent(world, THREE))
    acts, under_way, most = Acts(), 0, 0
    worker, assignment = await leased(world.db, acts.app)
    host = replace(worker._host, backends=Backends({"scripted": UnreadableModel()}), defer_seconds=0.05)
    advance = steps.advance

    async def counted(*args: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await asyncio.sleep(0.1)  # longer than an outcome waits
            return await advance(*args)
        finally:
            under_way -= 1

    monkeypatch.setattr(steps, "advance", counted)
    with pytest.raises(WriteFailed):
        await Attempt(host, assignment).run()
    assert (most, under_way) == (1, 0)
    assert not [task for task in asyncio.all_tasks() if "_write_deferred" in repr(task)]
