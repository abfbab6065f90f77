"""Deploys: code that differs from what was recorded puts the job on hold, and never fails or repeats anything."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.jobs.model.jobs import Hold, Job, JobStatus, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.verbs import events
from cortex_plane.worker.code.context import Context, dry_run
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import decide, pending_soon
from tests.fixtures.clock import Clock
from tests.fixtures.coded import Code, coded, entries_of, keys_of, make_coded
from tests.fixtures.people import World
from tests.fixtures.workers import ended, submit, until, working

START = datetime(2030, 1, 1, 12, tzinfo=UTC)


async def as_it_was(ctx: Context) -> list[Any]:
    one = await ctx.step("one", lambda word: word, "a", repeatable=True)
    branches = await ctx.gather(
        ctx.step("left", lambda: 1, repeatable=True), ctx.step("right", lambda: 2, repeatable=True)
    )
    said = await ctx.request_approval("Go on?")
    return [one, branches, said.approved, await ctx.step("last", lambda: "z", repeatable=True)]


async def _another_name(ctx: Context) -> None:
    await ctx.step("won", lambda word: word, "a", repeatable=True)


async def _another_input(ctx: Context) -> None:
    await ctx.step("one", lambda word: word, "b", repeatable=True)


async def _another_kind(ctx: Context) -> None:
    await ctx.tool("one")


async def _another_order(ctx: Context) -> None:
    await ctx.gather(ctx.step("left", lambda: 1, repeatable=True), ctx.step("right", lambda: 2, repeatable=True))


async def _one_more_before(ctx: Context) -> None:
    await ctx.step("zero", lambda: 0, repeatable=True)


async def _fewer_branches(ctx: Context) -> None:
    await ctx.step("one", lambda word: word, "a", repeatable=True)
    await ctx.gather(ctx.step("left", lambda: 1, repeatable=True))


async def _another_branch(ctx: Context) -> None:
    await ctx.step("one", lambda word: word, "a", repeatable=True)
    await ctx.gather(ctx.step("left", lambda: 1, repeatable=True), ctx.step("wrong", lambda: 2, repeatable=True))


async def _an_empty_branch(ctx: Context) -> None:
    async def nothing() -> None:
        pass

    await ctx.step("one", lambda word: word, "a", repeatable=True)
    await ctx.gather(ctx.step("left", lambda: 1, repeatable=True), nothing())


async def _returns_early(ctx: Context) -> str:
    return "done"


async def _raises_early(ctx: Context) -> None:
    raise KeyError("ref")


CHANGES: dict[str, tuple[Code, str]] = {
    "another name": (_another_name, "expected step `one#0`, and step `won#0` came"),
    "another input": (_another_input, "expected step `one#0` with the input that was recorded, and another input came"),
    "another kind": (_another_kind, "expected step `one#0`, and tool `one#0` came"),
    "another order": (_another_order, "expected step `one#0`, and gather `gather#0` came"),
    "one more before": (_one_more_before, "expected step `one#0`, and step `zero#0` came"),
    "fewer branches": (_fewer_branches, "expected gather `gather#0` with the input that was recorded"),
    "another branch": (_another_branch, "expected step `gather#0/1/right#0`, and step `gather#0/1/wrong#0` came"),
    "an empty branch": (_an_empty_branch, "expected step `gather#0/1/right#0`, and the branch `gather#0/1/` ended"),
    "returns early": (_returns_early, "expected step `one#0`, and the function returned"),
    "raises early": (_raises_early, "expected step `one#0`, and the code raised KeyError: 'ref'"),
}


async def parked(world: World) -> UUID:
    """A job that waits for a person, whose worker is gone and whose approval is given."""
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(as_it_was)):
        (asked,) = await pending_soon(world, id)
    await decide(world, asked)
    return id


async def why_held(world: World, job: Job) -> str:
    found = await events.of_session(world.db, world.admin.actor, job.session_id, 0)
    return str([event.data for event in found.events if event.type == "session_paused"][-1]["why"])


@pytest.mark.proves("D.248")
@pytest.mark.parametrize("change", CHANGES)
async def test_changed_code_is_held_and_goes_on_once_it_is_right_again(world: World, change: str) -> None:
    id = await parked(world)
    before = await keys_of(world, id)
    code, why = CHANGES[change]
    async with working(world.db, coded(code)):
        job = await ended(world, id)
    assert (job.status, job.holds, job.error_message) == (JobStatus.PAUSED, [Hold.CODE_CHANGED], None)
    assert why in await why_held(world, job)
    assert await keys_of(world, id) == before
    entries = await entries_of(world, id)
    assert why in (await dry_run(code, entries, {"text": "go"}) or "")
    assert await dry_run(as_it_was, entries, {"text": "go"}) is None
    await steering.resume(world.db, world.admin.actor, id, Resumption())
    async with working(world.db, coded(as_it_was)):
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.error_message, job.result) == (None, {"value": ["a", [1, 2], True, "z"]})
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


@pytest.mark.proves("D.248")
async def test_an_agent_that_the_app_does_not_have_is_held(world: World) -> None:
    id = await submit(world, await make_coded(world, run="gone"))
    async with working(world.db, coded(as_it_was)):
        job = await ended(world, id)
        assert (job.status, job.holds) == (JobStatus.PAUSED, [Hold.CODE_CHANGED])
    assert "the app `tests` has no agent `gone`; it has `run`" in await why_held(world, job)


@pytest.mark.proves("D.248")
async def test_a_tool_that_is_gone_while_it_waits_for_a_person_is_held(strict: World) -> None:
    async def run(ctx: Context) -> Any:
        return await ctx.tool("act")

    def app(*names: str) -> App:
        app = App("tests")
        for name in names:

            @app.tool(name=name, on_uncertain="retry_with_key")
            async def act() -> str:
                return "acted"

        return coded(run, app)

    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, app("act")):
        (asked,) = await pending_soon(strict, id)
    await decide(strict, asked)
    async with working(strict.db, app("other")):
        job = await ended(strict, id)
        assert (job.status, job.holds) == (JobStatus.PAUSED, [Hold.CODE_CHANGED])
    await steering.resume(strict.db, strict.admin.actor, id, Resumption())
    async with working(strict.db, app("act")):
        job = await until(strict, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.error_message, job.result) == (None, {"text": "acted"})


@pytest.mark.proves("D.249")
@pytest.mark.parametrize("way", ["swallowed", "in a finally"])
async def test_code_that_swallows_what_the_plane_raises_is_held(world: World, way: str) -> None:
    async def run(ctx: Context) -> str:
        try:
            await ctx.sleep(3600)
        except BaseException:
            if way == "swallowed":
                return "went on"
        finally:
            if way != "swallowed":
                return "went on"  # noqa: B012
        return "never"

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        job = await ended(world, id)
    assert (job.status, job.holds) == (JobStatus.PAUSED, [Hold.CODE_CHANGED])
    assert "never catch BaseException" in await why_held(world, job)


@pytest.mark.proves("D.249")
async def test_except_exception_does_not_swallow_it(world: World, admin: asyncpg.Connection) -> None:
    seen: list[str] = []

    async def run(ctx: Context) -> str:
        try:
            await ctx.sleep(3600)
        except Exception as error:
            seen.append(repr(error))
        finally:
            seen.append("cleaned up")
        return "slept"

    clock = await Clock.install(admin, START)
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        await until(world, id, JobStatus.SLEEPING)
        await clock.advance(timedelta(hours=2))
        job = await ended(world, id)
    assert (job.error_message, job.result, seen) == (None, {"text": "slept"}, ["cleaned up", "cleaned up"])


# A deploy with many parked jobs ------------------------------------------------------------------------------------


def _waits(before: str) -> Callable[[Context], Coroutine[Any, Any, str]]:
    async def run(ctx: Context) -> str:
        await ctx.step(before, lambda: 1, repeatable=True)
        if ctx.payload["for"] == "time":
            await ctx.sleep(3600)
        else:
            await ctx.request_approval(f"May job {ctx.payload['number']} go on?")
        return await ctx.step("after", lambda: "went on", repeatable=True)

    return run


async def _many(world: World, names: list[str], count: int) -> list[UUID]:
    """Parked jobs of two agents, each half asleep and half waiting for a person."""
    agents = [await make_coded(world, run=name, slug=name, limits={"max_concurrent_jobs": 200}) for name in names]
    gate = asyncio.Semaphore(8)

    async def one(number: int) -> UUID:
        async with gate:
            payload = {"number": number, "for": "time" if number % 4 < 2 else "people"}
            return await submit(world, agents[number % 2], payload)

    return list(await asyncio.gather(*(one(number) for number in range(count))))


def _code(**agents: str) -> App:
    app = App("tests")
    for name, before in agents.items():
        app.agent(name)(_waits(before))
    return app


async def _counted(admin: asyncpg.Connection) -> dict[tuple[str, str], int]:
    rows = await admin.fetch("select status, holds::text, count(*) from job group by 1, 2")
    return {(row["status"], row["holds"]): row["count"] for row in rows}


async def _until_none(admin: asyncpg.Connection, *statuses: str) -> None:
    async with asyncio.timeout(300):
        while await admin.fetchval("select count(*) from job where status = any ($1)", list(statuses)):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.proves("D.250")
@pytest.mark.parametrize("parked", [100, pytest.param(1000, marks=pytest.mark.soak)], ids=["short", "whole"])
async def test_a_deploy_with_many_parked_jobs_fails_none(world: World, admin: asyncpg.Connection, parked: int) -> None:
    """One of two agents changes before its wait: its jobs are held with a reason, the other's go on, and none fails."""
    clock = await Clock.install(admin, START)
    await _many(world, ["kept", "changed"], parked)
    async with working(world.db, _code(kept="before", changed="before"), concurrency=32):
        await _until_none(admin, "PENDING", "RUNNING")
    assert await _counted(admin) == {("SLEEPING", "{}"): parked // 2, ("WAITING_FOR_APPROVAL", "{}"): parked // 2}
    await clock.advance(timedelta(hours=2))
    async with working(world.db, _code(kept="before", changed="earlier"), concurrency=32):
        await _decide_all(world)
        await _until_none(admin, "PENDING", "RUNNING", "SLEEPING", "WAITING_FOR_APPROVAL")
    assert await _counted(admin) == {("COMPLETED", "{}"): parked // 2, ("PAUSED", "{code_changed}"): parked // 2}
    told = await admin.fetchval(
        "select count(*) from event where type = 'session_paused' and data ->> 'why' like '%expected step `before#0`%'"
    )
    assert told == parked // 2


async def _decide_all(world: World) -> None:
    gate = asyncio.Semaphore(8)

    async def one(approval: Any) -> None:
        async with gate:
            await decide(world, approval)

    while True:
        page = await approvals.list_approvals(world.db, world.admin.actor, None, 100, status=ApprovalStatus.PENDING)
        if not page.items:
            return
        await asyncio.gather(*(one(approval) for approval in page.items))
