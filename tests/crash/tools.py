"""The app of the crash tests: one tool for each way of settling an uncertain call, and one that only looks.

Each acts on the outside world (benchmarks/world.py), which counts what truly happened. An act is named by job, step
and word, so that the count does not depend on anything that the plane decides.
"""

from __future__ import annotations

import asyncio
import copy
import json
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit

from benchmarks.world import World

from cortex_plane.agents.model.tools import DidNotHappen, Happened
from cortex_plane.db.crash_points import reached
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from cortex_plane.worker.worker import WorkerSettings

# Short, so that a death is noticed and settled within three seconds; not shorter, because a worker on a busy machine
# must not seem dead. Many deaths are no poison here.
SHORT = WorkerSettings(
    concurrency=16,
    poll_seconds=0.05,
    adoption_seconds=3.0,
    dispatch_seconds=1.0,
    grace_seconds=20,
    poison_deaths=10_000,
    defer_seconds=60,  # for agents that ask for it; no response takes so long
)
TOOL_SECONDS = 1.0


class Kind(StrEnum):
    """The tools with side effects, by how they are settled."""

    WITH_KEY = "act_with_key"
    PROBED = "act_probed"
    ASKED = "act_asked"
    OR_FAIL = "act_or_fail"


def act_name(job_id: object, step: int, word: str) -> str:
    return f"{job_id}:{step}:{word}"


def crash_app(outside: World, timeout: float = TOOL_SECONDS) -> App:
    app = App("crash")

    async def act(kind: Kind, word: str, delay_ms: int, ctx: ToolContext, key: str | None, once: str | None) -> Any:
        named = act_name(ctx.job_id, ctx.step, word)
        payload = {"act": named, "kind": kind, "attempt": ctx.attempt}
        wish = {"key": key or named, "idempotency_key": once, "delay_ms": delay_ms, "payload": payload}
        return await _post(outside, wish)

    @app.tool(read_only=True, timeout=timeout)
    async def look(at: str) -> str:
        """Looks."""
        return f"saw {at}"

    @app.tool(on_uncertain="retry_with_key", timeout=timeout)
    async def act_with_key(word: str, ctx: ToolContext, delay_ms: int = 0) -> Any:
        """Acts once per idempotency key."""
        return await act(Kind.WITH_KEY, word, delay_ms, ctx, None, ctx.idempotency_key)

    async def ask_world(word: str, ctx: ToolContext, delay_ms: int = 0) -> Happened | DidNotHappen:
        count = await outside.count(str(ctx.invocation_id))
        return Happened({"found": count}) if count else DidNotHappen()

    @app.tool(on_uncertain="probe", probe=ask_world, timeout=timeout)
    async def act_probed(word: str, ctx: ToolContext, delay_ms: int = 0) -> Any:
        """Acts under the invocation's id, which the probe can ask for."""
        return await act(Kind.PROBED, word, delay_ms, ctx, str(ctx.invocation_id), None)

    @app.tool(on_uncertain="ask_human", timeout=timeout)
    async def act_asked(word: str, ctx: ToolContext, delay_ms: int = 0) -> Any:
        """Acts; a person is asked where it is uncertain."""
        return await act(Kind.ASKED, word, delay_ms, ctx, None, None)

    @app.tool(on_uncertain="fail", timeout=timeout)
    async def act_or_fail(word: str, ctx: ToolContext, delay_ms: int = 0) -> Any:
        """Acts; the job is given up where it is uncertain."""
        return await act(Kind.OR_FAIL, word, delay_ms, ctx, None, None)

    async def step(word: str, ctx: ToolContext) -> Any:
        named = act_name(ctx.job_id, ctx.step, word)
        wish = {"key": named, "idempotency_key": None, "delay_ms": 0, "payload": {"act": named, "attempt": ctx.attempt}}
        return await _post(outside, wish)

    async def step_with_key(word: str, ctx: ToolContext) -> Any:
        return await act(Kind.WITH_KEY, word, 0, ctx, None, ctx.idempotency_key)

    async def ask_world_of_step(word: str, ctx: ToolContext) -> Happened | DidNotHappen:
        count = await outside.count(act_name(ctx.job_id, ctx.step, word))
        return Happened({"found": count}) if count else DidNotHappen()

    @app.agent
    async def walk(ctx: Context) -> dict[str, Any]:
        """An agent written as code, with every kind of operation."""

        async def branch(kind: Kind, word: str) -> None:
            await ctx.step("think", lambda: word, repeatable=True)
            await ctx.tool(kind, word=word)

        await ctx.step("plan", lambda: "planned", repeatable=True)
        await ctx.tool("look", at="here")
        await ctx.tool(Kind.WITH_KEY, word="a")
        await ctx.state.set("count", await ctx.state.get("count", 0) + 1)
        await ctx.sleep(0.02)
        await ctx.gather(branch(Kind.PROBED, "b"), branch(Kind.ASKED, "c"))
        await ctx.step("with a key", step_with_key, "f", on_uncertain="retry_with_key", timeout=timeout)
        await ctx.gather(
            ctx.step("says nothing", step, "g", timeout=timeout),
            ctx.step("probed", step, "h", on_uncertain="probe", probe=ask_world_of_step, timeout=timeout),
        )
        said = await ctx.request_approval("Go on?", details={"job": str(ctx.job_id)})
        if said:
            await ctx.tool(Kind.WITH_KEY, word="d")
        await ctx.model("What next?")
        await ctx.state.set("count", await ctx.state.get("count", 0) + 1)
        await ctx.tool(Kind.OR_FAIL, word="e")
        return {"text": "done"}

    return app


def renamed(app: App, name: str) -> App:
    """The same tools under another name: they take longer to declare than a worker lives."""
    other = copy.copy(app)
    other.name = name
    return other


async def _post(outside: World, wish: dict[str, Any]) -> Any:
    """The request as a tool would send it, with two more places to die or stop: not yet sent, and not answered."""
    reached("act:before")
    place = urlsplit(outside.url)
    said = json.dumps(wish).encode()
    head = f"POST /act HTTP/1.1\r\nhost: {place.netloc}\r\nconnection: close\r\ncontent-length: {len(said)}\r\n\r\n"
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(head.encode() + said)
        await writer.drain()
        reached("act:sent")
        answer = await reader.read()
    finally:
        writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])
