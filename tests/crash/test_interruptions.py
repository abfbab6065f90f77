"""Workers that are stopped, told to end, cut off from the database, or not told anything."""

from __future__ import annotations

import asyncio
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import Any

import pytest

from cortex_plane.jobs.verbs import workers
from tests.crash.outcomes import require_clean
from tests.crash.points import each, extents, from_the_claim_on, recorded, worth_a_try
from tests.crash.stage import ACTS, Run, Stage
from tests.crash.tools import Kind, act_name
from tests.crash.workers import DEADLINE
from tests.fixtures.workers import call, turn


async def _rows_of(stage: Stage, run: Run) -> list[list[Any]]:
    """Everything that is known about a job."""
    return [
        await stage.rows("select * from job where id = $1", run.job_id),
        await stage.rows("select * from step where job_id = $1 order by step_index", run.job_id),
        await stage.rows("select * from tool_call where job_id = $1 order by step_index, position", run.job_id),
        await stage.rows("select * from audit_entry where session_id = $1 order by seq", run.session_id),
    ]


async def _acting(stage: Stage, run: Run) -> None:
    """Until the outside world has done the first act."""
    named = act_name(run.job_id, *run.acts[0])
    async with asyncio.timeout(DEADLINE):
        while not any(act["payload"]["act"] == named for act in await stage.outside.log()):  # noqa: ASYNC110 -- it is another process
            await asyncio.sleep(0.05)


@extents
async def test_stopped_at_every_point_for_longer_than_its_lease(stage: Stage, whole: bool) -> None:
    """Whatever it was about to do, it does not do any more: another has finished the job meanwhile."""
    points = from_the_claim_on(worth_a_try(await recorded(stage, await stage.submit(Kind.PROBED, "nothing"))))
    if not whole:
        # The second step is a step like the first.
        points = points[: points.index("model:before#2")]

    async def stop(point: str) -> None:
        run = await stage.submit(Kind.PROBED, point)
        sleeper = await stage.worker(run.app, at=point, how=SIGSTOP)
        await sleeper.stopped()
        stage.rescue(run.app)
        await stage.finished(run.job_id)
        stage.leave(run.app)
        before = await _rows_of(stage, run)
        sleeper.send(SIGCONT)
        # It beats once more, so it is awake, and ends what it runs before it ends itself.
        assert await sleeper.end() == 0, sleeper.said()
        assert await _rows_of(stage, run) == before, f"stopped at {point}, it wrote something"

    await each(points, stop)
    await require_clean(stage)


@pytest.mark.parametrize("kind", [Kind.PROBED, Kind.ASKED])
async def test_whoever_may_still_act_is_waited_for(stage: Stage, kind: Kind) -> None:
    """Stopped after its last look at the clock, it acts late, but within the time that its tool has."""
    run = await stage.submit(kind, "act:before#1")
    sleeper = await stage.worker(run.app, at="act:before#1", how=SIGSTOP, tool_seconds=30.0)
    await sleeper.stopped()
    stage.rescue(run.app)
    await stage.until("select 1 from job where id = $1 and status = 'SLEEPING'", run.job_id)
    sleeper.send(SIGCONT)
    await _acting(stage, run)
    assert await sleeper.end() == 0, sleeper.said()
    # A test need not wait until the tool's time is over.
    await stage.change("update tool_call set settle_after = plane_now() where job_id = $1", run.job_id)
    await stage.change("update job set wake_at = plane_now(), runnable_at = plane_now() where id = $1", run.job_id)
    assert await stage.finished(run.job_id) == "COMPLETED"
    await require_clean(stage)


async def test_killed_while_idle(stage: Stage) -> None:
    """It had nothing, so nothing is missing; it is seen to be gone."""
    app = stage.new_app()
    idle = await stage.worker(app, records=True)
    await idle.reached("claim_jobs:after#2")
    assert await idle.end(SIGKILL) == -SIGKILL
    await stage.until("select 1 from worker where name = $1 and expires_at < plane_now()", idle.order.name)
    known = await workers.list_workers(stage.world.db, stage.world.admin.actor)
    assert [worker.alive for worker in known if worker.name == idle.order.name] == [False]
    run = await stage.submit(Kind.WITH_KEY, "nothing")
    stage.rescue(run.app)
    assert await stage.finished(run.job_id) == "COMPLETED"
    await require_clean(stage)


@pytest.mark.proves("S0.7")
@pytest.mark.parametrize(
    "point",
    [
        pytest.param("model:before#1", id="while the model speaks"),
        pytest.param("act:sent#1", id="while an effect is under way"),
    ],
)
async def test_told_to_end(stage: Stage, point: str) -> None:
    turns = [
        turn(call(Kind.ASKED, word="a", delay_ms=50), delay_ms=50),
        turn(call(Kind.ASKED, word="b"), call(Kind.ASKED, word="c")),
    ]
    run = await stage.submit_script(Kind.ASKED, turns, ACTS)
    patient = {"adoption_seconds": 60.0, "grace_seconds": 60.0}
    worker = await stage.worker(run.app, at=point, how=SIGSTOP, tool_seconds=60.0, settings=patient)
    # It stands still until it is told, so that it cannot be done before.
    await worker.stopped()
    worker.send(SIGTERM)
    assert await worker.end(SIGCONT) == 0, worker.said()
    await _handed_back(stage, run)


async def _handed_back(stage: Stage, run: Run) -> None:
    """Its step is done, nobody counts it as dead, and no effect is uncertain."""
    (job,) = await stage.rows("select status, worker_id, deaths, step_index from job where id = $1", run.job_id)
    assert dict(job) == {"status": "RUNNING", "worker_id": None, "deaths": 0, "step_index": 0}
    stage.rescue(run.app)
    assert await stage.finished(run.job_id) == "COMPLETED"
    assert run.asked == set()
    await require_clean(stage)


async def test_an_effect_that_outlasts_the_grace_time_is_uncertain_and_settled(stage: Stage) -> None:
    turns = [turn(call(Kind.WITH_KEY, word="a", delay_ms=60_000))]
    run = await stage.submit_script(Kind.WITH_KEY, turns, [(0, "a")])
    worker = await stage.worker(run.app, settings={"grace_seconds": 0.2}, tool_seconds=30.0)
    await _acting(stage, run)
    assert await worker.end(SIGTERM) == 0, worker.said()
    (job,) = await stage.rows("select worker_id, deaths from job where id = $1", run.job_id)
    assert dict(job) == {"worker_id": None, "deaths": 0}
    # It may be under way for as long as the tool may take; a test need not wait for that.
    await stage.change("update tool_call set settle_after = plane_now() where job_id = $1", run.job_id)
    stage.rescue(run.app)
    assert await stage.finished(run.job_id) == "COMPLETED"
    await require_clean(stage)


@pytest.mark.proves("D.39")
async def test_without_any_notification(lonely_stage: Stage) -> None:
    """Nobody listens, so nobody is told of work: everybody looks."""
    stage = lonely_stage
    app = stage.new_app()
    worker = await stage.worker(app, records=True)
    await worker.reached("claim_jobs:after#2")
    run = await stage.submit(Kind.WITH_KEY, "nothing", app=app)
    assert await stage.finished(run.job_id) == "COMPLETED"
    assert await worker.end() == 0
    await require_clean(stage)


async def test_whoever_listens_loses_its_connections_too(lonely_stage: Stage) -> None:
    stage = lonely_stage
    app = stage.new_app()
    worker = await stage.worker(app, records=True, listens=True, pool=2)
    await worker.reached("claim_jobs:after#2")
    await stage.rows(CUT, worker.order.name)
    run = await stage.submit(Kind.WITH_KEY, "nothing", app=app)
    assert await stage.finished(run.job_id) == "COMPLETED"
    assert await worker.end() == 0
    await require_clean(stage)


CUT = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1 and datname = current_database()"


@pytest.mark.parametrize(
    "kind", [Kind.PROBED, *(pytest.param(kind, marks=pytest.mark.soak) for kind in (Kind.WITH_KEY, Kind.ASKED))]
)
async def test_its_connections_are_cut_again_and_again(lonely_stage: Stage, kind: Kind) -> None:
    """Nobody dies, and nobody else is there: it must find its way alone."""
    stage = lonely_stage
    turns = [turn(call("look", at="here"), call(kind, word="a"), call(kind, word="b")) for _ in range(6)]
    run = await stage.submit_script(kind, turns, [(step, word) for step in range(6) for word in "ab"])
    worker = await stage.worker(run.app, pool=2)
    await stage.until("select 1 from job where id = $1 and status <> 'PENDING'", run.job_id)
    cuts = 0
    while not stage.done(run.job_id) and cuts < 60:
        cuts += sum(row[0] for row in await stage.rows(CUT, worker.order.name))
        await asyncio.sleep(0.15)
    assert await stage.finished(run.job_id) == "COMPLETED"
    assert await worker.end() == 0, worker.said()
    assert cuts > 0
    await require_clean(stage)
