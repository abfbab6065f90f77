"""Writes that are refused, that wait, or that are cut off: no job hangs, comes back for ever, or forgets what it spent."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents.model.agents import Agent
from cortex_plane.agents.model.completions import ModelError, ModelUsage
from cortex_plane.calls.verbs import steps
from cortex_plane.jobs.model.jobs import Job, JobStatus
from cortex_plane.jobs.model.usage import ModelCall
from cortex_plane.jobs.rules import Leased, StepWrite
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.ids import new_id
from cortex_plane.worker import effects, lease
from cortex_plane.worker.code.attempt import CodeAttempt
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.lease import WriteFailed
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.worker import JobRunner
from tests.fixtures.clock import Clock
from tests.fixtures.coded import Code, coded, entries_of, keys_of, make_coded
from tests.fixtures.people import World
from tests.fixtures.waits import lock_waiters
from tests.fixtures.workers import Recording, ended, job_of, leased, submit, turn, working
from tests.worker.test_code_agents import START, Outside

UNSTORABLE = StepWrite(more={"journal": [{"key": "bad\x00", "position": 900, "kind": "step", "name": "bad"}]})
LARGE = {"large": b'"' + b"x" * 2_000_000 + b'"'}


class Run:
    """One attempt of one job, in the hands of a test."""

    def __init__(self, world: World, id: UUID, worker: JobRunner, attempt: CodeAttempt) -> None:
        self.world, self.id, self.worker, self.attempt = world, id, worker, attempt

    async def job(self) -> Job:
        return await job_of(self.world, self.id)


async def begun(
    world: World,
    function: Code,
    app: App | None = None,
    *,
    agent: Agent | None = None,
    backends: Backends | None = None,
    **host: Any,
) -> Run:
    id = await submit(world, agent or await make_coded(world))
    worker, given = await leased(world.db, coded(function, app))
    if backends is not None:
        host["backends"] = backends
    return Run(world, id, worker, CodeAttempt(replace(worker._host, **host), given))


# What cannot be stored -------------------------------------------------------------------------------------------


async def test_a_provider_s_words_that_no_database_keeps_are_caught_like_any_other(world: World) -> None:
    async def fails(_: int) -> None:
        raise ModelError("It said \x00 and \ud800.", status=400, hint="Not \x00.")

    async def run(ctx: Context) -> str:
        try:
            await ctx.model("x")
        except ModelError:
            return await ctx.step("next", lambda: "caught", repeatable=True)
        return "not reached"

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run), backends=Backends({"scripted": Recording(fails)})):
        job = await ended(world, id)
    assert (job.status, job.result, job.retry_count) == (JobStatus.COMPLETED, {"text": "caught"}, 0)
    failed, _ = await entries_of(world, id)
    assert failed.error is not None
    assert failed.error["message"] == "It said � and ?."


@pytest.mark.parametrize("spent", [False, True])
async def test_a_job_whose_record_is_refused_counts_its_tries(world: World, spent: bool) -> None:
    async def run(ctx: Context) -> str:
        return await ctx.step("one", lambda: "done", repeatable=True)

    began = await begun(world, run)
    began.attempt.journal.record(UNSTORABLE)
    if spent:
        usage = ModelUsage(prompt_tokens=1, completion_tokens=1)
        began.attempt.conversation.model_calls.append(
            ModelCall(
                id=new_id(), step_index=0, purpose="model", model="bad\x00", usage=usage, cost_micros=None,
                seconds=0.0, estimated=False,
            )
        )  # fmt: skip
    await began.attempt.run()
    job = await began.job()
    assert (job.status, job.retry_count) == (JobStatus.RETRY, 1)
    assert "\x00" not in (job.error_message or "")


# Time ------------------------------------------------------------------------------------------------------------


async def test_waiting_for_the_pen_does_not_use_up_the_time_to_send(
    world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many branches write one after the other: whoever waited for its turn is not late."""
    outside, passed = Outside(), [0.0]
    others: list[asyncio.Task[None]] = []
    for module in (effects, lease):
        monkeypatch.setattr(module, "ticks", lambda: ticks() + passed[0])

    async def others_write() -> None:
        async with began.attempt.journal._lock:
            while not began.attempt.calls:  # noqa: ASYNC110 -- then it is its turn to write
                await asyncio.sleep(0)
            passed[0] += 30.0

    async def run(ctx: Context) -> str:
        others.append(asyncio.create_task(others_write()))
        await asyncio.sleep(0)
        return str((await ctx.tool("act", what="it"))["acted"])

    began = await begun(world, run, outside.app(), dispatch_seconds=20.0)
    await began.attempt.run()
    assert (await began.job()).status is JobStatus.COMPLETED
    assert outside.log == ["act it"]
    assert await admin.fetchval("select attempt from tool_call") == 1


# Budgets of branches ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "named"), [({"max_iterations": 2}, "max_iterations"), ({"token_budget": 200}, "token_budget")]
)
async def test_branches_that_ask_at_once_share_the_limits_of_their_job(
    world: World, limits: dict[str, Any], named: str
) -> None:
    model = Recording()

    async def run(ctx: Context) -> int:
        return len(await ctx.gather(*[ctx.model("hello " * 50) for _ in range(20)]))

    id = await submit(world, await make_coded(world, turn(text="ok"), limits=limits))
    async with working(world.db, coded(run), backends=Backends({"scripted": model})):
        job = await ended(world, id)
    assert job.status is JobStatus.FAILED
    assert f"`{named}`" in (job.error_message or "")
    assert len(model.asked) == 2


async def test_a_day_s_budget_lets_one_branch_go_on_and_the_other_wait(world: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, START)

    async def other_waits(asked: int) -> None:
        ends = began.attempt.journal.stop
        while asked == 1 and not ends.waiting and len(model.asked) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def run(ctx: Context) -> int:
        return len(await ctx.gather(ctx.model("x" * 240), ctx.model("y" * 240)))

    model = Recording(other_waits)
    backends = Backends({"scripted": model})
    agent = await make_coded(world, turn(text="ok"), limits={"daily_token_budget": 100})
    began = await begun(world, run, agent=agent, backends=backends)
    await began.attempt.run()
    assert (await began.job()).status is JobStatus.SLEEPING
    assert len(model.asked) == 1
    await clock.advance(timedelta(days=1))
    async with working(world.db, coded(run), backends=backends):
        job = await ended(world, began.id)
    assert (job.status, job.result) == (JobStatus.COMPLETED, {"value": 2})
    assert len(model.asked) == 2


async def test_a_question_without_an_answer_is_not_counted(world: World) -> None:
    async def first_fails(asked: int) -> None:
        if asked == 1:
            raise ModelError("Not now.", status=400)

    async def run(ctx: Context) -> str:
        try:
            return await ctx.model("x")
        except ModelError:
            return await ctx.model("again")

    agent = await make_coded(world, turn(text="ok"), limits={"max_iterations": 1, "token_budget": 50})
    id = await submit(world, agent)
    async with working(world.db, coded(run), backends=Backends({"scripted": Recording(first_fails)})):
        job = await ended(world, id)
    assert (job.status, job.result) == (JobStatus.COMPLETED, {"text": "ok"})


async def test_what_was_spent_before_a_broken_write_counts_in_the_next_attempt(world: World) -> None:
    runs: list[Run] = []

    async def breaks(asked: int) -> None:
        if asked == 1:
            runs[0].attempt.journal._due = UNSTORABLE

    async def run(ctx: Context) -> str:
        return await ctx.model("hello " * 50)

    model = Recording(breaks)
    backends = Backends({"scripted": model})
    limits = {"token_budget": 100, "retry_base_seconds": 0.001}
    agent = await make_coded(world, turn(text="ok"), limits=limits)
    runs.append(await begun(world, run, agent=agent, backends=backends))
    await runs[0].attempt.run()
    assert (await runs[0].job()).retry_count == 1
    async with working(world.db, coded(run), backends=backends):
        job = await ended(world, runs[0].id)
    assert job.status is JobStatus.FAILED
    assert "`token_budget`" in (job.error_message or "")
    assert len(model.asked) == 1


# Checkpoints that are too large ----------------------------------------------------------------------------------


async def test_a_checkpoint_that_is_too_large_ends_the_job(world: World) -> None:
    async def run(ctx: Context) -> str:
        began.attempt.lease.state = LARGE
        return str(ctx.job_id)

    began = await begun(world, run)
    async with asyncio.timeout(60):
        await began.attempt.run()
    job = await began.job()
    assert job.status is JobStatus.FAILED
    assert "The checkpoint is" in (job.error_message or "")


async def test_what_was_done_before_it_grew_too_large_is_kept_once(world: World, admin: asyncpg.Connection) -> None:
    app = App("tests")

    @app.tool(on_uncertain="ask_human")
    async def act() -> str:
        return "x" * 5000

    async def run(ctx: Context) -> str:
        await ctx.tool("act")
        began.attempt.lease.state = LARGE
        return await ctx.step("next", lambda: "not reached", repeatable=True)

    began = await begun(world, run, app, inline_result_bytes=1000)
    async with asyncio.timeout(60):
        await began.attempt.run()
    job = await began.job()
    assert (job.status, job.retry_count) == (JobStatus.FAILED, 0)
    assert "The checkpoint is" in (job.error_message or "")
    assert await admin.fetchval("select status from tool_call") == "completed"
    assert await admin.fetchval("select count(*) from stored_result") == 1


async def test_a_large_result_is_held_until_it_is_written(world: World) -> None:
    app, held = App("tests"), []

    @app.tool(on_uncertain="ask_human")
    async def act() -> str:
        return "x" * 5000

    async def run(ctx: Context) -> int:
        got = await ctx.tool("act")
        held.append(len(began.attempt.journal.results))
        await ctx.step("next", lambda: "y" * 3000, repeatable=True)
        await ctx.step("last", lambda: "z", repeatable=True)
        held.append(len(began.attempt.journal.results))
        return len(got)

    began = await begun(world, run, app, inline_result_bytes=1000)
    await began.attempt.run()
    job = await began.job()
    assert (job.status, job.result) == (JobStatus.COMPLETED, {"value": 5000})
    assert held == [1, 0]


# Writes that are cut off -----------------------------------------------------------------------------------------


async def _stuck(admin: asyncpg.Connection, began: Run) -> asyncio.Task[None]:
    """The attempt, waiting in the database with its first write, and cancelled there."""
    await admin.execute("select from job where id = $1 for update", began.id)
    running = asyncio.create_task(began.attempt.run())
    async with asyncio.timeout(60):
        while not await lock_waiters(admin, "advance_job"):  # noqa: ASYNC110 -- the database is asked
            await asyncio.sleep(0.01)
    running.cancel()
    return running


async def _one_effect(ctx: Context) -> str:
    await ctx.step("one", lambda: 1, repeatable=True)
    return await ctx.step("two", lambda: "two", repeatable=True)


async def test_a_write_that_was_cut_off_is_known_before_the_job_is_handed_back(
    world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LAST_WRITE_SECONDS", 60.0)
    began = await begun(world, _one_effect)
    async with admin.transaction():
        running = await _stuck(admin, began)
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running
    job = await began.job()
    assert job.status is JobStatus.RUNNING
    assert await admin.fetchval("select worker_id from job where id = $1", job.id) is None
    assert await keys_of(world, job.id) == [("one#0", "done")]
    async with working(world.db, *began.worker.apps.values()):
        assert (await ended(world, job.id)).result == {"text": "two"}


async def test_a_write_that_was_made_before_it_was_cut_off_is_not_made_twice(
    world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, advance = await begun(world, _one_effect), steps.advance

    async def cut_off(*args: Any) -> None:
        assert await advance(*args) is not None
        monkeypatch.setattr(steps, "advance", advance)
        running.cancel()
        await asyncio.Event().wait()

    monkeypatch.setattr(steps, "advance", cut_off)
    running = asyncio.create_task(began.attempt.run())
    with pytest.raises(asyncio.CancelledError):
        await running
    job = await began.job()
    assert job.status is JobStatus.RUNNING
    assert await admin.fetchval("select worker_id from job where id = $1", job.id) is None
    assert await keys_of(world, job.id) == [("one#0", "done")]
    async with working(world.db, *began.worker.apps.values()):
        assert (await ended(world, job.id)).result == {"text": "two"}


async def test_a_job_whose_write_nobody_knows_of_is_abandoned(
    world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "LAST_WRITE_SECONDS", 0.0)
    began = await begun(world, _one_effect)
    async with admin.transaction():
        running = await _stuck(admin, began)
        with pytest.raises(WriteFailed, match="nobody knows"):
            await running
    given = began.attempt.lease.assignment
    held = Leased(org_id=given.org_id, id=given.job_id, epoch=given.epoch, hand_backs=0)
    assert await workers.release_job(world.db, held, began.worker.id, began.worker.name)
    async with working(world.db, *began.worker.apps.values()):
        assert (await ended(world, given.job_id)).result == {"text": "two"}
