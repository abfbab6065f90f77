"""Tools and models that misbehave: each ends in a defined state, and whoever reads the error knows what to do."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import orjson
import pytest

from cortex_plane.agents.model.completions import ModelError, ModelRequest, Response, TextChunk
from cortex_plane.agents.model.tools import ToolError
from cortex_plane.jobs.model.jobs import Hold, Job, JobStatus, Pause, Resumption, Step
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import NotFound
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.workers import (
    Recording,
    call,
    ended,
    job_of,
    make_agent,
    moves,
    names_what_to_do,
    steps_of,
    submit,
    turn,
    until,
    whole,
    working,
)

QUICK = {"retry_base_seconds": 0.05, "retry_cap_seconds": 0.08}
TOLD = turn(text="{result}")
"""The job ends with what the model was told about its last call."""


@pytest.fixture
def stuck() -> Iterator[threading.Event]:
    """Threads that hang are let go at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def an_app(stuck: threading.Event) -> App:
    app = App("tests")

    @app.tool(read_only=True)
    async def read_raises() -> str:
        raise RuntimeError("the disk is on fire")

    @app.tool(read_only=True)
    def read_raises_in_a_thread() -> str:
        raise RuntimeError("the disk is on fire")

    @app.tool(read_only=True)
    async def read_refuses() -> str:
        raise ToolError("no such file", hint="List them first.")

    @app.tool(read_only=True)
    async def read_raises_a_timeout() -> str:
        raise TimeoutError("the other side is slow")

    @app.tool(read_only=True)
    async def read_speaks_garbage() -> str:
        raise ToolError("a\x00b\ud800c")

    @app.tool(read_only=True)
    async def read_cancels() -> str:
        raise asyncio.CancelledError

    @app.tool(read_only=True)
    async def read_exits() -> str:
        sys.exit(3)

    @app.tool(read_only=True)
    def read_exits_in_a_thread() -> str:
        sys.exit(3)

    @app.tool(read_only=True, timeout=0.1)
    async def read_hangs() -> str:
        await asyncio.Event().wait()
        return "never"

    @app.tool(read_only=True, timeout=0.1)
    def read_hangs_in_a_thread() -> str:
        stuck.wait(30)
        return "too late"

    @app.tool
    async def act_refuses() -> str:
        raise ToolError("the branch is protected")

    @app.tool
    async def act_speaks_garbage() -> str:
        raise ToolError("a\x00b\ud800c")

    @app.tool
    async def act_raises() -> str:
        raise RuntimeError("connection reset")

    @app.tool
    async def act_speaks_garbage_and_raises() -> str:
        raise RuntimeError("a\x00b\ud800c")

    @app.tool
    async def act_exits() -> str:
        sys.exit(3)

    @app.tool
    async def act_cancels() -> str:
        raise asyncio.CancelledError

    @app.tool(timeout=0.1)
    async def act_hangs() -> str:
        await asyncio.Event().wait()
        return "never"

    @app.tool(timeout=0.1)
    def act_hangs_in_a_thread() -> str:
        stuck.wait(30)
        return "too late"

    @app.tool(read_only=True)
    async def read_returns_an_object() -> object:
        return {"deep": [object()]}

    @app.tool
    async def act_returns_an_object() -> object:
        return float("nan")

    @app.tool(read_only=True)
    async def large(characters: int) -> str:
        return "ä" * (characters // 2)

    @app.tool(read_only=True)
    async def add(a: int, b: int = 1) -> int:
        return a + b

    return app


async def outcome(
    world: World,
    app: App,
    script: list[dict[str, Any]],
    *,
    max_retries: int = 3,
    backends: Backends | None = None,
    changes: dict[str, Any] | None = None,
    **agent: Any,
) -> tuple[Job, list[Step]]:
    """What became of a job with this script."""
    made = await make_agent(world, script, **agent)
    id = await submit(world, made, max_retries=max_retries)
    async with working(world.db, app, backends=backends, **(changes or {})):
        job = await ended(world, id)
    assert await whole(world)
    return job, await steps_of(world, id)


# Tools -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        ("read_raises", "`read_raises` raised RuntimeError: the disk is on fire"),
        ("read_raises_in_a_thread", "`read_raises_in_a_thread` raised RuntimeError: the disk is on fire"),
        ("read_refuses", "no such file List them first."),
        ("read_raises_a_timeout", "`read_raises_a_timeout` raised TimeoutError: the other side is slow"),
        ("read_speaks_garbage", "a�b?c"),
        ("read_cancels", "`read_cancels` raised CancelledError"),
        ("read_exits", "`read_exits` raised SystemExit: 3"),
        ("read_exits_in_a_thread", "`read_exits_in_a_thread` raised SystemExit: 3"),
        ("read_hangs", "`read_hangs` did not answer within 0.1 s."),
        ("read_hangs_in_a_thread", "`read_hangs_in_a_thread` did not answer within 0.1 s."),
        ("act_refuses", "the branch is protected"),
        ("act_speaks_garbage", "a�b?c"),
    ],
)
@pytest.mark.proves("D.41")
async def test_the_model_is_told_what_went_wrong(world: World, stuck: threading.Event, tool: str, says: str) -> None:
    job, steps = await outcome(world, an_app(stuck), [turn(call(tool)), TOLD])
    assert (job.status, job.error_message, job.retry_count) == (JobStatus.COMPLETED, None, 0)
    assert job.result is not None
    assert orjson.loads(job.result["text"])["error"].startswith(says)
    assert [(c.status, c.attempt) for c in steps[0].calls] == [("failed", 1)]


@pytest.mark.parametrize(
    ("tool", "says"),
    [
        ("act_raises", "`act_raises` raised RuntimeError: connection reset"),
        ("act_speaks_garbage_and_raises", "`act_speaks_garbage_and_raises` raised RuntimeError: a�b?c"),
        ("act_exits", "`act_exits` raised SystemExit: 3"),
        ("act_cancels", "`act_cancels` raised CancelledError"),
        ("act_hangs", "`act_hangs` did not answer within 0.1 s."),
        ("act_hangs_in_a_thread", "`act_hangs_in_a_thread` did not answer within 0.1 s."),
    ],
)
async def test_an_effect_that_may_have_happened_is_put_to_a_person(
    world: World, stuck: threading.Event, tool: str, says: str
) -> None:
    job, steps = await outcome(world, an_app(stuck), [turn(call(tool)), TOLD])
    assert (job.status, job.holds) == (JobStatus.PAUSED, [Hold.UNCERTAIN_EFFECT])
    (asked,) = steps[0].calls
    assert (asked.status, asked.attempt) == ("uncertain", 1)
    assert (asked.error or "").startswith(says)


@pytest.mark.parametrize("tool", ["read_returns_an_object", "act_returns_an_object"])
async def test_a_result_that_cannot_be_kept_does_not_undo_the_call(
    world: World, stuck: threading.Event, tool: str
) -> None:
    job, steps = await outcome(world, an_app(stuck), [turn(call(tool)), TOLD])
    assert job.status is JobStatus.COMPLETED
    (made,) = steps[0].calls
    assert made.status == "completed"
    assert "cannot be stored" in made.result["unstorable"]


SIZE = 50_000_000


@pytest.mark.proves("D.43")
async def test_a_large_result_is_kept_beside_the_step(world: World, stuck: threading.Event) -> None:
    job, steps = await outcome(
        world, an_app(stuck), [turn(call("large", characters=SIZE)), TOLD],
        changes={"max_result_bytes": SIZE + 2},
    )  # fmt: skip
    assert job.status is JobStatus.COMPLETED
    (made,) = steps[0].calls
    assert made.result["bytes"] == SIZE + 2
    assert 0 < len(made.result["preview"].encode()) <= 2000
    assert made.result["stored_result"] == str(made.result_id)
    assert made.result_id is not None
    kept = await steering.get_stored_result(world.db, world.admin.actor, job.id, made.result_id)
    assert kept == b'"' + "ä".encode() * (SIZE // 2) + b'"'
    # The model and the checkpoint have the reference, not the megabytes.
    assert job.result is not None
    assert orjson.loads(job.result["text"])["stored_result"] == str(made.result_id)
    assert len(orjson.dumps(await steering.get_checkpoint(world.db, world.admin.actor, job.id))) < 20_000
    with pytest.raises(NotFound):
        await steering.get_stored_result(world.db, world.admin.actor, job.id, job.id)


async def test_a_result_above_the_limit_is_dropped_and_says_so(world: World, stuck: threading.Event) -> None:
    job, steps = await outcome(world, an_app(stuck), [turn(call("large", characters=SIZE)), TOLD])
    assert job.status is JobStatus.COMPLETED
    (made,) = steps[0].calls
    assert (made.result["bytes"], made.result_id) == (SIZE + 2, None)
    assert made.result["dropped"] == f"larger than {8 * 1024 * 1024} bytes, so it was not kept"


async def test_many_results_of_one_step_do_not_fill_the_checkpoint(world: World, stuck: threading.Event) -> None:
    """Results stand in rows; only what is small is shown in the checkpoint too, so their number does not fill it."""
    many = [call("large", characters=16_000) for _ in range(80)]
    fine, _ = await outcome(world, an_app(stuck), [turn(*many), TOLD])
    assert fine.status is JobStatus.COMPLETED
    job, steps = await outcome(
        world, an_app(stuck), [turn(*many), TOLD], slug="careful", checkpoint_granularity="per_tool_call"
    )
    assert job.status is JobStatus.COMPLETED
    assert len(steps[0].calls[79].result) == 8_000, "characters of two bytes"


# The model's calls -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (call("teleport"), "There is no tool `teleport`. There are: act_"),
        ({"tool": "add", "raw_arguments": '{"a": 1,'}, "JSON"),
        ({"tool": "add", "raw_arguments": "[1]"}, "object"),
        (call("add", a="three"), "a"),
        (call("add"), "a"),
        (call("add", a=1, c=2), "c"),
        ({"tool": "add", "raw_arguments": f'{{"a": {2**70}}}'}, "a"),
    ],
)
async def test_a_wrong_call_is_never_sent_and_the_model_is_told(
    world: World, stuck: threading.Event, wrong: dict[str, Any], says: str
) -> None:
    job, steps = await outcome(world, an_app(stuck), [turn(wrong, call("add", a=1)), turn(wrong), TOLD])
    assert job.status is JobStatus.COMPLETED
    assert [c.status for c in steps[0].calls] == ["rejected", "completed"]
    assert says in (steps[0].calls[0].error or "")
    assert job.result is not None
    assert says in orjson.loads(job.result["text"])["error"]


async def test_a_tool_that_the_agent_may_not_use_does_not_exist_for_it(world: World, stuck: threading.Event) -> None:
    script = [turn(call("act_raises")), TOLD]
    job, steps = await outcome(world, an_app(stuck), script, tools=["add"])
    assert job.status is JobStatus.COMPLETED
    assert steps[0].calls[0].error == "There is no tool `act_raises`. There are: add."


# The model itself ------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.40")
async def test_a_model_that_loops_is_stopped_also_across_resumes(world: World) -> None:
    app = App("tests")

    @app.tool(read_only=True)
    async def look(ctx: ToolContext) -> int:
        if ctx.step == 1:
            await steering.pause(world.db, world.admin.actor, ctx.job_id, Pause())
        return ctx.step

    agent = await make_agent(world, [turn(call("look"), repeat=True)], limits={"max_iterations": 5})
    id = await submit(world, agent)
    async with working(world.db, app):
        await until(world, id, JobStatus.PAUSED)
    await steering.resume(world.db, world.admin.actor, id, Resumption())
    async with working(world.db, app):
        job = await until(world, id, JobStatus.FAILED)
    assert len(await steps_of(world, id)) == 5
    assert "The model was asked 5 times, which is the limit of its agent." in (job.error_message or "")
    assert names_what_to_do(job, 5)
    assert "`max_iterations`" in (job.error_message or "")


@pytest.mark.proves("D.41")
async def test_a_model_that_returns_nothing_fails_the_job(world: World, stuck: threading.Event) -> None:
    job, _ = await outcome(world, an_app(stuck), [turn(call("add", a=1)), turn(text=None)])
    assert job.status is JobStatus.FAILED
    assert "The model returned nothing: neither text nor a call." in (job.error_message or "")
    assert names_what_to_do(job, 1)


@pytest.mark.parametrize("status", [429, 500, 503, 529])
@pytest.mark.proves("S0.6")
async def test_a_provider_that_is_busy_is_asked_again_with_jitter_until_the_retries_are_used_up(
    world: World, stuck: threading.Event, status: int
) -> None:
    job, steps = await outcome(
        world, an_app(stuck), [turn(call("add", a=1)), turn(error_status=status)], limits=QUICK, max_retries=2
    )
    assert (job.status, job.retry_count) == (JobStatus.FAILED, 2)
    assert f"status {status}" in (job.error_message or "")
    assert "(out of retries after 2)" in (job.error_message or "")
    assert names_what_to_do(job, 1)
    assert len(steps) == 1, "what was done before is not done again"
    assert await moves(world, job.id) == [
        "PENDING", "RUNNING", "RETRY", "RUNNING", "RETRY", "RUNNING", "FAILED",
    ]  # fmt: skip
    retries = [
        change
        for change in await jobs.history(world.db, world.admin.actor, job.id)
        if change.new_status is JobStatus.RETRY
    ]
    for retry, most in zip(retries, (0.05, 0.08), strict=True):
        waits = datetime.fromisoformat(retry.metadata["next_retry_at"]) - retry.created_at
        assert timedelta(seconds=-0.02) <= waits <= timedelta(seconds=most)


@pytest.mark.parametrize("status", [400, 401, 404, 422])
@pytest.mark.proves("S0.6")
async def test_a_provider_that_refuses_fails_the_job_at_once(world: World, stuck: threading.Event, status: int) -> None:
    job, _ = await outcome(world, an_app(stuck), [turn(error_status=status)])
    assert (job.status, job.retry_count) == (JobStatus.FAILED, 0)
    assert f"status {status}" in (job.error_message or "")
    assert "(permanent)" in (job.error_message or "")
    assert names_what_to_do(job, 0)


async def test_a_job_that_recovered_goes_on_where_it_was(world: World, stuck: threading.Event) -> None:
    async def fail_twice(times: int) -> None:
        if times in (2, 3):
            raise ModelError("Overloaded.", status=503)

    model = Recording(fail_twice)
    job, steps = await outcome(
        world, an_app(stuck), [turn(call("add", a=1))], model="recording", limits=QUICK,
        backends=Backends({"recording": model}),
    )  # fmt: skip
    assert (job.status, job.retry_count, len(steps)) == (JobStatus.COMPLETED, 2, 2)
    assert model.asked[1] == model.asked[2] == model.asked[3]


@pytest.mark.proves("D.41")
async def test_an_unknown_model_fails_the_job_and_names_those_there_are(world: World, stuck: threading.Event) -> None:
    job, _ = await outcome(world, an_app(stuck), [], model="gpt-17")
    assert (job.status, job.retry_count) == (JobStatus.FAILED, 0)
    assert "No backend answers for the model `gpt-17`; there is `anthropic`, `openai`, `scripted`." in (
        job.error_message or ""
    )
    assert names_what_to_do(job, 0)


class Broken:
    """A backend with a defect of its own."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        yield TextChunk("I thi")
        if self._error is not None:
            raise self._error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (None, "The model's answer ended before it was complete."),
        (ValueError("unexpected field"), "ValueError: unexpected field"),
        (ValueError("a\x00b\ud800c"), "ValueError: a�b?c"),
        (ModelError("a\x00b\ud800c"), "a�b?c"),
    ],
)
async def test_a_backend_that_breaks_is_retried_and_then_named(
    world: World, stuck: threading.Event, error: Exception | None, says: str
) -> None:
    job, _ = await outcome(
        world, an_app(stuck), [], model="broken", limits=QUICK, max_retries=1,
        backends=Backends({"broken": Broken(error)}),
    )  # fmt: skip
    assert (job.status, job.retry_count) == (JobStatus.FAILED, 1)
    assert says in (job.error_message or "")
    assert names_what_to_do(job, 0)


async def test_a_response_that_cannot_be_stored_fails_the_job(world: World, stuck: threading.Event) -> None:
    class Odd(Recording):
        async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
            async for piece in super().stream(request):
                yield (Response(text="a\x00", calls=(), usage=piece.usage) if isinstance(piece, Response) else piece)

    job, _ = await outcome(world, an_app(stuck), [], model="odd", backends=Backends({"odd": Odd()}))
    assert job.status is JobStatus.FAILED
    assert "The model's response cannot be stored" in (job.error_message or "")
    assert str(job.id) in (job.error_message or "")


# Limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.40")
async def test_the_token_budget_ends_the_job(world: World, stuck: threading.Event) -> None:
    script = [turn(call("add", a=1)), turn(call("add", a=2))]
    _, (first, *_) = await outcome(world, an_app(stuck), script, slug="rich")
    budget = first.prompt_tokens + first.completion_tokens
    job, steps = await outcome(world, an_app(stuck), script, limits={"token_budget": budget})
    assert (job.status, len(steps)) == (JobStatus.FAILED, 1)
    assert f"its budget is {budget}." in (job.error_message or "")
    assert names_what_to_do(job, 1)


@pytest.mark.parametrize(
    ("limits", "slow", "says"),
    [
        ({"call_timeout_seconds": 1}, {"delay_ms": 60_000}, "The model did not answer within 1 s."),
        ({"step_timeout_seconds": 1}, {"delay_ms": 60_000}, "The model did not answer within 1 s."),
        ({"chunk_timeout_seconds": 1}, {"chunk_delay_ms": 10_000}, "The model was silent for 1 s."),
    ],
)
async def test_a_model_that_takes_too_long_is_a_transient_error(
    world: World, stuck: threading.Event, limits: dict[str, Any], slow: dict[str, Any], says: str
) -> None:
    job, _ = await outcome(world, an_app(stuck), [turn(text="word by word", **slow)], limits=limits, max_retries=0)
    assert job.status is JobStatus.FAILED
    assert says in (job.error_message or "")
    assert names_what_to_do(job, 0)


async def test_the_time_of_a_job_ends_it_in_the_middle_of_an_answer(world: World, stuck: threading.Event) -> None:
    job, _ = await outcome(
        world, an_app(stuck), [turn(text="late", delay_ms=60_000)], limits={"timeout_seconds": 1, **QUICK}
    )
    assert job.status is JobStatus.FAILED
    assert "The job ran longer than 1 s." in (job.error_message or "")
    assert names_what_to_do(job, 0)


@pytest.mark.proves("D.40")
async def test_only_running_time_counts(world: World, admin: asyncpg.Connection) -> None:
    """A job that stood still for a day has not used a second of its hour; one that ran for it has."""
    clock = await Clock.install(admin, datetime.now().astimezone())
    app = App("tests")

    @app.tool(read_only=True)
    async def look(ctx: ToolContext) -> int:
        if ctx.step == 0:
            await clock.advance(timedelta(minutes=50))
            await steering.pause(world.db, world.admin.actor, ctx.job_id, Pause())
        elif ctx.step == 1:
            await clock.advance(timedelta(minutes=11))
            await steering.pause(world.db, world.admin.actor, ctx.job_id, Pause())
        return ctx.step

    agent = await make_agent(world, [turn(call("look"), repeat=True)], limits={"timeout_seconds": 3600})
    id = await submit(world, agent)
    async with working(world.db, app, adoption_seconds=7200.0):
        await until(world, id, JobStatus.PAUSED)
    await clock.advance(timedelta(days=1))
    assert (await job_of(world, id)).running_seconds == pytest.approx(3000, abs=1)
    await steering.resume(world.db, world.admin.actor, id, Resumption())
    async with working(world.db, app, adoption_seconds=7200.0):
        paused = await until(world, id, JobStatus.PAUSED)
        assert paused.running_seconds == pytest.approx(3660, abs=1)
        await steering.resume(world.db, world.admin.actor, id, Resumption())
        job = await until(world, id, JobStatus.FAILED)
    assert "The job ran longer than 3600 s." in (job.error_message or "")
    assert names_what_to_do(job, 2)


async def test_a_broken_configuration_stops_its_job_and_not_the_worker(world: World, admin: asyncpg.Connection) -> None:
    """Written by hand or by another release: whatever it is, other jobs go on."""
    bad = await make_agent(world, [], slug="bad")
    good = await make_agent(world, [], slug="good")
    await admin.execute(
        """update agent_version set resource_limits = '{"timeout_seconds": "soon"}' where agent_id = $1""", bad.id
    )
    first, second = await submit(world, bad, max_retries=0), await submit(world, good)
    async with working(world.db, App("tests")):
        failed = await until(world, first, JobStatus.FAILED)
        await until(world, second, JobStatus.COMPLETED)
    assert "timeout_seconds" in (failed.error_message or "")
    assert str(first) in (failed.error_message or "")
