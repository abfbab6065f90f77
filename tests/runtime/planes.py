"""A worker inside a test, on the test's own database, and jobs whose model follows a script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any
from uuid import UUID

from cortex_plane.domain.agents import Agent, AgentDraft, ModelConfig, ResourceLimits
from cortex_plane.domain.jobs import Job, JobDraft, JobStatus
from cortex_plane.domain.values import adapter
from cortex_plane.operations import agents, jobs
from cortex_plane.runtime.tools.app import App
from cortex_plane.runtime.worker import Worker, WorkerSettings
from cortex_plane.storage.database import Database
from tests.people import World

KEY = bytes(range(32))
FAST = WorkerSettings(poll_seconds=0.05, adoption_seconds=2.0, dispatch_seconds=0.5, grace_seconds=5)


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
    limits: dict[str, Any] | None = None,
    **skills: Any,
) -> Agent:
    """An agent that says these turns, and then that it is done."""
    model = adapter(ModelConfig).validate_python(
        {"model": "scripted", "script": [*script, turn(text="done")]}
    )
    draft = AgentDraft(
        name=f"Agent {slug}",
        slug=slug,
        role="Tester",
        team="main",
        model_config=model,
        skill_config={"app": app, **skills},
        resource_limits=adapter(ResourceLimits).validate_python(limits or {}),
    )
    return await agents.create(world.db, world.admin.actor, draft)


async def submit(world: World, agent: Agent, payload: dict[str, Any] | None = None, **more: Any) -> UUID:
    draft = JobDraft(agent=agent.slug, payload=payload or {"text": "go"}, **more)
    return (await jobs.submit(world.db, world.admin.actor, draft)).id


async def job_of(world: World, id: UUID) -> Job:
    return await jobs.get(world.db, world.admin.actor, id)


async def until(world: World, id: UUID, *statuses: JobStatus, seconds: float = 20) -> Job:
    """The job, once it has one of these statuses."""
    async with asyncio.timeout(seconds):
        while True:
            job = await job_of(world, id)
            if job.status in statuses:
                return job
            await asyncio.sleep(0.01)


@asynccontextmanager
async def working(
    db: Database, *apps: App, settings: WorkerSettings = FAST, key: bytes = KEY, **changes: Any
) -> AsyncIterator[Worker]:
    """A worker for as long as the block runs, ended as SIGTERM ends one."""
    worker = Worker(db, apps, key, replace(settings, **changes) if changes else settings)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.wait_for(task, 15)
