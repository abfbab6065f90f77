"""Deadlines are kept: each once, in their order, at most a second late, and again after an outage."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.calls.verbs import deadlines
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.ids import new_id
from cortex_plane.policies.model.policies import OWNER_DECIDES
from cortex_plane.sessions.model.sessions import InboundMessage, IngestedMessage, SessionStatus
from cortex_plane.sessions.verbs import sessions
from cortex_plane.worker.scheduler import CHORES, POLL_SECONDS, Chore, Scheduler, in_background
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import shown
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.workers import actions, ended, job_of, make_agent, turn, whole, working
from tests.storage.leases import Held, call, make_worker, queue

START = datetime(2026, 3, 15, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
TERMS = replace(OWNER_DECIDES, timeout_seconds=3600, reminder_seconds=600)


@pytest_asyncio.fixture
async def clock(strict: World, admin: asyncpg.Connection) -> Clock:
    return await Clock.install(admin, START)


@pytest.mark.parametrize("chore", CHORES, ids=lambda chore: chore.name)
async def test_every_chore_runs(world: World, chore: Chore) -> None:
    await chore.do(world.db)


async def requests(world: World, admin: asyncpg.Connection, count: int = 1) -> list[UUID]:
    """Requests of as many jobs, which end an hour from now and are reminded of ten minutes before."""
    worker = await make_worker(world.db, lease=timedelta(days=1))
    await queue(admin, world, count)
    return [
        (await (await Held.claim(world.db, worker)).ask(call(input_hash=f"{number:064x}"), terms=TERMS))[0]
        for number in range(count)
    ]


async def happened(admin: asyncpg.Connection, kind: str) -> list[UUID]:
    """The approvals of these events, in the order in which they were written."""
    rows = await admin.fetch("select approval_id from approval_event where event_type = $1 order by id", kind)
    return [row[0] for row in rows]


@pytest.mark.proves("D.103")
async def test_a_deadline_is_looked_at_when_it_comes(strict: World, admin: asyncpg.Connection, clock: Clock) -> None:
    (id,) = await requests(strict, admin)
    job_id = (await shown(strict, id)).job_id
    scheduler = Scheduler(strict.db)
    longest = POLL_SECONDS * 1.2
    assert longest < 1, "whatever it was told, it looks again within a second"
    for at, event in ((START + HOUR - timedelta(minutes=10), "reminded"), (START + HOUR, "expired")):
        await clock.set(at - timedelta(seconds=30))
        assert 0 < await scheduler._turn() <= longest
        await clock.set(at - timedelta(milliseconds=100))
        assert await scheduler._turn() <= 0.1, "it rests no longer than until the next deadline"
        assert await happened(admin, event) == []
        await clock.set(at)
        await scheduler._turn()
        assert await happened(admin, event) == [id]
    job = await job_of(strict, job_id)
    assert job.status is JobStatus.FAILED
    assert "timed out after 1 hour" in (job.error_message or "")
    await clock.advance(24 * HOUR)
    await scheduler._turn()
    assert (await happened(admin, "reminded"), await happened(admin, "expired")) == ([id], [id])
    said = await actions(strict, job)
    assert (said.count("approval_reminded"), said.count("approval_expired")) == (1, 1)
    assert await deadlines.seconds_to_next(strict.db) is None
    assert await whole(strict)


@pytest.mark.proves("D.103")
async def test_after_an_outage_the_oldest_deadline_comes_first(
    strict: World, admin: asyncpg.Connection, clock: Clock
) -> None:
    made = await requests(strict, admin, 12)
    # Not in the order in which they were asked for.
    order = sorted(made, key=lambda id: id.bytes[::-1])
    for number, id in enumerate(order):
        await admin.execute(
            "update approval_request set deadline = $2::timestamptz, remind_at = $2::timestamptz - interval '1 minute',"
            " next_action_at = $2::timestamptz - interval '1 minute' where id = $1",
            id, START + timedelta(minutes=10 + number),
        )  # fmt: skip
    await clock.set(START + HOUR)
    looked = await deadlines.tick(strict.db, new_id(), "late")
    assert looked.done == ["expired"] * 12, "nobody is reminded of what is over"
    assert await happened(admin, "expired") == order
    assert await happened(admin, "reminded") == []
    assert await whole(strict)


@pytest.mark.proves("D.103")
async def test_several_schedulers_at_once_do_everything_once(
    strict: World, admin: asyncpg.Connection, clock: Clock
) -> None:
    made = await requests(strict, admin, 30)
    for at, event in ((START + timedelta(minutes=50), "reminded"), (START + HOUR, "expired")):
        await clock.set(at)
        looks = await asyncio.gather(*(deadlines.tick(strict.db, new_id(), f"s{n}") for n in range(4)))
        # Who is told that somebody else acts does not wait: whatever is left is for the next look.
        looks.append(await deadlines.tick(strict.db, new_id(), "again"))
        assert [done for look in looks for done in look.done] == [event] * 30
        assert sorted(await happened(admin, event)) == sorted(made)
    assert await admin.fetchval("select count(*) from job where status = 'FAILED'") == 30
    assert await whole(strict)


async def test_one_that_cannot_be_acted_on_keeps_nobody_else_from_its_time(
    strict: World, admin: asyncpg.Connection, clock: Clock
) -> None:
    first, second = await requests(strict, admin, 2)
    await admin.execute(
        "create function stuck() returns trigger language plpgsql as"
        " $$ begin raise exception using errcode = 'CX409', detail = 'stuck', message = 'stuck'; end $$;"
        f" create trigger stuck before update on approval_request for each row when (old.id = '{first}')"
        " execute function stuck()"
    )
    await clock.set(START + HOUR)
    assert (await deadlines.tick(strict.db, new_id(), "s")).done == ["expired"]
    assert await happened(admin, "expired") == [second]
    await admin.execute("drop trigger stuck on approval_request")
    assert (await deadlines.tick(strict.db, new_id(), "s")).done == ["expired"]


async def test_a_running_scheduler_keeps_its_deadlines(strict: World, admin: asyncpg.Connection, clock: Clock) -> None:
    (id,) = await requests(strict, admin)
    async with in_background(Scheduler(strict.db, poll_seconds=0.05).run()), asyncio.timeout(10):
        await clock.set(START + HOUR)
        while await happened(admin, "expired") != [id]:  # noqa: ASYNC110 -- it looks when it looks
            await asyncio.sleep(0.01)


# Idle sessions -----------------------------------------------------------------------------------------------


async def _patient_agent(world: World) -> None:
    """One of two hours' patience."""
    limits = {"idle_timeout_seconds": 7200}
    await make_agent(world, [turn(text="hm", repeat=True)], slug="patient", limits=limits)


async def _say(world: World, text: str) -> IngestedMessage:
    inbound = InboundMessage(external_user_id="u-1", agent="patient", text=text)
    return await sessions.ingest_message(world.db, world.service.actor, world.connection.id, inbound)


async def _status(world: World, id: UUID) -> SessionStatus:
    return (await sessions.get_session(world.db, world.admin.actor, id)).status


@pytest.mark.proves("D.104")
async def test_an_idle_session_is_paused_once_and_wakes_with_the_next_message(
    world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, START)
    await _patient_agent(world)
    told = await _say(world, "hello")
    id, job_id = told.session_id, told.job_id
    async with working(world.db, App("tests")):
        await ended(world, job_id)
    await clock.advance(2 * HOUR - timedelta(seconds=1))
    assert (await deadlines.tick(world.db, new_id(), "s")).done == []
    await clock.advance(timedelta(seconds=1))
    looks = await asyncio.gather(*(deadlines.tick(world.db, new_id(), f"s{n}") for n in range(3)))
    assert [done for look in looks for done in look.done] == ["idle"]
    assert await _status(world, id) is SessionStatus.PAUSED
    await clock.advance(48 * HOUR)
    assert (await deadlines.tick(world.db, new_id(), "s")).done == []
    job = await job_of(world, job_id)
    assert (await actions(world, job)).count("session_paused") == 1
    told = await _say(world, "still there?")
    assert (told.session_id, await _status(world, id)) == (id, SessionStatus.ACTIVE)
    async with working(world.db, App("tests")):
        await ended(world, told.job_id)
    await clock.advance(2 * HOUR)
    assert (await deadlines.tick(world.db, new_id(), "s")).done == ["idle"], "and may go idle again"
    assert await whole(world)


@pytest.mark.proves("D.104")
async def test_activity_and_an_open_job_postpone_the_pause(world: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, START)
    await _patient_agent(world)
    told = await _say(world, "hello")
    id, job_id = told.session_id, told.job_id
    for _ in range(3):
        await clock.advance(2 * HOUR)
        assert (await deadlines.tick(world.db, new_id(), "s")).done == [], "its job is open"
    async with working(world.db, App("tests")):
        await ended(world, job_id)
    await clock.advance(HOUR)
    told = await _say(world, "one thing more")
    await clock.advance(HOUR)
    assert (await deadlines.tick(world.db, new_id(), "s")).done == [], "somebody spoke an hour ago"
    assert await _status(world, id) is SessionStatus.ACTIVE
    async with working(world.db, App("tests")):
        await ended(world, told.job_id)
    for _ in range(4):
        await clock.advance(HOUR)
        await deadlines.tick(world.db, new_id(), "s")
    assert await _status(world, id) is SessionStatus.PAUSED


async def test_only_conversations_go_idle(world: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, START)
    agent = await make_agent(world, [turn(text="hm")])
    await queue(admin, world, 1, agent=agent)
    await clock.advance(30 * 24 * HOUR)
    assert (await deadlines.tick(world.db, new_id(), "s")).done == []
