"""Pause, resume and cancel against jobs in every state, and against each other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import pairwise
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.jobs import (
    TERMINAL,
    TRANSITIONS,
    Cancellation,
    Hold,
    JobDraft,
    JobStatus,
    Pause,
    Resumption,
    SteeringResult,
)
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import Conflict, Forbidden
from cortex_plane.sessions.model.sessions import MessageDraft, Termination
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.conftest import Urls
from tests.fixtures.people import World
from tests.fixtures.servers import VAULT
from tests.fixtures.workers import (
    Died,
    Gate,
    Recording,
    actions,
    call,
    died,
    expire,
    job_of,
    leased,
    make_agent,
    moves,
    steps_of,
    submit,
    turn,
    until,
    whole,
    working,
)


async def pause(world: World, id: UUID) -> SteeringResult:
    return await steering.pause(world.db, world.admin.actor, id, Pause(reason="look"))


async def resume(world: World, id: UUID) -> SteeringResult:
    return await steering.resume(world.db, world.admin.actor, id, Resumption())


async def cancel(world: World, id: UUID, reason: str | None = None) -> SteeringResult:
    return await steering.cancel(world.db, world.admin.actor, id, Cancellation(reason=reason))


async def paused_and_resumed(world: World, id: UUID, at_rest: JobStatus, held: JobStatus) -> None:
    """Asked twice, each changes something once; between them the job is held."""
    assert (await job_of(world, id)).status is at_rest
    first = await pause(world, id)
    assert (first.changed, first.pending, first.job.status) == (True, False, held)
    assert first.job.holds == [Hold.OPERATOR]
    again = await pause(world, id)
    assert (again.changed, again.job) == (False, first.job)
    back = await resume(world, id)
    assert (back.changed, back.job.status, back.job.holds) == (True, JobStatus.RUNNING, []) or (
        back.changed,
        back.job.status,
        back.job.holds,
    ) == (True, at_rest, [])
    with pytest.raises(Conflict) as refused:
        await resume(world, id)
    assert refused.value.code == "failed_precondition"
    assert await job_of(world, id) == back.job


def an_app(gate: Gate | None = None, sent: list[str] | None = None) -> App:
    app = App("tests")

    @app.tool(read_only=True)
    async def look() -> str:
        if gate is not None:
            await gate.passed()
        return "seen"

    @app.tool(timeout=5)
    async def act(what: str) -> str:
        if sent is not None:
            sent.append(what)
        if gate is not None:
            await gate.passed()
        return what

    return app


# Pause and resume, from every state ------------------------------------------------------------------------------


async def test_a_pending_job(world: World) -> None:
    agent = await make_agent(world, [])
    id = await submit(world, agent)
    await paused_and_resumed(world, id, JobStatus.PENDING, JobStatus.PENDING)
    held = await submit(world, agent)
    await pause(world, held)
    async with working(world.db, App("tests")):
        await until(world, id, JobStatus.COMPLETED)
        assert (await job_of(world, held)).status is JobStatus.PENDING
        await resume(world, held)
        await until(world, held, JobStatus.COMPLETED)
    assert await whole(world)


@pytest.mark.proves("S4.4")
async def test_a_job_that_a_worker_runs_stops_at_its_next_boundary(world: World) -> None:
    gate, sent = Gate(), list[str]()
    app = an_app(gate, sent)
    agent = await make_agent(world, [turn(call("act", what="a")), turn(call("act", what="b"))])
    id = await submit(world, agent)
    async with working(world.db, app):
        await gate.entered.wait()
        receipt = await pause(world, id)
        assert (receipt.changed, receipt.pending, receipt.job.status) == (True, True, JobStatus.RUNNING)
        assert receipt.job.pending_pause
        assert len(receipt.uncertain) == 1, "the call under way has no outcome yet"
        assert (await pause(world, id)).changed is False
        gate.opened.set()
        job = await until(world, id, JobStatus.PAUSED)
        assert (job.pending_pause, job.step_index, sent) == (False, 0, ["a"])
        assert (await pause(world, id)).changed is False, "it is paused already"
        (made,) = (await steps_of(world, id))[0].calls
        assert (made.status, made.result) == ("completed", "a"), "the call ran to its end"
        back = await resume(world, id)
        assert (back.changed, back.job.status, back.settled) == (True, JobStatus.RUNNING, [made.id])
        await until(world, id, JobStatus.COMPLETED)
    assert sent == ["a", "b"]
    assert await moves(world, id) == ["PENDING", "RUNNING", "PAUSED", "RUNNING", "COMPLETED"]
    assert await whole(world)


async def test_a_pause_can_be_taken_back_before_the_boundary(world: World) -> None:
    gate = Gate()
    agent = await make_agent(world, [turn(call("look"))])
    id = await submit(world, agent)
    async with working(world.db, an_app(gate)):
        await gate.entered.wait()
        await pause(world, id)
        receipt = await resume(world, id)
        assert (receipt.changed, receipt.pending, receipt.job.holds) == (True, False, [])
        gate.opened.set()
        await until(world, id, JobStatus.COMPLETED)
    assert await moves(world, id) == ["PENDING", "RUNNING", "COMPLETED"]


async def test_a_job_that_waits_for_its_retry(world: World) -> None:
    limits = {"retry_base_seconds": 3600, "retry_cap_seconds": 3600}
    agent = await make_agent(world, [turn(error_status=503)], limits=limits)
    id = await submit(world, agent)
    async with working(world.db, App("tests")):
        before = await until(world, id, JobStatus.RETRY)
        await paused_and_resumed(world, id, JobStatus.RETRY, JobStatus.RETRY)
        assert (await job_of(world, id)).next_retry_at == before.next_retry_at


async def test_a_sleeping_job(world: World) -> None:
    """It sleeps because an effect of a dead worker may still be under way."""
    app = App("tests")

    @app.tool(on_uncertain="retry_with_key", timeout=3600)
    async def act(ctx: ToolContext) -> str:
        if ctx.attempt == 1:
            raise Died
        return "done"

    agent = await make_agent(world, [turn(call("act"))])
    id = await submit(world, agent)
    await died(world.db, app, time_passes=False)
    async with working(world.db, app):
        before = await until(world, id, JobStatus.SLEEPING)
        await paused_and_resumed(world, id, JobStatus.SLEEPING, JobStatus.SLEEPING)
        assert (await job_of(world, id)).wake_at == before.wake_at


async def test_a_job_between_two_workers_is_paused_at_once(world: World) -> None:
    agent = await make_agent(world, [])
    id = await submit(world, agent)
    worker, _ = await leased(world.db, App("tests"))
    assert (await pause(world, id)).pending
    await expire(world.db, worker)
    async with working(world.db, App("tests")):
        job = await until(world, id, JobStatus.PAUSED)
        assert job.holds == [Hold.OPERATOR]
        await resume(world, id)
        await until(world, id, JobStatus.COMPLETED)


@pytest.mark.parametrize("verb", [pause, resume, cancel])
async def test_an_ended_job_cannot_be_steered(world: World, verb: Callable[..., Awaitable[SteeringResult]]) -> None:
    agent = await make_agent(world, [])
    id = await submit(world, agent)
    async with working(world.db, App("tests")):
        await until(world, id, JobStatus.COMPLETED)
    with pytest.raises(Conflict) as refused:
        await verb(world, id)
    assert refused.value.code == ("failed_precondition" if verb is resume else "job_finished")


@pytest.mark.proves("S4.5")
async def test_a_paused_job_survives_a_restart_of_everything(world: World, urls: Urls) -> None:
    app = an_app()
    gate = Gate()
    agent = await make_agent(world, [turn(call("look")), turn(call("act", what="b"))])
    id = await submit(world, agent)
    first = await Database.open(urls.app, vault=VAULT)
    try:
        async with working(first, an_app(gate)):
            await gate.entered.wait()
            await pause(world, id)
            gate.opened.set()
            await until(world, id, JobStatus.PAUSED)
    finally:
        await first.close()
    second = await Database.open(urls.app, vault=VAULT)
    try:
        async with working(second, app):
            assert (await job_of(world, id)).status is JobStatus.PAUSED
            await resume(world, id)
            job = await until(world, id, JobStatus.COMPLETED)
    finally:
        await second.close()
    assert job.epoch == 2
    steps = await steps_of(world, id)
    assert [[c.tool_name for c in step.calls] for step in steps] == [["look"], ["act"], []]


# Cancel ------------------------------------------------------------------------------------------------------------


async def test_what_nobody_runs_is_cancelled_at_once(world: World) -> None:
    limits = {"retry_base_seconds": 3600, "retry_cap_seconds": 3600}
    retrying = await make_agent(world, [turn(error_status=503)], slug="retrying", limits=limits)
    pending = await make_agent(world, [], slug="pending", app="elsewhere")
    ids = [await submit(world, retrying), await submit(world, pending), await submit(world, pending)]
    await pause(world, ids[2])
    async with working(world.db, App("tests")):
        await until(world, ids[0], JobStatus.RETRY)
        for id in ids:
            receipt = await cancel(world, id, "not needed")
            assert (receipt.changed, receipt.pending) == (True, False)
            assert (receipt.job.status, receipt.job.error_message) == (JobStatus.CANCELLED, "not needed")
            assert receipt.job.holds == []
            again = await cancel(world, id)
            assert (again.changed, again.job) == (False, receipt.job)
    assert await whole(world)


async def test_a_cancelled_job_does_not_wait_for_its_model(world: World) -> None:
    asked = asyncio.Event()

    async def for_ever(_: int) -> None:
        asked.set()
        await asyncio.Event().wait()

    agent = await make_agent(world, [], model="recording")
    id = await submit(world, agent)
    async with working(world.db, App("tests"), backends=Backends({"recording": Recording(for_ever)})):
        await asked.wait()
        receipt = await cancel(world, id)
        assert (receipt.pending, receipt.job.status) == (True, JobStatus.RUNNING)
        assert (await cancel(world, id)).changed is False
        job = await until(world, id, JobStatus.CANCELLED, seconds=5)
    assert job.error_message
    assert (await actions(world, job))[-1] == "job_cancelled"
    assert await whole(world)


async def test_a_cancellation_that_comes_before_the_model_is_asked_is_not_overlooked(world: World) -> None:
    """The heartbeat brings it while the worker still reads the past of the job."""
    asked: list[int] = []

    async def note(times: int) -> None:
        asked.append(times)

    gate = Gate()
    agent = await make_agent(world, [turn(call("look"))], model="recording")
    id = await submit(world, agent)
    async with working(
        world.db, an_app(gate), backends=Backends({"recording": Recording(note)}), adoption_seconds=60.0
    ) as worker:
        await gate.entered.wait()
        (attempt,) = [each for each in worker._running.values() if each is not None]
        attempt.interrupt()
        gate.opened.set()
        await until(world, id, JobStatus.CANCELLED)
    assert asked == [1]


async def test_a_cancelled_effect_is_waited_for(world: World) -> None:
    gate, sent = Gate(), list[str]()
    agent = await make_agent(world, [turn(call("act", what="a")), turn(call("act", what="b"))])
    id = await submit(world, agent)
    async with working(world.db, an_app(gate, sent)) as worker:
        await gate.entered.wait()
        await cancel(world, id)
        (attempt,) = [each for each in worker._running.values() if each is not None]
        async with asyncio.timeout(5):
            while not attempt.lease.cancel_requested:  # noqa: ASYNC110 -- set by a heartbeat
                await asyncio.sleep(0.01)
        assert (await job_of(world, id)).pending_cancel
        gate.opened.set()
        await until(world, id, JobStatus.CANCELLED)
    (made,) = (await steps_of(world, id))[0].calls
    assert (made.status, made.result, sent) == ("completed", "a", ["a"])
    assert await whole(world)


async def test_a_cancelled_job_of_a_dead_worker_is_cancelled_by_whoever_finds_it(world: World) -> None:
    agent = await make_agent(world, [])
    id = await submit(world, agent)
    worker, _ = await leased(world.db, App("tests"))
    await cancel(world, id)
    await expire(world.db, worker)
    async with working(world.db, App("tests")):
        await until(world, id, JobStatus.CANCELLED)
    assert await whole(world)


# Sessions ------------------------------------------------------------------------------------------------------------


async def test_a_terminated_session_ends_its_running_job(world: World) -> None:
    asked = asyncio.Event()

    async def for_ever(_: int) -> None:
        asked.set()
        await asyncio.Event().wait()

    agent = await make_agent(world, [], model="recording")
    id = await submit(world, agent)
    session = (await job_of(world, id)).session_id
    waiting = (await jobs.submit(world.db, world.admin.actor, JobDraft(agent=agent.slug, session_id=session))).id
    async with working(world.db, App("tests"), backends=Backends({"recording": Recording(for_ever)}), concurrency=1):
        await asked.wait()
        await session_lifecycle.terminate(world.db, world.admin.actor, session, Termination(reason="over"))
        assert (await job_of(world, waiting)).status is JobStatus.CANCELLED
        assert (await job_of(world, id)).pending_cancel
        await until(world, id, JobStatus.CANCELLED)
    assert await whole(world)


async def test_a_paused_session_holds_what_runs_and_what_is_new(world: World) -> None:
    gate = Gate()
    agent = await make_agent(world, [turn(call("look"))])
    running = await submit(world, agent)
    session = (await job_of(world, running)).session_id
    actor = world.admin.actor
    async with working(world.db, an_app(gate)):
        await gate.entered.wait()
        receipt = await steering.pause_session(world.db, actor, session, Pause(reason="audit"))
        assert (receipt.changed, receipt.pending, receipt.session.hold_reason) == (True, True, "audit")
        assert (await steering.pause_session(world.db, actor, session, Pause())).changed is False
        gate.opened.set()
        await until(world, running, JobStatus.PAUSED)
        new = (await jobs.submit(world.db, actor, JobDraft(agent=agent.slug, session_id=session))).id
        said = await sessions.post_message(world.db, actor, session, MessageDraft(text="Anybody there?"))
        other = await submit(world, agent)
        await until(world, other, JobStatus.COMPLETED)
        for id in (new, said.job_id):
            job = await job_of(world, id)
            assert (job.status, job.holds) == (JobStatus.PENDING, [Hold.SESSION])
        with pytest.raises(Conflict) as refused:
            await resume(world, running)
        assert refused.value.code == "still_held"
        await pause(world, new)
        released = await steering.resume_session(world.db, actor, session, Resumption())
        assert (released.changed, released.pending, released.session.held_at) == (True, False, None)
        with pytest.raises(Conflict) as not_held:
            await steering.resume_session(world.db, actor, session, Resumption())
        assert not_held.value.code == "failed_precondition"
        await until(world, running, JobStatus.COMPLETED)
        await until(world, said.job_id, JobStatus.COMPLETED)
        assert (await job_of(world, new)).holds == [Hold.OPERATOR], "its own hold stays"
        await resume(world, new)
        await until(world, new, JobStatus.COMPLETED)
    assert await whole(world)


# A worker that stops -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [False, True], ids=["free", "held"])
async def test_a_worker_that_must_stop_in_the_middle_hands_its_job_back(world: World, held: bool) -> None:
    asked = asyncio.Event()

    async def once_for_ever(times: int) -> None:
        if times == 1:
            asked.set()
            await asyncio.Event().wait()

    backends = Backends({"recording": Recording(once_for_ever)})
    agent = await make_agent(world, [], model="recording")
    id = await submit(world, agent)
    async with working(world.db, App("tests"), backends=backends, grace_seconds=0.05, adoption_seconds=60.0):
        await asked.wait()
        if held:
            await pause(world, id)
    job = await job_of(world, id)
    assert (job.status, job.retry_count) == (JobStatus.PAUSED if held else JobStatus.RUNNING, 0)
    assert (job.deaths, job.pending_pause) == (0, False)
    assert "job_handed_back" in await actions(world, job)
    if held:
        await resume(world, id)
    async with working(world.db, App("tests"), backends=backends):
        await until(world, id, JobStatus.COMPLETED)
    assert await whole(world)


@pytest.mark.proves("S0.7")
async def test_a_worker_that_stops_ends_at_the_boundary(world: World) -> None:
    gate, sent = Gate(), list[str]()
    agent = await make_agent(world, [turn(call("act", what="a")), turn(call("act", what="b"))])
    id = await submit(world, agent)
    async with working(world.db, an_app(gate, sent)) as worker:
        await gate.entered.wait()
        worker.stop()
        gate.opened.set()
    job = await job_of(world, id)
    assert (job.status, job.step_index, job.deaths, sent) == (JobStatus.RUNNING, 0, 0, ["a"])
    async with working(world.db, an_app(gate, sent)):
        await until(world, id, JobStatus.COMPLETED)
    assert sent == ["a", "b"]


async def test_a_job_that_was_to_be_cancelled_does_not_outlive_its_worker(world: World) -> None:
    asked = asyncio.Event()

    async def for_ever(_: int) -> None:
        asked.set()
        await asyncio.Event().wait()

    agent = await make_agent(world, [], model="recording")
    id = await submit(world, agent)
    backends = Backends({"recording": Recording(for_ever)})
    async with working(world.db, App("tests"), backends=backends, grace_seconds=0.05, adoption_seconds=60.0):
        await asked.wait()
        await cancel(world, id)
    async with working(world.db, App("tests"), backends=backends):
        await until(world, id, JobStatus.CANCELLED)
    assert await whole(world)


# Races ---------------------------------------------------------------------------------------------------------------

ROUNDS = 40


async def race(
    world: World, verbs: Callable[[UUID, int], Sequence[Awaitable[Any]]], script: list[dict[str, Any]] | None = None
) -> list[UUID]:
    """Many jobs; at each answer of the model the verbs go off at once, each round a little later."""
    told: dict[str, UUID] = {}
    errors: list[BaseException] = []
    tasks: list[asyncio.Task[Any]] = []

    async def soon(verb: Awaitable[Any], number: int) -> None:
        for _ in range(number * 3):
            await asyncio.sleep(0)
        try:
            await verb
        except Conflict as error:
            errors.append(error)

    class Racing(Recording):
        async def stream(self, request: Any) -> Any:
            number = int(request.turns[0].text)
            tasks.extend(asyncio.create_task(soon(verb, number)) for verb in verbs(told[str(number)], number))
            async for piece in super().stream(request):
                yield piece

    agent = await make_agent(world, script or [turn(call("look"))], model="racing", limits={"max_concurrent_jobs": 50})
    async with working(world.db, an_app(), backends=Backends({"racing": Racing()}), concurrency=4):
        for number in range(ROUNDS):
            id = await submit(world, agent, {"text": str(number)})
            told[str(number)] = id
        async with asyncio.timeout(30):
            for id in told.values():
                while True:
                    job = await job_of(world, id)
                    if job.status in TERMINAL:
                        break
                    if job.status is JobStatus.PAUSED and all(task.done() for task in tasks):
                        await resume(world, id)
                    await asyncio.sleep(0.01)
        await asyncio.gather(*tasks)
    return list(told.values())


async def legal(world: World, ids: list[UUID]) -> set[str]:
    """Every history is a way through the machine; returns how the jobs ended."""
    ends = set()
    for id in ids:
        job = await job_of(world, id)
        assert (job.retry_count, job.deaths, job.holds, job.pending_pause) == (0, 0, [], False), job
        passed = [JobStatus(status) for status in await moves(world, id)]
        assert all(new in TRANSITIONS[old] for old, new in pairwise(passed))
        ends.add(passed[-1].value)
    assert await whole(world)
    return ends


async def test_pause_against_completion(world: World) -> None:
    ids = await race(world, lambda id, _: [pause(world, id)])
    assert await legal(world, ids) == {"COMPLETED"}


async def test_resume_against_pause(world: World) -> None:
    ids = await race(world, lambda id, _: [pause(world, id), resume(world, id), pause(world, id), resume(world, id)])
    assert await legal(world, ids) == {"COMPLETED"}


async def test_cancel_against_completion(world: World) -> None:
    ids = await race(world, lambda id, _: [cancel(world, id)], [])
    assert await legal(world, ids) <= {"COMPLETED", "CANCELLED"}


async def test_everything_at_once(world: World) -> None:
    def verbs(id: UUID, number: int) -> list[Coroutine[Any, Any, SteeringResult]]:
        every = [pause(world, id), resume(world, id), cancel(world, id), pause(world, id)]
        return every[number % 4 :] + every[: number % 4]

    ids = await race(world, verbs)
    assert await legal(world, ids) <= {"COMPLETED", "CANCELLED"}


async def test_a_hold_that_is_lifted_between_two_writes_does_not_cost_a_retry(
    world: World, admin: asyncpg.Connection
) -> None:
    """The step is done and says that the job is held; before the worker pauses it, somebody resumes it."""
    gate = Gate()
    agent = await make_agent(world, [turn(call("look"))])
    id = await submit(world, agent)
    async with working(world.db, an_app(gate)):
        await gate.entered.wait()
        await pause(world, id)
        # Whenever a step is written, the hold is gone right after it.
        await admin.execute(
            """
            create function lift() returns trigger language plpgsql as $$
            begin
              update job set holds = '{}', held_at = null where id = new.id and step_index = 0 and holds <> '{}';
              return null;
            end $$;
            create constraint trigger lift after update on job deferrable initially deferred
              for each row execute function lift();
            """
        )
        gate.opened.set()
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.RETRY)
    assert (job.status, job.retry_count) == (JobStatus.COMPLETED, 0)
    assert await moves(world, id) == ["PENDING", "RUNNING", "COMPLETED"]


async def test_an_operators_pause_is_an_operators_to_end(world: World) -> None:
    agent = await make_agent(world, [])
    member = await world.person(Role.MEMBER)
    draft = JobDraft(agent=agent.slug, payload={"text": "go"})
    id = (await jobs.submit(world.db, member.actor, draft)).id
    own = await steering.pause(world.db, member.actor, id, Pause())
    assert own.job.holds == [Hold.OWNER]
    await pause(world, id)
    lifted = await steering.resume(world.db, member.actor, id, Resumption())
    assert lifted.job.holds == [Hold.OPERATOR]
    with pytest.raises(Conflict, match="held by operator") as refused:
        await steering.resume(world.db, member.actor, id, Resumption())
    assert refused.value.code == "still_held"
    assert (await resume(world, id)).job.holds == []
    approver = await world.person(Role.APPROVER)
    with pytest.raises(Forbidden):
        await steering.pause_session(world.db, approver.actor, own.job.session_id, Pause())
