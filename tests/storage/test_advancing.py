"""Writes of an attempt: fenced, numbered, applied once or not at all; and the ends of a lease that nobody wrote."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import orjson
import pytest

from cortex_plane.db.database import Database
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import Cancellation, Hold, JobStatus, Pause, Resumption
from cortex_plane.jobs.rules import Adoption, Orphan, StepWrite
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.proof.verbs import audit
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.storage.leases import Held, call, claim, ledger, make_worker, queue, step
from tests.storage.tenants import digest, tables

LEASE = timedelta(seconds=30)
SAVED: dict[str, Any] = {"checkpoint": "{}", "mac": b"m" * 32}


@pytest.fixture
async def held(db: Database, world: World, clock: Clock) -> Held:
    """A conversation with one message, leased for thirty seconds of a clock that stands."""
    await world.say("Hello")
    return await Held.claim(db, await make_worker(db, lease=LEASE))


async def job(admin: asyncpg.Connection, held: Held) -> asyncpg.Record:
    return await admin.fetchrow("select * from job where id = $1", held.given.job_id)


async def state(admin: asyncpg.Connection) -> dict[str, str]:
    return await digest(admin, await tables(admin))


async def events(admin: asyncpg.Connection, held: Held) -> list[tuple[str, Any]]:
    rows = await admin.fetch("select type, data from event where job_id = $1 order by seq", held.given.job_id)
    return [(row["type"], json.loads(row["data"])) for row in rows]


def whole() -> StepWrite:
    """A write with a part of every kind."""
    return StepWrite(
        **SAVED, step=step(message_seq=1), **ledger(call()), dispatches=True, stored=((uuid4(), b"large"),),
        events=[("step", {"step": 0})],
    )  # fmt: skip


# Fences ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ends", [None, JobStatus.FAILED, JobStatus.RUNNING])
@pytest.mark.proves("D.34")
async def test_whoever_lost_the_job_writes_nothing(
    admin: asyncpg.Connection, held: Held, ends: JobStatus | None
) -> None:
    await held.write(StepWrite(**SAVED))
    before = await state(admin)
    write = StepWrite(**SAVED, step=step(), status=ends, error="x", events=[("step", {})], facts=[held.fact])
    assert await held.write(write, worker=uuid4()) is None
    assert await held.write(write, epoch=held.given.epoch - 1) is None
    assert await held.write(write, epoch=held.given.epoch + 1) is None
    assert await held.write(write, number=held.number + 2) is None
    assert await held.write(write, number=held.number - 1) is None
    assert await state(admin) == before


async def test_a_zombie_changes_nothing_of_its_successor(
    db: Database, admin: asyncpg.Connection, held: Held, clock: Clock
) -> None:
    """A worker that was stopped for longer than its lease, and goes on."""
    await clock.advance(LEASE + timedelta(seconds=1))
    (orphan,) = await jobs_store.find_orphans(db, 10)
    adopted = Adoption(status=JobStatus.RUNNING, action="job_adopted")
    assert await jobs_store.adopt_job(db, orphan, adopted, held.fact)
    heir = await Held.claim(db, await make_worker(db))
    await heir.write(StepWrite(**SAVED))
    before = await state(admin)
    for write in (
        StepWrite(**SAVED),
        StepWrite(status=JobStatus.COMPLETED, message_seq=9),
        StepWrite(status=JobStatus.RUNNING),
    ):
        for number in (held.number + 1, heir.number, heir.number + 1):
            assert await held.write(write, number=number) is None
    assert not await jobs_store.release_job(
        db, held.given.org_id, held.given.job_id, held.worker, held.given.epoch, held.fact
    )
    assert await state(admin) == before


async def test_another_org_cannot_be_written_to(
    admin: asyncpg.Connection, held: Held, other: World, world: World
) -> None:
    before = await state(admin)
    stranger = Held(held.db, held.worker, held.given)
    given = replace(held.given, org_id=other.org_id)
    rows = await jobs_store.advance_job(held.db, given, held.worker, 1, StepWrite(**SAVED), 1.0)
    assert rows is None
    assert stranger.number == 0
    assert await state(admin) == before


# Once --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.34")
async def test_a_write_that_is_sent_twice_is_applied_once(admin: asyncpg.Connection, held: Held) -> None:
    write = whole()
    first = await held.write(write)
    before = await state(admin)
    again = await held.write(write, number=held.number)
    assert first is not None
    assert again is not None
    assert (first.applied_before, again.applied_before) == (False, True)
    assert (again.status, again.session_id, again.message_seq, again.dispatch_before) == (
        first.status, first.session_id, first.message_seq, first.dispatch_before,
    )  # fmt: skip
    assert await state(admin) == before
    assert (await held.write(StepWrite(**SAVED))) is not None, "and the next one follows"


@pytest.mark.parametrize(
    ("status", "more"),
    [
        (JobStatus.COMPLETED, {"reply": "Hello back", "message_seq": 1, "result": b"{}"}),
        (JobStatus.FAILED, {"error": "boom"}),
        (JobStatus.CANCELLED, {}),
        (JobStatus.RETRY, {"error": "boom", "delay_seconds": 5}),
        (JobStatus.SLEEPING, {"delay_seconds": 5}),
        (JobStatus.PAUSED, {"hold": "code_changed"}),
        (JobStatus.RUNNING, {}),
    ],
)
async def test_a_write_that_ends_the_lease_is_applied_once_too(
    admin: asyncpg.Connection, held: Held, status: JobStatus, more: dict[str, Any]
) -> None:
    write = StepWrite(**SAVED, status=status, events=[("status", {"status": status})], facts=[held.fact], **more)
    first = await held.write(write)
    assert first is not None
    assert (first.status, first.applied_before) == (status, False)
    row = await job(admin, held)
    assert (row["status"], row["worker_id"], row["leased_at"]) == (status, None, None)
    before = await state(admin)
    again = await held.write(write, number=held.number)
    assert again is not None
    assert (again.status, again.applied_before) == (status, True)
    assert await held.write(StepWrite(**SAVED)) is None, "nothing follows it"
    assert await held.write(StepWrite(), number=held.number) is None, "whoever keeps the lease has lost it"
    assert await state(admin) == before


async def test_after_the_next_claim_the_last_write_is_nobodys(db: Database, held: Held) -> None:
    await held.write(StepWrite(**SAVED, status=JobStatus.RUNNING))
    heir = await Held.claim(db, await make_worker(db))
    assert heir.given.job_id == held.given.job_id
    assert await held.write(StepWrite(status=JobStatus.RUNNING), number=held.number) is None


# Ends --------------------------------------------------------------------------------------------------------


async def test_a_conversation_with_unread_messages_is_not_completed(
    admin: asyncpg.Connection, held: Held, world: World
) -> None:
    await world.say("And another thing")
    before = await state(admin)
    answer = StepWrite(**SAVED, step=step(message_seq=1), reply="Bye", status=JobStatus.COMPLETED, facts=[held.fact])
    told = await held.write(answer)
    assert told is not None
    assert (told.status, told.message_seq, told.applied_before) == (JobStatus.RUNNING, 2, False)
    assert await state(admin) == before, "nothing was written, and its number is free"
    held.number -= 1
    kept = StepWrite(**SAVED, step=step(message_seq=1), reply="Bye")
    told = await held.write(kept)
    assert told is not None
    assert told.message_seq == 3
    done = await held.write(
        StepWrite(**SAVED, step=step(index=1, message_seq=3), reply="Bye again", status=JobStatus.COMPLETED)
    )
    assert done is not None
    assert done.status is JobStatus.COMPLETED
    said = await admin.fetch("select seq, role, text from message order by seq")
    assert [tuple(row) for row in said] == [
        (1, "user", "Hello"), (2, "user", "And another thing"), (3, "assistant", "Bye"),
        (4, "assistant", "Bye again"),
    ]  # fmt: skip


async def test_a_message_and_the_completion_never_miss_each_other(
    db: Database, admin: asyncpg.Connection, world: World
) -> None:
    """Both at once, many times: either the job reads it, or it gets a job of its own."""
    worker = await make_worker(db)
    for _ in range(25):
        await world.say("first")
        held = await Held.claim(db, worker)
        read_to = held.given.message_seq
        done, delivery = await asyncio.gather(
            held.write(StepWrite(message_seq=read_to, status=JobStatus.COMPLETED)), world.say("second")
        )
        assert done is not None
        if done.status is JobStatus.COMPLETED:
            assert delivery.job_id != held.given.job_id
            held = await Held.claim(db, worker)
            assert held.given.job_id == delivery.job_id
        else:
            assert delivery.job_id == held.given.job_id
            held.number -= 1
        await held.write(StepWrite(message_seq=delivery.message_seq, status=JobStatus.COMPLETED))
        assert await admin.fetchval("select count(*) from job where status <> 'COMPLETED'") == 0


async def test_times_and_counts_of_each_end(
    db: Database, admin: asyncpg.Connection, world: World, clock: Clock
) -> None:
    worker = await make_worker(db, lease=timedelta(hours=1))
    start = await admin.fetchval("select plane_now()")
    for status, runnable, wake, retry, count in (
        (JobStatus.RETRY, 15, None, 15, 1),
        (JobStatus.SLEEPING, 15, 15, None, 0),
        (JobStatus.RUNNING, 15, None, None, 0),
        (JobStatus.FAILED, None, None, None, 0),
    ):
        await clock.set(start)
        await queue(admin, world)
        held = await Held.claim(db, worker)
        await clock.advance(timedelta(seconds=5))
        await held.write(StepWrite(status=status, delay_seconds=10, error="x"))
        row = await job(admin, held)

        def after(seconds: int | None) -> Any:
            return None if seconds is None else start + timedelta(seconds=seconds)

        assert (row["runnable_at"], row["wake_at"], row["next_retry_at"]) == (
            after(runnable), after(wake), after(retry),
        ), status  # fmt: skip
        assert (row["retry_count"], row["running_seconds"]) == (count, 5.0)
        await admin.execute("update job set runnable_at = null")


# Dispatch ----------------------------------------------------------------------------------------------------


async def test_a_call_may_be_sent_until_the_earlier_of_both_ends(
    admin: asyncpg.Connection, held: Held, clock: Clock
) -> None:
    now = held.given.now
    lease_end = now + LEASE
    for position, (dispatch, expected) in enumerate(
        ((2.0, now + timedelta(seconds=2)), (30.0, lease_end), (1000.0, lease_end))
    ):
        held.dispatch_seconds = dispatch
        told = await held.write(StepWrite(**ledger(call(position=position)), dispatches=True))
        assert told is not None
        assert told.dispatch_before == expected
        row = await admin.fetchrow("select * from tool_call where position = $1", position)
        assert (row["dispatch_before"], row["settle_after"]) == (expected, expected + timedelta(seconds=10))
    await clock.set(lease_end - timedelta(microseconds=1))
    told = await held.write(StepWrite(**ledger(call(position=7)), dispatches=True))
    assert told is not None
    assert told.dispatch_before == lease_end, "the last microsecond"


async def test_a_call_that_is_sent_again_gets_a_new_end(admin: asyncpg.Connection, held: Held, clock: Clock) -> None:
    intent = call(timeout_seconds=7.0)
    await held.write(StepWrite(**ledger(intent), dispatches=True))
    await clock.advance(timedelta(seconds=20))
    again = {name: intent[name] for name in ("id", "digest", "input_hash", "on_uncertain", "timeout_seconds")}
    again |= {"grant": False, "attempt": 2}
    told = await held.write(StepWrite(intents=orjson.dumps([again]), dispatches=True))
    assert told is not None
    assert told.dispatch_before == held.given.now + timedelta(seconds=22)
    row = await admin.fetchrow("select * from tool_call")
    assert (row["attempt"], row["status"], row["dispatch_before"]) == (2, "intended", told.dispatch_before)
    assert row["settle_after"] == told.dispatch_before + timedelta(seconds=7)


@pytest.mark.parametrize("later", [LEASE, LEASE + timedelta(seconds=1)])
async def test_nothing_is_sent_or_written_after_the_lease(
    db: Database, admin: asyncpg.Connection, held: Held, clock: Clock, later: timedelta
) -> None:
    """The whole write is refused: the response, the checkpoint and the number too."""
    await clock.advance(later)
    before = await state(admin)
    with pytest.raises(Conflict) as raised:
        await held.write(whole())
    assert raised.value.code == "lease_expired"
    assert await state(admin) == before
    # Whoever renews its lease before anybody adopted the job goes on with the same number.
    assert await jobs_store.beat_worker(db, held.worker, LEASE) is not None
    told = await held.write(whole())
    assert told is not None
    assert not told.applied_before


async def test_a_forgotten_worker_sends_nothing(db: Database, admin: asyncpg.Connection, held: Held) -> None:
    await admin.execute("delete from worker")
    with pytest.raises(Conflict) as raised:
        await held.write(whole())
    assert raised.value.code == "lease_expired"


# Checks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"on_uncertain": None},
        {"on_uncertain": "hope"},
        {"timeout_seconds": None},
        {"status": "sent"},
        {"status": "completed", "verdict": None},
        {"status": "uncertain"},
        {"verdict": "perhaps"},
        {"input_hash": "abcd"},
        {"verdict": None},
    ],
    ids=lambda wrong: ", ".join(f"{key} {value}" for key, value in wrong.items()),
)
async def test_an_intent_that_could_not_be_answered_for_cannot_be_written(
    admin: asyncpg.Connection, held: Held, wrong: dict[str, Any]
) -> None:
    before = await state(admin)
    with pytest.raises((InvalidInput, Conflict)):
        await held.write(StepWrite(**SAVED, step=step(), **ledger(call(**wrong)), dispatches=True))
    assert await state(admin) == before


async def test_an_intent_needs_an_end_to_its_time(admin: asyncpg.Connection, held: Held) -> None:
    with pytest.raises(InvalidInput):
        await held.write(StepWrite(**ledger(call()), dispatches=False))


async def test_what_needs_no_intent_can_be_written(admin: asyncpg.Connection, held: Held) -> None:
    reads = call(position=1, read_only=True, on_uncertain=None, status="completed", result={"a": 1})
    refused = call(position=2, status="rejected", verdict=None, on_uncertain=None)
    denied = call(position=3, status="rejected", verdict="deny")
    assert await held.write(StepWrite(**ledger(reads, refused, denied))) is not None
    rows = await admin.fetch("select finished_at is not null from tool_call")
    assert [row[0] for row in rows] == [True] * 3


@pytest.mark.parametrize(
    ("outcome", "finished"),
    [
        ({"status": "completed", "result": {"ok": True}}, True),
        ({"status": "failed", "error": "no"}, True),
        ({"status": "uncertain", "error": "the worker died"}, False),
    ],
)
async def test_an_outcome_ends_a_call_or_leaves_it_open(
    admin: asyncpg.Connection, held: Held, outcome: dict[str, Any], finished: bool
) -> None:
    intent = call()
    await held.write(StepWrite(**ledger(intent), dispatches=True))
    results = (orjson.dumps(outcome["result"]).decode(),) if "result" in outcome else ()
    said = {"id": intent["id"], **outcome, "result": 1 if results else None}
    await held.write(StepWrite(outcomes=orjson.dumps([said]), results=results))
    row = await admin.fetchrow("select * from tool_call")
    assert json.loads(row["result"] or "null") == outcome.get("result")
    assert (row["status"], row["finished_at"] is not None) == (outcome["status"], finished)
    assert row["error"] == outcome.get("error")


# Steering at the same moment ---------------------------------------------------------------------------------

STOPPED = ("session_paused", {"reason": "code_changed", "pause_source": "policy"})
"""What an attempt says that stops by itself."""


async def test_a_job_that_is_handed_back_while_held_is_paused(
    db: Database, admin: asyncpg.Connection, held: Held, world: World
) -> None:
    """The hold came after the worker's last look."""
    await steering.pause(db, world.admin.actor, held.given.job_id, Pause())
    told = await held.write(StepWrite(status=JobStatus.RUNNING, facts=[held.fact]))
    assert told is not None
    assert told.status is JobStatus.PAUSED
    row = await job(admin, held)
    assert (row["status"], row["holds"], row["runnable_at"], row["worker_id"]) == (
        "PAUSED", ["operator"], None, None,
    )  # fmt: skip
    status, (kind, paused) = (await events(admin, held))[-2:]
    assert (status, kind) == (("status", {"status": "PAUSED"}), "session_paused")
    assert (paused["pause_source"], paused["by"]) == ("operator", "Ada")
    await steering.resume(db, world.admin.actor, held.given.job_id, Resumption())
    assert len(await claim(db, await make_worker(db))) == 1


async def test_a_job_that_pauses_when_nothing_holds_it_any_more_goes_on(
    db: Database, admin: asyncpg.Connection, held: Held, world: World
) -> None:
    await steering.pause(db, world.admin.actor, held.given.job_id, Pause())
    await steering.resume(db, world.admin.actor, held.given.job_id, Resumption())
    told = await held.write(StepWrite(status=JobStatus.PAUSED, events=[("status", {"status": "PAUSED"}), STOPPED]))
    assert told is not None
    assert told.status is JobStatus.RUNNING
    assert "session_paused" not in [kind for kind, _ in await events(admin, held)]
    row = await job(admin, held)
    assert (row["status"], row["holds"], row["worker_id"]) == ("RUNNING", [], None)
    assert (await events(admin, held))[-1] == ("status", {"status": "RUNNING"})
    assert len(await claim(db, await make_worker(db))) == 1


@pytest.mark.parametrize("status", [JobStatus.PAUSED, JobStatus.SLEEPING, JobStatus.RETRY])
async def test_a_cancel_that_comes_before_a_long_wait_is_not_forgotten(
    db: Database, admin: asyncpg.Connection, held: Held, world: World, status: JobStatus
) -> None:
    """The receipt said that the job ends at its next boundary, and this is one."""
    receipt = await steering.cancel(db, world.admin.actor, held.given.job_id, Cancellation(reason="stop"))
    assert receipt.pending
    told = await held.write(
        StepWrite(
            status=status,
            hold="code_changed" if status is JobStatus.PAUSED else None,
            delay_seconds=9999,
            events=[STOPPED],
        )
    )
    assert told is not None
    assert told.status is JobStatus.CANCELLED
    assert "session_paused" not in [kind for kind, _ in await events(admin, held)], "it is over"
    row = await job(admin, held)
    assert (row["status"], row["holds"], row["runnable_at"], row["error_message"]) == (
        "CANCELLED", [], None, "stop",
    )  # fmt: skip
    assert (await events(admin, held))[-1] == ("status", {"status": "CANCELLED", "reason": "stop"})


async def test_a_held_job_keeps_its_hold_while_it_waits(
    db: Database, admin: asyncpg.Connection, held: Held, world: World
) -> None:
    await steering.pause(db, world.admin.actor, held.given.job_id, Pause())
    await held.write(StepWrite(status=JobStatus.SLEEPING, delay_seconds=0))
    row = await job(admin, held)
    assert (row["status"], row["holds"], row["runnable_at"]) == ("SLEEPING", ["operator"], None)
    worker = await make_worker(db)
    assert await claim(db, worker) == []
    await steering.resume(db, world.admin.actor, held.given.job_id, Resumption())
    assert len(await claim(db, worker)) == 1


async def test_holds_add_up_and_each_stands_once(
    db: Database, admin: asyncpg.Connection, held: Held, world: World
) -> None:
    await steering.pause(db, world.admin.actor, held.given.job_id, Pause())
    told = await held.write(StepWrite(status=JobStatus.PAUSED, hold=Hold.UNCERTAIN_EFFECT))
    assert told is not None
    assert told.held
    assert (await job(admin, held))["holds"] == ["operator", "uncertain_effect"]
    await steering.resume(db, world.admin.actor, held.given.job_id, Resumption())
    assert (await job(admin, held))["status"] == "PAUSED", "nobody has answered yet"


# Giving up ---------------------------------------------------------------------------------------------------


async def release(held: Held) -> bool:
    given = held.given
    return await jobs_store.release_job(held.db, given.org_id, given.job_id, held.worker, given.epoch, held.fact)


async def test_a_released_job_can_be_claimed_at_once(
    db: Database, admin: asyncpg.Connection, held: Held, clock: Clock
) -> None:
    await clock.advance(timedelta(seconds=4))
    assert await release(held)
    row = await job(admin, held)
    assert (row["status"], row["worker_id"], row["running_seconds"], row["deaths"]) == ("RUNNING", None, 4.0, 0)
    assert not await release(held), "it is given up once"
    heir = await Held.claim(db, await make_worker(db))
    assert not await release(held), "and not for somebody else"
    assert heir.given.epoch == 2
    assert (await audit.verify_org(db, held.given.org_id)).faults == []


@pytest.mark.parametrize(
    ("cancelled", "status", "told"),
    [(False, "PAUSED", {"status": "PAUSED"}), (True, "CANCELLED", {"status": "CANCELLED", "reason": "stop"})],
    ids=["held", "held and cancelled"],
)
async def test_a_released_job_stops_where_somebody_wanted_it_to(
    db: Database, admin: asyncpg.Connection, held: Held, world: World, cancelled: bool, status: str,
    told: dict[str, str],
) -> None:  # fmt: skip
    await steering.pause(db, world.admin.actor, held.given.job_id, Pause())
    if cancelled:
        await steering.cancel(db, world.admin.actor, held.given.job_id, Cancellation(reason="stop"))
    assert await release(held)
    row = await job(admin, held)
    assert (row["status"], row["runnable_at"]) == (status, None)
    ends = [event for event in await events(admin, held) if event[0] != "session_paused"]
    assert ends[-1] == ("status", told)
    assert await claim(db, await make_worker(db)) == []


async def test_a_released_job_that_was_cancelled_ends(
    db: Database, admin: asyncpg.Connection, held: Held, world: World
) -> None:
    """Nobody else would remember the request: a pause that came now would bury it."""
    await steering.cancel(db, world.admin.actor, held.given.job_id, Cancellation(reason="stop"))
    assert await release(held)
    row = await job(admin, held)
    assert (row["status"], row["runnable_at"], row["error_message"]) == ("CANCELLED", None, "stop")
    assert await claim(db, await make_worker(db)) == []


# Dead workers ------------------------------------------------------------------------------------------------


async def orphan_of(db: Database, clock: Clock) -> Orphan:
    await clock.advance(LEASE + timedelta(microseconds=1))
    (orphan,) = await jobs_store.find_orphans(db, 10)
    return orphan


GO_ON = Adoption(status=JobStatus.RUNNING, action="job_adopted")


async def test_a_worker_is_dead_after_its_lease_and_not_before(db: Database, held: Held, clock: Clock) -> None:
    assert await jobs_store.find_orphans(db, 10) == []
    await clock.advance(LEASE)
    assert await jobs_store.find_orphans(db, 10) == []
    await clock.advance(timedelta(microseconds=1))
    (orphan,) = await jobs_store.find_orphans(db, 10)
    assert (orphan.id, orphan.worker_id, orphan.epoch, orphan.cancelled, orphan.held) == (
        held.given.job_id, held.worker, 1, False, False,
    )  # fmt: skip


async def test_a_job_is_adopted_once_and_counts_the_death(
    db: Database, admin: asyncpg.Connection, held: Held, clock: Clock
) -> None:
    orphan = await orphan_of(db, clock)
    adopted = await asyncio.gather(*(jobs_store.adopt_job(db, orphan, GO_ON, held.fact) for _ in range(6)))
    assert adopted.count(True) == 1
    row = await job(admin, held)
    assert (row["status"], row["worker_id"], row["deaths"], row["epoch"]) == ("RUNNING", None, 1, 1)
    assert row["running_seconds"] == LEASE.total_seconds(), "no longer than its lease"
    assert [kind for kind, _ in await events(admin, held)][-2:] == ["worker_lost", "status"]
    heir = await Held.claim(db, await make_worker(db))
    assert heir.given.epoch == 2
    await heir.write(StepWrite(done_step=0))
    assert (await job(admin, held))["deaths"] == 0, "whoever makes progress is no poison"


async def test_a_job_of_a_worker_that_came_back_is_not_adopted(
    db: Database, admin: asyncpg.Connection, held: Held, clock: Clock
) -> None:
    orphan = await orphan_of(db, clock)
    assert await jobs_store.beat_worker(db, held.worker, LEASE) is not None
    before = await state(admin)
    assert not await jobs_store.adopt_job(db, orphan, GO_ON, held.fact)
    assert await state(admin) == before
    assert await held.write(StepWrite(**SAVED)) is not None


async def test_what_changed_since_it_was_decided_is_decided_again(
    db: Database, admin: asyncpg.Connection, held: Held, world: World, clock: Clock
) -> None:
    orphan = await orphan_of(db, clock)
    actor, id = world.admin.actor, held.given.job_id
    await steering.pause(db, actor, id, Pause())
    assert not await jobs_store.adopt_job(db, orphan, GO_ON, held.fact), "held meanwhile"
    (orphan,) = await jobs_store.find_orphans(db, 10)
    await steering.resume(db, actor, id, Resumption())
    paused = Adoption(status=JobStatus.PAUSED, action="job_paused")
    assert not await jobs_store.adopt_job(db, orphan, paused, held.fact), "released meanwhile"
    (orphan,) = await jobs_store.find_orphans(db, 10)
    await steering.cancel(db, actor, id, Cancellation())
    assert not await jobs_store.adopt_job(db, orphan, GO_ON, held.fact), "cancelled meanwhile"
    (orphan,) = await jobs_store.find_orphans(db, 10)
    assert orphan.cancelled
    ended = Adoption(status=JobStatus.CANCELLED, action="job_cancelled", error="cancelled")
    assert await jobs_store.adopt_job(db, orphan, ended, held.fact)
    row = await job(admin, held)
    assert (row["status"], row["worker_id"], row["holds"]) == ("CANCELLED", None, [])


async def test_a_dead_workers_held_job_is_paused(
    db: Database, admin: asyncpg.Connection, held: Held, world: World, clock: Clock
) -> None:
    await steering.pause(db, world.admin.actor, held.given.job_id, Pause())
    orphan = await orphan_of(db, clock)
    assert orphan.held
    paused = Adoption(status=JobStatus.PAUSED, action="job_paused")
    assert await jobs_store.adopt_job(db, orphan, paused, held.fact)
    row = await job(admin, held)
    assert (row["status"], row["holds"], row["runnable_at"]) == ("PAUSED", ["operator"], None)


async def test_a_worker_that_stopped_as_it_should_leaves_no_death(
    db: Database, admin: asyncpg.Connection, held: Held, clock: Clock
) -> None:
    await jobs_store.stop_worker(db, held.worker)
    await clock.advance(timedelta(microseconds=1))
    (orphan,) = await jobs_store.find_orphans(db, 10)
    assert await jobs_store.adopt_job(db, orphan, GO_ON, held.fact)
    assert (await job(admin, held))["deaths"] == 0


# Workers -----------------------------------------------------------------------------------------------------


async def test_a_beat_renews_the_lease_and_names_what_to_stop(
    db: Database, held: Held, world: World, clock: Clock
) -> None:
    await clock.advance(timedelta(seconds=10))
    assert await jobs_store.beat_worker(db, held.worker, LEASE) == (
        held.given.now + timedelta(seconds=10) + LEASE, [], {},
    )  # fmt: skip
    await steering.cancel(db, world.admin.actor, held.given.job_id, Cancellation())
    beaten = await jobs_store.beat_worker(db, held.worker, LEASE)
    assert beaten is not None
    assert beaten[1] == [held.given.job_id]
    other = await make_worker(db)
    assert await jobs_store.beat_worker(db, other, LEASE) == (held.given.now + timedelta(seconds=10) + LEASE, [], {})


async def test_a_worker_can_ask_what_it_runs(db: Database, admin: asyncpg.Connection, held: Held, other: World) -> None:
    """What it leases, of whatever org, and nothing of anybody else."""
    await queue(admin, other)
    second = await Held.claim(db, held.worker)
    await queue(admin, other)
    await Held.claim(db, await make_worker(db))
    found = await jobs_store.find_leased(db, held.worker)
    assert {(leased.org_id, leased.id, leased.epoch) for leased in found} == {
        (one.given.org_id, one.given.job_id, 1) for one in (held, second)
    }
    await second.write(StepWrite(status=JobStatus.RUNNING))
    assert [leased.id for leased in await jobs_store.find_leased(db, held.worker)] == [held.given.job_id]


async def test_a_forgotten_worker_is_told_so(db: Database, admin: asyncpg.Connection, clock: Clock) -> None:
    assert await jobs_store.beat_worker(db, uuid4(), LEASE) is None
    gone, here = await make_worker(db), await make_worker(db, lease=timedelta(days=2))
    await clock.advance(timedelta(days=1) + LEASE)
    await jobs_store.forget_workers(db)
    assert await jobs_store.beat_worker(db, gone, LEASE) is not None, "a day after its lease, not before"
    await clock.advance(timedelta(days=1, seconds=31))
    await jobs_store.forget_workers(db)
    assert await jobs_store.beat_worker(db, gone, LEASE) is None
    assert await jobs_store.beat_worker(db, here, LEASE) is not None


async def test_a_worker_is_not_forgotten_while_its_jobs_are_not_adopted(
    db: Database, admin: asyncpg.Connection, world: World, clock: Clock
) -> None:
    """However many others died with it: a job whose worker is gone could never be found again."""
    crowd, last = await make_worker(db), await make_worker(db)
    now = await admin.fetchval("select plane_now()")
    leased = {"status": "RUNNING", "epoch": 1, "leased_at": now, "runnable_at": None}
    await queue(admin, world, 1100, worker_id=crowd, **leased)
    (job,) = await queue(admin, world, worker_id=last, **leased)
    await clock.advance(timedelta(days=2))
    await jobs_store.forget_workers(db)
    orphans = await jobs_store.find_orphans(db, 10_000)
    assert len(orphans) == 1101
    assert job in {orphan.id for orphan in orphans}
