"""Code agents that do what cannot work: a clear error, a defined state, and nothing done twice."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from cortex_plane.agents.model.agents import AgentDraft, ModelConfig
from cortex_plane.agents.model.tools import InvalidApp
from cortex_plane.jobs.model.jobs import Cancellation, Hold, JobStatus, Pause, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import ContextMisused
from cortex_plane.kernel.fields import adapter
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.tools.app import App
from tests.fixtures.coded import Code, coded, keys_of, make_coded
from tests.fixtures.people import World
from tests.fixtures.workers import Gate, ended, submit, until, whole, working


async def run_once(world: World, code: Code, app: App | None = None, **limits: Any) -> Any:
    agent = await make_coded(world, limits={"retry_base_seconds": 0.001, **limits})
    id = await submit(world, agent, max_retries=1)
    async with working(world.db, coded(code, app)):
        return await ended(world, id)


MISUSES: dict[str, tuple[Callable[[Context], Any], str]] = {
    "an empty name": (lambda ctx: ctx.step(" ", int, repeatable=True), "' ' cannot be the name of a step"),
    "a long name": (lambda ctx: ctx.step("x" * 201, int, repeatable=True), "cannot be the name of a step"),
    "a name with a slash": (lambda ctx: ctx.step("a/b", int, repeatable=True), "'a/b' cannot be the name of a step"),
    "a name that is none": (lambda ctx: ctx.step(7, int, repeatable=True), "7 cannot be the name of a step"),  # type: ignore[call-overload]
    "no function": (lambda ctx: ctx.step("a", 7, repeatable=True), "was given a int, not a function"),  # type: ignore[call-overload]
    "arguments that are not JSON": (lambda ctx: ctx.step("a", str, object(), repeatable=True), "`$[0]` is a object"),
    "arguments that are too large": (
        lambda ctx: ctx.step("a", len, "x" * 300_000, repeatable=True),
        "the limit is 262144",
    ),
    "retries that cannot be": (lambda ctx: ctx.step("a", int, retries=-1, repeatable=True), "`retries=-1`"),
    "a timeout that cannot be": (lambda ctx: ctx.step("a", int, timeout=0, repeatable=True), "cannot be 0"),
    "a sleep of nothing": (lambda ctx: ctx.sleep(), "either seconds or `until`"),
    "a sleep that is not a number": (lambda ctx: ctx.sleep(float("nan")), "cannot be nan"),
    "a sleep before now": (lambda ctx: ctx.sleep(-1), "cannot be -1"),
    "a signal without a key": (lambda ctx: ctx.wait_event("paid", key=""), "The key of a signal"),
    "an empty prompt": (lambda ctx: ctx.model("  "), "The prompt of a model is empty"),
    "an empty question": (lambda ctx: ctx.request_approval(""), "What people are asked"),
    "approvers that are none": (lambda ctx: ctx.request_approval("Go?", approvers=["ada"]), "`approvers` must be ids"),
    "details that are too large": (
        lambda ctx: ctx.request_approval("Go?", details={"x": "y" * 20_000}),
        "the limit is 16384",
    ),
}


@pytest.mark.proves("D.252")
@pytest.mark.parametrize("misuse", MISUSES)
async def test_what_cannot_be_recorded_fails_the_job_with_the_reason(world: World, misuse: str) -> None:
    begin, why = MISUSES[misuse]

    async def run(ctx: Context) -> None:
        await begin(ctx)

    job = await run_once(world, run)
    assert (job.status, job.retry_count) == (JobStatus.FAILED, 0)
    assert "ContextMisused" in job.error_message
    assert why in job.error_message
    assert await keys_of(world, job.id) == []


async def test_a_result_that_is_not_json_is_a_failure_of_its_step(world: World) -> None:
    async def run(ctx: Context) -> None:
        await ctx.step("made", lambda: {"at": object()}, repeatable=True)

    job = await run_once(world, run)
    assert job.status is JobStatus.FAILED
    assert "What the step `made` returned cannot be stored: `$.at` is a object" in job.error_message


async def test_a_function_returns_what_cannot_be_stored(world: World) -> None:
    async def run(ctx: Context) -> Any:
        return {"number": 2**70}

    job = await run_once(world, run)
    assert job.status is JobStatus.FAILED
    assert "returned what cannot be stored" in job.error_message


@pytest.mark.proves("D.252")
async def test_an_operation_that_was_never_awaited_is_named(world: World) -> None:
    async def run(ctx: Context) -> str:
        ctx.step("forgotten", lambda: 1, repeatable=True)
        return "done"

    job = await run_once(world, run)
    assert job.status is JobStatus.FAILED
    assert "never awaited: The step `forgotten`." in job.error_message


@pytest.mark.proves("D.252")
async def test_the_context_is_of_no_use_elsewhere(world: World) -> None:
    kept: list[Context] = []

    async def run(ctx: Context) -> list[str]:
        kept.append(ctx)

        def in_a_thread() -> str:
            with pytest.raises(ContextMisused, match="outside of its agent's function"):
                asyncio.run(_awaited(ctx))
            return "refused"

        first = await asyncio.to_thread(in_a_thread)
        second = await ctx.step("inner", lambda: _refused(ctx), repeatable=True)
        return [first, second]

    async def _refused(ctx: Context) -> str:
        with pytest.raises(ContextMisused, match="while `inner#0` of the same branch is under way"):
            await ctx.step("nested", lambda: 1, repeatable=True)
        return "refused"

    job = await run_once(world, run)
    assert (job.error_message, job.result) == (None, {"value": ["refused", "refused"]})
    with pytest.raises(ContextMisused, match="after its job ended"):
        await kept[0].step("late", lambda: 1)


async def _awaited(ctx: Context) -> None:
    await ctx.step("from-a-thread", lambda: 1, repeatable=True)


async def test_several_at_once_without_gather_are_refused(world: World) -> None:
    async def run(ctx: Context) -> str:
        async def one() -> int:
            return await ctx.step("one", lambda: 1, repeatable=True)

        ended = await asyncio.gather(one(), one(), return_exceptions=True)
        return ", ".join(sorted(type(each).__name__ for each in ended))

    job = await run_once(world, run)
    assert (job.error_message, job.result) == (None, {"text": "ContextMisused, int"})


async def test_an_operation_is_awaited_once(world: World) -> None:
    async def run(ctx: Context) -> str:
        operation = ctx.step("one", lambda: 1, repeatable=True)
        await operation
        with pytest.raises(ContextMisused, match="awaited twice"):
            await operation
        return "refused"

    assert (await run_once(world, run)).result == {"text": "refused"}


@pytest.mark.proves("D.248")
async def test_an_agent_that_is_not_deterministic_is_held(world: World) -> None:
    names = iter(["first", "second"])

    async def run(ctx: Context) -> None:
        await ctx.step(next(names), random.random, repeatable=True)
        await ctx.sleep(0.01)

    job = await run_once(world, run)
    assert (job.status, job.holds) == (JobStatus.PAUSED, [Hold.CODE_CHANGED])


@pytest.mark.proves("D.253")
async def test_an_agent_that_never_returns_runs_out_of_time(world: World) -> None:
    async def run(ctx: Context) -> None:
        await ctx.step("first", lambda: 1, repeatable=True)
        await asyncio.Event().wait()

    job = await run_once(world, run, timeout_seconds=1)
    assert job.status is JobStatus.FAILED
    assert "ran longer than 1 s" in job.error_message
    assert await keys_of(world, job.id) == [("first#0", "done")]


async def test_an_agent_that_exits_does_not_end_its_worker(world: World) -> None:
    async def run(ctx: Context) -> None:
        raise SystemExit(3)

    job = await run_once(world, run)
    assert job.status is JobStatus.FAILED
    assert "SystemExit: 3" in job.error_message


# Steering ----------------------------------------------------------------------------------------------------------


def held_in_a_tool(gate: Gate, did: list[str]) -> App:
    app = App("tests")

    @app.tool(on_uncertain="retry_with_key")
    async def act() -> str:
        await gate.passed()
        did.append("acted")
        return "acted"

    return app


async def acts_and_goes_on(ctx: Context) -> str:
    await ctx.tool("act")
    return await ctx.step("after", lambda: "went on", repeatable=True)


@pytest.mark.proves("D.253")
async def test_a_cancelled_job_ends_at_its_next_operation(world: World) -> None:
    gate, did = Gate(), list[str]()
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(acts_and_goes_on, held_in_a_tool(gate, did))):
        await asyncio.wait_for(gate.entered.wait(), 20)
        await steering.cancel(world.db, world.admin.actor, id, Cancellation(reason="enough"))
        gate.opened.set()
        job = await ended(world, id)
    assert (job.status, job.error_message, did) == (JobStatus.CANCELLED, "enough", ["acted"])
    assert await keys_of(world, id) == [("act#0", "done")]
    assert await whole(world)


@pytest.mark.proves("D.253")
async def test_a_held_job_stops_at_its_next_operation_and_goes_on_behind_it(world: World) -> None:
    gate, did = Gate(), list[str]()
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(acts_and_goes_on, held_in_a_tool(gate, did))):
        await asyncio.wait_for(gate.entered.wait(), 20)
        await steering.pause(world.db, world.admin.actor, id, Pause())
        gate.opened.set()
        job = await ended(world, id)
        assert (job.status, job.holds) == (JobStatus.PAUSED, [Hold.OPERATOR])
        await steering.resume(world.db, world.admin.actor, id, Resumption())
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.error_message, job.result, did) == (None, {"text": "went on"}, ["acted"])


@pytest.mark.proves("D.253")
async def test_a_worker_that_stops_hands_the_job_back_between_two_operations(world: World) -> None:
    gate, did = Gate(), list[str]()
    id = await submit(world, await make_coded(world))
    app = coded(acts_and_goes_on, held_in_a_tool(gate, did))
    async with working(world.db, app) as worker:
        await asyncio.wait_for(gate.entered.wait(), 20)
        worker.stop()
        gate.opened.set()
    job = await until(world, id, JobStatus.RUNNING)
    assert await keys_of(world, id) == [("act#0", "done")]
    async with working(world.db, app):
        job = await ended(world, id)
    assert (job.error_message, job.result, did) == (None, {"text": "went on"}, ["acted"])


# Declarations ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.240")
def test_an_agent_must_be_declared_so_that_it_can_run() -> None:
    app = App("tests")

    def plain(ctx: Context) -> None: ...

    async def nothing() -> None: ...

    async def two(ctx: Context, more: str) -> None: ...

    async def fine(ctx: Context) -> None: ...

    with pytest.raises(InvalidApp, match="not an `async def`"):
        app.agent(plain)
    for wrong in (nothing, two):
        with pytest.raises(InvalidApp, match="must take one argument"):
            app.agent(wrong)
    with pytest.raises(InvalidApp, match="cannot be the name"):
        app.agent("no spaces")(fine)
    assert app.agent(fine) is fine
    assert app.agent("other")(fine) is fine
    assert dict(app.agents) == {"fine": fine, "other": fine}
    with pytest.raises(InvalidApp, match="already has an agent called `fine`"):
        app.agent(fine)


@pytest.mark.parametrize("name", ["plane.ask", "plane.other", "plane_ask"])
def test_names_of_the_plane_are_its_own(name: str) -> None:
    with pytest.raises(InvalidApp, match="the plane's own"):

        @App("tests").tool(name=name)
        async def act() -> None: ...


@pytest.mark.parametrize("run", ["", " ", "9lives", "a b", "x" * 101, 7, ["run"], {}])
def test_the_name_of_a_code_agent_is_checked(run: Any) -> None:
    draft = {
        "name": "A", "slug": "aa", "role": "R", "team": "main", "model_config": ModelConfig(model="scripted"),
        "skill_config": {"app": "tests", "run": run},
    }  # fmt: skip
    with pytest.raises(ValueError, match="run must be the name of a code agent"):
        adapter(AgentDraft).validate_python(draft)
