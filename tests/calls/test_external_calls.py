"""Calls elsewhere whose outcome nobody knows, and the job that nobody here runs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.approvals.model.approvals import ApprovalKind, ApprovalStatus, Channel, EffectAnswer
from cortex_plane.approvals.verbs import approvals, settlements
from cortex_plane.calls.model import CallDraft, ExternalCall, IntentDraft, Next, OutcomeDraft, OutcomeStatus
from cortex_plane.calls.verbs import calls, deadlines, outcomes
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.effects import CallStatus, Verdict
from cortex_plane.jobs.model.jobs import JobKind, JobStatus
from cortex_plane.jobs.verbs import jobs, workers
from cortex_plane.kernel.errors import Conflict
from cortex_plane.sessions.model.sessions import SessionDraft, SessionKind, Termination
from tests.fixtures.clock import Clock
from tests.fixtures.people import World

LONG = timedelta(hours=1)


@pytest_asyncio.fixture
async def clock(world: World, admin: asyncpg.Connection) -> Clock:
    return await Clock.install(admin, datetime.now(UTC))


async def opened(world: World) -> UUID:
    draft = SessionDraft(agent="deployer", kind=SessionKind.EXTERNAL)
    return (await session_lifecycle.create(world.db, world.service.actor, draft)).id


async def begun(world: World, on_uncertain: str, key: str = "k", **more: Any) -> ExternalCall:
    draft = CallDraft(
        tool="pay.out", arguments={"cents": 1}, on_uncertain=OnUncertain(on_uncertain), key=key, dispatch=True,
        sender=more.pop("sender", "first"), **more,
    )  # fmt: skip
    return await calls.authorize_call(world.db, world.service.actor, await opened(world), draft)


async def again(world: World, call: ExternalCall, sender: str = "second") -> ExternalCall:
    """Another process asks with the same key."""
    draft = CallDraft(
        tool=call.tool, arguments=call.arguments, on_uncertain=call.on_uncertain, key=call.key, dispatch=True,
        sender=sender, timeout_seconds=call.timeout_seconds,
    )  # fmt: skip
    return await calls.authorize_call(world.db, world.service.actor, await opened(world), draft)


async def tick(world: World) -> list[str]:
    return (await deadlines.tick(world.db, uuid4(), "scheduler")).done


async def cards(world: World) -> list[UUID]:
    page = await approvals.list_approvals(world.db, world.admin.actor, None, 10, status=ApprovalStatus.PENDING)
    return [card.id for card in page.items if card.kind is ApprovalKind.UNCERTAIN_EFFECT]


async def answered(world: World, verdict: Verdict) -> None:
    (card,) = await cards(world)
    await settlements.answer(world.db, world.admin.actor, card, EffectAnswer(verdict=verdict), Channel.API)


@pytest.mark.proves("D.276")
async def test_while_it_may_be_under_way_nobody_begins_it_again(world: World) -> None:
    call = await begun(world, "retry_with_key")
    assert call.next is Next.RUN
    second = await again(world, call)
    assert (second.id, second.next, second.attempt) == (call.id, Next.WAIT, 1)
    # The first process only lost the answer.
    assert (await again(world, call, sender="first")).next is Next.RUN
    intent = IntentDraft(input_hash=call.input_hash, sender="second")
    with pytest.raises(Conflict) as refused:
        await calls.begin_call(world.db, world.service.actor, call.id, intent)
    assert refused.value.code == "call_in_doubt"
    assert await tick(world) == []


@pytest.mark.proves("D.276")
async def test_with_a_key_it_is_sent_again_and_then_a_person_is_asked(world: World, clock: Clock) -> None:
    call = await begun(world, "retry_with_key")
    for attempt in (2, 3):
        await clock.advance(LONG)
        assert await tick(world) == ["doubted"]
        sent = await again(world, call, sender=f"try-{attempt}")
        assert (sent.next, sent.attempt, sent.id) == (Next.RUN, attempt, call.id)
    assert await cards(world) == []
    await clock.advance(LONG)
    assert await tick(world) == ["doubted"]
    asked = await again(world, call, sender="try-4")
    assert (asked.next, asked.status) == (Next.WAIT, CallStatus.UNCERTAIN)
    await answered(world, Verdict.HAPPENED)
    assert (await again(world, call)).next is Next.USE


@pytest.mark.proves("D.276")
@pytest.mark.parametrize("verdict", list(Verdict))
async def test_a_person_says_whether_it_happened(world: World, clock: Clock, verdict: Verdict) -> None:
    call = await begun(world, "ask_human")
    await clock.advance(LONG)
    # Nobody looked yet: asking again does not begin it either.
    assert (await again(world, call)).next is Next.WAIT
    assert await tick(world) == ["doubted"]
    assert await tick(world) == []
    assert (await again(world, call)).next is Next.WAIT
    await answered(world, verdict)
    now = await again(world, call)
    expected = {Verdict.HAPPENED: Next.USE, Verdict.DID_NOT_HAPPEN: Next.RUN, Verdict.FAIL: Next.STOP}
    assert now.next is expected[verdict]
    assert now.attempt == (2 if verdict is Verdict.DID_NOT_HAPPEN else 1)
    job = await jobs.get(world.db, world.admin.actor, call.job_id)
    assert job.status is JobStatus.RUNNING


@pytest.mark.proves("D.276")
async def test_fail_fails_the_call_alone(world: World, clock: Clock) -> None:
    call = await begun(world, "fail")
    await clock.advance(LONG)
    assert await tick(world) == ["doubted"]
    over = await again(world, call)
    assert (over.next, over.status) == (Next.STOP, CallStatus.FAILED)
    assert "Nobody knows whether it happened" in (over.reason or "")
    assert await cards(world) == []


@pytest.mark.proves("D.276")
async def test_a_probe_is_the_agents_business(world: World, clock: Clock) -> None:
    call = await begun(world, "probe")
    await clock.advance(LONG)
    assert await tick(world) == ["doubted"]
    assert (await again(world, call)).next is Next.PROBE
    actor, blind = world.service.actor, IntentDraft(input_hash=call.input_hash, sender="s")
    with pytest.raises(Conflict) as refused:
        await calls.begin_call(world.db, actor, call.id, blind)
    assert refused.value.code == "call_in_doubt"
    looked = IntentDraft(input_hash=call.input_hash, sender="s", did_not_happen=True)
    sent = await calls.begin_call(world.db, actor, call.id, looked)
    assert (sent.next, sent.attempt) == (Next.RUN, 2)
    found = OutcomeDraft(status=OutcomeStatus.COMPLETED, result="there", probed=True)
    await outcomes.settle_call(world.db, actor, call.id, found)
    done = await calls.get_call(world.db, actor, call.id)
    assert (done.next, done.settled_by) == (Next.USE, "probe")


@pytest.mark.proves("D.276")
async def test_whoever_ran_it_may_say_that_nobody_knows(world: World) -> None:
    call = await begun(world, "ask_human")
    unknown = OutcomeDraft(status=OutcomeStatus.UNKNOWN, error="connection reset", attempt=1)
    said = await outcomes.settle_call(world.db, world.service.actor, call.id, unknown)
    assert said.status is CallStatus.UNCERTAIN
    assert said.approval_id is not None
    assert await outcomes.settle_call(world.db, world.service.actor, call.id, unknown) == said
    # It turns out to have happened: nobody needs to answer any more.
    late = OutcomeDraft(status=OutcomeStatus.COMPLETED, result=1, attempt=1)
    await outcomes.settle_call(world.db, world.service.actor, call.id, late)
    assert await cards(world) == []
    card = (await approvals.get_approval(world.db, world.admin.actor, said.approval_id)).approval
    assert card.status is ApprovalStatus.CANCELLED


@pytest.mark.proves("D.276")
async def test_the_outcome_of_an_attempt_that_was_given_up_settles_nothing(world: World, clock: Clock) -> None:
    call = await begun(world, "retry_with_key")
    await clock.advance(LONG)
    assert (await again(world, call)).attempt == 2
    late = OutcomeDraft(status=OutcomeStatus.FAILED, attempt=1)
    with pytest.raises(Conflict) as refused:
        await outcomes.settle_call(world.db, world.service.actor, call.id, late)
    assert refused.value.code == "attempt_over"
    assert (await calls.get_call(world.db, world.admin.actor, call.id)).status is CallStatus.INTENDED


@pytest.mark.proves("D.276")
async def test_what_has_begun_is_settled_after_its_session_is_over(world: World, clock: Clock) -> None:
    call = await begun(world, "ask_human")
    await session_lifecycle.terminate(world.db, world.admin.actor, call.session_id, Termination(reason="enough"))
    await clock.advance(LONG)
    assert await tick(world) == ["doubted"]
    assert (await calls.get_call(world.db, world.admin.actor, call.id)).status is CallStatus.FAILED


@pytest.mark.proves("D.277")
async def test_nobody_here_runs_its_job(world: World, db: Database, admin: asyncpg.Connection, clock: Clock) -> None:
    session = await opened(world)
    page = await jobs.list_page(db, world.admin.actor, None, 10, session_id=session)
    (job,) = page.items
    assert (job.kind, job.status, job.app) == (JobKind.EXTERNAL, JobStatus.RUNNING, "external")
    worker = uuid4()
    await admin.execute(
        "insert into worker (id, name, host, pid, apps, concurrency, expires_at)"
        " values ($1, 'w', 'h', 1, '{external,plane}', 5, plane_now() + interval '1 hour')", worker,
    )  # fmt: skip
    assert await jobs_store.claim_jobs(db, worker, ["external", "plane"], 5, UUID(int=0)) == ([], False)
    # Whatever would wake another job leaves this one alone.
    await admin.execute("update job set runnable_at = plane_now() where id = $1", job.id)
    assert await admin.fetchval("select runnable_at from job where id = $1", job.id) is None
    with pytest.raises(asyncpg.CheckViolationError):
        await admin.execute("update job set worker_id = $2, leased_at = plane_now() where id = $1", job.id, worker)
    await clock.advance(timedelta(days=400))
    assert await tick(world) == []
    assert await workers.adopt_jobs(db, uuid4(), "other", 3) == []
    assert (await jobs.get(db, world.admin.actor, job.id)).status is JobStatus.RUNNING


COPIES = """
with copied as (
  insert into external_call
  select (jsonb_populate_record(x, jsonb_build_object('call_id', gen_random_uuid(), 'key', 'copy' || n,
    'created_at', x.created_at + make_interval(secs => n)))).*
  from external_call x, generate_series(1, $2::integer) n where x.call_id = $1
  returning call_id, created_at)
insert into tool_call
select (jsonb_populate_record(c, jsonb_build_object('id', k.call_id, 'status', 'allowed', 'created_at', k.created_at,
  'step_index', 10 + row_number() over ()))).*
from tool_call c, copied k where c.id = $1
"""


@pytest.mark.parametrize("copies", [498, 499, 500, 1200])
async def test_list_by_status_continues_after_each_500_calls(
    world: World, admin: asyncpg.Connection, copies: int
) -> None:
    call = await begun(world, "fail")
    await admin.execute("set session_replication_role = replica")
    await admin.execute(COPIES, call.id, copies)
    ids, sizes, position = [], [], None
    while True:
        page = await calls.list_calls(world.db, world.service.actor, position, 5, status=CallStatus.INTENDED)
        ids += [item.id for item in page.items]
        sizes.append(len(page.items))
        position = page.next
        if position is None:
            break
    assert ids == [call.id]
    assert len(sizes) == (copies + 1) // 500 + 1
    everything = await calls.list_calls(world.db, world.service.actor, None, 5, status=CallStatus.ALLOWED)
    assert len(everything.items) == 5
    assert everything.next is not None
