"""Signals: the first payload stays, whoever waits hears it whenever it came, and nobody is woken who should not be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from pydantic import ValidationError

from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft, JobStatus, Pause, Resumption
from cortex_plane.jobs.model.journal import KEPT, MAX_PAYLOAD_BYTES, SignalDraft
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import Conflict, ContextMisused, Forbidden, InvalidInput, NotFound
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.verbs import events
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.code.operations import plan_wait
from cortex_plane.worker.scheduler import CHORES
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.signals import park, parked, send, wait, waits_of_job
from tests.storage.leases import Held, claim, make_worker, queue

START = datetime(2030, 1, 1, tzinfo=UTC)
PAYLOAD = {"amount": 12, "by": "Ada"}


async def row(admin: asyncpg.Connection, job: UUID) -> Any:
    return await admin.fetchrow("select status, wake_at, runnable_at, holds from job where id = $1", job)


async def told(db: Database, actor: Actor, job: UUID) -> list[dict[str, Any]]:
    replay = await events.of_job(db, actor, job, 0, 100)
    return [event.data for event in replay.events if event.type == "signal_received"]


# Sent and waited for ---------------------------------------------------------------------------------------------


@pytest.mark.proves("D.255")
async def test_a_signal_wakes_the_job_that_waits_for_it(admin: asyncpg.Connection, world: World) -> None:
    job = await parked(admin, world)
    assert (await row(admin, job))["runnable_at"] is None
    receipt = await send(world.db, world.admin, payload=PAYLOAD)
    assert (receipt.changed, receipt.woken) == (True, 1)
    assert (receipt.signal.payload, receipt.signal.sent_by) == (PAYLOAD, "Ada")
    (waited,) = await waits_of_job(world, job)
    assert (waited.entry, waited.name, waited.key) == ("paid#0", "payment.received", "order-1")
    assert (waited.payload, waited.signal_id) == (PAYLOAD, receipt.signal.id)
    woken = await row(admin, job)
    assert woken["status"] == JobStatus.SLEEPING
    assert woken["wake_at"] == woken["runnable_at"] == waited.arrived_at
    assert [given.job_id for given in await claim(world.db, await make_worker(world.db))] == [job]


@pytest.mark.proves("D.255")
async def test_what_was_sent_before_counts(admin: asyncpg.Connection, world: World) -> None:
    receipt = await send(world.db, world.admin, payload=PAYLOAD)
    assert receipt.woken == 0
    job = await parked(admin, world, seconds=3600)
    (waited,) = await waits_of_job(world, job)
    assert (waited.payload, waited.signal_id) == (PAYLOAD, receipt.signal.id)
    assert (await row(admin, job))["runnable_at"] == waited.arrived_at
    assert len(await told(world.db, world.admin.actor, job)) == 1


async def test_a_payload_may_be_any_json(admin: asyncpg.Connection, world: World) -> None:
    payloads: list[Any] = [None, False, 0, 1.5, "", "text", [], {}, [{"a": [None]}]]
    waiting = [await parked(admin, world, wait(key=f"k{number}")) for number in range(len(payloads))]
    for number, (job, payload) in enumerate(zip(waiting, payloads, strict=True)):
        receipt = await send(world.db, world.admin, key=f"k{number}", payload=payload)
        (waited,) = await waits_of_job(world, job)
        assert (receipt.signal.payload, waited.payload) == (payload, payload)
        assert waited.arrived_at is not None
        assert not (await send(world.db, world.admin, key=f"k{number}", payload=payload)).changed


@pytest.mark.proves("D.255")
async def test_the_first_payload_stays(admin: asyncpg.Connection, world: World) -> None:
    first = await send(world.db, world.admin, payload=PAYLOAD)
    again = await send(world.db, world.service, payload=PAYLOAD)
    assert (again.changed, again.woken, again.signal) == (False, 0, first.signal)
    with pytest.raises(Conflict, match="Another payload") as refused:
        await send(world.db, world.admin, payload={"amount": 13})
    assert refused.value.code == "signal_taken"
    assert "another key" in (refused.value.hint or "")
    job = await parked(admin, world)
    (waited,) = await waits_of_job(world, job)
    assert waited.payload == PAYLOAD
    rows = await admin.fetch("select action from audit_entry where action like 'signal%' order by seq")
    assert [row[0] for row in rows] == ["signal_sent"]


@pytest.mark.proves("D.255")
async def test_everybody_who_waits_is_woken(admin: asyncpg.Connection, world: World) -> None:
    waiting = [await parked(admin, world) for _ in range(7)]
    other = await parked(admin, world, wait(key="order-2"))
    # Three transactions: nobody is left out because others wait too.
    receipt = await send(world.db, world.admin, payload=PAYLOAD, at_once=3)
    assert receipt.woken == 7
    for job in waiting:
        assert (await row(admin, job))["runnable_at"] is not None
        assert len(await told(world.db, world.admin.actor, job)) == 1
    assert (await row(admin, other))["runnable_at"] is None
    assert await admin.fetchval("select told_at is not null from signal")
    assert (await audit.verify_org(world.db, world.org_id)).faults == []


async def test_one_job_may_wait_for_several(admin: asyncpg.Connection, world: World) -> None:
    """Each wakes it; what came stays, also while the others are waited for again."""
    both = wait("a#0", key="a"), wait("b#0", key="b")
    job = await parked(admin, world, *both)
    await send(world.db, world.admin, key="a", payload=1)
    held = await Held.claim(world.db, await make_worker(world.db))
    assert await park(held, both[1]) is JobStatus.SLEEPING
    assert (await row(admin, job))["runnable_at"] is None
    await send(world.db, world.admin, key="b", payload=2)
    assert (await row(admin, job))["runnable_at"] is not None
    waits = await waits_of_job(world, job)
    assert [(each.entry, each.payload) for each in waits] == [("a#0", 1), ("b#0", 2)]


async def test_two_waits_of_a_job_for_the_same_signal_are_both_told(admin: asyncpg.Connection, world: World) -> None:
    job = await parked(admin, world, wait("a#0"), wait("a#1"))
    assert (await send(world.db, world.admin, payload=1)).woken == 1
    waits = await waits_of_job(world, job)
    assert [(each.entry, each.payload) for each in waits] == [("a#0", 1), ("a#1", 1)]
    assert [data["entry"] for data in await told(world.db, world.admin.actor, job)] == ["a#0", "a#1"]


async def test_a_wait_that_was_heard_is_kept_when_it_is_written_again(admin: asyncpg.Connection, world: World) -> None:
    """The job goes on at once: what it waits for is there."""
    job = await parked(admin, world)
    await send(world.db, world.admin, payload=PAYLOAD)
    (before,) = await waits_of_job(world, job)
    held = await Held.claim(world.db, await make_worker(world.db))
    await park(held, wait())
    assert await waits_of_job(world, job) == [before]
    assert (await row(admin, job))["runnable_at"] is not None
    assert len(await told(world.db, world.admin.actor, job)) == 1


async def test_a_write_whose_answer_was_lost_is_not_applied_twice(admin: asyncpg.Connection, world: World) -> None:
    await queue(admin, world)
    held = await Held.claim(world.db, await make_worker(world.db))
    write = StepWrite(status=JobStatus.SLEEPING, delay_seconds=None, more={"waits": [wait()]})
    assert await held.write(write) is not None
    repeated = await held.write(write, number=held.number)
    assert repeated is not None
    assert repeated.applied_before
    assert await admin.fetchval("select count(*) from job_wait") == 1


async def test_whoever_lost_the_job_writes_no_wait(admin: asyncpg.Connection, world: World) -> None:
    await queue(admin, world)
    held = await Held.claim(world.db, await make_worker(world.db))
    write = StepWrite(status=JobStatus.SLEEPING, delay_seconds=None, more={"waits": [wait()]})
    assert await held.write(write, epoch=held.given.epoch + 1) is None
    assert await admin.fetchval("select count(*) from job_wait") == 0


# Held, cancelled, too late ---------------------------------------------------------------------------------------


@pytest.mark.proves("D.256")
async def test_a_held_job_hears_it_and_goes_on_when_it_is_resumed(admin: asyncpg.Connection, world: World) -> None:
    job = await parked(admin, world)
    await steering.pause(world.db, world.admin.actor, job, Pause())
    assert (await send(world.db, world.admin, payload=PAYLOAD)).woken == 1
    asleep = await row(admin, job)
    assert (asleep["status"], asleep["runnable_at"]) == (JobStatus.SLEEPING, None)
    assert asleep["wake_at"] is not None
    assert await claim(world.db, await make_worker(world.db)) == []
    await steering.resume(world.db, world.admin.actor, job, Resumption())
    (given,) = await claim(world.db, await make_worker(world.db))
    (waited,) = await waits_of_job(world, given.job_id)
    assert waited.payload == PAYLOAD


@pytest.mark.proves("D.256")
async def test_a_resume_alone_does_not_wake_a_job_that_still_waits(admin: asyncpg.Connection, world: World) -> None:
    job = await parked(admin, world)
    await steering.pause(world.db, world.admin.actor, job, Pause())
    await steering.resume(world.db, world.admin.actor, job, Resumption())
    assert (await row(admin, job))["runnable_at"] is None
    await send(world.db, world.admin)
    assert (await row(admin, job))["runnable_at"] is not None


@pytest.mark.proves("D.256")
async def test_a_job_that_is_held_when_it_goes_to_sleep(admin: asyncpg.Connection, world: World) -> None:
    await send(world.db, world.admin, payload=PAYLOAD)
    (job,) = await queue(admin, world)
    held = await Held.claim(world.db, await make_worker(world.db))
    await steering.pause(world.db, world.admin.actor, job, Pause())
    assert await park(held, wait()) is JobStatus.SLEEPING
    assert (await row(admin, job))["runnable_at"] is None
    await steering.resume(world.db, world.admin.actor, job, Resumption())
    assert (await row(admin, job))["runnable_at"] is not None


@pytest.mark.proves("D.256")
async def test_a_cancelled_job_stays_cancelled(admin: asyncpg.Connection, world: World) -> None:
    job = await parked(admin, world)
    await steering.cancel(world.db, world.admin.actor, job, Cancellation())
    receipt = await send(world.db, world.admin, payload=PAYLOAD)
    assert (receipt.changed, receipt.woken) == (True, 0)
    (waited,) = await waits_of_job(world, job)
    assert waited.arrived_at is None
    assert (await row(admin, job))["status"] == JobStatus.CANCELLED
    assert await told(world.db, world.admin.actor, job) == []
    # Whoever is submitted again hears what was kept.
    again = await jobs.resubmit(world.db, world.admin.actor, job)
    held = await Held.claim(world.db, await make_worker(world.db))
    assert held.given.job_id == again.id
    await park(held, wait())
    assert (await row(admin, again.id))["runnable_at"] is not None


@pytest.mark.proves("D.256")
async def test_a_cancel_that_came_first_ends_a_job_that_would_wait(admin: asyncpg.Connection, world: World) -> None:
    await send(world.db, world.admin)
    (job,) = await queue(admin, world)
    held = await Held.claim(world.db, await make_worker(world.db))
    await steering.cancel(world.db, world.admin.actor, job, Cancellation())
    assert await park(held, wait()) is JobStatus.CANCELLED
    assert (await row(admin, job))["runnable_at"] is None


@pytest.mark.proves("D.256")
async def test_a_wait_without_a_signal_ends_with_its_time(admin: asyncpg.Connection, world: World) -> None:
    clock = await Clock.install(admin, START)
    job = await parked(admin, world, seconds=60)
    worker = await make_worker(world.db, lease=timedelta(hours=1))
    assert (await row(admin, job))["wake_at"] == START + timedelta(seconds=60)
    assert await claim(world.db, worker) == []
    await clock.advance(timedelta(seconds=60))
    (given,) = await claim(world.db, worker)
    (waited,) = await waits_of_job(world, given.job_id)
    assert waited.arrived_at is None


@pytest.mark.proves("D.256")
async def test_what_comes_after_the_time_but_before_the_job_goes_on_has_come(
    admin: asyncpg.Connection, world: World
) -> None:
    clock = await Clock.install(admin, START)
    job = await parked(admin, world, seconds=60)
    await clock.advance(timedelta(seconds=90))
    assert (await send(world.db, world.admin, payload=PAYLOAD)).woken == 1
    (given,) = await claim(world.db, await make_worker(world.db))
    (waited,) = await waits_of_job(world, given.job_id)
    assert (given.job_id, waited.payload) == (job, PAYLOAD)
    assert waited.arrived_at == START + timedelta(seconds=90)


async def test_a_job_that_runs_already_is_told_and_not_disturbed(admin: asyncpg.Connection, world: World) -> None:
    clock = await Clock.install(admin, START)
    job = await parked(admin, world, seconds=60)
    await clock.advance(timedelta(seconds=61))
    held = await Held.claim(world.db, await make_worker(world.db))
    assert (await send(world.db, world.admin, payload=PAYLOAD)).woken == 1
    running = await row(admin, job)
    assert (running["status"], running["runnable_at"]) == (JobStatus.RUNNING, None)
    assert await held.write() is not None


# Who may -----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.257")
async def test_who_may_send_and_who_sees_what(world: World) -> None:
    member = await world.person(Role.MEMBER, name="Mia")
    guest, approver = await world.person(Role.GUEST), await world.person(Role.APPROVER)
    for number, person in enumerate((world.admin, world.service, member)):
        await send(world.db, person, key=f"k{number}")
    for person in (guest, approver):
        with pytest.raises(Forbidden):
            await send(world.db, person, key="no")
    with pytest.raises(Forbidden):
        await steering.list_signals(world.db, guest.actor, None, 10)
    seen = {
        name: [each.key for each in (await steering.list_signals(world.db, person.actor, None, 10)).items]
        for name, person in (("admin", world.admin), ("member", member), ("service", world.service))
    }
    assert seen == {"admin": ["k2", "k1", "k0"], "member": ["k2"], "service": ["k1"]}
    page = await steering.list_signals(world.db, approver.actor, None, 10, name="payment.received", key="k1")
    assert [each.key for each in page.items] == ["k1"]
    assert (await steering.list_signals(world.db, approver.actor, None, 10, name="payment")).items == []


@pytest.mark.proves("D.257")
async def test_waits_are_seen_by_whoever_sees_the_job(admin: asyncpg.Connection, world: World) -> None:
    member = await world.person(Role.MEMBER)
    job = await parked(admin, world)
    with pytest.raises(NotFound):
        await steering.list_waits(world.db, member.actor, job)
    own = await jobs.submit(world.db, member.actor, JobDraft(agent=world.agent.slug))
    assert await steering.list_waits(world.db, member.actor, own.id) == []
    assert len(await steering.list_waits(world.db, world.admin.actor, job)) == 1


@pytest.mark.proves("D.257")
async def test_another_org_hears_nothing(admin: asyncpg.Connection, world: World, other: World) -> None:
    job = await parked(admin, world)
    assert (await send(other.db, other.admin, payload="theirs")).woken == 0
    assert (await row(admin, job))["runnable_at"] is None
    assert (await send(world.db, world.admin, payload="ours")).woken == 1
    (waited,) = await waits_of_job(world, job)
    assert waited.payload == "ours"


async def test_an_idempotency_key_sends_once(admin: asyncpg.Connection, world: World) -> None:
    await parked(admin, world)
    once = IdempotencyKey(key="k", fingerprint=bytes(32))
    first = await send(world.db, world.admin, payload=1, once=once)
    again = await send(world.db, world.admin, payload=1, once=once)
    assert (first.changed, first.woken) == (True, 1)
    assert (again.changed, again.woken, again.signal) == (False, 0, first.signal)
    with pytest.raises(Conflict) as refused:
        await send(world.db, world.admin, payload=1, once=IdempotencyKey(key="k", fingerprint=bytes(31) + b"1"))
    assert refused.value.code == "idempotency_key_reused"


async def test_what_cannot_be_sent_is_refused() -> None:
    bad: list[dict[str, Any]] = [
        {"name": "", "key": "k"}, {"name": "n", "key": ""}, {"name": "n" * 201, "key": "k"},
        {"name": "n", "key": "k" * 256}, {"name": "\ud800", "key": "k"}, {"name": "n", "key": "\x00"},
        {"name": "n", "key": "k", "payload": "x" * MAX_PAYLOAD_BYTES}, {"name": "n", "key": "k", "payload": float("nan")},
        {"name": "n", "key": "k", "payload": 2**70}, {"name": "n", "key": "k", "other": 1}, {"name": "n"},
    ]  # fmt: skip
    for given in bad:
        with pytest.raises((ValidationError, TypeError)):
            SignalDraft(**given)
    largest = SignalDraft(name="n", key="k", payload="x" * (MAX_PAYLOAD_BYTES - 2))
    assert len(largest.payload) == MAX_PAYLOAD_BYTES - 2


async def test_the_largest_payloads_are_kept(world: World) -> None:
    """However they look in JSON: a digit and a comma become much more in the database."""
    many = [0] * (MAX_PAYLOAD_BYTES // 2 - 1)
    for number, payload in enumerate((many, [[]] * (MAX_PAYLOAD_BYTES // 3 - 1), [0.5] * (MAX_PAYLOAD_BYTES // 4 - 1))):
        receipt = await send(world.db, world.admin, key=f"k{number}", payload=payload)
        assert receipt.signal.payload == payload


@pytest.mark.parametrize(
    "given", [("", "k"), ("n" * 201, "k"), ("a\x00b", "k"), ("n", ""), ("n", "k" * 256), ("n", "a\x00b")]
)
def test_a_wait_that_nothing_could_end_is_refused(given: tuple[str, str]) -> None:
    with pytest.raises((ContextMisused, InvalidInput)):
        plan_wait(*given, timeout=None)


# Chores ------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.258")
async def test_old_signals_are_forgotten_unless_an_open_job_has_heard_them(
    admin: asyncpg.Connection, world: World
) -> None:
    clock = await Clock.install(admin, START)
    for key in ("nobody", "open", "ended"):
        await send(world.db, world.admin, key=key, payload=key)
    still_open = await parked(admin, world, wait(key="open"))
    ended = await parked_and_cancelled(admin, world, still_open)
    await clock.advance(KEPT - timedelta(hours=1))
    await steering.forget_signals(world.db)
    assert await admin.fetchval("select count(*) from signal") == 3
    await clock.advance(timedelta(hours=2))
    await send(world.db, world.admin, key="new")
    await steering.forget_signals(world.db)
    left = await admin.fetch("select key from signal order by key")
    assert [row[0] for row in left] == ["new", "open"]
    # What arrived stays with its job.
    (waited,) = await waits_of_job(world, ended)
    assert (waited.payload, waited.signal_id) == ("ended", None)
    assert {"old signals", "untold signals"} <= {chore.name for chore in CHORES}


async def parked_and_cancelled(admin: asyncpg.Connection, world: World, other: UUID) -> UUID:
    """A job that heard its signal and ended."""
    await queue(admin, world)
    worker = await make_worker(world.db)
    held = await Held.claim(world.db, worker)
    if held.given.job_id == other:
        mine = await Held.claim(world.db, worker)
        await held.write(StepWrite(status=JobStatus.SLEEPING, delay_seconds=None))
        held = mine
    await park(held, wait(key="ended"))
    await steering.cancel(world.db, world.admin.actor, held.given.job_id, Cancellation())
    return held.given.job_id


@pytest.mark.proves("D.258")
async def test_waits_of_jobs_that_ended_are_forgotten(admin: asyncpg.Connection, world: World) -> None:
    ended, waiting = await parked(admin, world), await parked(admin, world)
    await steering.cancel(world.db, world.admin.actor, ended, Cancellation())
    await steering.forget_signals(world.db)
    left = await admin.fetch("select job_id from job_wait")
    assert [row[0] for row in left] == [waiting]


@pytest.mark.proves("D.258")
async def test_whoever_a_dead_sender_did_not_tell_is_told_by_the_scheduler(
    admin: asyncpg.Connection, world: World
) -> None:
    clock = await Clock.install(admin, START)
    waiting = [await parked(admin, world) for _ in range(3)]
    # What the first transaction of a sender with more waiters than it may wake leaves behind.
    await send(world.db, world.admin, payload=PAYLOAD)
    await admin.execute("update signal set told_at = null")
    await admin.execute("update job_wait set signal_id = null, payload = null, arrived_at = null")
    await admin.execute("update job set wake_at = null, runnable_at = null where id = any ($1)", waiting)
    await steering.deliver_waiting_signals(world.db)
    assert await admin.fetchval("select count(*) from job where runnable_at is not null") == 0
    await clock.advance(timedelta(seconds=61))
    await steering.deliver_waiting_signals(world.db)
    assert await admin.fetchval("select count(*) from job where runnable_at is not null") == 3
    assert (
        await admin.fetchval("select count(*) from job_wait where payload = $1::jsonb", '{"by":"Ada","amount":12}') == 3
    )
    assert await admin.fetchval("select count(*) from signal where told_at is null") == 0
    assert (await audit.verify_org(world.db, world.org_id)).faults == []
