"""How orgs share the slots of a worker, and what becomes of a job that is handed back again and again."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from cortex_plane.db.database import NOBODY
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.rules import MOST_HAND_BACKS, SlotShares
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.tools.app import App
from tests.fixtures.clock import Clock
from tests.fixtures.coded import coded, make_coded
from tests.fixtures.people import World
from tests.fixtures.workers import Gate, actions, call, job_of, make_agent, submit, turn, until, working
from tests.storage.leases import APP, make_worker, queue
from tests.storage.leases import make_agent as make_queued

pytestmark = pytest.mark.fresh_database


def _slow(gate: Gate, running: list[str]) -> App:
    app = App("tests")

    @app.tool(read_only=True)
    async def wait(name: str) -> str:
        running.append(name)
        await gate.passed()
        return name

    @app.tool(read_only=True)
    async def look() -> str:
        return "seen"

    return app


@pytest.mark.proves("D.620")
async def test_slow_jobs_of_one_org_leave_a_slot_of_the_worker_to_others(
    world: World, other: World, http: httpx.AsyncClient
) -> None:
    gate, running = Gate(), []  # type: ignore[var-annotated]
    app = _slow(gate, running)
    slow = await make_agent(world, [turn(call("wait", name="slow"))], limits={"max_concurrent_jobs": 100})
    quick = await make_agent(other, [turn(call("look"))])
    flood = [await submit(world, slow) for _ in range(20)]
    async with working(world.db, app, concurrency=4):
        await gate.entered.wait()
        answer = await http.post(
            "/v1/jobs", headers=other.admin.headers, json={"agent": quick.slug, "payload": {"text": "go"}}
        )
        assert answer.status_code == 201, answer.text
        await until(other, answer.json()["id"], JobStatus.COMPLETED)
        assert len(running) == 3, "all slots but the one that is kept for others"
        gate.opened.set()
        for id in flood:
            await until(world, id, JobStatus.COMPLETED)


@pytest.mark.proves("D.620")
async def test_an_org_gets_its_share_of_a_worker_and_the_reserve_goes_to_who_has_none(
    world: World, other: World, admin: asyncpg.Connection
) -> None:
    db = world.db
    many, few = await make_queued(world, "many", 100), await make_queued(other, "few", 100)
    await queue(admin, world, 20, agent=many)
    await queue(admin, other, 20, agent=few)
    worker = await make_worker(db)

    async def claimed(free: int, mine: int, others: int, shares: SlotShares) -> tuple[int, int]:
        """How many both get where they have so many already."""
        held = [world.org_id] * mine + [other.org_id] * others
        given, _ = await jobs_store.claim_jobs(db, worker, [APP], free, NOBODY, held, shares)
        got = [each.org_id for each in given]
        await admin.execute(
            "update job set status = 'CANCELLED', worker_id = null, leased_at = null, error_message = 'x'"
            " where worker_id is not null"
        )
        return got.count(world.org_id), got.count(other.org_id)

    reserve = SlotShares(reserve=2)
    assert await claimed(2, 6, 0, reserve) == (0, 1), "then it has one too"
    assert await claimed(2, 3, 3, reserve) == (0, 0)
    assert await claimed(4, 3, 1, reserve) == (1, 1)
    assert await claimed(8, 0, 0, SlotShares(share=3)) == (3, 3)
    assert await claimed(4, 4, 0, SlotShares()) == (2, 2)


@pytest.mark.proves("D.620")
async def test_jobs_of_an_org_in_the_whole_plane_are_limited_exactly(
    world: World, other: World, admin: asyncpg.Connection
) -> None:
    many, few = await make_queued(world, "many", 100), await make_queued(other, "few", 100)
    await queue(admin, world, 30, agent=many)
    await queue(admin, other, 1, agent=few)
    ids = [await make_worker(world.db) for _ in range(6)]
    shares = SlotShares(org_jobs=5)

    async def claim(worker: Any) -> None:
        busy = True
        while busy:
            _, busy = await jobs_store.claim_jobs(world.db, worker, [APP], 4, NOBODY, (), shares)

    await asyncio.gather(*map(claim, ids))
    counted = await admin.fetch("select org_id, count(*) from job where worker_id is not null group by org_id")
    assert dict(counted) == {world.org_id: 5, other.org_id: 1}


@pytest.mark.proves("D.623")
async def test_a_job_that_is_handed_back_again_and_again_waits_longer_and_then_fails(
    admin: asyncpg.Connection, http: httpx.AsyncClient, db: Any
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    world = await World.create(db, "acme", policies="policies: [{name: ok, target: '*', effect: allow}]")
    app, tries, sent = App("tests"), [0], []

    @app.tool
    async def act() -> str:
        sent.append(1)
        return "acted"

    async def run(ctx: Context) -> Any:
        """Whatever it is authorised by has changed before its call is sent."""
        tries[0] += 1
        text = f"policies: [{{name: ok{tries[0]}, target: '*', effect: allow}}]"
        applied = await http.post("/v1/policies", headers=world.admin.headers, json={"text": text})
        assert applied.status_code == 200, applied.text
        return await ctx.tool("act")

    await make_coded(world)
    delays: list[float] = []
    async with working(db, coded(run, app), adoption_seconds=3600.0):
        made = await http.post("/v1/jobs", headers=world.admin.headers, json={"agent": "coded", "payload": {}})
        id = made.json()["id"]
        async with asyncio.timeout(60):
            while (job := await job_of(world, id)).status is not JobStatus.FAILED:
                left = await admin.fetchval(
                    "select extract(epoch from runnable_at - plane_now())::float8 from job"
                    " where id = $1 and worker_id is null and runnable_at > plane_now()",
                    job.id,
                )
                if left:
                    delays.append(left)
                    await clock.advance(timedelta(seconds=left))
                await asyncio.sleep(0.01)
    shown = (await http.get(f"/v1/jobs/{id}", headers=world.admin.headers)).json()
    assert "handed back 10 times in a row without finishing a step" in shown["error_message"]
    assert "The policies changed" in shown["error_message"], shown["error_message"]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    assert (tries[0], sent) == (MOST_HAND_BACKS, [])
    trail = await http.get(
        "/v1/audit", headers=world.admin.headers, params={"session_id": shown["session_id"], "limit": 200}
    )
    entries = [entry["action"] for entry in trail.json()["items"]]
    assert entries.count("job_handed_back") == MOST_HAND_BACKS - 1
    assert len(entries) < 5 * MOST_HAND_BACKS


@pytest.mark.proves("D.623")
async def test_a_finished_step_and_a_worker_that_stops_are_no_such_hand_back(
    world: World, admin: asyncpg.Connection
) -> None:
    gate, running = Gate(), []  # type: ignore[var-annotated]
    app = _slow(gate, running)
    agent = await make_agent(world, [turn(call("wait", name="slow")), turn(call("look"))])
    id = await submit(world, agent)
    async with working(world.db, app, grace_seconds=0):
        await gate.entered.wait()
        await admin.execute("update job set hand_backs = 9 where id = $1", id)
    row = await admin.fetchrow("select hand_backs, runnable_at <= plane_now() as due from job where id = $1", id)
    assert dict(row) == {"hand_backs": 9, "due": True}
    gate.opened.set()
    async with working(world.db, app):
        job = await until(world, id, JobStatus.COMPLETED)
    assert await admin.fetchval("select hand_backs from job where id = $1", id) == 0
    assert (await actions(world, job)).count("job_handed_back") == 1
