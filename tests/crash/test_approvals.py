"""Killed at every statement of asking and of deciding: a request is never lost, and never consumed without its job going on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from signal import SIGKILL
from typing import Any

import asyncpg
import pytest
import pytest_asyncio
from benchmarks.world import World as Outside

from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalDecision,
    ApprovalStatus,
    Channel,
    Choice,
    RecordResult,
)
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.jobs.model.jobs import Cancellation
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.verbs import audit, receipts
from cortex_plane.tenancy.model.access import scheduler_actor
from tests.approvals.test_approval_races import PROMISES
from tests.conftest import Urls
from tests.crash.outcomes import require_clean
from tests.crash.points import (
    TIMED,
    apart,
    each,
    every_third_statement,
    extents,
    from_the_claim_on,
    last_transaction,
    name,
    naming,
    without_statements_after,
    worth_a_try,
)
from tests.crash.stage import Run, Stage
from tests.crash.tools import Kind, act_name
from tests.crash.workers import WorkerProcess, Workers
from tests.fixtures.people import World
from tests.fixtures.workers import call, turn

WAITS = "select 1 from job where id = $1 and status = 'WAITING_FOR_APPROVAL'"


@pytest_asyncio.fixture
async def asking(
    urls: Urls, strict: World, admin: asyncpg.Connection, outside: Outside, workers: Workers
) -> AsyncIterator[Stage]:
    """A stage whose org has no policies: every act needs its owner's approval. What signs receipts is made with the first
    decision of an org; here it is there, so that each decision passes the same points."""
    async with strict.db.transaction(strict.org_id) as tx:
        await receipts.get_signer(strict.db, tx)
    async with Stage(urls.app, strict, admin, outside, workers).playing() as stage:
        yield stage


async def _submit(stage: Stage, kind: Kind, words: str, label: str) -> Run:
    turns = [turn(call("look", at="here"), *(call(kind, word=word) for word in words))]
    return await stage.submit_script(kind, turns, [(0, word) for word in words], label)


async def _asked(stage: Stage, run: Run) -> list[Approval]:
    """The open requests of a job that waits, in the order of its calls."""
    await stage.until(WAITS, run.job_id)
    world = stage.world
    page = await approvals.list_approvals(
        world.db, world.admin.actor, None, 10, status=ApprovalStatus.PENDING, job_id=run.job_id
    )
    return sorted(page.items, key=lambda asked: str(asked.arguments["word"]))


async def _waits(stage: Stage, run: Run) -> list[Approval]:
    """Brought there by the rescuer, which then leaves it: nobody takes the job before the test says so."""
    await stage.bring(run, WAITS)
    return await _asked(stage, run)


async def _decide(stage: Stage, asked: Approval, choice: Choice, **more: Any) -> RecordResult:
    decision = ApprovalDecision(decision=choice, version=asked.version, input_hash=asked.input_hash, **more)
    world = stage.world
    return (await decisions.decide(world.db, world.admin.actor, asked.id, decision, Channel.API)).result


async def _promises(stage: Stage) -> None:
    assert [name for name, query in PROMISES.items() if await stage.rows(query)] == []
    assert (await audit.verify(stage.world.db, stage.world.admin.actor)).faults == []


# Asking ------------------------------------------------------------------------------------------------------


@extents
@pytest.mark.proves("D.102")
async def test_killed_at_every_statement_of_asking(asking: Stage, whole: bool) -> None:
    stage = asking
    first = await _submit(stage, Kind.WITH_KEY, "ab", "nothing")
    worker = await stage.worker(first.app, records=True)
    await _asked(stage, first)
    assert await worker.end() == 0, worker.said()
    points = worth_a_try(worker.points(), statements=True)
    points = points[points.index("model:after#1") : points.index("stop_worker:before#1")]
    points = without_statements_after(points)
    if not whole:
        points = last_transaction(points)
    statements = [point for point in points if point.startswith("statement:before")]
    assert len(statements) >= 6, "the lock, two look-ups, two requests and the write of the attempt"

    async def kill(point: str) -> None:
        run = await _submit(stage, Kind.WITH_KEY, "ab", point)
        await stage.killed(run, point)
        asked = await _waits(stage, run)
        assert [(a.arguments["word"], a.version, a.invocations) for a in asked] == [("a", 1, 1), ("b", 1, 1)]
        rows = await stage.rows("select id from approval_request where job_id = $1", run.job_id)
        assert len(rows) == 2, "asked once, by whoever came through"
        for one in asked:
            assert await _decide(stage, one, Choice.APPROVED) is RecordResult.OK
        await stage.rescued(run)

    for one in await _asked(stage, first):
        await _decide(stage, one, Choice.APPROVED)
    await stage.rescued(first)
    await each(points, kill)
    await require_clean(stage)
    await _promises(stage)


# Deciding ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deed:
    """What a process does to a request before it is killed, and where that leads if it did."""

    verb: str
    ends_as: str
    job: str
    acts: str
    words: str = "a"
    choice: Choice | None = None
    more: dict[str, Any] = field(default_factory=dict)


DEEDS = {
    "approve": Deed("decide", "approved", "RUNNING", "a", choice=Choice.APPROVED),
    "approve, with a key": Deed("decide", "approved", "RUNNING", "a", choice=Choice.APPROVED, more={"key": "k"}),
    "approve, edited": Deed(
        "decide", "approved", "RUNNING", "b", choice=Choice.APPROVED, more={"arguments": {"word": "b"}}
    ),
    "deny": Deed("decide", "denied", "FAILED", "", words="ab", choice=Choice.DENIED),
    "respond": Deed(
        "decide", "responded", "RUNNING", "", choice=Choice.RESPONDED, more={"key": "k", "answer": "Go another way."}
    ),
    "expire": Deed("act_when_due", "expired", "FAILED", "", words="ab"),
    "cancel": Deed("cancel", "cancelled", "CANCELLED", ""),
}  # fmt: skip
OVER = "update approval_request set deadline = plane_now(), next_action_at = plane_now() where id = $1"


async def _process(stage: Stage, deed: Deed, run: Run, asked: Approval, **more: Any) -> WorkerProcess:
    if deed.verb == "act_when_due":
        await stage.change(OVER, asked.id)
    arguments = {
        "secret": stage.world.admin.secret, "org": str(stage.world.org_id), "job": str(run.job_id),
        "approval": str(asked.id), "version": asked.version, "input_hash": asked.input_hash,
        "choice": deed.choice, **deed.more,
    }  # fmt: skip
    return await stage._workers.start(stage.url, run.app, verb=deed.verb, arguments=arguments, **more)


async def _all_or_nothing(stage: Stage, deed: Deed, run: Run, asked: Approval) -> bool:
    """Whether it was decided; and in each case everything that belongs to that, and nothing else."""
    (row,) = await stage.rows(
        """
        select r.status, r.version, r.next_action_at is null as over, j.status as job, j.open_approvals,
          j.runnable_at is not null as ready, c.status as call,
          (select count(*) from approval_vote v where v.approval_id = r.id) as votes,
          (select count(*) from approval_grant g where g.approval_id = r.id and g.consumed_at is null) as grants,
          (select count(*) from approval_event e where e.approval_id = r.id
            and e.event_type not in ('requested', 'dispatched')) as events,
          (select count(*) from audit_entry a where a.session_id = r.session_id and a.action in (
            'approval_decision', 'approval_expired', 'approval_cancelled', 'job_failed', 'session_resumed')) as said
        from approval_request r join job j on j.id = r.job_id
        join approval_invocation i on i.approval_id = r.id join tool_call c on c.id = i.call_id
        where r.id = $1
        """,
        asked.id,
    )
    requests = len(deed.words)
    if row["status"] == "pending":
        wanted = ("pending", 1, False, "WAITING_FOR_APPROVAL", requests, False, "awaiting", 0, 0, 0, 0)
        assert tuple(row) == wanted, dict(row)
        return False
    granted, edited = deed.ends_as == "approved", "arguments" in deed.more
    call_status = {"approved": "approved", "responded": "answered"}.get(deed.ends_as, "rejected")
    said = {"approved": 2, "responded": 2, "denied": 3, "expired": 3, "cancelled": 1}[deed.ends_as]
    assert tuple(row) == (
        deed.ends_as, 2 if edited else 1, True, deed.job, 0, deed.job == "RUNNING", call_status, int(deed.choice is not None),
        int(granted), 2 if edited else 1, said,
    ), dict(row)  # fmt: skip
    return True


async def _finish(stage: Stage, deed: Deed, run: Run, asked: Approval, decided: bool) -> None:
    """Whoever sends it again is told the truth, and the job ends as it should."""
    world = stage.world
    if deed.verb == "decide":
        assert deed.choice is not None
        more = {name: deed.more[name] for name in ("arguments", "answer") if name in deed.more}
        result = await _decide(stage, asked, deed.choice, **more)
        assert result is (RecordResult.DUPLICATE if decided else RecordResult.OK)
    elif deed.verb == "cancel":
        receipt = await steering.cancel(world.db, world.admin.actor, run.job_id, Cancellation())
        assert receipt.changed is not decided
    else:
        actor = scheduler_actor(world.org_id, new_id(), "the next one")
        acted = await decisions.act_when_due(world.db, actor, asked.id)
        assert (acted is None) is decided
    assert await _all_or_nothing_again(stage, asked) == deed.ends_as
    if deed.job == "RUNNING":
        stage.rescue(run.app)
    assert await stage.finished(run.job_id) == ("COMPLETED" if deed.job == "RUNNING" else deed.job)
    stage.leave(run.app)


async def _all_or_nothing_again(stage: Stage, asked: Approval) -> str:
    (row,) = await stage.rows("select status from approval_request where id = $1", asked.id)
    return str(row["status"])


@extents
@pytest.mark.proves("D.102", "D.745")
async def test_killed_at_every_statement_of_deciding(asking: Stage, whole: bool) -> None:
    for number, (label, deed) in enumerate(DEEDS.items()):
        with naming(label):
            await _kill_at_every_statement(asking, deed, None if whole else number)
    await _promises(asking)


async def _kill_at_every_statement(stage: Stage, deed: Deed, number: int | None) -> None:
    """``number`` is that of a deed whose short form is enough."""
    earlier = len(stage.runs)

    async def waiting(label: str) -> tuple[Run, Approval]:
        run = await _submit(stage, Kind.WITH_KEY, deed.words, label)
        return run, (await _waits(stage, run))[0]

    run, asked = await waiting("nothing")
    process = await _process(stage, deed, run, asked, records=True)
    assert await process.wait() == 0, process.said()
    assert await _all_or_nothing(stage, deed, run, asked)
    await _finish(stage, deed, run, asked, decided=True)
    points = process.points()
    assert sum(point.startswith("statement:before") for point in last_transaction(points)) >= 3
    if number is not None:
        # Who is asking, and what was asked, is read before.
        points = every_third_statement(last_transaction(without_statements_after(points)), number)
    last_commit = max(n for n, point in enumerate(points) if point.startswith("commit:before"))

    async def kill(run: Run, asked: Approval, point: str) -> None:
        victim = await _process(stage, deed, run, asked, at=point)
        assert await victim.wait() == -SIGKILL, victim.said()
        # A backend may need a moment to notice that its client is gone.
        decided = await _settled_down(stage, asked, lambda: _all_or_nothing(stage, deed, run, asked))
        assert decided == (points.index(point) > last_commit)

    # Who dies before the commit leaves the request as it was: the next one dies at the next point of the same request.
    run, asked = await waiting("before the commit")
    for point in points[: last_commit + 1]:
        with naming(point):
            await kill(run, asked, point)
    await _finish(stage, deed, run, asked, decided=False)
    for point in points[last_commit + 1 :]:
        with naming(point):
            run, asked = await waiting(point)
            await kill(run, asked, point)
            await _finish(stage, deed, run, asked, decided=True)
    acts = [act["payload"]["act"] for act in await stage.outside.log()]
    for done in stage.runs[earlier:]:
        happened = [word for word in "ab" for _ in range(acts.count(act_name(done.job_id, 0, word)))]
        assert "".join(happened) == deed.acts, done.label


async def _settled_down(stage: Stage, asked: Approval, look: Callable[[], Any]) -> bool:
    """Looks once nobody holds the request any more."""
    async with asyncio.timeout(20):
        while not await stage.rows(  # noqa: ASYNC110 -- the backend of a dead process
            "select 1 from approval_request where id = $1 for no key update skip locked", asked.id
        ):
            await asyncio.sleep(0.01)
    decided: bool = await look()
    return decided


# Going on ----------------------------------------------------------------------------------------------------


@extents
@pytest.mark.proves("D.102")
async def test_killed_between_the_decision_and_the_effect(asking: Stage, whole: bool) -> None:
    """The grant is consumed with the intent: approved once, sent once, whoever dies on the way."""
    stage = asking

    async def approved(kind: Kind, label: str) -> Run:
        run = await _submit(stage, kind, "a", label)
        for asked in await _waits(stage, run):
            await _decide(stage, asked, Choice.APPROVED)
        return run

    async def kill_each(kind: Kind) -> None:
        run = await approved(kind, "nothing")
        worker = await stage.worker(run.app, records=True)
        await stage.finished(run.job_id)
        assert await worker.end() == 0, worker.said()
        points = list(from_the_claim_on(worth_a_try(worker.points(), statements=True)))
        # What happens by the clock is not always passed in this short life.
        points = [point for point in points if name(point) == "claim_jobs" or name(point) not in TIMED]
        # From the second step on it is a run like any other. It may begin while the outcome of the first is written.
        points = points[: max(points.index("model:before#1"), points.index("advance_job:after#2") + 1)]
        if kind is not Kind.WITH_KEY:
            # What is read before the first write is the same for all of them.
            points = points[points.index("advance_job:before#1") :]
        assert {"advance_job:before#1", "act:sent#1", "tool:after#2", "advance_job:after#2"} <= set(points)
        if not whole:
            points = apart(points, worker.points())

        async def kill(point: str) -> None:
            run = await approved(kind, point)
            await stage.killed(run, point)
            await stage.rescued(run)

        await each(points, kill)

    await asyncio.gather(*map(kill_each, Kind))
    await require_clean(stage)
    await _promises(stage)
    rows = await stage.rows("select call_id from approval_grant where consumed_at is null")
    assert rows == [], "every approved call was sent, or its job was given up after it was"
