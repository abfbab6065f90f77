"""Jobs that go to sleep while others send what they wait for: none is missed, none is told twice, nobody waits in a circle."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.db.database import Database
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import JobStatus, Pause, Resumption
from cortex_plane.jobs.model.journal import SignalDraft
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import Conflict
from cortex_plane.proof.verbs import audit
from tests.conftest import Urls
from tests.fixtures.people import World
from tests.fixtures.servers import VAULT
from tests.fixtures.signals import park, parked, send, wait, waits_of_job
from tests.fixtures.waits import lock_waiters
from tests.storage.leases import Held, claim, make_agent, make_worker, queue

MANY = 200


@pytest_asyncio.fixture
async def second(urls: Urls) -> AsyncIterator[Database]:
    """Another process's connections."""
    database = await Database.open(urls.app, max_size=8, vault=VAULT)
    yield database
    await database.close()


async def _leased(admin: asyncpg.Connection, world: World, count: int) -> list[Held]:
    """So many jobs that run, ready to be parked."""
    await queue(admin, world, count, agent=await make_agent(world, "waits", limit=count))
    worker = await make_worker(world.db)
    given = await claim(world.db, worker, count)
    assert len(given) == count
    return [Held(world.db, worker, each, each.write_seq) for each in given]


async def _outcome(admin: asyncpg.Connection, held: Sequence[Held]) -> list[Any]:
    """For each wait: what came, whether its job may go on, and how often it was told."""
    rows: list[Any] = await admin.fetch(
        """
        select w.key, w.payload #>> '{}' as payload, j.runnable_at is not null as awake, (
          select count(*) from event e
          where e.session_id = j.session_id and e.job_id = j.id and e.type = 'signal_received'
            and e.data ->> 'entry' = w.entry) as told
        from job_wait w join job j on j.id = w.job_id where j.id = any ($1) order by w.job_id, w.entry
        """,
        [each.given.job_id for each in held],
    )
    return rows


async def _in_turn(work: Sequence[Awaitable[Any]]) -> None:
    """All of it, several times as many at once as there are connections: whoever waits for one for some seconds is refused."""
    turns = asyncio.Semaphore(60)

    async def one(each: Awaitable[Any]) -> None:
        async with turns:
            await each

    await asyncio.gather(*map(one, work))


@pytest.mark.proves("D.259")
async def test_200_parks_against_200_sends(admin: asyncpg.Connection, world: World, second: Database) -> None:
    held = await _leased(admin, world, MANY)
    parks = [park(each, wait(key=f"k{number}")) for number, each in enumerate(held)]
    sends = [
        send(world.db if number % 2 else second, world.admin, key=f"k{number}", payload=f"p{number}")
        for number in range(MANY)
    ]
    both = [*parks, *sends]
    random.Random(6).shuffle(both)  # the same order every time
    await _in_turn(both)
    rows = await _outcome(admin, held)
    assert len(rows) == MANY
    for row in rows:
        assert (row["payload"], row["awake"], row["told"]) == ("p" + row["key"][1:], True, 1), row["key"]
    assert await admin.fetchval("select count(*) from signal where told_at is not null") == MANY
    assert (await audit.verify_org(world.db, world.org_id)).faults == []


@pytest.mark.proves("D.259")
async def test_jobs_that_share_keys_and_sessions_never_wait_in_a_circle(
    admin: asyncpg.Connection, world: World, second: Database
) -> None:
    """Each job waits for three keys in an order of its own; each key is sent ten times, while people pause and resume."""
    dice = random.Random(7)
    keys = [f"k{number}" for number in range(12)]
    agent = await make_agent(world, "waits", limit=60)
    for _ in range(6):
        (first,) = await queue(admin, world, agent=agent)
        session = await admin.fetchval("select session_id from job where id = $1", first)
        await queue(admin, world, 9, agent=agent, session=session)
    worker = await make_worker(world.db)
    held = [Held(world.db, worker, each, each.write_seq) for each in await claim(world.db, worker, 60)]
    assert len(held) == 60

    async def pause(id: UUID) -> None:
        await steering.pause(world.db, world.admin.actor, id, Pause())
        await steering.resume(world.db, world.admin.actor, id, Resumption())

    work: list[Any] = []
    for each in held:
        chosen = dice.sample(keys, 3)
        work.append(park(each, *(wait(f"{key}#0", key=key) for key in chosen)))
    for number in range(len(keys) * 10):
        db = second if number % 2 else world.db
        work.append(send(db, world.admin, key=keys[number % len(keys)], payload="same", at_once=4))
    work += [pause(each.given.job_id) for each in held[:20]]
    dice.shuffle(work)
    await asyncio.gather(*work)
    rows = await _outcome(admin, held)
    assert len(rows) == 180
    assert {(row["payload"], row["told"]) for row in rows} == {("same", 1)}
    # A job may have gone to sleep after its pause: whoever resumed it let it go on.
    assert {row["awake"] for row in rows} == {True}
    assert await admin.fetchval("select count(*) from signal") == len(keys)
    assert (await audit.verify_org(world.db, world.org_id)).faults == []


@pytest.mark.proves("D.259")
async def test_of_two_payloads_one_wins_and_everybody_hears_that_one(
    admin: asyncpg.Connection, world: World, second: Database
) -> None:
    count = 40
    held, codes = await _leased(admin, world, count), set[str]()

    async def attempt(db: Database, key: str, payload: str) -> str | None:
        try:
            receipt = await send(db, world.admin, key=key, payload=payload)
        except Conflict as refused:
            codes.add(refused.code)
            return None
        assert receipt.changed
        return payload

    async def pair(number: int) -> str:
        key = f"k{number // 2}"
        first, other, _ = await asyncio.gather(
            attempt(world.db, f"{key}-{number}", "a"),
            attempt(second, f"{key}-{number}", "b"),
            park(held[number], wait(key=f"{key}-{number}")),
        )
        assert (first is None) != (other is None), "exactly one of them wins"
        return first or other or ""

    won = await asyncio.gather(*(pair(number) for number in range(count)))
    assert codes == {"signal_taken"}
    rows = {row["key"]: row for row in await _outcome(admin, held)}
    for number, payload in enumerate(won):
        row = rows[f"k{number // 2}-{number}"]
        assert (row["payload"], row["awake"], row["told"]) == (payload, True, 1)


# One of them stands still ------------------------------------------------------------------------------------------


async def _blocks(admin: asyncpg.Connection, task: asyncio.Future[Any]) -> bool:
    """Once it waits for somebody's lock; False where it is done instead."""
    async with asyncio.timeout(20):
        while not task.done():
            if await lock_waiters(admin):
                return True
            await asyncio.sleep(0.01)
    return False


@pytest.mark.proves("D.259")
async def test_a_job_that_goes_to_sleep_waits_for_a_sender_that_was_first(
    admin: asyncpg.Connection, world: World, second: Database
) -> None:
    (held,) = await _leased(admin, world, 1)
    draft = SignalDraft(name="payment.received", key="order-1", payload="first")
    async with second.transaction(world.org_id) as tx:
        id, _, reached = await jobs_store.send_signal(tx, held.given.job_id, draft, world.org_id, "Ada", 10)
        assert reached is not None
        assert reached.waiters == []
        parking = asyncio.ensure_future(park(held, wait()))
        assert await _blocks(admin, parking), "it must see what the sender is about to commit"
        await jobs_store.hear_signals(tx, id, reached, [], [])
    assert await parking is JobStatus.SLEEPING
    (row,) = await _outcome(admin, [held])
    assert (row["payload"], row["awake"], row["told"]) == ("first", True, 1)


@pytest.mark.proves("D.259")
async def test_a_sender_waits_for_a_job_that_goes_to_sleep_first(
    admin: asyncpg.Connection, world: World, second: Database
) -> None:
    (held,) = await _leased(admin, world, 1)
    write = StepWrite(status=JobStatus.SLEEPING, delay_seconds=None, more={"waits": [wait()]})
    given = held.given
    async with second.transaction(world.org_id) as tx:
        written = await jobs_store.advance_job(tx, given, held.worker, given.write_seq + 1, write, 2.0)
        assert written is not None
        sending = asyncio.ensure_future(send(world.db, world.admin, payload="late"))
        assert await _blocks(admin, sending), "it must see the wait that is about to be committed"
    assert (await sending).woken == 1
    (row,) = await _outcome(admin, [held])
    assert (row["payload"], row["awake"], row["told"]) == ("late", True, 1)


@pytest.mark.proves("D.259")
async def test_a_sender_that_rolls_back_wakes_nobody(admin: asyncpg.Connection, world: World, second: Database) -> None:
    job = await parked(admin, world)

    async def give_up() -> None:
        async with second.transaction(world.org_id) as tx:
            draft = SignalDraft(name="payment.received", key="order-1", payload="no")
            id, _, reached = await jobs_store.send_signal(tx, job, draft, world.org_id, "Ada", 10)
            assert reached is not None
            assert [each.job_id for each in reached.waiters] == [job]
            await jobs_store.hear_signals(tx, id, reached, [{"entry": "paid#0"}], [b"{}"])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await give_up()
    (waited,) = await waits_of_job(world, job)
    assert waited.arrived_at is None
    assert (await send(world.db, world.admin, payload="yes")).woken == 1
