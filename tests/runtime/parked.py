"""Parked jobs of every kind, made by a worker with the code of yesterday; and the code of today, that cannot resume them all."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
import orjson

from cortex_plane.agents.model.agents import Agent
from cortex_plane.agents.model.tools import DidNotHappen
from cortex_plane.jobs.model.checkpoints import mac_of
from cortex_plane.jobs.model.jobs import JobStatus, Pause, Reason
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.canonical import canonical
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.lease import checkpoint_key
from cortex_plane.worker.models.backends import Backends, ScriptedModel
from cortex_plane.worker.tools.app import App
from tests.approvals import decide, pending
from tests.people import World, apply_policies
from tests.runtime.planes import KEY, call, make_agent, submit, turn, until, working

S = JobStatus
POLICIES = """
policies:
  - {name: asked, target: "ask*", effect: requires_approval, template: dev_only}
  - {name: rest, target: "*", effect: allow}
"""


async def _nobody_knows(x: int) -> DidNotHappen | None:
    return None


def yesterday() -> App:
    app = App("tests", instructions="Be kind.")

    @app.tool(timeout=5)
    async def ask_same(x: int) -> str:
        """The same today."""
        return "done"

    @app.tool(timeout=5)
    async def ask_changed(x: int) -> str:
        """As it was."""
        return "done"

    @app.tool(timeout=5)
    async def ask_gone(x: int) -> str:
        return "done"

    @app.tool(timeout=5)
    async def ask_stricter(x: int) -> str:
        return "done"

    @app.tool(timeout=600, on_uncertain="probe", probe=_nobody_knows)
    async def sleepy_changed(x: int) -> str:
        """As it was."""
        raise RuntimeError("the line broke")

    @app.tool(timeout=600, on_uncertain="probe", probe=_nobody_knows)
    async def sleepy_gone(x: int) -> str:
        raise RuntimeError("the line broke")

    @app.tool(timeout=5)
    async def doubtful_gone(x: int) -> str:
        raise RuntimeError("the line broke")

    @app.agent
    async def sleeper(ctx: Context) -> None:
        await ctx.step("plan", _planned, ctx.payload)
        await ctx.sleep(3600)

    @app.agent
    async def renamed(ctx: Context) -> None:
        await ctx.sleep(3600)

    @app.agent
    async def detour(ctx: Context) -> None:
        await ctx.step("plan", _planned, ctx.payload)
        await ctx.sleep(3600)

    @app.agent
    async def caller(ctx: Context) -> None:
        await ctx.tool("ask_gone", x=1)

    @app.agent
    async def asker(ctx: Context) -> None:
        await ctx.request_approval("go on")

    return app


async def _planned(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


def _today() -> App:
    app = App("tests", instructions="Be very kind.")

    @app.tool(timeout=5)
    async def ask_same(x: int) -> str:
        """The same today."""
        return "done"

    @app.tool(timeout=5)
    async def ask_changed(x: int) -> str:
        """As it is now."""
        return "done"

    @app.tool(timeout=5)
    async def ask_stricter(x: int, y: int) -> str:
        return "done"

    @app.tool(timeout=600, on_uncertain="probe", probe=_nobody_knows)
    async def sleepy_changed(x: int) -> str:
        """As it is now."""
        raise RuntimeError("the line broke")

    @app.agent
    async def sleeper(ctx: Context) -> None:
        await ctx.step("plan", _planned, ctx.payload)
        await ctx.sleep(3600)
        await ctx.step("something new behind where it stands", _planned, ctx.payload)

    @app.agent
    async def detour(ctx: Context) -> None:
        await ctx.step("something else", _planned, ctx.payload)
        await ctx.sleep(3600)

    @app.agent
    async def caller(ctx: Context) -> None:
        await ctx.tool("ask_gone", x=1)

    @app.agent
    async def asker(ctx: Context) -> None:
        await ctx.request_approval("go on")

    return app


today = _today()


def elsewhere() -> App:
    return App("elsewhere")


Spoil = Callable[[World, asyncpg.Connection, UUID], Awaitable[None]]


@dataclass(frozen=True)
class Kind:
    """One way to be parked, and what preflight must say about it."""

    name: str
    script: list[dict[str, Any]]
    status: JobStatus
    reasons: frozenset[Reason] = frozenset()
    app: str = "tests"
    model: str = "scripted"
    skills: dict[str, Any] = field(default_factory=dict)
    replayed: frozenset[Reason] = frozenset()
    """What is found besides where code agents are run again."""
    approve: bool = False
    """Decided after yesterday's worker was gone: nobody runs it, and its call is approved."""
    spoil: Spoil | None = None


async def _rewrite(world: World, admin: asyncpg.Connection, id: UUID, **changes: Any) -> None:
    """Another checkpoint, as the plane would have sealed it."""
    blob = orjson.loads(await admin.fetchval("select checkpoint::text from job where id = $1", id))
    blob = {name: value for name, value in {**blob, **changes}.items() if name != "crc32"}
    blob["crc32"] = zlib.crc32(canonical(blob))
    text = canonical(blob)
    mac = mac_of(text, id, checkpoint_key(KEY, world.org_id))
    await admin.execute(
        "update job set checkpoint = $2::jsonb, checkpoint_mac = $3 where id = $1", id, text.decode(), mac
    )


async def _newer(world: World, admin: asyncpg.Connection, id: UUID) -> None:
    await _rewrite(world, admin, id, schema_version=99)


async def _flipped(world: World, admin: asyncpg.Connection, id: UUID) -> None:
    await admin.execute(
        "update job set checkpoint = jsonb_set(checkpoint, '{step_index}', '41') where id = $1", id
    )


async def _forged(world: World, admin: asyncpg.Connection, id: UUID) -> None:
    await admin.execute("update job set checkpoint_mac = sha256(checkpoint_mac) where id = $1", id)


async def _held(world: World, admin: asyncpg.Connection, id: UUID) -> None:
    await steering.pause(world.db, world.admin.actor, id, Pause())


def _one(tool: str) -> list[dict[str, Any]]:
    return [turn(call(tool, x=1), text="I do it.")]


_R = Reason
W = S.WAITING_FOR_APPROVAL
_OVERLOADED = [turn(error_status=503, repeat=True)]
KINDS = [
    Kind("fine", _one("ask_same"), W),
    Kind("fine-approved", _one("ask_same"), S.RUNNING, approve=True),
    Kind("changed", _one("ask_changed"), W, frozenset({_R.TOOL_CHANGED})),
    Kind("changed-approved", _one("ask_changed"), S.RUNNING, frozenset({_R.TOOL_CHANGED}), approve=True),
    Kind("gone", _one("ask_gone"), W, frozenset({_R.TOOL_MISSING})),
    Kind("gone-approved", _one("ask_gone"), S.RUNNING, frozenset({_R.TOOL_MISSING}), approve=True),
    Kind("stricter", _one("ask_stricter"), W, frozenset({_R.ARGUMENTS_REFUSED})),
    Kind("asleep", _one("sleepy_changed"), S.SLEEPING, frozenset({_R.TOOL_CHANGED})),
    Kind("asleep-gone", _one("sleepy_gone"), S.SLEEPING, frozenset({_R.TOOL_MISSING})),
    Kind("in-doubt", _one("doubtful_gone"), S.PAUSED, frozenset({_R.TOOL_MISSING})),
    Kind("held", _one("ask_same"), W, spoil=_held),
    Kind("again", _OVERLOADED, S.RETRY),
    Kind("elsewhere", _OVERLOADED, S.RETRY, frozenset({_R.APP_MISSING}), app="elsewhere"),
    Kind("no-model", _OVERLOADED, S.RETRY, frozenset({_R.MODEL_MISSING}), model="yesterdays:best"),
    Kind("code-fine", [], S.SLEEPING, skills={"run": "sleeper"}),
    Kind("code-asks", [], W, skills={"run": "asker"}),
    Kind("code-renamed", [], S.SLEEPING, frozenset({_R.RUN_MISSING}), skills={"run": "renamed"}),
    Kind("code-tool-gone", [], W, frozenset({_R.TOOL_MISSING}), skills={"run": "caller"}),
    Kind("code-detour", [], S.SLEEPING, skills={"run": "detour"}, replayed=frozenset({_R.REPLAY_MISMATCH})),
    Kind("newer", _one("ask_same"), W, frozenset({_R.CHECKPOINT_NEWER}), spoil=_newer),
    Kind("flipped", _one("ask_same"), W, frozenset({_R.CHECKPOINT_CORRUPT}), spoil=_flipped),
    Kind("forged", _one("ask_same"), W, frozenset({_R.CHECKPOINT_CORRUPT}), spoil=_forged),
    Kind("prompt-held", _one("ask_same"), W, frozenset({_R.PROMPT_CHANGED}), skills={"on_prompt_change": "hold"}),
    Kind("prompt-fails", _one("ask_same"), W, frozenset({_R.PROMPT_CHANGED}), skills={"on_prompt_change": "fail"}),
]  # fmt: skip


async def park(admin: asyncpg.Connection, *worlds: World, each: int = 1) -> dict[str, list[UUID]]:
    """So many jobs of every kind in every org, by the kind's name. No worker is left."""
    made: list[tuple[World, Kind, UUID]] = []
    for world in worlds:
        await apply_policies(world.db, world.admin.actor, POLICIES)
        for kind in KINDS:
            agent = await _agent(world, kind)
            made += [(world, kind, await submit(world, agent)) for _ in range(each)]
    backends = Backends({"yesterdays": ScriptedModel()})
    async with working(worlds[0].db, yesterday(), elsewhere(), backends=backends):
        for world, kind, id in made:
            await until(world, id, W if kind.approve else kind.status, seconds=120)
    parked: dict[str, list[UUID]] = {}
    for world, kind, id in made:
        if kind.approve:
            (asked,) = await pending(world, id)
            await decide(world, asked)
        if kind.spoil is not None:
            await kind.spoil(world, admin, id)
        parked.setdefault(kind.name, []).append(id)
    return parked


async def _agent(world: World, kind: Kind) -> Agent:
    limits = {"retry_base_seconds": 3600.0, "retry_cap_seconds": 86400.0, "max_concurrent_jobs": 100}
    return await make_agent(
        world,
        kind.script,
        app=kind.app,
        slug=f"parked-{kind.name}",
        model=kind.model,
        limits=limits,
        **kind.skills,
    )
