"""What a model says while it still speaks: seen at once, gone once it is durable, and never in anybody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents.model.completions import ModelError, ModelRequest, ModelUsage, Response, TextChunk
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.sessions.model.events import Event
from cortex_plane.sessions.verbs import events
from cortex_plane.worker import model_calls, scheduler
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.scheduler import CHORES
from tests.fixtures.people import World
from tests.fixtures.waits import lock_waiters
from tests.fixtures.workers import Gate, expire, leased, make_agent, submit, until, working

USAGE = ModelUsage(prompt_tokens=1, completion_tokens=1)
WORDS = ["It ", "is ", "done."]


class Speaking:
    """A model that stops after its first words until it may go on."""

    def __init__(self, first: list[str], then: list[str], between: Callable[[], Awaitable[None]]) -> None:
        self._first, self._then, self._between = first, then, between

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        for word in self._first:
            yield TextChunk(word)
        await self._between()
        for word in self._then:
            yield TextChunk(word)
        yield Response(text="".join([*self._first, *self._then]), calls=(), usage=USAGE)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_calls, "FLUSH_SECONDS", 0.01)
    monkeypatch.setattr(model_calls, "FORGET_SECONDS", (0.02,) * 200)


async def told(world: World, job: UUID) -> list[Event]:
    return (await events.of_job(world.db, world.admin.actor, job, 0, 1000)).events


async def chunks_of(world: World, job: UUID, count: int = 1) -> list[Event]:
    """The chunks of a job, once there are that many."""
    async with asyncio.timeout(10):
        while True:
            found = [event for event in await told(world, job) if event.type == "text_chunk"]
            if len(found) >= count:
                return found
            await asyncio.sleep(0.01)


async def until_gone(admin: asyncpg.Connection) -> None:
    async with asyncio.timeout(10):
        while True:
            if not await admin.fetchval("select count(*) from text_chunk"):
                return
            await asyncio.sleep(0.01)


async def until_waiting(admin: asyncpg.Connection, name: str) -> None:
    """Until a call of that function waits for a lock."""
    async with asyncio.timeout(10):
        while True:
            if await lock_waiters(admin, name):
                return
            await asyncio.sleep(0.01)


def backends(model: Speaking) -> Backends:
    return Backends({"scripted": model})


@pytest.mark.proves("D.69")
async def test_chunks_are_seen_while_the_model_speaks_and_gone_when_the_step_is_durable(
    world: World, admin: asyncpg.Connection
) -> None:
    gate = Gate()
    job = await submit(world, await make_agent(world, [], app="plane"))
    async with working(world.db, backends=backends(Speaking(["It ", "is "], ["done."], gate.passed))):
        (chunk,) = await chunks_of(world, job)
        assert chunk.data == {"step": 0, "epoch": 1, "text": "It is "}
        assert chunk.job_id == job
        gate.opened.set()
        await until(world, job, JobStatus.COMPLETED)
        replayed = await told(world, job)
        assert [event.type for event in replayed] == ["status", "status", "message", "completion", "status"]
        assert replayed[2].data == {"role": "assistant", "step": 0, "text": "It is done."}
        assert replayed[3].data == {"step": 0, "text": "It is done."}
        await until_gone(admin)


async def test_chunks_are_left_out_once_the_step_is_recorded_also_while_their_rows_are_there(
    world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_calls, "FORGET_SECONDS", ())
    gate = Gate()
    job = await submit(world, await make_agent(world, [], app="plane"))
    async with working(world.db, backends=backends(Speaking(WORDS, [], gate.passed))):
        await chunks_of(world, job)
        gate.opened.set()
        await until(world, job, JobStatus.COMPLETED)
    assert await admin.fetchval("select count(*) from text_chunk") > 0
    assert "text_chunk" not in [event.type for event in await told(world, job)]


async def test_an_answer_that_comes_at_once_costs_no_chunk(world: World, admin: asyncpg.Connection) -> None:
    job = await submit(world, await make_agent(world, [], app="plane"))
    async with working(world.db):
        await until(world, job, JobStatus.COMPLETED)
    (numbers,) = await admin.fetch(
        "select event_seq, (select count(*) from event where session_id = h.session_id) as events"
        " from session_head h where session_id = (select session_id from job where id = $1)",
        job,
    )
    assert numbers["event_seq"] == numbers["events"], "no number was given to a chunk"


@pytest.mark.proves("D.69")
async def test_a_step_that_is_adopted_says_so_before_its_new_chunks(world: World, admin: asyncpg.Connection) -> None:
    job = await submit(world, await make_agent(world, [], app="plane"))
    lost, given = await leased(world.db)
    assert await events.append_chunks(world.db, given, lost.id, 0, ["It was", " nearly"])
    before = await chunks_of(world, job, 2)
    await expire(world.db, lost)
    gate = Gate()
    async with working(world.db, backends=backends(Speaking(WORDS, [], gate.passed))):
        await asyncio.wait_for(gate.entered.wait(), 20)
        fresh = await chunks_of(world, job)
        (restarted,) = [event for event in await told(world, job) if event.type == "step_restarted"]
        assert restarted.data == {"step": 0, "epoch": 1}
        assert {event.data["epoch"] for event in fresh} == {2}, "what was shown before is gone"
        assert before[-1].seq < restarted.seq < fresh[0].seq
        gate.opened.set()
        await until(world, job, JobStatus.COMPLETED)
        await until_gone(admin)


@pytest.mark.proves("D.69")
async def test_what_was_told_of_an_answer_that_broke_off_is_void(world: World, admin: asyncpg.Connection) -> None:
    job = await submit(world, await make_agent(world, [], app="plane"), max_retries=0)

    async def break_off() -> None:
        await chunks_of(world, job)
        raise ModelError("The line went dead.", status=503)

    async with working(world.db, backends=backends(Speaking(["It ", "was"], [], break_off))):
        await until(world, job, JobStatus.FAILED)
        await until_gone(admin)
    told_types = [event.type for event in await told(world, job)]
    assert sorted(told_types) == ["error", "status", "status", "status", "step_restarted"]


async def test_chunks_of_two_attempts_never_stand_together(world: World) -> None:
    """The first attempt's were not deleted yet when the second one speaks."""
    await submit(world, await make_agent(world, [], app="plane"))
    worker, given = await leased(world.db)
    assert await events.append_chunks(world.db, given, worker.id, 0, ["old"])
    async with world.db.transaction(given.org_id) as tx:
        await tx.rows("update job set epoch = epoch + 1 where id = $1", given.job_id)
    again = replace(given, epoch=given.epoch + 1)
    assert not await events.append_chunks(world.db, given, worker.id, 0, ["late"])
    assert await events.append_chunks(world.db, again, worker.id, 0, ["new"])
    assert await events.append_chunks(world.db, again, worker.id, 0, ["er"])
    read = [event for event in await told(world, given.job_id) if event.type != "status"]
    assert [(event.type, event.data.get("text")) for event in read] == [
        ("step_restarted", None), ("text_chunk", "new"), ("text_chunk", "er"),
    ]  # fmt: skip


@pytest.mark.proves("D.69")
async def test_a_chunk_that_cannot_be_written_harms_nobody(world: World, admin: asyncpg.Connection) -> None:
    await admin.execute("revoke insert on text_chunk from cortex_app")
    gate = Gate()
    job = await submit(world, await make_agent(world, [], app="plane"))
    async with working(world.db, backends=backends(Speaking(["It ", "is "], ["done."], gate.passed))):
        await gate.entered.wait()
        gate.opened.set()
        ended = await until(world, job, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (ended.status, ended.result) == (JobStatus.COMPLETED, {"text": "It is done."})


async def test_what_the_database_cannot_keep_is_replaced_in_a_chunk(world: World) -> None:
    gate = Gate()
    job = await submit(world, await make_agent(world, [], app="plane"))
    async with working(world.db, backends=backends(Speaking(["a\x00b\ud800"], [], gate.passed))):
        (chunk,) = await chunks_of(world, job)
        assert chunk.data["text"] == "a�b?"
        gate.opened.set()
        await until(world, job, JobStatus.FAILED)  # the response itself is refused, as ever


@pytest.mark.proves("D.69")
async def test_nobody_sees_chunks_of_a_job_that_ended_and_they_are_forgotten(
    world: World, other: World, admin: asyncpg.Connection
) -> None:
    """As they are left by a worker that was killed while it spoke, after which the job was ended."""
    ended, goes_on = [await submit(each, await make_agent(each, [], app="plane")) for each in (world, other)]
    for _ in range(2):
        worker, given = await leased(world.db)
        assert await events.append_chunks(world.db, given, worker.id, 0, ["half ", "an answer"])
    await admin.execute(
        "update job set status = 'FAILED', error_message = 'x', worker_id = null, leased_at = null where id = $1", ended
    )
    assert "text_chunk" not in [event.type for event in await told(world, ended)]
    assert len(await chunks_of(other, goes_on, 2)) == 2
    assert await events.forget_chunks(world.db) == 0, "none is old"
    await admin.execute("update text_chunk set created_at = created_at - interval '61 minutes'")
    assert await events.forget_chunks(world.db, 3) == 3, "of any org, and no more than it is told"
    assert await events.forget_chunks(world.db) == 1
    assert await admin.fetchval("select count(*) from text_chunk") == 0


async def test_a_scheduler_forgets_chunks_now_and_then(world: World, admin: asyncpg.Connection) -> None:
    often = [replace(chore, every_seconds=0.0) for chore in CHORES]
    await submit(world, await make_agent(world, [], app="plane"))
    worker, given = await leased(world.db)
    assert await events.append_chunks(world.db, given, worker.id, 0, ["half"])
    await admin.execute("update text_chunk set created_at = created_at - interval '61 minutes'")
    async with scheduler.in_background(scheduler.Scheduler(world.db, poll_seconds=0.02, chores=often).run()):
        await until_gone(admin)


@pytest.mark.proves("D.69")
async def test_a_worker_that_lost_the_job_adds_nothing(world: World, admin: asyncpg.Connection) -> None:
    await submit(world, await make_agent(world, [], app="plane"))
    lost, given = await leased(world.db)
    assert await events.append_chunks(world.db, given, lost.id, 0, ["mine"])
    await expire(world.db, lost)
    async with working(world.db):
        await until(world, given.job_id, JobStatus.COMPLETED)
        await until_gone(admin)
    assert not await events.append_chunks(world.db, given, lost.id, 1, ["late"])
    assert await admin.fetchval("select count(*) from text_chunk") == 0


async def test_a_chunk_never_follows_the_step_it_belongs_to(world: World, admin: asyncpg.Connection) -> None:
    """The step is being recorded, and its commit holds the head: the chunk waits, and then is not told."""
    await submit(world, await make_agent(world, [], app="plane"))
    worker, given = await leased(world.db)
    recording = admin.transaction()
    await recording.start()
    await admin.execute(
        "insert into step (org_id, job_id, step_index, message_seq, response, prompt_tokens, completion_tokens,"
        " started_at) values ($1, $2, 0, 0, '{}', 0, 0, plane_now())",
        given.org_id, given.job_id,
    )  # fmt: skip
    await admin.execute("select from session_head where session_id = $1 for update", given.session_id)
    late = asyncio.create_task(events.append_chunks(world.db, given, worker.id, 0, ["late"]))
    await until_waiting(admin, "append_chunks")
    await recording.commit()
    assert await late is False
    assert await admin.fetchval("select count(*) from text_chunk") == 0


async def test_a_large_piece_is_told_in_parts(world: World) -> None:
    gate = Gate()
    job = await submit(world, await make_agent(world, [], app="plane"))
    async with working(world.db, backends=backends(Speaking(["x" * 40_000], [], gate.passed))):
        told = await chunks_of(world, job, 3)
        assert [len(chunk.data["text"]) for chunk in told] == [16_000, 16_000, 8_000]
        gate.opened.set()
        await until(world, job, JobStatus.COMPLETED)
