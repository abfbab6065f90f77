"""What the clock does to requests: a reminder, then the end. Each once, however many look."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import asyncpg
import pytest
from structlog.testing import capture_logs

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.verbs import deadlines
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from tests.approvals.test_approvals import ask
from tests.fixtures.approvals import Shipping, decide, pending, ship, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.workers import call, ended, job_of, steps_of, turn, whole, working


async def tick(world: World) -> list[str]:
    return (await deadlines.tick(world.db, new_id(), "scheduler")).done


@pytest.mark.proves("S4.19")
@pytest.mark.parametrize(("template", "before"), [("dev_review", 4), ("full_pipeline", 8), ("critical_path", 24)])
async def test_a_reminder_comes_at_its_templates_time_and_then_the_end(
    strict: World, admin: asyncpg.Connection, template: str, before: int
) -> None:
    await strict.person(Role.APPROVER, name="Reviewer")
    await apply_policies(strict.db, strict.admin.actor, ask(template=template))
    id, (asked,) = await waiting(strict, Shipping())
    assert asked.deadline is not None
    remind = asked.deadline - timedelta(hours=before)
    clock = await Clock.install(admin, remind - timedelta(microseconds=1))
    assert await tick(strict) == []
    assert await deadlines.seconds_to_next(strict.db) == pytest.approx(0, abs=0.001)
    await clock.set(remind)
    assert await tick(strict) == ["reminded"]
    assert await tick(strict) == []
    reminded = await shown(strict, asked.id)
    assert (reminded.status, reminded.reminded_at) == (ApprovalStatus.PENDING, remind)
    assert reminded.deadline == asked.deadline, "a reminder gives nobody more time"
    assert reminded.version == asked.version, "nor does it make anybody look again"
    assert await deadlines.seconds_to_next(strict.db) == before * 3600
    await clock.set(asked.deadline)
    assert await tick(strict) == ["expired"]
    assert (await job_of(strict, id)).status is JobStatus.FAILED
    events = (await approvals.get_approval(strict.db, strict.admin.actor, asked.id)).events
    assert [e.event_type for e in events] == ["requested", "dispatched", "reminded", "expired"]
    entries = await audit.list_entries(strict.db, strict.admin.actor, asked.session_id, 0, 1000)
    assert [e.action for e in entries][-3:] == ["approval_reminded", "approval_expired", "job_failed"]
    body = entries[-2].body
    assert body is not None
    assert (body["actor"]["kind"], body["actor"]["name"]) == ("scheduler", "scheduler")
    assert await whole(strict)


@pytest.mark.proves("S1.14")
async def test_an_expired_request_fails_its_job_and_says_what_to_do(strict: World, admin: asyncpg.Connection) -> None:
    id, asked = await waiting(strict, Shipping(), ship("1"), ship("2"))
    assert asked[0].deadline is not None
    await Clock.install(admin, asked[0].deadline + timedelta(minutes=1))
    assert await tick(strict) == ["expired"]
    job = await job_of(strict, id)
    assert job.status is JobStatus.FAILED
    assert (job.error_message or "").startswith(f"Job {id}, step 0: Approval of `ship` timed out after 24 hours.")
    assert "`cortex job resubmit`" in (job.error_message or "")
    # The other one waits for nobody any more.
    assert sorted([(await shown(strict, a.id)).status.value for a in asked]) == ["cancelled", "expired"]
    assert await admin.fetchval("select count(*) from approval_grant") == 0
    assert await tick(strict) == []
    assert await whole(strict)


async def test_with_on_deny_continue_the_model_is_told_that_nobody_came(strict: World) -> None:
    """On the database's own clock: the worker that goes on must not find its lease in the past."""
    await apply_policies(strict.db, strict.admin.actor, ask(on_deny="continue", timeout="1s"))
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping, after=[turn(ship(), call("look"))])
    async with asyncio.timeout(10):
        while await tick(strict) != ["expired"]:  # noqa: ASYNC110 -- the database's time is waited for
            await asyncio.sleep(0.02)
    assert (await shown(strict, asked.id)).status is ApprovalStatus.EXPIRED
    async with working(strict.db, shipping.app):
        job = await ended(strict, id)
    assert (job.status, shipping.shipped) == (JobStatus.COMPLETED, [])
    first, second, *_ = await steps_of(strict, id)
    assert "timed out after 1 second." in (first.calls[0].error or "")
    # And it cannot simply ask again.
    assert [c.status for c in second.calls] == ["rejected", "completed"]
    assert await pending(strict) == []


@pytest.mark.proves("S4.20")
async def test_of_many_schedulers_one_keeps_each_deadline(strict: World, admin: asyncpg.Connection) -> None:
    ids = []
    for n in range(3):
        id, (asked,) = await waiting(strict, Shipping(), slug=f"shipper-{n}")
        ids.append(id)
    assert asked.deadline is not None
    await Clock.install(admin, asked.deadline + timedelta(days=1))
    ticks = await asyncio.gather(*(tick(strict) for _ in range(8)))
    assert sorted(done for one in ticks for done in one) == ["expired"] * 3
    for id in ids:
        job = await job_of(strict, id)
        assert job.status is JobStatus.FAILED
        entries = await audit.list_entries(strict.db, strict.admin.actor, job.session_id, 0, 1000)
        assert [e.action for e in entries].count("approval_expired") == 1
    assert await whole(strict)


async def test_a_decision_and_the_end_of_the_time_at_once_give_one_outcome(
    strict: World, admin: asyncpg.Connection
) -> None:
    """The clock stands just before the deadline for the decision and just after it for the scheduler."""
    id, (asked,) = await waiting(strict, Shipping())
    assert asked.deadline is not None
    clock = await Clock.install(admin, asked.deadline - timedelta(microseconds=1))
    decided = asyncio.create_task(decide(strict, asked))
    moved = asyncio.create_task(clock.set(asked.deadline))
    await asyncio.gather(decided, moved, tick(strict), tick(strict), return_exceptions=True)
    await tick(strict)
    status = (await shown(strict, asked.id)).status
    expected = {ApprovalStatus.APPROVED: JobStatus.RUNNING, ApprovalStatus.EXPIRED: JobStatus.FAILED}
    assert (await job_of(strict, id)).status is expected[status]
    assert await admin.fetchval("select count(*) from approval_grant") == (status == "approved")


async def test_a_look_at_nothing_writes_nothing(strict: World, admin: asyncpg.Connection) -> None:
    await waiting(strict, Shipping())
    before = await digests(admin)
    written = await admin.fetchval("select pg_current_wal_insert_lsn()")
    assert await tick(strict) == []
    seconds = await deadlines.seconds_to_next(strict.db)
    assert seconds is not None
    assert 86_000 < seconds <= 86_400
    assert await digests(admin) == before
    xids = await admin.fetchval("select pg_current_xact_id_if_assigned()")
    assert (xids, written is not None) == (None, True)


async def test_after_an_outage_the_oldest_deadline_is_kept_first(strict: World, admin: asyncpg.Connection) -> None:
    expected = []
    for hours in (5, 2, 9):
        await apply_policies(strict.db, strict.admin.actor, ask(timeout=f"{hours}h"))
        _, (asked,) = await waiting(strict, Shipping(), slug=f"shipper-{hours}")
        expected.append((hours, asked.id))
    assert asked.deadline is not None
    await Clock.install(admin, asked.deadline + timedelta(days=30))
    assert await tick(strict) == ["expired"] * 3
    rows = await admin.fetch("select approval_id from approval_event where event_type = 'expired' order by id")
    assert [row["approval_id"] for row in rows] == [id for _, id in sorted(expected)]


@pytest.mark.parametrize("fault", ["a refusal of the database", "a row that nobody foresaw"])
async def test_one_that_cannot_be_kept_does_not_stop_the_others(
    strict: World, admin: asyncpg.Connection, fault: str
) -> None:
    first, (bad,) = await waiting(strict, Shipping(), ship("1"))
    second, _ = await waiting(strict, Shipping(), ship("2"), slug="shipper-2")
    if fault == "a refusal of the database":
        await admin.execute(
            "create function refuse() returns trigger language plpgsql as $$ begin"
            " raise exception using errcode = 'CX409', detail = 'refused', message = 'no', hint = 'no'; end $$;"
            f" create trigger refuse before update on job for each row when (old.id = '{first}')"
            " execute function refuse()"
        )
    else:
        await admin.execute("alter table approval_request disable trigger all")
        await admin.execute("""update approval_request set approvers = '{"roles": 5}' where id = $1""", bad.id)
    assert bad.deadline is not None
    await Clock.install(admin, bad.deadline + timedelta(hours=1))
    with capture_logs() as logs:
        looked = await deadlines.tick(strict.db, new_id(), "scheduler")
    assert (looked.done, looked.full) == (["expired"], False)
    assert any("deadline not kept" in line["event"] for line in logs)
    assert (await job_of(strict, first)).status is JobStatus.WAITING_FOR_APPROVAL
    assert (await job_of(strict, second)).status is JobStatus.FAILED


async def test_a_time_that_ends_while_a_job_is_held_fails_it_all_the_same(
    strict: World, admin: asyncpg.Connection
) -> None:
    from cortex_plane.jobs.model.jobs import Pause
    from cortex_plane.jobs.verbs import steering

    id, (asked,) = await waiting(strict, Shipping())
    await steering.pause(strict.db, strict.admin.actor, id, Pause())
    assert asked.deadline is not None
    await Clock.install(admin, asked.deadline)
    assert await tick(strict) == ["expired"]
    job = await job_of(strict, id)
    assert (job.status, job.holds) == (JobStatus.FAILED, [])
