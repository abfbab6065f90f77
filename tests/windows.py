"""Agents with a small window, a model that remembers what it was asked, and a database that counts what was read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.agents.model.agents import Agent, AgentDraft, ModelConfig, ResourceLimits
from cortex_plane.agents.model.completions import (
    ModelRequest,
    ModelUsage,
    Response,
    TextChunk,
    Turn,
    UserTurn,
)
from cortex_plane.agents.verbs import agents
from cortex_plane.db.database import Database, Row
from cortex_plane.kernel.fields import adapter
from cortex_plane.sessions.model.sessions import LABEL, SessionMemory
from cortex_plane.sessions.verbs import sessions
from cortex_plane.worker.models.backends import ScriptedModel
from tests.people import World
from tests.runtime.planes import turn


async def small_agent(
    world: World,
    script: Sequence[dict[str, Any]],
    *,
    context_tokens: int = 3_000,
    context_turns: int = 200,
    slug: str = "small",
    app: str = "tests",
    model: str = "listening",
    limits: dict[str, Any] | None = None,
) -> Agent:
    """Its window has room for a thousand tokens less than ``context_tokens``."""
    config = {
        "model": model, "script": [*script, turn(text="Re: {message}", repeat=True)], "max_tokens": 1_000,
        "context_tokens": context_tokens, "context_turns": context_turns,
    }  # fmt: skip
    draft = AgentDraft(
        name=f"Agent {slug}", slug=slug, role="Tester", team="main",
        model_config=adapter(ModelConfig).validate_python(config), skill_config={"app": app},
        resource_limits=adapter(ResourceLimits).validate_python(
            {"retry_base_seconds": 0.001, "max_iterations": 1000, **(limits or {})}
        ),
    )  # fmt: skip
    return await agents.create_agent(world.db, world.admin.actor, draft)


class Listening:
    """The scripted model, which remembers every request; ``before`` runs ahead of each answer, and ``summary`` may give
    another one where it is asked to summarise, by how often it was."""

    def __init__(
        self,
        before: Callable[[ModelRequest], Awaitable[None]] | None = None,
        summary: Callable[[int], str | None] | None = None,
    ) -> None:
        self.requests: list[ModelRequest] = []
        self._before, self._summary = before, summary

    def of(self, purpose: str) -> list[ModelRequest]:
        return [request for request in self.requests if request.purpose == purpose]

    @property
    def last(self) -> list[Turn]:
        return list(self.of("step")[-1].turns)

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        self.requests.append(replace(request, turns=list(request.turns)))
        if self._before is not None:
            await self._before(request)
        if request.purpose == "summary" and self._summary is not None:
            text = self._summary(len(self.of("summary")))
            yield Response(text=text, calls=(), usage=ModelUsage(prompt_tokens=7, completion_tokens=5))
            return
        async for piece in ScriptedModel().stream(request):
            yield piece


class Counting(Database):
    """Remembers what every job was given of its past."""

    def __init__(self, db: Database) -> None:
        super().__init__(db._pool, credential_key=db.credential_key_at_hand)
        self.pasts: list[Row] = []

    async def call(self, name: str, org: UUID | None, *args: Any) -> Sequence[Row]:
        rows = await super().call(name, org, *args)
        if name == "job_past":
            self.pasts += rows
        return rows


def memory_in(turns: Sequence[Turn]) -> dict[str, Any] | None:
    """The memory that the model is told, which is the first thing it hears."""
    first = turns[0]
    if not isinstance(first, UserTurn) or not first.text.startswith(LABEL):
        return None
    told: dict[str, Any] = orjson.loads(first.text.removeprefix(LABEL))
    return told


def users(turns: Sequence[Turn]) -> list[str]:
    return [turn.text for turn in turns if isinstance(turn, UserTurn) and not turn.text.startswith(LABEL)]


async def memories_of(world: World, session_id: UUID) -> list[SessionMemory]:
    """Oldest first."""
    return (await sessions.list_memories(world.db, world.admin.actor, session_id, None, 1000))[::-1]
