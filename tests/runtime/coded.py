"""Jobs of code agents in tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.agents import Agent
from cortex_plane.jobs.model.journal import JournalEntry
from cortex_plane.jobs.verbs import workers
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.tools.app import App
from tests.people import World
from tests.runtime.planes import make_agent

Code = Callable[[Context], Awaitable[Any]]


def coded(function: Code, app: App | None = None, name: str = "run") -> App:
    """An app with one agent."""
    app = app or App("tests")
    app.agent(name)(function)
    return app


async def make_coded(world: World, *turns: dict[str, Any], run: str = "run", **more: Any) -> Agent:
    return await make_agent(world, list(turns), run=run, **{"slug": "coded", **more})


async def entries_of(world: World, id: UUID) -> list[JournalEntry]:
    return await workers.list_journal(world.db, world.admin.actor, id, -1, 1000)


async def keys_of(world: World, id: UUID) -> list[tuple[str, str]]:
    return [(entry.key, entry.status.value) for entry in await entries_of(world, id)]
