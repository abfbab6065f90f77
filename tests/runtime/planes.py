"""A worker inside a test, on the test's own database, and jobs whose model follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.agents import Agent, AgentDraft, ModelConfig, ResourceLimits
from cortex_plane.agents.model.completions import ModelRequest, Response, TextChunk, Turn
from cortex_plane.agents.verbs import agents
from cortex_plane.db.database import NOBODY, Database
from cortex_plane.jobs.model.jobs import TERMINAL, Job, JobDraft, JobStatus, Step
from cortex_plane.jobs.rules.attempts import Assignment
from cortex_plane.jobs.verbs import jobs, steering, workers
from cortex_plane.kernel.fields import adapter
from cortex_plane.proof.verbs import audit
from cortex_plane.worker.models.backends import Backends, ScriptedModel
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.worker import STEADY_BEATS, Worker, WorkerSettings, attempt_of
from tests.people import World

KEY = bytes(range(32))
FAST = WorkerSettings(poll_seconds=0.05, adoption_seconds=2.0, dispatch_seconds=1.5, grace_seconds=5)
IMPATIENT = {"retry_base_seconds": 0.05}
"""An agent of a test waits a moment, and not seconds, before it tries again."""


def call(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"tool": tool, "arguments": arguments}


def turn(*calls: dict[str, Any], text: str | None = None, **more: Any) -> dict[str, Any]:
    return {"text": text, "calls": list(calls), **more}


async def make_agent(
    world: World,
    script: Sequence[dict[str, Any]],
    *,
    app: str = "tests",
    slug: str = "scripted",
    model: str = "scripted",
    limits: dict[str, Any] | None = None,
    **skills: Any,
) -> Agent:
    """An agent that says these turns, and then that it is done."""
    config = adapter(ModelConfig).validate_python({"model": model, "script": [*script, turn(text="done")]})
    draft = AgentDraft(
        name=f"Agent {slug}",
        slug=slug,
        role="Tester",
        team="main",
        model_config=config,
        skill_config={"app": app, **skills},
        resource_limits=adapter(ResourceLimits).validate_python(IMPATIENT | (limits or {})),
    )
    return await agents.create_agent(world.db, world.admin.actor, draft)


async def submit(world: World, agent: Agent, payload: dict[str, Any] | None = None, **more: Any) -> UUID:
    draft = JobDraft(agent=agent.slug, payload=payload or {"text": "go"}, **more)
    return (await jobs.submit(world.db, world.admin.actor, draft)).id


async def job_of(world: World, id: UUID) -> Job:
    return await jobs.get(world.db, world.admin.actor, id)


async def until(world: World, id: UUID, *statuses: JobStatus, seconds: float = 20) -> Job:
    """The job, once it has one of these statuses."""
    wanted, pause = [status.value for status in statuses], 0.005
    async with asyncio.timeout(seconds):
        while True:
            # To read the whole job each time costs as much as to run it.
            async with world.db.transaction(world.org_id) as tx:
                there = await tx.value("select status = any ($2) from job where id = $1", id, wanted)
            if there is not False and (job := await job_of(world, id)).status in statuses:
                return job
            await asyncio.sleep(pause)
            pause = min(pause * 1.2, 0.05)


async def ended(world: World, id: UUID, seconds: float = 20) -> Job:
    """The job, once it is over or waits for a person."""
    return await until(world, id, *TERMINAL, JobStatus.PAUSED, seconds=seconds)


async def steps_of(world: World, id: UUID) -> list[Step]:
    return await steering.list_steps(world.db, world.admin.actor, id, -1, 1000)


async def moves(world: World, id: UUID) -> list[str]:
    """Every status that the job went through, as the database wrote it down."""
    return [change.new_status.value for change in await jobs.history(world.db, world.admin.actor, id)]


async def whole(world: World) -> bool:
    """Whether every audit chain of the org verifies, and every row is what the trail says of it."""
    return (await audit.verify(world.db, world.admin.actor)).whole


async def chains_whole(world: World) -> bool:
    """Whether every audit chain of the org verifies: also where the test itself changed rows behind the plane's back."""
    found = await audit.verify(world.db, world.admin.actor)
    return found.faults == [] and found.root_faults == []


async def actions(world: World, job: Job) -> list[str]:
    """What the audit trail of the job's session says, in order."""
    entries = await audit.list_entries(world.db, world.admin.actor, job.session_id, 0, 1000)
    return [entry.action for entry in entries]


def names_what_to_do(job: Job, step: int) -> bool:
    """An error that names the job and the step, and a command or setting that helps."""
    error = job.error_message or ""
    return error.startswith(f"Job {job.id}, step {step}: ") and "`" in error.rpartition(". ")[2]


class Recording:
    """The scripted model, which remembers everything it was asked; ``before`` runs ahead of each answer."""

    def __init__(self, before: Callable[[int], Awaitable[None]] | None = None) -> None:
        self.asked: list[list[Turn]] = []
        self._before = before

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        self.asked.append(list(request.turns))
        if self._before is not None:
            await self._before(len(self.asked))
        async for piece in ScriptedModel().stream(request):
            yield piece


class Gate:
    """A place in a tool or a model where a test holds it."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.opened = asyncio.Event()

    async def passed(self) -> None:
        self.entered.set()
        await self.opened.wait()


class Died(BaseException):
    """Raised inside a tool or a model: its worker is gone and writes nothing more."""


async def leased(
    db: Database, *apps: App, lease: timedelta = timedelta(hours=1)
) -> tuple[Worker, Assignment]:
    """A worker that is only a row, and the one job that it leased."""
    worker = Worker(db, apps, KEY, FAST, name="lost")
    await workers.register_worker(db, worker.id, worker.name, "nowhere", 1, sorted(worker.apps), 1, lease)
    async with asyncio.timeout(5):
        while True:
            claimed, _ = await workers.claim_jobs(db, worker.id, list(worker.apps), 1, NOBODY)
            if claimed:
                return worker, claimed[0]
            await asyncio.sleep(0.01)


_PASSED = """
    update tool_call set dispatch_before = dispatch_before - (settle_after - plane_now()), settle_after = plane_now()
    where job_id = $1 and finished_at is null and settle_after > plane_now()"""


async def died(
    db: Database, *apps: App, backends: Backends | None = None, time_passes: bool = True
) -> Assignment:
    """A worker takes one job and runs it until a tool or the model raises ``Died``; its lease runs out at once.

    Time passes until nothing that it sent can be under way any more, unless a test wants to see others wait for that.
    """
    worker, given = await leased(db, *apps)
    host = replace(worker._host, backends=backends or Backends())
    try:
        await attempt_of(host, given).run()
    except Died:
        await expire(db, worker)
        if time_passes:
            async with db.transaction(given.org_id) as tx:
                await tx.rows(_PASSED, given.job_id)
        return given
    raise AssertionError("nothing killed the worker")


async def expire(db: Database, worker: Worker) -> None:
    """The lease of a worker has run out."""
    await workers.beat_worker(db, worker.id, timedelta(seconds=-1))


@asynccontextmanager
async def working(
    db: Database,
    *apps: App,
    settings: WorkerSettings = FAST,
    key: bytes = KEY,
    backends: Backends | None = None,
    **changes: Any,
) -> AsyncIterator[Worker]:
    """A worker for as long as the block runs, ended as SIGTERM ends one."""
    worker = Worker(db, apps, key, replace(settings, **changes) if changes else settings, backends)
    worker._steady = (
        STEADY_BEATS  # as one that has been there for a while: it adopts what it finds at its first look
    )
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, 15)
