"""Workers among each other: limits, turns, adoption, and writes of those who lost their job."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from structlog.testing import capture_logs

from cortex_plane.calls.verbs import steps
from cortex_plane.db.database import NOBODY, Database
from cortex_plane.db.pool import Hints
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import Cancellation, JobStatus, Pause, Resumption
from cortex_plane.jobs.rules import Assignment, StepWrite
from cortex_plane.jobs.store import find_orphans
from cortex_plane.jobs.verbs import steering, workers
from cortex_plane.kernel.errors import Conflict, SetupError, Unavailable
from cortex_plane.kernel.ids import new_id
from cortex_plane.sessions.verbs import events
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from cortex_plane.worker.worker import JobRunner
from tests.conftest import Urls
from tests.fixtures.people import World
from tests.fixtures.servers import VAULT
from tests.fixtures.workers import (
    FAST,
    KEY,
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


async def claim(world: World, *apps: str, wanted: int = 1, after: UUID = NOBODY) -> list[Assignment]:
    """A claim by a worker that is only a row; who is told that others claim asks again."""
    worker = new_id()
    await jobs_store.register_worker(world.db, worker, "row", "nowhere", 1, list(apps), wanted, timedelta(hours=1))
    while True:
        claimed, busy = await jobs_store.claim_jobs(world.db, worker, apps or ("tests",), wanted, after)
        if claimed or not busy:
            return claimed


# Claimed ahead -----------------------------------------------------------------------------------------------------


def look_app(gate: Gate) -> App:
    app = App("tests")

    @app.tool(read_only=True)
    async def look() -> None:
        await gate.passed()

    return app


async def two_run_and_two_are_ready(world: World, gate: Gate) -> tuple[JobRunner, list[UUID]]:
    """A worker with two slots that claimed four jobs; nothing of it runs by itself but its attempts."""
    agent = await make_agent(world, [turn(call("look"))])
    ids = [await submit(world, agent) for _ in range(4)]
    worker = JobRunner(world.db, [look_app(gate)], KEY, replace(FAST, concurrency=2))
    await worker._register()
    assert await worker._claim(4) == (4, False)
    assert (len(worker._running), len(worker._ready)) == (2, 2)
    return worker, ids


async def test_what_was_claimed_ahead_begins_when_slots_become_free(world: World) -> None:
    gate = Gate()
    worker, ids = await two_run_and_two_are_ready(world, gate)
    await worker._release_forgotten()
    assert len(worker._ready) == 2, "they are not forgotten"
    gate.opened.set()
    for id in ids:
        assert (await until(world, id, JobStatus.COMPLETED)).epoch == 1
    assert not worker._ready


async def test_what_was_claimed_ahead_and_finds_no_slot_is_left_to_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    worker, ids = await two_run_and_two_are_ready(world, gate)
    monkeypatch.setattr("cortex_plane.worker.worker.PATIENCE_SECONDS", -1.0)
    await worker._release_forgotten()
    assert not worker._ready
    others = await claim(world, wanted=4)
    assert {each.job_id for each in others} == set(ids[2:])
    assert {(each.epoch, each.hand_backs) for each in others} == {(2, 0)}
    gate.opened.set()
    for id in ids[:2]:
        await until(world, id, JobStatus.COMPLETED)


async def test_a_worker_that_stops_hands_back_what_it_claimed_ahead(world: World) -> None:
    gate = Gate()
    worker, ids = await two_run_and_two_are_ready(world, gate)
    await gate.arrived(2)
    worker.stop()
    draining = asyncio.create_task(worker._drain())
    async with asyncio.timeout(10):
        while not (others := await claim(world, wanted=4)):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert {each.job_id for each in others} <= set(ids[2:])
    assert {each.hand_backs for each in others} == {0}
    gate.opened.set()
    await draining


async def test_jobs_that_end_quickly_are_claimed_in_batches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cortex_plane.worker.worker.MOMENT_SECONDS", 60.0)
    claims, claim_jobs = list[int](), jobs_store.claim_jobs

    async def counted(*args: Any) -> tuple[list[Assignment], bool]:
        claimed, busy = await claim_jobs(*args)
        claims.append(len(claimed))
        return claimed, busy

    monkeypatch.setattr(jobs_store, "claim_jobs", counted)
    gate = Gate()
    gate.opened.set()
    agent = await make_agent(world, [turn(call("look"))], limits={"max_concurrent_jobs": 100})
    ids = [await submit(world, agent) for _ in range(40)]
    async with working(world.db, look_app(gate), concurrency=4, reserved_slots=0):
        for id in ids:
            await until(world, id, JobStatus.COMPLETED)
    assert sum(claims) == 40
    assert sum(count > 0 for count in claims) <= 20


# Which job next ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.33")
async def test_an_agents_limit_is_exact_under_several_workers(world: World) -> None:
    app, now, most = App("tests"), [0], [0]

    @app.tool(read_only=True)
    async def look() -> int:
        now[0] += 1
        most[0] = max(most[0], now[0])
        for _ in range(20):
            await asyncio.sleep(0)
        now[0] -= 1
        return now[0]

    agent = await make_agent(world, [turn(call("look"))] * 2, limits={"max_concurrent_jobs": 2})
    ids = [await submit(world, agent) for _ in range(20)]
    async with (
        working(world.db, app, concurrency=4),
        working(world.db, app, concurrency=4),
        working(world.db, app, concurrency=4),
    ):
        for id in ids:
            await until(world, id, JobStatus.COMPLETED)
    assert most[0] == 2, "never more, and never less than it may"


async def test_many_claims_at_once_never_pass_the_limit(world: World, admin: asyncpg.Connection) -> None:
    agent = await make_agent(world, [], limits={"max_concurrent_jobs": 3})
    for _ in range(12):
        await submit(world, agent)
    claimed = await asyncio.gather(*(claim(world, wanted=2) for _ in range(9)))
    assert sum(map(len, claimed)) <= 3
    leases = await admin.fetchval("select count(*) from job where worker_id is not null")
    assert leases == sum(map(len, claimed)) == 3 or leases < 3
    await claim(world, wanted=10)
    assert await admin.fetchval("select count(*) from job where worker_id is not null") == 3


async def test_a_long_queue_of_one_org_does_not_keep_another_waiting(
    world: World, other: World, admin: asyncpg.Connection
) -> None:
    many = await make_agent(world, [], limits={"max_concurrent_jobs": 1000})
    one = await make_agent(other, [])
    await submit(world, many)
    await admin.execute(
        """
        insert into job (org_id, id, session_id, agent_id, agent_version, kind, payload, app, runnable_at)
        select org_id, gen_random_uuid(), session_id, agent_id, agent_version, kind, payload, app, runnable_at
        from job cross join generate_series(1, 199)
        """
    )
    first = await claim(world, wanted=5)
    assert [given.org_id for given in first] == [world.org_id] * 5
    late = await submit(other, one)
    second = await claim(world, wanted=5, after=first[-1].org_id)
    assert second[0].job_id == late
    assert [given.org_id for given in second[1:]] == [world.org_id] * 4


async def test_what_was_begun_goes_before_what_is_new(world: World) -> None:
    app = App("tests")

    @app.tool(read_only=True)
    async def look(ctx: ToolContext) -> int:
        if ctx.step == 0:
            await steering.pause(world.db, world.admin.actor, ctx.job_id, Pause())
        return 1

    agent = await make_agent(world, [turn(call("look"))], slug="first")
    begun = await submit(world, agent)
    async with working(world.db, app):
        await until(world, begun, JobStatus.PAUSED)
    new = [await submit(world, agent) for _ in range(3)]
    await steering.resume(world.db, world.admin.actor, begun, Resumption())
    order = [given.job_id for given in await claim(world, wanted=4)]
    assert order == [begun, *new]


@pytest.mark.proves("D.44")
async def test_a_job_waits_for_a_worker_that_has_its_code(world: World) -> None:
    agent = await make_agent(world, [], app="rare")
    common = await make_agent(world, [], slug="common")
    waits, runs = await submit(world, agent), await submit(world, common)
    async with working(world.db, App("tests")):
        await until(world, runs, JobStatus.COMPLETED)
        assert (await job_of(world, waits)).status is JobStatus.PENDING
        async with working(world.db, App("rare")):
            await until(world, waits, JobStatus.COMPLETED)


@pytest.mark.proves("D.39")
async def test_a_worker_needs_no_notification(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hints, "work", lambda _: None)
    agent = await make_agent(world, [turn(error_status=503)], limits={"retry_base_seconds": 0.01}, slug="retries")
    talker = await make_agent(world, [turn(call("look"))])
    app = App("tests")

    @app.tool(read_only=True)
    async def look() -> int:
        return 1

    async with working(world.db, app):
        retries, done = await submit(world, agent, max_retries=1), await submit(world, talker)
        said = await world.say("Hello")
        await until(world, retries, JobStatus.FAILED)
        await until(world, done, JobStatus.COMPLETED)
        await until(world, said.job_id, JobStatus.COMPLETED)


# Deaths ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.35")
async def test_a_dead_workers_job_is_adopted_and_goes_on(world: World) -> None:
    app, looked = App("tests"), list[int]()

    @app.tool(read_only=True)
    async def look(ctx: ToolContext) -> int:
        looked.append(ctx.step)
        if looked == [0, 1]:
            raise Died
        return ctx.step

    agent = await make_agent(world, [turn(call("look")), turn(call("look"))])
    id = await submit(world, agent)
    await died(world.db, app)
    assert (await job_of(world, id)).step_index == 0
    async with working(world.db, app):
        job = await until(world, id, JobStatus.COMPLETED)
    assert (job.epoch, job.deaths, job.retry_count) == (2, 0, 0), "progress forgives a death"
    assert looked == [0, 1, 1], "the finished step is not done again"
    assert "job_adopted" in await actions(world, job)
    assert await whole(world)


@pytest.mark.proves("D.35")
async def test_a_job_that_kills_its_workers_is_poison(world: World) -> None:
    app = App("tests")

    @app.tool(read_only=True)
    async def crash() -> str:
        raise Died

    agent = await make_agent(world, [turn(call("crash"))])
    id = await submit(world, agent)
    for deaths in (1, 2):
        await died(world.db, app)
        await workers.adopt_jobs(world.db, new_id(), "finder", 3)
        job = await job_of(world, id)
        assert (job.status, job.deaths) == (JobStatus.RUNNING, deaths)
    await died(world.db, app)
    await workers.adopt_jobs(world.db, new_id(), "finder", 3)
    job = await job_of(world, id)
    assert (job.status, job.deaths) == (JobStatus.FAILED, 3)
    assert job.error_message == (
        f"Poison: 3 workers died with job {id} without finishing a step."
        " Look for a tool that exhausts memory or ends its process, then `cortex job resubmit` it."
    )
    assert await moves(world, id) == ["PENDING", "RUNNING", "FAILED"]
    *_, lost, error, status = (await events.of_job(world.db, world.admin.actor, id, 0)).events
    assert [lost.type, error.type, status.type] == ["worker_lost", "error", "status"]
    assert error.data == {"message": job.error_message}
    assert status.data == {"status": "FAILED", "error": job.error_message}
    assert await whole(world)


async def test_progress_between_two_deaths_makes_no_poison(world: World) -> None:
    """It dies in every step, and finishes each one with the second try."""
    app, tries = App("tests"), dict[int, int]()

    @app.tool(read_only=True)
    async def crash(ctx: ToolContext) -> str:
        tries[ctx.step] = tries.get(ctx.step, 0) + 1
        if tries[ctx.step] < 3:
            raise Died
        return "survived"

    agent = await make_agent(world, [turn(call("crash"))] * 2)
    id = await submit(world, agent)
    for _ in range(4):
        await died(world.db, app)
        await workers.adopt_jobs(world.db, new_id(), "finder", 3)
    async with working(world.db, app):
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.status, job.epoch) == (JobStatus.COMPLETED, 5)


async def test_a_living_workers_job_is_not_adopted(world: World) -> None:
    agent = await make_agent(world, [])
    id = await submit(world, agent)
    worker, _ = await leased(world.db, App("tests"))
    assert await workers.adopt_jobs(world.db, new_id(), "finder", 3) == []
    await expire(world.db, worker)
    finders = [workers.adopt_jobs(world.db, new_id(), f"finder {n}", 3) for n in range(4)]
    adopted = await asyncio.gather(*finders)
    assert [orphan.id for each in adopted for orphan in each] == [id], "one of them has it"


async def test_a_worker_that_renews_its_lease_in_the_last_moment_keeps_its_job(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = await make_agent(world, [])
    id = await submit(world, agent)
    worker, given = await leased(world.db, App("tests"))
    await expire(world.db, worker)
    orphans = await find_orphans(world.db, 10)
    assert [orphan.id for orphan in orphans] == [id]
    await jobs_store.beat_worker(world.db, worker.id, timedelta(hours=1))

    async def found_before(*_: Any) -> Any:
        return orphans

    monkeypatch.setattr(jobs_store, "find_orphans", found_before)
    assert await workers.adopt_jobs(world.db, new_id(), "finder", 3) == []
    assert await steps.advance(world.db, given, worker.id, 1, StepWrite(), 1) is not None


async def test_a_worker_that_was_forgotten_registers_again(world: World, admin: asyncpg.Connection) -> None:
    async with working(world.db, App("tests")) as worker:
        await admin.execute("delete from worker")
        async with asyncio.timeout(5):
            while not await admin.fetchval("select count(*) from worker where id = $1", worker.id):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


@pytest.mark.parametrize("end", ["lease", "crash"])
async def test_a_job_that_its_living_worker_gave_up_on_is_not_stuck(
    world: World, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Nobody takes a job from a worker that renews its lease, so it must let go by itself."""
    app, sent = App("tests"), list[int]()

    @app.tool(on_uncertain="retry_with_key")
    async def act(ctx: ToolContext) -> int:
        sent.append(ctx.attempt)
        return 1

    advance, broken = steps.advance, [1]

    async def once(*args: Any) -> Any:
        if broken:
            broken.pop()
            if end == "lease":
                raise Conflict("The lease of this worker has run out.", code="lease_expired")
            raise MemoryError
        return await advance(*args)

    monkeypatch.setattr(steps, "advance", once)
    agent = await make_agent(world, [turn(call("act"))])
    id = await submit(world, agent)
    async with working(world.db, app):
        await until(world, id, JobStatus.COMPLETED)
    assert sent == [1]


FAULTS = [
    (Unavailable("gone"), "before"),
    (Unavailable("gone"), "after"),
    (Conflict("Two requests got in each other's way.", code="retry"), "before"),
    (Conflict("Something else.", code="odd"), "before"),
    (ValueError("a defect"), "before"),
    (ValueError("a defect"), "after"),
]


@pytest.mark.parametrize(("error", "when"), FAULTS)
async def test_a_write_that_fails_once_loses_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, when: str
) -> None:
    """Whichever write it is, and whether or not it was applied: the job ends, and every effect is sent with one key."""
    app, sent = App("tests"), dict[UUID, list[str]]()

    @app.tool(on_uncertain="retry_with_key", timeout=0.1)
    async def act(ctx: ToolContext) -> str:
        sent.setdefault(ctx.job_id, []).append(ctx.idempotency_key)
        return "done"

    advance, fails_at = steps.advance, dict[UUID, int]()

    async def flaky(*args: Any) -> Any:
        id = args[1].job_id
        fails_at[id] -= 1
        if fails_at[id] == 0:
            if when == "after":
                await advance(*args)
            raise error
        return await advance(*args)

    monkeypatch.setattr(steps, "advance", flaky)
    limits = {"retry_base_seconds": 0.001, "retry_cap_seconds": 0.001}
    agent = await make_agent(world, [turn(call("act"), call("act"))], limits=limits)
    for number in range(1, 5):
        fails_at[await submit(world, agent)] = number
    async with working(world.db, app):
        for id in fails_at:
            job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.PAUSED)
            assert (job.status, len(set(sent[id]))) == (JobStatus.COMPLETED, 2)
            if isinstance(error, Unavailable) or getattr(error, "code", "") == "retry":
                assert (len(sent[id]), job.retry_count) == (2, 0), "the write itself is made again"
    assert await whole(world)


# Writes of those who lost it ---------------------------------------------------------------------------------------


async def test_who_lost_the_job_changes_nothing(world: World, admin: asyncpg.Connection) -> None:
    agent = await make_agent(world, [])
    id = await submit(world, agent)
    worker, given = await leased(world.db, App("tests"))
    write = StepWrite(status=JobStatus.FAILED, error="I was never here")

    async def state() -> Any:
        rows = [await admin.fetchrow("select * from job where id = $1", id)]
        rows += await admin.fetch("select * from session_head")
        return [dict(row) for row in rows]

    before = await state()
    for holder, epoch, number in (
        (new_id(), given.epoch, 1), (worker.id, given.epoch - 1, 1), (worker.id, given.epoch + 1, 1),
        (worker.id, given.epoch, 2),
    ):  # fmt: skip
        lost = await steps.advance(world.db, replace(given, epoch=epoch), holder, number, write, 1)
        assert lost is None, (holder, epoch, number)
        assert await state() == before
    await expire(world.db, worker)
    await workers.adopt_jobs(world.db, new_id(), "finder", 3)
    assert await steps.advance(world.db, given, worker.id, 1, write, 1) is None
    (again,) = await claim(world)
    assert (again.job_id, again.epoch) == (id, given.epoch + 1)
    assert await steps.advance(world.db, given, worker.id, 1, write, 1) is None
    assert (await job_of(world, id)).status is JobStatus.RUNNING


async def test_the_same_write_twice_is_applied_once(world: World, admin: asyncpg.Connection) -> None:
    agent = await make_agent(world, [])
    id = await submit(world, agent)
    worker, given = await leased(world.db, App("tests"))
    write = StepWrite(done_step=0, events=[("step_completed", {"step": 0})])
    first = await steps.advance(world.db, given, worker.id, 1, write, 1)
    events = await admin.fetchval("select count(*) from event")
    second = await steps.advance(world.db, given, worker.id, 1, write, 1)
    assert first is not None
    assert second is not None
    assert (first.applied_before, second.applied_before) == (False, True)
    assert await admin.fetchval("select count(*) from event") == events
    end = StepWrite(status=JobStatus.COMPLETED, result=b'{"text": "done"}')
    ended = await steps.advance(world.db, given, worker.id, 2, end, 1)
    again = await steps.advance(world.db, given, worker.id, 2, end, 1)
    assert ended is not None
    assert again is not None
    assert (ended.applied_before, again.applied_before) == (False, True)
    assert again.status is JobStatus.COMPLETED
    assert await moves(world, id) == ["PENDING", "RUNNING", "COMPLETED"]


async def test_a_worker_without_a_lease_may_not_send(world: World) -> None:
    agent = await make_agent(world, [])
    await submit(world, agent)
    worker, given = await leased(world.db, App("tests"))
    await expire(world.db, worker)
    write = StepWrite(dispatches=True, policies=given.policies)
    with pytest.raises(Conflict) as refused:
        await steps.advance(world.db, given, worker.id, 1, write, 1)
    assert refused.value.code == "lease_expired"


async def test_a_call_is_not_sent_after_its_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that stood still between the intent and the sending does not send: somebody else may be settling it."""
    app, sent, late = App("tests"), list[int](), [1, 1]

    @app.tool
    async def act(ctx: ToolContext) -> str:
        sent.append(ctx.attempt)
        return "sent"

    advance = steps.advance

    async def slow(*args: Any) -> Any:
        written = await advance(*args)
        assert written is not None
        if args[4].dispatches and late:
            late.pop()
            return replace(written, dispatch_before=written.now - timedelta(seconds=1))
        return written

    monkeypatch.setattr(steps, "advance", slow)
    agent = await make_agent(world, [turn(call("act"))])
    id = await submit(world, agent)
    async with working(world.db, app):
        await until(world, id, JobStatus.COMPLETED)
    assert sent == [3]


# Setup -------------------------------------------------------------------------------------------------------------


async def test_another_master_key_is_refused(world: World) -> None:
    async with working(world.db):
        pass
    with pytest.raises(SetupError) as refused:
        await JobRunner(world.db, (), bytes(32), FAST).run()
    assert refused.value.code == "wrong_master_key"
    async with working(world.db, key=KEY):
        pass


async def test_a_database_that_goes_away_costs_nothing_but_time(world: World, urls: Urls) -> None:
    """Every connection of the worker is cut in the middle of a job."""
    gate, app = Gate(), App("tests")

    @app.tool
    async def act() -> str:
        await gate.passed()
        return "done"

    agent = await make_agent(world, [turn(call("act")), turn(call("act"))])
    id = await submit(world, agent)
    own = await Database.open(urls.app, vault=VAULT)
    admin = await asyncpg.connect(urls.admin)
    try:
        async with working(own, app):
            await gate.entered.wait()
            await admin.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )
            gate.opened.set()
            job = await until_reconnected(world, id)
    finally:
        await admin.close()
        await own.close()
    assert (job, [c.status for step in await steps_of(world, id) for c in step.calls]) == (
        JobStatus.COMPLETED, ["completed", "completed"],
    )  # fmt: skip


async def until_reconnected(world: World, id: UUID) -> JobStatus:
    async with asyncio.timeout(20):
        while True:
            try:
                return (await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.PAUSED)).status
            except Unavailable:
                await asyncio.sleep(0.01)


async def test_a_failed_duty_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker whose heartbeat died once must not go on without one."""
    beat, broken = jobs_store.beat_worker, [1]

    async def once(*args: Any) -> Any:
        if broken:
            broken.pop()
            raise ZeroDivisionError
        return await beat(*args)

    monkeypatch.setattr(jobs_store, "beat_worker", once)
    asked = asyncio.Event()

    async def for_ever(_: int) -> None:
        asked.set()
        await asyncio.Event().wait()

    agent = await make_agent(world, [], model="recording")
    id = await submit(world, agent)
    with capture_logs():
        async with working(world.db, App("tests"), backends=Backends({"recording": Recording(for_ever)})):
            await asked.wait()
            await steering.cancel(world.db, world.admin.actor, id, Cancellation())
            await until(world, id, JobStatus.CANCELLED)


async def test_whoever_could_not_beat_lets_the_others_beat_before_it_adopts(world: World) -> None:
    """After an outage of the database every lease has run out, and nobody is dead."""
    agent = await make_agent(world, [])
    id = await submit(world, agent)
    lost, _ = await leased(world.db, App("tests"))
    await expire(world.db, lost)
    worker = JobRunner(world.db, [App("tests")], KEY, FAST)
    await worker._register()
    await worker._beat()
    await worker._adopt()
    assert (await job_of(world, id)).deaths == 0
    await worker._beat()
    await worker._adopt()
    assert (await job_of(world, id)).deaths == 1


async def test_a_worker_does_not_adopt_from_itself(world: World) -> None:
    agent = await make_agent(world, [])
    id = await submit(world, agent)
    worker, _ = await leased(world.db, App("tests"))
    await expire(world.db, worker)
    assert await workers.adopt_jobs(world.db, worker.id, worker.name, 3) == []
    assert (await job_of(world, id)).deaths == 0
