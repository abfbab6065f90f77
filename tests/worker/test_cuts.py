"""Pauses whose bound passes between two things that an attempt does, rather than while it waits for one of them.

The test holds a row or a table, so that the attempt stands at exactly that place when it is cut.
"""

from __future__ import annotations

import asyncio

import asyncpg
import httpx
import pytest

from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import CortexError
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.worker import JobRunner
from tests.fixtures.coded import coded, make_coded
from tests.fixtures.people import World, apply_policies
from tests.fixtures.waits import lock_waiters
from tests.fixtures.workers import (
    FAST,
    Gate,
    Recording,
    call,
    make_agent,
    steps_of,
    submit,
    turn,
    until,
    whole,
    working,
)
from tests.jobs.test_http_pauses import send
from tests.worker.test_code_branches import a_write_waits, row_held


def acting(sent: list[str]) -> App:
    app = App("tests")

    @app.tool(on_uncertain="ask_human", timeout=60)
    async def act() -> str:
        """Acts."""
        sent.append("act")
        return "acted"

    return app


async def cut(worker: JobRunner) -> None:
    """Until the worker noticed that its job should hold by now."""
    async with asyncio.timeout(20):
        while not any(attempt.lease.is_overdue for attempt in worker._running.values()):  # noqa: ASYNC110 -- it beats
            await asyncio.sleep(0.01)


@pytest.mark.proves("S4.201")
async def test_a_cut_before_the_first_intent_keeps_the_calls_of_the_response(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    """The response is there, and its call is about to be judged: nothing of it is written yet."""
    sent, gate, model = list[str](), Gate(), Recording()
    app = acting(sent)

    @app.tool(read_only=True)
    async def look() -> str:
        """Looks."""
        await gate.passed()
        return "seen"

    job = await submit(world, await make_agent(world, [turn(call("look")), turn(call("act"))], model="heard"))
    async with working(world.db, app, settings=FAST, backends=Backends({"heard": model})) as worker:
        await asyncio.wait_for(gate.entered.wait(), 20)
        # The next call is judged by policies that its worker has to read first.
        await apply_policies(world.db, world.admin.actor, "policies: [{name: all, target: act, effect: allow}]")
        async with admin.transaction():
            await admin.execute("lock table policy in access exclusive mode")
            gate.opened.set()
            async with asyncio.timeout(20):
                while not await lock_waiters(admin, "policy"):  # noqa: ASYNC110 -- only the database knows
                    await asyncio.sleep(0.01)
            assert len(model.asked) == 2, "the response is there"
            await send(http, world, f"jobs/{job}/pause", within_seconds=1)
            await cut(worker)
        await until(world, job, JobStatus.PAUSED)
        assert sent == []
        await send(http, world, f"jobs/{job}/resume")
        await until(world, job, JobStatus.COMPLETED)
    assert sent == ["act"]
    assert len(model.asked) == 3, "the response was kept"
    assert await whole(world)


@pytest.mark.proves("S4.201")
async def test_a_call_that_is_cut_while_its_intent_is_written_is_not_sent_and_not_uncertain(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    sent, gate = list[str](), Gate()
    model = Recording(lambda count: gate.passed() if count == 1 else asyncio.sleep(0))
    job = await submit(world, await make_agent(world, [turn(call("act"))], model="slow"))
    async with working(world.db, acting(sent), settings=FAST, backends=Backends({"slow": model})) as worker:
        await asyncio.wait_for(gate.entered.wait(), 20)
        await send(http, world, f"jobs/{job}/pause", within_seconds=1)
        async with row_held(admin, job):
            gate.opened.set()
            await a_write_waits(admin)
            await cut(worker)
        paused = await until(world, job, JobStatus.PAUSED)
        assert paused.holds == ["operator"], "nobody is asked whether it happened"
        await send(http, world, f"jobs/{job}/resume")
        await until(world, job, JobStatus.COMPLETED)
    assert sent == []
    (made,) = (await steps_of(world, job))[0].calls
    assert (made.status, made.error) == ("failed", "not sent: the job was paused")
    assert await whole(world)


@pytest.mark.proves("S2.200")
async def test_a_call_whose_intent_is_written_after_the_time_of_its_job_is_not_sent(
    world: World, admin: asyncpg.Connection
) -> None:
    sent, gate = list[str](), Gate()
    model = Recording(lambda _: gate.passed())
    agent = await make_agent(world, [turn(call("act"))], model="slow", limits={"timeout_seconds": 1})
    job = await submit(world, agent)
    async with working(world.db, acting(sent), settings=FAST, backends=Backends({"slow": model})) as worker:
        await asyncio.wait_for(gate.entered.wait(), 20)
        (attempt,) = worker._running.values()
        async with row_held(admin, job):
            gate.opened.set()
            await a_write_waits(admin)
            async with asyncio.timeout(20):
                while attempt.lease.limits.refuse_time() is None:  # noqa: ASYNC110 -- time passes
                    await asyncio.sleep(0.01)
        failed = await until(world, job, JobStatus.FAILED, JobStatus.PAUSED)
    assert (failed.status, failed.holds, sent) == (JobStatus.FAILED, [], [])
    (made,) = (await steps_of(world, job))[0].calls
    assert (made.status, made.error) == ("failed", "not sent: the time of its job was over")


@pytest.mark.proves("S4.201")
async def test_a_call_that_cleans_up_after_its_own_time_keeps_no_other_from_being_cut(
    http: httpx.AsyncClient, world: World
) -> None:
    rang, cleaned, model_gate = asyncio.Event(), asyncio.Event(), Gate()
    app, model = App("tests"), Recording(lambda count: model_gate.passed() if count == 1 else asyncio.sleep(0))

    @app.tool(read_only=True, timeout=0.05)
    async def slow() -> str:
        """Is slow, and slow to end."""
        try:
            await asyncio.Event().wait()
        finally:
            rang.set()
            await cleaned.wait()
        return "never"

    async def run(ctx: Context) -> str:
        async def look() -> str:
            try:
                return str(await ctx.tool("slow"))
            except CortexError:
                return "late"

        first, second = await ctx.gather(look(), ctx.model("What now?"))
        return f"{first}, {second}"

    coded(run, app)
    job = await submit(world, await make_coded(world, turn(text="this"), model="slow"))
    async with working(world.db, app, settings=FAST, backends=Backends({"slow": model})) as worker:
        await asyncio.wait_for(rang.wait(), 20)
        await asyncio.wait_for(model_gate.entered.wait(), 20)
        await send(http, world, f"jobs/{job}/pause", within_seconds=1)
        await cut(worker)
        cleaned.set()
        await until(world, job, JobStatus.PAUSED)
        assert not model_gate.opened.is_set(), "the request to the model was cut"
        await send(http, world, f"jobs/{job}/resume")
        await until(world, job, JobStatus.COMPLETED)
    assert len(model.asked) == 2
    assert await whole(world)


def timers(worker: JobRunner) -> list[bool]:
    """Of each attempt: whether a cut is planned."""
    return [attempt.lease._cut_timer is not None for attempt in worker._running.values()]


@pytest.mark.proves("S4.201")
async def test_a_call_goes_on_until_its_job_should_hold(http: httpx.AsyncClient, world: World) -> None:
    """With a long lease the heartbeat before the deadline comes early, and the hold may be lifted until then."""
    gate = Gate()
    app = App("tests")

    @app.tool(on_uncertain="ask_human")
    async def act() -> str:
        await gate.passed()
        return "acted"

    job = await submit(world, await make_agent(world, [turn(call("act")), turn(text="done")]))
    async with working(world.db, app, settings=FAST, adoption_seconds=60) as worker:
        await asyncio.wait_for(gate.entered.wait(), 20)
        (attempt,) = worker._running.values()
        await send(http, world, f"jobs/{job}/pause", within_seconds=10)
        await worker._beat()
        assert timers(worker) == [True]
        assert not attempt.lease.is_overdue
        await send(http, world, f"jobs/{job}/resume")
        await worker._beat()
        assert timers(worker) == [False]
        gate.opened.set()
        await until(world, job, JobStatus.COMPLETED)
