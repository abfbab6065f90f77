"""Branches of one job that write at the same moment: each by the policies that it was judged by, and nothing is lost.

The test holds the job's row, so that a write of one branch is under way while the others go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents.model.completions import ModelError, ModelRequest, ModelUsage, Response, TextChunk, UserTurn
from cortex_plane.kernel.errors import ToolDenied
from cortex_plane.policies.verbs.policy_cache import book
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import decide, pending_soon
from tests.fixtures.coded import coded, make_coded
from tests.fixtures.people import World, apply_policies
from tests.fixtures.waits import lock_waiters
from tests.fixtures.workers import Gate, actions, ended, job_of, submit, working
from tests.worker.test_code_agents import Outside

FROZEN = """
policies:
  - {name: freeze, target: act, effect: deny}
  - {name: rest, target: '*', effect: allow}
"""


@asynccontextmanager
async def row_held(admin: asyncpg.Connection, id: UUID) -> AsyncIterator[None]:
    async with admin.transaction():
        await admin.execute("select from job where id = $1 for update", id)
        yield


async def a_write_waits(admin: asyncpg.Connection) -> None:
    async with asyncio.timeout(20):
        while not await lock_waiters(admin, "advance_job"):  # noqa: ASYNC110 -- only the database knows
            await asyncio.sleep(0.01)


async def turns(number: int = 200) -> None:
    """Of the loop: whoever can go on without the database has done so."""
    for _ in range(number):
        await asyncio.sleep(0)


@pytest.mark.proves("D.242")
async def test_a_call_is_not_sent_by_policies_that_another_branch_heard_of(
    world: World, admin: asyncpg.Connection
) -> None:
    """Judged while it was allowed, and written after it was denied, when other branches know of that already."""
    outside, gates = Outside(), [Gate() for _ in range(3)]

    async def run(ctx: Context) -> list[str]:
        async def acts(what: str) -> str:
            try:
                return str(await ctx.tool("act", what=what))
            except ToolDenied:
                return "denied"

        async def first() -> str:
            await ctx.step("a", gates[0].passed, repeatable=True)
            await ctx.step("b", int, repeatable=True)  # writes "a": that is the write that is held
            return await acts("first")

        async def second() -> str:
            await ctx.step("c", gates[1].passed, repeatable=True)
            await ctx.step("d", int, repeatable=True)
            return "done"

        async def third() -> str:
            await ctx.step("e", gates[2].passed, repeatable=True)
            return await acts("third")

        return list(await ctx.gather(first(), second(), third()))

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run, outside.app()), adoption_seconds=20.0):
        for gate in gates:
            await gate.entered.wait()
        async with row_held(admin, id):
            gates[0].opened.set()
            await a_write_waits(admin)
            for gate in gates[1:]:
                gate.opened.set()
                await turns()
            await apply_policies(world.db, world.admin.actor, FROZEN)
            # Known to the worker already: whoever hears of them judges by them without waiting for the database.
            version = await admin.fetchval("select policies_version($1)", world.org_id)
            await book.at(world.db, world.org_id, version)
        job = await ended(world, id)
    assert job.error_message is None
    assert job.result == {"value": ["denied", "done", "denied"]}
    assert outside.log == []


@pytest.mark.proves("D.242")
async def test_what_is_noted_goes_on_the_trail_although_a_write_is_refused(
    strict: World, admin: asyncpg.Connection
) -> None:
    outside, begun, go = Outside(), asyncio.Event(), asyncio.Event()

    async def run(ctx: Context) -> Any:
        begun.set()
        await go.wait()
        return (await ctx.tool("act", what="it"))["acted"]

    go.set()
    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, coded(run, outside.app()), adoption_seconds=20.0):
        (asked,) = await pending_soon(strict, id)
    begun.clear()
    go.clear()
    await decide(strict, asked)
    async with working(strict.db, coded(run, outside.app()), adoption_seconds=20.0):
        await begun.wait()
        async with row_held(admin, id):
            go.set()
            await a_write_waits(admin)
            policy = "policies: [{name: ask, target: act, effect: requires_approval}]"
            await apply_policies(strict.db, strict.admin.actor, policy)
        job = await ended(strict, id)
    assert (job.error_message, outside.log) == (None, ["act it"])
    trail = await actions(strict, job)
    assert trail.count("job_handed_back") >= 1
    assert trail.count("job_resumed") == 1 + trail.count("job_handed_back")


@pytest.mark.proves("D.246")
async def test_what_a_branch_notes_while_another_writes_goes_on_the_trail(
    strict: World, admin: asyncpg.Connection
) -> None:
    begun, written, go = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def app(description: str, *, more: bool) -> App:
        made = App("tests")

        @made.tool(on_uncertain="retry_with_key", description=description)
        async def act() -> str:
            return "acted"

        async def slow() -> None:
            begun.set()
            await written.wait()

        async def run(ctx: Context) -> Any:
            async def steps() -> None:
                if more:
                    await ctx.step("slow", slow, repeatable=True)

            async def acts() -> Any:
                if more:
                    await go.wait()
                return await ctx.tool("act")

            return (await ctx.gather(steps(), acts()))[1]

        return coded(run, made)

    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, app("As it was.", more=False), adoption_seconds=20.0):
        (asked,) = await pending_soon(strict, id)
    await decide(strict, asked)
    async with working(strict.db, app("As it is now.", more=True), adoption_seconds=20.0):
        await begun.wait()
        async with row_held(admin, id):
            written.set()
            await a_write_waits(admin)
            go.set()  # it is not the tool that was approved: that is noted, and people are asked again
            await turns()
        (again,) = await pending_soon(strict, id)
    assert again.id != asked.id
    assert (await actions(strict, await job_of(strict, id))).count("approval_outgrown") == 1


class Two:
    """Two answers at once, of which one breaks off."""

    def __init__(self) -> None:
        self.go = {"good": asyncio.Event(), "bad": asyncio.Event()}

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        turn = request.turns[-1]
        assert isinstance(turn, UserTurn)
        yield TextChunk(f"{turn.text} ")
        await self.go[turn.text].wait()
        if turn.text == "bad":
            raise ModelError("It broke off.", status=400)
        yield Response(text="good", calls=(), usage=ModelUsage(prompt_tokens=1, completion_tokens=1))


@pytest.mark.proves("D.245")
async def test_an_answer_that_breaks_off_is_void_alone(world: World, admin: asyncpg.Connection) -> None:
    model = Two()

    async def run(ctx: Context) -> int:
        return len(await ctx.gather(ctx.model("good"), ctx.model("bad"), return_exceptions=True))

    async def chunks() -> list[str]:
        return [row["text"].strip() for row in await admin.fetch("select text from text_chunk order by text")]

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run), backends=Backends({"scripted": model}), adoption_seconds=20.0):
        async with asyncio.timeout(20):
            while await chunks() != ["bad", "good"]:  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.01)
            model.go["bad"].set()
            restarted = "select count(*) from event where type = 'step_restarted'"
            while not await admin.fetchval(restarted):  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.01)
        assert await chunks() == ["good"]
        model.go["good"].set()
        job = await ended(world, id)
    assert (job.error_message, job.result) == (None, {"value": 2})
