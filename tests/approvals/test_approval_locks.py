"""Requests that several jobs share: who waits for whom is in one order, and nobody overlooks what another is about to do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.approvals import store as stored
from cortex_plane.approvals.model.approvals import ApprovalStatus, Choice, RecordResult
from cortex_plane.approvals.verbs import approvals
from cortex_plane.db.database import Transaction
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft, JobStatus
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import Conflict, Stale
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.store import Lane
from cortex_plane.notify.verbs import outbox
from cortex_plane.tenancy.model.orgs import Role
from tests.approvals.test_approval_races import broken_promises
from tests.channels.behaviour import link
from tests.channels.postbox import connect
from tests.fixtures.approvals import Shipping, decide, pending, waiting
from tests.fixtures.people import World
from tests.fixtures.waits import lock_waiters
from tests.fixtures.workers import job_of, whole
from tests.storage.leases import Held, call, make_worker, request_for


async def _blocks(admin: asyncpg.Connection, task: asyncio.Future[Any]) -> bool:
    """Once it waits for somebody's lock; False where it is done instead."""
    async with asyncio.timeout(10):
        while not task.done():
            if await lock_waiters(admin):
                return True
            await asyncio.sleep(0.01)
    return False


async def _asks(world: World, worker: UUID, *calls: dict[str, Any], session: UUID | None = None) -> Held:
    draft = JobDraft(agent=world.agent.slug, session_id=session)
    job = await jobs.submit(world.db, world.admin.actor, draft)
    held = await Held.claim(world.db, worker)
    assert held.given.job_id == job.id
    if calls:
        await held.ask(*calls)
    return held


@pytest.mark.proves("D.100")
async def test_two_jobs_that_share_a_request_are_cancelled_at_once(strict: World, admin: asyncpg.Connection) -> None:
    """Each sees the other still waiting, so that both would leave the request to the other."""
    worker = await make_worker(strict.db)
    first = await _asks(strict, worker, call())
    second = await _asks(strict, worker, call(), session=first.given.session_id)
    (asked,) = (await approvals.list_approvals(strict.db, strict.admin.actor, None, 10)).items
    assert asked.invocations == 2
    async with strict.db.transaction(strict.org_id) as tx:
        await jobs_store.lock_job(tx, first.given.job_id, None)
        await jobs_store.cancel_job(tx, first.given.job_id, "enough")
        assert await stored.cancel_approvals(tx, [first.given.job_id], "enough") == []
        cancelling = asyncio.ensure_future(
            steering.cancel(strict.db, strict.admin.actor, second.given.job_id, Cancellation())
        )
        assert await _blocks(admin, cancelling), "it must wait for what the first one does"
    assert (await cancelling).job.status is JobStatus.CANCELLED
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    assert details.approval.status is ApprovalStatus.CANCELLED
    assert await admin.fetchval("select count(*) from tool_call where status = 'awaiting'") == 0
    assert await whole(strict)


@pytest.mark.proves("D.740")
async def test_an_answer_to_a_shared_request_is_for_the_job_that_still_waits(
    strict: World, admin: asyncpg.Connection
) -> None:
    worker = await make_worker(strict.db)
    first = await _asks(strict, worker, call())
    second = await _asks(strict, worker, call(), session=first.given.session_id)
    await steering.cancel(strict.db, strict.admin.actor, first.given.job_id, Cancellation())
    (asked,) = await pending(strict)
    assert (asked.invocations, (await decide(strict, asked, Choice.RESPONDED)).result) == (2, RecordResult.OK)
    query = "select status, settled_by, result #>> '{}' from tool_call where job_id = $1"
    assert tuple(await admin.fetchrow(query, first.given.job_id)) == ("rejected", "cancelled", None)
    assert tuple(await admin.fetchrow(query, second.given.job_id)) == ("answered", "responded", "Go another way.")
    ends = [(await job_of(strict, held.given.job_id)).status for held in (first, second)]
    assert ends == [JobStatus.CANCELLED, JobStatus.RUNNING]
    assert await broken_promises(admin) == []
    # Whatever else ends a call does not stand in for the answer.
    await admin.execute("update tool_call set settled_by = 'policy' where job_id = $1", first.given.job_id)
    assert await broken_promises(admin) == ["an answer that is not the result of each of its calls"]


@pytest.mark.proves("D.100")
@pytest.mark.parametrize("decided", [0, 1])
async def test_whoever_joins_two_requests_and_whoever_decides_one_do_not_block_each_other(
    strict: World, admin: asyncpg.Connection, decided: int
) -> None:
    """Both lock the two requests: in the same order, or each would have one and wait for the other."""
    worker = await make_worker(strict.db)
    calls = [call(input_hash=digit * 64, position=n) for n, digit in enumerate("ab")]
    await _asks(strict, worker, *calls)
    asked = sorted(
        (await approvals.list_approvals(strict.db, strict.admin.actor, None, 10)).items, key=lambda a: a.input_hash
    )
    joining = await _asks(strict, worker, session=asked[0].session_id)
    given = joining.given
    same = [call(input_hash=digit * 64, position=n) for n, digit in enumerate("ab")]
    requests = [request_for(each) for each in same]
    async with strict.db.transaction(strict.org_id) as tx:
        attempt = await stored.lock_attempt(tx, given.job_id, worker, given.epoch, joining.number, 0)
        assert attempt is not None
        joins = await stored.find_joinable(tx, attempt["session_id"], requests[0])
        assert joins is not None
        assert joins["id"] == asked[0].id
        deciding = asyncio.create_task(decide(strict, asked[decided]))
        assert await _blocks(admin, deciding)
        # Had the decision the second one already, this would wait for it, and it for us.
        joins = await stored.find_joinable(tx, attempt["session_id"], requests[1])
        assert joins is not None
        assert joins["id"] == asked[1].id
    assert (await deciding).result is RecordResult.OK
    await admin.execute("select pg_stat_force_next_flush()")
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert await admin.fetchval(deadlocks) == 0
    job = await job_of(strict, asked[0].job_id)
    assert (job.status, job.open_approvals) == (JobStatus.WAITING_FOR_APPROVAL, 1)


async def test_a_decision_that_waited_for_a_job_to_join_begins_again(
    strict: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has not locked that job, and must not lock it after the request. What it was about to decide is another request by then."""
    worker = await make_worker(strict.db)
    await _asks(strict, worker, call(input_hash="a" * 64))
    (asked,) = await pending(strict)
    await _asks(strict, worker, call(input_hash="b" * 64), session=asked.session_id)
    (other,) = [approval for approval in await pending(strict) if approval.id != asked.id]
    joining = await admin.fetchval("select call_id from approval_invocation where approval_id = $1", other.id)
    open_approval = stored.open_approval
    outcomes: list[str] = []

    async def noted_open(*args: Any, **more: Any) -> Any:
        try:
            row = await open_approval(*args, **more)
        except Conflict as error:
            outcomes.append(error.code)
            raise
        assert row is not None
        outcomes.append(f"{len(row.jobs)} jobs, {len(row.calls)} calls")
        return row

    monkeypatch.setattr(stored, "open_approval", noted_open)
    async with strict.db.transaction(strict.org_id) as tx:
        await tx.rows(stored.queries.join_approval, strict.org_id, asked.id, joining, other.job_id, [], [])
        deciding = asyncio.create_task(decide(strict, asked))
        assert await _blocks(admin, deciding)
    with pytest.raises(Stale) as stale:
        await deciding
    assert stale.value.code == "approval_changed"
    assert outcomes == ["retry", "2 jobs, 2 calls"]


# Messages ------------------------------------------------------------------------------------------------------

TAKEN = "select id, approval_id, taken_by, lane from notification where taken_by is not null order by id"


async def _two_requests_taken(strict: World, admin: asyncpg.Connection) -> tuple[Lane, dict[UUID, UUID]]:
    """One job that asks for two calls; a notifier has the two messages about them, and has begun neither."""
    await link(admin, strict, await connect(strict), strict.admin, "ada@example.com")
    worker = await make_worker(strict.db)
    await _asks(strict, worker, *(call(input_hash=digit * 64, position=n) for n, digit in enumerate("ab")))
    (lane,) = await outbox.claim_deliveries(strict.db, ["email"], after=None, full=[], lanes=1)
    assert len(lane.ids) == 2
    return lane, {row["approval_id"]: row["id"] for row in await admin.fetch(TAKEN)}


@pytest.mark.proves("D.205")
@pytest.mark.parametrize("first", [0, 1])
async def test_a_notifier_that_lets_go_and_whoever_ends_two_requests_do_not_block_each_other(
    strict: World, admin: asyncpg.Connection, first: int
) -> None:
    """Both touch the two messages, each in an order of its own: so a notifier must never hold one and wait for the other."""
    lane, messages = await _two_requests_taken(strict, admin)
    asked = list(messages)
    async with strict.db.transaction(strict.org_id) as tx:
        await tx.rows(RAISE, strict.org_id, asked[first])
        letting_go = asyncio.ensure_future(outbox.release_deliveries(strict.db, lane, lane.ids))
        await _blocks(admin, letting_go)
        await tx.rows(RAISE, strict.org_id, asked[1 - first])
    await letting_go
    await _no_deadlocks(admin)
    assert await admin.fetch(TAKEN) == []


@pytest.mark.proves("D.205")
@pytest.mark.parametrize("begun", [0, 1])
@pytest.mark.parametrize("first", [0, 1])
async def test_a_notifier_that_begins_and_whoever_ends_two_requests_do_not_block_each_other(
    strict: World, admin: asyncpg.Connection, first: int, begun: int
) -> None:
    """It renews what else it has in the lane: whatever somebody changes at this moment must not be waited for."""
    lane, messages = await _two_requests_taken(strict, admin)
    asked = list(messages)
    # Its lease is half over, as after a send that took long.
    await admin.execute("update notification set taken_until = plane_now() + interval '30 seconds'")
    async with strict.db.transaction(strict.org_id) as tx:
        await tx.rows(RAISE, strict.org_id, asked[first])
        beginning = asyncio.ensure_future(_begin(strict, lane, messages[asked[begun]]))
        await _blocks(admin, beginning)
        await tx.rows(RAISE, strict.org_id, asked[1 - first])
    assert await beginning
    await _no_deadlocks(admin)
    rows = await admin.fetch("select id, attempts, taken_until > plane_now() + interval '45 seconds' from notification")
    found = {row[0]: tuple(row)[1:] for row in rows}
    assert found[messages[asked[begun]]] == (1, True)
    # What was in other hands is renewed with the next message; what was free is renewed now.
    assert found[messages[asked[1 - begun]]] == (0, begun == first)


RAISE = "select raise_notifications($1, $2)"


async def _begin(world: World, lane: Lane, id: UUID) -> bool:
    async with world.db.transaction(world.org_id) as tx:
        return await notify_store.begin_delivery(tx, id, lane.claim, lane.lane)


async def _no_deadlocks(admin: asyncpg.Connection) -> None:
    await admin.execute("select pg_stat_force_next_flush()")
    found = await admin.fetchval("select deadlocks from pg_stat_database where datname = current_database()")
    assert found == 0


ROWS_READ = "select coalesce(sum(coalesce(idx_tup_fetch, 0) + seq_tup_read), 0)::integer from pg_stat_xact_user_tables where relname = any ($1)"


async def _rows_read(world: World, id: UUID) -> int:
    """By opening a request under its locks."""
    tables = ["approval_request", "approval_invocation", "agent", "session", "job", "tool_call", "user_account"]
    async with world.db.transaction(world.org_id) as tx:
        before: int = await tx.value(ROWS_READ, tables)  # of what this connection did until now
        assert await stored.open_approval(tx, id, world.admin.actor) is not None
        after: int = await tx.value(ROWS_READ, tables)
        return after - before


BY_TABLE = """
select relname, coalesce(idx_tup_fetch, 0) + seq_tup_read as rows from pg_stat_xact_user_tables where relname = any ($1)"""
READ = {
    "approval_request",
    "approval_invocation",
    "approval_vote",
    "job",
    "tool_call",
    "agent",
    "session",
    "user_account",
}


@asynccontextmanager
async def _reads(tx: Transaction) -> AsyncIterator[dict[str, int]]:
    """How many rows of each table are read in here."""
    before = {row["relname"]: row["rows"] for row in await tx.rows(BY_TABLE, READ)}
    reads: dict[str, int] = {}
    yield reads
    after = {row["relname"]: row["rows"] for row in await tx.rows(BY_TABLE, READ)}
    reads.update({name: rows - before.get(name, 0) for name, rows in after.items() if rows > before.get(name, 0)})


@pytest.mark.fresh_database
async def test_a_decision_reads_each_row_once(strict: World, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    open_approval, change_approval = stored.open_approval, stored.change_approval
    reads: list[dict[str, int]] = []

    async def counted_open(tx: Transaction, *args: Any, **more: Any) -> Any:
        async with _reads(tx) as opening:
            result = await open_approval(tx, *args, **more)
        reads.append(opening)
        return result

    async def counted_change(tx: Transaction, *args: Any, **more: Any) -> Any:
        async with _reads(tx) as changing:
            result = await change_approval(tx, *args, **more)
        reads.append(changing)
        return result

    monkeypatch.setattr(stored, "open_approval", counted_open)
    monkeypatch.setattr(stored, "change_approval", counted_change)
    await decide(strict, asked)
    opening, changing = reads
    assert opening == dict.fromkeys(READ - {"approval_vote"}, 1)
    # What is changed, what foreign keys look up (of the vote, the grant, the entry and the receipt), and what the job's history names.
    assert changing == {"approval_request": 1 + 4 + 1, "job": 1, "tool_call": 1, "user_account": 2}


OTHERS = 5


@pytest.mark.fresh_database
async def test_opening_a_request_does_not_go_through_those_of_others(strict: World) -> None:
    """Not even in a new plane. Without statistics the planner may look at all agents and all members of an org once, and no more."""
    _, (asked,) = await waiting(strict, Shipping())
    alone = await _rows_read(strict, asked.id)
    for number in range(OTHERS):
        await waiting(strict, Shipping(), slug=f"another-{number}")
        await strict.person(Role.APPROVER, name=f"Approver {number}")
    assert await _rows_read(strict, asked.id) <= alone + 2 * OTHERS
