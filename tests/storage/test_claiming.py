"""Claims: each job is leased once, limits are exact, orgs take turns, and a long queue costs nobody anything."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange, ResourceLimits
from cortex_plane.db.database import NOBODY, Database
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.kernel.errors import Conflict
from cortex_plane.proof.verbs import audit
from tests.conftest import Urls
from tests.crash.points import extents
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.storage.leases import APP, Held, claim, make_agent, make_worker, queue
from tests.storage.tenants import digest, tables

NOW = datetime(2026, 3, 15, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
CLAIMERS = 8

CLAIMER_READS = {
    "job": {
        "org_id", "id", "app", "agent_id", "queue", "runnable_at", "worker_id", "epoch", "deaths",
        "cancel_requested_at", "holds", "hand_backs", "pause",
    },
    "agent": {"org_id", "id", "config_version"},
    "agent_version": {"org_id", "agent_id", "version", "resource_limits"},
    "worker": {
        "id", "name", "host", "pid", "apps", "concurrency", "started_at", "expires_at", "stopped_at",
        "claims_for",
    },
}  # fmt: skip


async def leased(admin: asyncpg.Connection) -> int:
    count: int = await admin.fetchval("select count(*) from job where worker_id is not null")
    return count


@asynccontextmanager
async def wide(urls: Urls) -> AsyncIterator[Database]:
    """A pool in which every claimer has a connection of its own, open before the race begins."""
    db = await Database.open(urls.app, min_size=CLAIMERS, max_size=CLAIMERS)
    yield db
    await db.close()


async def drain(db: Database, worker: UUID, wanted: int) -> list[UUID]:
    """As a worker does: claim until there is nothing, and nobody else is at it."""
    mine: list[UUID] = []
    after = NOBODY
    while True:
        claimed, busy = await jobs_store.claim_jobs(db, worker, [APP], wanted, after)
        mine += [given.job_id for given in claimed]
        if claimed:
            after = claimed[-1].org_id
        elif not busy:
            return mine


# Races -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", [1, 5])
@pytest.mark.proves("D.33")
async def test_each_job_is_leased_exactly_once(
    urls: Urls, admin: asyncpg.Connection, world: World, other: World, wanted: int
) -> None:
    made = []
    for held in (world, other):
        for n in range(4):
            agent = await make_agent(held, f"agent-{n}", limit=1000)
            made += await queue(admin, held, 25, agent=agent)
    async with wide(urls) as db:
        ids = [await make_worker(db) for _ in range(CLAIMERS)]
        taken = await asyncio.gather(*(drain(db, id, wanted) for id in ids))
    assert sorted(job for jobs in taken for job in jobs) == sorted(made)
    owners = dict(await admin.fetch("select id, worker_id from job"))
    for id, jobs in zip(ids, taken, strict=True):
        assert {owners[job] for job in jobs} <= {id}
    assert await admin.fetchval("select count(*) from job where epoch <> 1 or status <> 'RUNNING'") == 0


@pytest.mark.proves("D.33")
async def test_the_limit_of_an_agent_is_exact_whoever_claims(
    urls: Urls, admin: asyncpg.Connection, world: World
) -> None:
    """Whatever becomes free is taken at once, by one claimer, and never by two."""
    few = await make_agent(world, "few", limit=3)
    await queue(admin, world, 60, agent=few)
    async with wide(urls) as db:
        ids = [await make_worker(db) for _ in range(CLAIMERS)]
        for _ in range(15):
            await asyncio.gather(*(claim(db, id, 4) for id in ids))
            running = await leased(admin)
            assert running <= 3, "more than the limit"
            # Those who met each other were told so, and come again.
            await asyncio.gather(*(drain(db, id, 4) for id in ids))
            assert await leased(admin) == 3
            await admin.execute(
                "update job set worker_id = null, leased_at = null, status = 'COMPLETED', finished_at = plane_now()"
                " where id = (select id from job where worker_id is not null limit 1)"
            )
    assert await admin.fetchval("select count(*) from job where status = 'COMPLETED'") == 15


async def test_a_new_limit_holds_from_the_next_claim(db: Database, admin: asyncpg.Connection, world: World) -> None:
    """Of the agent's newest version, whatever version a job was made for."""
    await queue(admin, world, 10)
    worker = await make_worker(db)
    assert len(await claim(db, worker, 10)) == 5, "an agent that says nothing may run five"
    change = AgentChange(resource_limits=ResourceLimits(max_concurrent_jobs=7))
    await agents.update_agent(db, world.admin.actor, world.agent.slug, change, None)
    more = await claim(db, worker, 10)
    assert len(more) == 2
    assert {given.agent_version for given in more} == {1}


@extents
async def test_claims_that_meet_in_one_session_do_not_deadlock(
    urls: Urls, admin: asyncpg.Connection, world: World, whole: bool
) -> None:
    """Each of two agents' jobs lies in both sessions, in opposite orders: heads are locked in one order only."""
    one, two = await make_agent(world, "one", limit=1000), await make_agent(world, "two", limit=1000)
    (first,) = await queue(admin, world, agent=one)
    (second,) = await queue(admin, world, agent=two)
    sessions = [await admin.fetchval("select session_id from job where id = $1", job) for job in (first, second)]
    rounds = 30 if whole else 10
    async with wide(urls) as db:
        ids = [await make_worker(db) for _ in range(CLAIMERS)]
        for _ in range(rounds):
            for agent, order in ((one, sessions), (two, sessions[::-1])):
                for session in order:
                    await queue(admin, world, 4, agent=agent, session=session)
            await asyncio.gather(*(drain(db, id, 8) for id in ids))
    assert await leased(admin) == rounds * 16 + 2
    for session in sessions:
        events = await admin.fetchval("select event_seq from session_head where session_id = $1", session)
        assert events == rounds * 8 + 1
    assert (await audit.verify_org(world.db, world.org_id)).faults == []


# Turns -------------------------------------------------------------------------------------------------------


async def three_orgs(db: Database) -> list[World]:
    return sorted([await World.create(db, f"org-{n}") for n in range(3)], key=lambda made: made.org_id)


@pytest.mark.proves("D.33")
async def test_orgs_take_turns_and_the_turn_wraps_around(db: Database, admin: asyncpg.Connection) -> None:
    orgs = await three_orgs(db)
    ids = [org.org_id for org in orgs]
    for org, count in zip(orgs, (3, 1, 2), strict=True):
        await queue(admin, org, count)
    worker = await make_worker(db)
    a, b, c = ids
    served, after = [], NOBODY
    for _ in range(6):
        (given,) = await claim(db, worker, 1, after=after)
        served.append(after := given.org_id)
    assert served == [a, b, c, a, c, a]
    for org in orgs:
        await queue(admin, org, 2)
    # One at a time, as with the cursor that a worker keeps.
    served, after = [], b
    for _ in range(4):
        (given,) = await claim(db, worker, 1, after=after)
        served.append(after := given.org_id)
    assert served == [c, a, b, c]


async def test_a_batch_is_shared_as_if_orgs_took_turns(db: Database, admin: asyncpg.Connection) -> None:
    orgs = await three_orgs(db)
    for org, count in zip(orgs, (4, 1, 3), strict=True):
        await queue(admin, org, count)
    worker = await make_worker(db)
    a, b, c = (org.org_id for org in orgs)
    assert Counter(given.org_id for given in await claim(db, worker, 5)) == {a: 2, b: 1, c: 2}
    assert Counter(given.org_id for given in await claim(db, worker, 10)) == {a: 2, c: 1}


async def test_a_cursor_may_stand_anywhere(db: Database, admin: asyncpg.Connection, world: World) -> None:
    """Also behind the last org, before the first, and on the only one."""
    worker = await make_worker(db)
    ends = (NOBODY, world.org_id, UUID(int=2**128 - 1), UUID(int=world.org_id.int - 1))
    for after in (*ends, UUID(int=world.org_id.int + 1)):
        (job,) = await queue(admin, world)
        (given,) = await claim(db, worker, after=after)
        assert given.job_id == job
        assert await claim(db, worker, after=after) == []


async def test_a_long_queue_of_one_org_does_not_delay_another(
    db: Database, admin: asyncpg.Connection, world: World, other: World
) -> None:
    crowd = await make_agent(world, "crowd", limit=10_000)
    await queue(admin, world, 1000, agent=crowd, runnable_at=NOW - timedelta(days=365))
    (single,) = await queue(admin, other)
    worker = await make_worker(db)
    assert single in [given.job_id for given in await claim(db, worker, 2, after=world.org_id)]


@pytest.mark.proves("D.33")
async def test_what_was_begun_goes_before_what_is_new(
    db: Database, admin: asyncpg.Connection, world: World, clock: Clock
) -> None:
    """Whatever agent of the org it belongs to; and what has waited longest goes first."""
    second = await make_agent(world, "second")
    old = NOW - timedelta(days=1)
    new = [
        *await queue(admin, world, runnable_at=old),
        *await queue(admin, world, agent=second, runnable_at=old + SECOND),
    ]
    begun = [
        *await queue(admin, world, agent=second, epoch=1, status="RUNNING", runnable_at=NOW - 2 * SECOND),
        *await queue(admin, world, epoch=4, status="RETRY", next_retry_at=NOW, runnable_at=NOW - SECOND),
    ]
    worker = await make_worker(db)
    assert [given.job_id for given in await claim(db, worker, 10)] == [*begun, *new]


# Who waits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["RETRY", "SLEEPING"])
async def test_what_waits_for_a_time_is_claimed_when_it_is_due(
    db: Database, admin: asyncpg.Connection, world: World, clock: Clock, status: str
) -> None:
    due = NOW + timedelta(minutes=5)
    (job,) = await queue(admin, world, status=status, epoch=1, runnable_at=due, next_retry_at=due, wake_at=due)
    worker = await make_worker(db, lease=timedelta(hours=1))
    assert await jobs_store.claim_jobs(db, worker, [APP], 1, NOBODY) == ([], False)
    await clock.set(due - timedelta(microseconds=1))
    assert await claim(db, worker) == []
    await clock.set(due)
    (given,) = await claim(db, worker)
    assert given.job_id == job
    row = await admin.fetchrow("select * from job")
    assert (row["next_retry_at"], row["wake_at"], row["runnable_at"]) == (None, None, None)


async def test_what_is_not_runnable_is_never_claimed(db: Database, admin: asyncpg.Connection, world: World) -> None:
    now = await admin.fetchval("select plane_now()")
    held: dict[str, Any] = {"runnable_at": None, "holds": ["operator"], "held_at": now}
    parked: list[dict[str, Any]] = [
        {"status": "PENDING", **held},
        {"status": "RETRY", "next_retry_at": now - SECOND, **held},
        {"status": "SLEEPING", "wake_at": now - SECOND, **held},
        {"status": "PAUSED", **held},
        {"status": "WAITING_FOR_APPROVAL", "open_approvals": 1, "runnable_at": None},
        {"status": "RUNNING", "worker_id": uuid4(), "leased_at": now, "runnable_at": None},
        *(
            {"status": status, "error_message": "x", "finished_at": now, "runnable_at": None}
            for status in ("COMPLETED", "FAILED", "CANCELLED")
        ),
    ]
    for columns in parked:
        await queue(admin, world, **columns)
    worker = await make_worker(db)
    assert await jobs_store.claim_jobs(db, worker, [APP], 10, NOBODY) == ([], False)
    (free,) = await queue(admin, world)
    assert [given.job_id for given in await claim(db, worker, 10)] == [free]


async def test_an_app_that_is_not_loaded_is_left_to_others_and_blocks_nobody(
    db: Database, admin: asyncpg.Connection, world: World, other: World
) -> None:
    old = await admin.fetchval("select plane_now() - interval '1 day'")
    elsewhere = await queue(admin, world, 3, app="elsewhere", runnable_at=old)
    here = [*await queue(admin, world), *await queue(admin, other)]
    worker = await make_worker(db)
    assert {given.job_id for given in await claim(db, worker, 10)} == set(here)
    assert await claim(db, worker, 10, apps=[]) == []
    both = await claim(db, worker, 10, apps=["elsewhere", APP])
    assert {given.job_id for given in both} == set(elsewhere)


async def test_an_agent_at_its_limit_is_passed_over(db: Database, admin: asyncpg.Connection, world: World) -> None:
    full = await make_agent(world, "full", limit=1)
    old = await admin.fetchval("select plane_now() - interval '1 day'")
    await queue(admin, world, 1000, agent=full, runnable_at=old)
    free = await queue(admin, world, 2)
    worker = await make_worker(db)
    claimed, busy = await jobs_store.claim_jobs(db, worker, [APP], 10, NOBODY)
    assert (len(claimed), busy) == (3, False)
    assert {given.job_id for given in claimed} > set(free)


async def test_nobody_starves_behind_many_that_cannot_run(
    db: Database, admin: asyncpg.Connection, world: World
) -> None:
    """300 agents and 300 orgs that only wait for a time or for a place stand before the one that could go on."""
    later = await admin.fetchval("select plane_now() + interval '1 day'")
    await _crowd_of_agents(admin, world, 300)
    agents_before = "select count(*) from agent where org_id = $1 and id < $2"
    behind = await make_agent(world, "behind")
    assert await admin.fetchval(agents_before, world.org_id, behind.id) > 300
    await _bare_jobs(admin, behind.id, later)
    (job,) = await queue(admin, world, agent=behind)
    worker = await make_worker(db)
    assert [given.job_id for given in await claim(db, worker)] == [job], "behind 300 agents"

    await _crowd_of_orgs(admin, 300, later)
    last = await World.create(db, "last")
    assert await admin.fetchval("select count(*) from org where id < $1", last.org_id) > 300
    (job,) = await queue(admin, last)
    assert [given.job_id for given in await claim(db, worker)] == [job], "behind 300 orgs"
    full = await make_agent(world, "full", limit=1)
    await queue(admin, world, 200, agent=full, runnable_at=NOW - timedelta(days=365))
    assert len(await claim(db, worker)) == 1
    (job,) = await queue(admin, last)
    assert [given.job_id for given in await claim(db, worker)] == [job], "behind many that are due and may not run"
    assert await claim(db, worker, 5) == []


async def _crowd_of_agents(admin: asyncpg.Connection, world: World, count: int) -> None:
    async with admin.transaction():
        await admin.execute(
            "insert into agent (org_id, id, team_id, name, slug, role)"
            " select $1, gen_random_uuid(), $2, 'crowd ' || n, 'crowd-' || n, 'R' from generate_series(1, $3) n",
            world.org_id, world.agent.team_id, count,
        )  # fmt: skip
        # Before every id that is made later.
        await admin.execute("update agent set id = ('00000000' || substr(id::text, 9))::uuid where name like 'crowd %'")
        await admin.execute(
            "insert into agent_version (org_id, agent_id, version, model_config, created_by)"
            " select org_id, id, 1, '{}', 'x' from agent where name like 'crowd %'"
        )


async def _crowd_of_orgs(admin: asyncpg.Connection, count: int, due: datetime) -> None:
    """Orgs with nothing but an agent and a job that is not due."""
    made = [UUID(int=1000 + n) for n in range(count)]
    async with admin.transaction():
        await admin.execute(
            "insert into org (id, slug, name) select o, 'crowd-' || n, 'X'"
            " from unnest($1::uuid[]) with ordinality q (o, n)",
            made,
        )
        await admin.execute(
            "insert into team (org_id, id, slug, name) select o, o, 'main', 'M' from unnest($1::uuid[]) o", made
        )
        await admin.execute(
            "insert into agent (org_id, id, team_id, name, slug, role)"
            " select o, gen_random_uuid(), o, 'A', 'aa', 'R' from unnest($1::uuid[]) o",
            made,
        )
        await admin.execute(
            "insert into agent_version (org_id, agent_id, version, model_config, created_by)"
            " select org_id, id, 1, '{}', 'x' from agent where org_id = any ($1)",
            made,
        )
    await _bare_jobs(admin, NOBODY, due)


async def _bare_jobs(admin: asyncpg.Connection, but: UUID, due: datetime) -> None:
    """One for each agent that has none, but this one."""
    rows = await admin.fetch(
        "select org_id, id from agent a where id <> $1"
        " and not exists (select from job j where j.agent_id = a.id and j.org_id = a.org_id)",
        but,
    )
    columns = [[row[n] for row in rows] for n in range(2)]
    await admin.execute(
        "insert into session (org_id, id, kind, agent_id, status, opened_by)"
        " select o, a, 'programmatic', a, 'ACTIVE', o from unnest($1::uuid[], $2::uuid[]) q (o, a)",
        *columns,
    )
    await admin.execute(
        "insert into session_head (org_id, session_id) select * from unnest($1::uuid[], $2::uuid[])", *columns
    )
    await admin.execute(
        "insert into job (org_id, id, session_id, agent_id, agent_version, kind, payload, runnable_at)"
        " select o, gen_random_uuid(), a, a, 1, 'task', '{}', $3 from unnest($1::uuid[], $2::uuid[]) q (o, a)",
        *columns, due,
    )  # fmt: skip


# Busy --------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def somebody(urls: Urls, statement: str, *args: Any) -> AsyncIterator[None]:
    """Another connection in the middle of a transaction."""
    connection = await asyncpg.connect(urls.admin)
    attempt = connection.transaction()
    await attempt.start()
    try:
        await connection.execute(statement, *args)
        yield
    finally:
        await attempt.rollback()
        await connection.close()


CLAIMS = "select pg_advisory_xact_lock(hashtextextended($1::text, 1))"


async def test_who_meets_another_claim_is_told_so(
    urls: Urls, db: Database, admin: asyncpg.Connection, world: World
) -> None:
    """ "Nothing now" and "nothing at all" are different answers: the first is asked again at once."""
    worker = await make_worker(db)
    assert await jobs_store.claim_jobs(db, worker, [APP], 1, NOBODY) == ([], False)
    (job,) = await queue(admin, world)
    async with somebody(urls, CLAIMS, str(world.agent.id)):
        assert await jobs_store.claim_jobs(db, worker, [APP], 1, NOBODY) == ([], True)
    async with somebody(urls, "select from job where id = $1 for update", job):
        assert await jobs_store.claim_jobs(db, worker, [APP], 1, NOBODY) == ([], True)
    claimed, busy = await jobs_store.claim_jobs(db, worker, [APP], 1, NOBODY)
    assert ([given.job_id for given in claimed], busy) == ([job], False)
    assert await jobs_store.claim_jobs(db, worker, [APP], 1, NOBODY) == ([], False)


async def test_what_is_free_is_claimed_beside_what_is_not(
    urls: Urls, db: Database, admin: asyncpg.Connection, world: World
) -> None:
    second = await make_agent(world, "second")
    await queue(admin, world, 2)
    free = await queue(admin, world, 2, agent=second)
    worker = await make_worker(db)
    async with somebody(urls, CLAIMS, str(world.agent.id)):
        claimed, busy = await jobs_store.claim_jobs(db, worker, [APP], 5, NOBODY)
    assert [given.job_id for given in claimed] == free
    assert busy, "there is more, once the other has ended"


async def test_a_locked_job_does_not_stand_in_the_way_of_the_next(
    urls: Urls, db: Database, admin: asyncpg.Connection, world: World
) -> None:
    first, second = await queue(admin, world, 2)
    worker = await make_worker(db)
    async with somebody(urls, "select from job where id = $1 for update", first):
        assert [given.job_id for given in await claim(db, worker)] == [second]


# What a claim writes -----------------------------------------------------------------------------------------


async def test_a_claim_is_a_lease_a_line_of_history_and_an_event(
    db: Database, admin: asyncpg.Connection, world: World, clock: Clock
) -> None:
    delivery = await world.say("Hello")
    worker = await make_worker(db)
    (given,) = await claim(db, worker)
    assert (given.job_id, given.session_id, given.org_id) == (
        delivery.job_id, delivery.session_id, world.org_id,
    )  # fmt: skip
    assert (given.epoch, given.write_seq, given.message_seq, given.now) == (1, 0, 1, NOW)
    assert (given.kind, given.app, given.checkpoint) == ("conversation", APP, None)
    assert given.payload == {"message_seq": 1}
    assert given.model_config["model"] == "scripted"
    row = await admin.fetchrow("select * from job")
    assert (row["status"], row["worker_id"], row["leased_at"], row["runnable_at"], row["queue"]) == (
        "RUNNING", worker, NOW, None, 0,
    )  # fmt: skip
    history = await admin.fetch("select previous_status, new_status from job_history order by id")
    assert [tuple(line) for line in history] == [(None, "PENDING"), ("PENDING", "RUNNING")]
    event = await admin.fetchrow("select * from event order by seq desc limit 1")
    assert (event["type"], event["job_id"], json.loads(event["data"])) == (
        "status", given.job_id, {"status": "RUNNING"},
    )  # fmt: skip


async def test_the_epoch_rises_by_one_with_every_claim(db: Database, admin: asyncpg.Connection, world: World) -> None:
    await world.say()
    for epoch in range(1, 6):
        held = await Held.claim(db, await make_worker(db))
        assert (held.given.epoch, held.given.write_seq) == (epoch, 0)
        await held.write(StepWrite())
        await held.write(StepWrite(status=JobStatus.RUNNING))
    changes = await admin.fetchval("select count(*) from job_history")
    assert changes == 2, "going on with what is RUNNING already is no change of state"


async def test_who_is_not_alive_claims_nothing(
    db: Database, admin: asyncpg.Connection, world: World, clock: Clock
) -> None:
    """A job of a worker that nobody knows would belong to it for good: only known workers can be found dead."""
    await queue(admin, world)
    forgotten, late, stopped = uuid4(), await make_worker(db), await make_worker(db)
    await jobs_store.stop_worker(db, stopped)
    await clock.advance(timedelta(seconds=30))
    for worker in (forgotten, late, stopped):
        with pytest.raises(Conflict) as raised:
            await claim(db, worker)
        assert raised.value.code == "lease_expired"
    assert await leased(admin) == 0
    await jobs_store.beat_worker(db, late, timedelta(seconds=30))
    assert len(await claim(db, late)) == 1


# What it costs -----------------------------------------------------------------------------------------------


async def blocks(url: str, worker: UUID, times: int = 8) -> int:
    """The blocks that a claim of one job touches, once its plans are settled."""
    connection = await asyncpg.connect(url)
    try:
        for _ in range(times):
            claim = connection.transaction()
            await claim.start()
            (found,) = await connection.fetchrow(
                "explain (analyze, buffers, format json)"
                f" select * from claim_jobs('{worker}', '{{plane}}', 1, '{NOBODY}', '{{}}', 1000, 0, null)"
            )
            await claim.rollback()
        plan = json.loads(found)[0]["Plan"]
        count: int = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
        return count
    finally:
        await connection.close()


@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "with statistics"])
@pytest.mark.fresh_database
@extents
async def test_the_cost_of_a_claim_does_not_grow_with_the_queue(
    urls: Urls, db: Database, admin: asyncpg.Connection, world: World, other: World, analyzed: bool, whole: bool
) -> None:
    """One agent at its limit with a long queue, a long history, another agent of the same org, another org."""
    await admin.execute("alter table job set (autovacuum_enabled = false)")
    first, second = sorted((world, other), key=lambda held: held.org_id)
    full = await make_agent(first, "full", limit=2)
    behind = await make_agent(first, "behind")
    old = await admin.fetchval("select plane_now() - interval '1 day'")
    worker = await make_worker(db)

    async def grow(count: int) -> None:
        await queue(admin, first, count, agent=full, runnable_at=old)
        await queue(admin, first, count, agent=full, status="COMPLETED", runnable_at=None, finished_at=old, epoch=1)
        await queue(admin, first, count // 2, agent=behind, status="COMPLETED", runnable_at=None, finished_at=old)

    async def measured() -> dict[str, int]:
        if analyzed:
            await admin.execute("analyze")
        found = {"passes over the full one": await blocks(urls.app, worker)}
        (job,) = await queue(admin, first, agent=behind)
        found["finds the one behind it"] = await blocks(urls.app, worker)
        await admin.execute("delete from job where id = $1", job)
        (job,) = await queue(admin, second)
        found["finds the other org's"] = await blocks(urls.app, worker)
        await admin.execute("delete from job where id = $1", job)
        return found

    await grow(20)
    assert len(await claim(db, worker, 5)) == 2
    small = await measured()
    await grow(3000 if whole else 1500)
    large = await measured()
    assert Counter({name: max(0, large[name] - 3 * small[name]) for name in small}).total() == 0, (small, large)
    assert max(large.values()) < 250, large


@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "with statistics"])
@pytest.mark.fresh_database
async def test_looking_for_work_costs_the_same_however_many_orgs_wait_for_a_time(
    urls: Urls, db: Database, admin: asyncpg.Connection, world: World, analyzed: bool
) -> None:
    worker = await make_worker(db)
    later = await admin.fetchval("select plane_now() + interval '1 day'")
    await queue(admin, world, 3, runnable_at=later)
    alone = await blocks(urls.app, worker)
    await _crowd_of_orgs(admin, 1000, later)
    if analyzed:
        await admin.execute("analyze")
    assert await blocks(urls.app, worker) <= alone + 5


# The claimer -------------------------------------------------------------------------------------------------


async def test_the_claimer_reads_what_a_queue_needs(admin: asyncpg.Connection) -> None:
    """No payload, no checkpoint, no name of anybody."""
    rows = await admin.fetch(
        """
        select c.relname::text, a.attname::text, has_column_privilege('cortex_claimer', c.oid, a.attname, 'select') as reads,
          has_column_privilege('cortex_claimer', c.oid, a.attname, 'update') as locks,
          has_column_privilege('cortex_claimer', c.oid, a.attname, 'insert, references')
            or has_table_privilege('cortex_claimer', c.oid, 'delete, truncate, trigger') as writes
        from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
        """
    )
    reads: dict[str, set[str]] = {}
    for row in rows:
        if row["reads"]:
            reads.setdefault(row["relname"], set()).add(row["attname"])
    assert reads == CLAIMER_READS
    assert [(row["relname"], row["attname"]) for row in rows if row["locks"]] == [("job", "runnable_at")]
    assert not any(row["writes"] for row in rows)


async def test_the_claimer_sees_every_org_and_changes_none(
    admin: asyncpg.Connection, world: World, other: World
) -> None:
    await queue(admin, world)
    await queue(admin, other)
    names = await tables(admin)
    before = await digest(admin, names)
    for org in (None, world.org_id):
        attempt = admin.transaction()
        await attempt.start()
        try:
            await admin.execute("set local role cortex_claimer")
            if org is not None:
                # As in the middle of a claim: then the policy of the tenant is met as well.
                await admin.execute("select set_config('app.org_id', $1, true)", str(org))
            assert await admin.fetchval("select count(id) from job") == 2
            assert len(await admin.fetch("select id from job for no key update skip locked")) == 2
            for statement in (
                f"update job set runnable_at = null where org_id = '{world.org_id}'",
                "update job set runnable_at = runnable_at",
                "update job set worker_id = null",
                "update agent set config_version = 1",
                "delete from job",
                "insert into job (org_id, id) values (gen_random_uuid(), gen_random_uuid())",
                "select id from agent for update",
                "select payload from job",
                "select checkpoint from job",
                "select * from session",
                "select * from tool_call",
            ):
                with pytest.raises(asyncpg.InsufficientPrivilegeError):
                    async with admin.transaction():
                        await admin.execute(statement)
        finally:
            await attempt.rollback()
    assert await digest(admin, names) == before


async def test_finders_tell_the_app_no_more_than_ids(
    app: asyncpg.Connection, admin: asyncpg.Connection, world: World
) -> None:
    """A stranger's table of the same name, or a set path, changes nothing of it."""
    (job,) = await queue(admin, world)
    await app.execute("create temporary table job (like public.job)")
    await app.execute("set search_path = pg_temp, public")
    now = await admin.fetchval("select plane_now()")
    orgs = await app.fetchval("select public.find_orgs_in_turn($1, $2, $3, $4, 10)", [APP], now, NOBODY, [])
    assert orgs == [world.org_id]
    (row,) = await app.fetch("select * from public.find_jobs_of_org($1, $2, $3, 10, null)", world.org_id, [APP], now)
    assert dict(row) == {"ids": [job], "busy": False}
    assert await app.fetchval("select count(*) from public.job") == 0
