"""Code agents that are stopped in the middle: whatever their code still tries does not happen, and what was heard counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import asyncpg
import pytest
from pydantic import AfterValidator

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentDraft, ModelConfig
from cortex_plane.agents.model.completions import ModelError, ModelRequest, ModelUsage, Response, TextChunk
from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.jobs.model.jobs import Cancellation, Hold, Job, JobDraft, JobStatus, Pause, Resumption
from cortex_plane.jobs.model.journal import SignalDraft
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import StepFailed, ToolFailed, WaitTimeout
from cortex_plane.kernel.fields import adapter
from cortex_plane.sessions.verbs import events
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.models.credentials import ProviderKeys
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import decide, pending_soon
from tests.fixtures.clock import Clock
from tests.fixtures.coded import coded, keys_of, make_coded
from tests.fixtures.people import World
from tests.fixtures.workers import KEY, Died, Gate, died, ended, submit, until, working
from tests.worker.test_code_agents import Outside

START = datetime(2030, 1, 1, 12, tzinfo=UTC)


async def told(world: World, job: Job, kind: str) -> list[dict[str, Any]]:
    found = await events.of_job(world.db, world.admin.actor, job.id, 0, 1000)
    return [event.data for event in found.events if event.type == kind]


# Taken back ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.249")
async def test_a_finally_does_not_act_while_the_job_goes_to_sleep(world: World, admin: asyncpg.Connection) -> None:
    outside = Outside()

    async def run(ctx: Context) -> str:
        try:
            await ctx.sleep(3600)
            await ctx.tool("act", what="main")
        finally:
            await ctx.tool("act", what="cleanup")
        return "done"

    clock = await Clock.install(admin, START)
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run, outside.app())):
        await until(world, id, JobStatus.SLEEPING)
        assert outside.log == []
        await clock.advance(timedelta(hours=2))
        job = await ended(world, id)
    assert (job.error_message, job.status) == (None, JobStatus.COMPLETED)
    assert outside.log == ["act main", "act cleanup"]


@pytest.mark.proves("D.249")
@pytest.mark.parametrize("where", ["function", "branch"])
async def test_nothing_is_sent_by_code_that_takes_no_answer_for_a_yes(world: World, where: str) -> None:
    outside = Outside()

    async def allowed(ctx: Context) -> bool:
        try:
            return bool(await ctx.request_approval("Deploy?"))
        except BaseException:
            return True

    async def run(ctx: Context) -> str:
        yes = (await ctx.gather(allowed(ctx)))[0] if where == "branch" else await allowed(ctx)
        if yes:
            await ctx.tool("act", what="deploy")
        return "deployed" if yes else "not deployed"

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run, outside.app())):
        (asked,) = await pending_soon(world, id)
        assert outside.log == []
        await decide(world, asked, Choice.DENIED)
        job = await ended(world, id)
    assert (job.result, outside.log) == ({"text": "not deployed"}, [])


@pytest.mark.proves("D.249")
async def test_a_held_job_whose_code_swallows_it_does_not_end_with_less_done(world: World) -> None:
    gate, outside = Gate(), Outside()

    async def run(ctx: Context) -> str:
        await ctx.step("one", gate.passed, repeatable=True)
        for what in ("a", "b"):
            try:
                await ctx.tool("act", what=what)
            except BaseException:
                outside.log.append(f"skipped {what}")
        return "finished"

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run, outside.app())):
        await gate.entered.wait()
        await steering.pause(world.db, world.admin.actor, id, Pause())
        gate.opened.set()
        job = await ended(world, id)
        assert (job.status, Hold.CODE_CHANGED in job.holds) == (JobStatus.PAUSED, True)
        assert "act b" not in outside.log
        await steering.resume(world.db, world.admin.actor, id, Resumption())
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert job.error_message is None
    assert [each for each in outside.log if each.startswith("act")] == ["act a", "act b"]


# Time ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.253")
async def test_a_step_that_is_tried_again_and_again_ends_with_the_time_of_its_job(world: World) -> None:
    tries: list[int] = []

    def fails() -> None:
        tries.append(1)
        raise RuntimeError("no")

    async def run(ctx: Context) -> None:
        await ctx.step("fails", fails, retries=100, repeatable=True)

    limits = {"timeout_seconds": 1, "retry_base_seconds": 0.5, "retry_cap_seconds": 60.0}
    id = await submit(world, await make_coded(world, limits=limits))
    async with working(world.db, coded(run)):
        job = await ended(world, id)
    assert job.status is JobStatus.FAILED
    assert "The job ran longer than 1 s." in (job.error_message or "")
    assert len(tries) < 10


@pytest.mark.proves("D.253")
async def test_a_step_has_no_more_time_than_its_job(world: World) -> None:
    never = asyncio.Event()
    caught: list[str] = []

    async def run(ctx: Context) -> str:
        try:
            await ctx.step("waits", never.wait, repeatable=True)
        except StepFailed as error:
            caught.append(str(error))
        return "went on"

    id = await submit(world, await make_coded(world, limits={"timeout_seconds": 1}))
    async with working(world.db, coded(run)):
        job = await ended(world, id)
    assert (job.status, caught) == (JobStatus.FAILED, [])
    assert "The job ran longer than 1 s." in (job.error_message or "")


@pytest.mark.proves("D.253")
@pytest.mark.parametrize("wish", ["cancel", "pause"])
async def test_a_step_is_not_tried_again_once_somebody_stops_its_job(world: World, wish: str) -> None:
    tries: list[int] = []

    async def run(ctx: Context) -> None:
        async def fails() -> None:
            tries.append(1)
            if wish == "cancel":
                await steering.cancel(world.db, world.admin.actor, ctx.job_id, Cancellation())
            else:
                await steering.pause(world.db, world.admin.actor, ctx.job_id, Pause())
            raise RuntimeError("no")

        await ctx.step("fails", fails, retries=100, repeatable=True)

    limits = {"retry_base_seconds": 0.05, "retry_cap_seconds": 0.05}
    id = await submit(world, await make_coded(world, limits=limits))
    async with working(world.db, coded(run)):
        job = await ended(world, id)
    assert job.status is (JobStatus.CANCELLED if wish == "cancel" else JobStatus.PAUSED)
    assert len(tries) == 1


# Budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.245")
async def test_a_spent_day_lets_the_other_branches_finish(world: World, admin: asyncpg.Connection) -> None:
    gate, stopped, log = Gate(), asyncio.Event(), list[str]()
    app = App("tests")

    @app.tool(on_uncertain="ask_human")
    async def slow() -> str:
        await gate.passed()
        log.append("acted")
        return "done"

    async def run(ctx: Context) -> Any:
        if ctx.payload.get("first"):
            return await ctx.model("x" * 400)

        async def asks() -> str:
            await ctx.step("wait", gate.entered.wait, repeatable=True)
            try:
                return await ctx.model("hello " * 50)
            finally:
                stopped.set()

        return await ctx.gather(ctx.tool("slow"), asks())

    agent = await make_coded(world, limits={"daily_token_budget": 100})
    async with working(world.db, coded(run, app)):
        await ended(world, await submit(world, agent, {"first": True}))
        id = await submit(world, agent, {"first": False})
        await asyncio.wait_for(stopped.wait(), 20)
        gate.opened.set()
        job = await until(world, id, JobStatus.SLEEPING, JobStatus.FAILED, JobStatus.COMPLETED)
        assert (job.status, log) == (JobStatus.SLEEPING, ["acted"])
        assert job.wake_at is not None
    found = await admin.fetch("select tool_name, status from tool_call where job_id = $1", id)
    assert [tuple(row) for row in found] == [("slow", "completed")]
    assert [each["budget"] for each in await told(world, job, "budget_spent")] == ["daily_token_budget"]
    assert (await told(world, job, "status"))[-1]["reason"] == "budget_spent"


# Signals ---------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.247")
@pytest.mark.parametrize("sent", ["in time", "too late"])
async def test_a_signal_that_comes_while_people_are_asked_is_heard(
    world: World, admin: asyncpg.Connection, sent: str
) -> None:
    async def run(ctx: Context) -> Any:
        async def waits() -> Any:
            try:
                return await ctx.wait_event("paid", key="1", timeout=3600)
            except WaitTimeout:
                return "too late"

        return (await ctx.gather(ctx.request_approval("Go?"), waits()))[1]

    clock = await Clock.install(admin, START)
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        (asked,) = await pending_soon(world, id)
        await clock.advance(timedelta(minutes=10 if sent == "in time" else 70))
        draft = SignalDraft(name="paid", key="1", payload={"paid": 1})
        await steering.send_signal(world.db, world.admin.actor, draft)
        await clock.advance(timedelta(hours=2))
        await decide(world, asked)
        job = await ended(world, id)
    assert job.error_message is None
    assert job.result == ({"paid": 1} if sent == "in time" else {"text": "too late"})


@pytest.mark.proves("D.247")
async def test_a_signal_from_before_is_heard_although_the_worker_dies(world: World, admin: asyncpg.Connection) -> None:
    class Dying:
        async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
            yield TextChunk("I")
            raise Died

    async def run(ctx: Context) -> Any:
        heard, _ = await ctx.gather(ctx.wait_event("paid", key="1", timeout=5), ctx.model("hello"))
        return heard

    clock = await Clock.install(admin, START)
    await steering.send_signal(world.db, world.admin.actor, SignalDraft(name="paid", key="1", payload={"paid": 1}))
    id = await submit(world, await make_coded(world))
    await died(world.db, coded(run), backends=Backends({"scripted": Dying()}))
    assert ("gather#0/0/paid#0", "open") in await keys_of(world, id)
    await clock.advance(timedelta(seconds=30))
    async with working(world.db, coded(run)):
        job = await ended(world, id)
    assert (job.error_message, job.result) == (None, {"paid": 1})


# Results and answers ---------------------------------------------------------------------------------------------


@pytest.mark.proves("D.243")
async def test_a_result_that_is_too_large_is_a_failure_of_its_step(world: World, admin: asyncpg.Connection) -> None:
    runs: list[int] = []

    def large() -> str:
        runs.append(1)
        return "x" * 5000

    async def run(ctx: Context) -> str:
        try:
            await ctx.step("large", large, repeatable=True)
        except StepFailed as error:
            said = str(error)
        await ctx.sleep(3600)
        return said

    clock = await Clock.install(admin, START)
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run), max_result_bytes=2000, inline_result_bytes=1000):
        await until(world, id, JobStatus.SLEEPING, JobStatus.FAILED, JobStatus.PAUSED)
        await clock.advance(timedelta(hours=2))
        job = await ended(world, id)
    assert (job.error_message, len(runs)) == (None, 1)
    assert "returned 5002 bytes; the limit is 2000. Store it elsewhere" in (job.result or {})["text"]


def even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


@pytest.mark.proves("D.242")
async def test_an_edit_that_the_tool_itself_refuses_is_a_failure_of_its_call(strict: World) -> None:
    app = App("tests")

    @app.tool(on_uncertain="fail")
    async def pay(amount: Annotated[int, AfterValidator(even)]) -> str:
        return f"paid {amount}"

    async def run(ctx: Context) -> str:
        try:
            return str(await ctx.tool("pay", amount=2))
        except ToolFailed as error:
            return f"failed: {error}"

    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, coded(run, app)):
        (asked,) = await pending_soon(strict, id)
        await decide(strict, asked, arguments={"amount": 3})
        job = await ended(strict, id)
    assert (job.status, job.holds) == (JobStatus.COMPLETED, [])
    assert "must be even" in (job.result or {})["text"]


@pytest.mark.proves("D.246")
async def test_people_may_be_asked_again_after_a_no(strict: World) -> None:
    async def run(ctx: Context) -> list[bool]:
        return [bool(await ctx.request_approval("Deploy?")) for _ in range(2)]

    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, coded(run)):
        (first,) = await pending_soon(strict, id)
        await decide(strict, first, Choice.DENIED)
        (second,) = await pending_soon(strict, id)
        await decide(strict, second)
        job = await ended(strict, id)
    assert (job.error_message, job.result) == (None, {"value": [False, True]})
    assert first.id != second.id


class Answering:
    """A model that answers with this text, or says why not."""

    def __init__(self, text: str | None) -> None:
        self.asked = 0
        self._text = text

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        self.asked += 1
        if self._text is None:
            raise ModelError("The provider said \x00 and \ud800.", status=400)
        yield Response(text=self._text, calls=(), usage=ModelUsage(prompt_tokens=1, completion_tokens=1))


@pytest.mark.proves("D.245")
async def test_an_answer_that_cannot_be_stored_fails_the_job_at_once(world: World) -> None:
    async def run(ctx: Context) -> str:
        return await ctx.model("hello")

    model = Answering("zero \x00")
    id = await submit(world, await make_coded(world, limits={"retry_base_seconds": 0.001}))
    async with working(world.db, coded(run), backends=Backends({"scripted": model})):
        job = await ended(world, id)
    assert (job.status, job.retry_count, model.asked) == (JobStatus.FAILED, 0, 1)
    assert "The model's response cannot be stored" in (job.error_message or "")


@pytest.mark.proves("D.245")
async def test_a_refusal_with_signs_that_cannot_be_stored_is_recorded_without_them(world: World) -> None:
    async def run(ctx: Context) -> str:
        try:
            await ctx.model("hello")
        except ModelError as error:
            said = error.message
        await ctx.step("next", int, repeatable=True)
        return said

    model = Answering(None)
    id = await submit(world, await make_coded(world, limits={"retry_base_seconds": 0.001}))
    async with working(world.db, coded(run), backends=Backends({"scripted": model})):
        job = await ended(world, id)
    assert (job.error_message, model.asked) == (None, 1)
    assert job.result == {"text": "The provider said � and ?."}


@pytest.mark.proves("D.245")
async def test_readers_are_told_which_model_answered(world: World) -> None:
    async def run(ctx: Context) -> str:
        return await ctx.model("hello")

    model = {"model": "anthropic:claude-sonnet-5", "stand_in": "script", "script": [{"text": "hi"}]}
    config = adapter(ModelConfig).validate_python(model)
    draft = AgentDraft(
        name="Coded", slug="coded", role="Tester", team="main", model_config=config,
        skill_config={"app": "tests", "run": "run"},
    )  # fmt: skip
    await agents.create_agent(world.db, world.admin.actor, draft)
    id = (await jobs.submit(world.db, world.admin.actor, JobDraft(agent="coded", payload={"text": "go"}))).id
    async with working(world.db, coded(run), backends=Backends(keys=ProviderKeys(world.db, KEY, {}))):
        job = await ended(world, id)
    assert (job.error_message, job.result) == (None, {"text": "hi"})
    (said,) = await told(world, job, "message")
    assert said["model"] == "scripted (stand-in for anthropic:claude-sonnet-5)"
