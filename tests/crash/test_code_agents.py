"""Agents written as code, killed wherever they write or act: every act happened once, and the function came to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from signal import SIGKILL

import pytest

from cortex_plane.approvals.model.approvals import ApprovalDecision, ApprovalKind, ApprovalStatus, Channel, Choice
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.jobs.model.jobs import JobDraft
from cortex_plane.jobs.verbs import jobs
from cortex_plane.kernel.errors import CortexError
from cortex_plane.proof.verbs import audit
from tests.acceptance.test_campaign import INVARIANTS
from tests.approvals.test_approval_races import PROMISES
from tests.crash.outcomes import Outcome
from tests.crash.points import apart, each, extents, from_the_claim_on, name, worth_a_try
from tests.crash.stage import LOOK_SECONDS, Run, Stage
from tests.crash.tools import Kind
from tests.crash.workers import DEADLINE
from tests.fixtures.workers import make_agent

WORDS = "abcdefgh"
"""Those from `f` on are acts of steps."""
ENOUGH = 10
OPEN_REQUEST = "select 1 from approval_request where status = 'pending' and kind = 'call' limit 1"


async def _submit(stage: Stage, label: str) -> Run:
    app = stage.new_app()
    agent = await make_agent(stage.world, [], app=app, slug=app, run="walk")
    job = await jobs.submit(stage.world.db, stage.world.admin.actor, JobDraft(agent=agent.slug, payload={"text": "go"}))
    return stage.add(
        Run(
            label=label, kind=Kind.WITH_KEY, app=app, agent=agent, job_id=job.id, session_id=job.session_id, acts=(),
            steps=None,
        )
    )  # fmt: skip


@contextlib.asynccontextmanager
async def approving(stage: Stage) -> AsyncIterator[None]:
    """Somebody says yes to whatever an agent asks."""

    async def approve() -> None:
        world = stage.world
        while True:
            # A page of approvals costs much, and most of the time nobody asks anything.
            while not await stage.rows(OPEN_REQUEST):  # noqa: ASYNC110 -- another process asks
                await asyncio.sleep(LOOK_SECONDS)
            page = await approvals.list_approvals(world.db, world.admin.actor, None, 100, status=ApprovalStatus.PENDING)
            for asked in page.items:
                if asked.kind is not ApprovalKind.CALL:
                    continue  # a question about an effect, which the stage answers
                yes = ApprovalDecision(decision=Choice.APPROVED, version=asked.version, input_hash=asked.input_hash)
                with contextlib.suppress(CortexError):  # its job ended meanwhile
                    await decisions.decide(world.db, world.admin.actor, asked.id, yes, Channel.API)

    task = asyncio.create_task(approve())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def _killed(stage: Stage, run: Run, point: str) -> bool:
    """Whether the worker came to that point: what branches do at once is not always written in the same commits."""
    async with stage._processors, asyncio.timeout(DEADLINE):
        victim = await stage.worker(run.app, at=point)
        ends: list[asyncio.Future[object]] = [victim.ended, stage._ends[run.job_id]]  # type: ignore[list-item]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        code = await (victim.wait() if victim.ended.done() else victim.end())
    assert code in (0, -SIGKILL), victim.said()
    await stage.let_time_pass(victim, run)
    return code == -SIGKILL


async def _judge(stage: Stage) -> None:
    names = [act["payload"]["act"].split(":") for act in await stage.outside.log()]
    # The same log has what other tests of this process did, under other names.
    acts = Counter((parts[0], parts[2]) for parts in names if len(parts) > 2)
    table: Counter[Outcome] = Counter()
    faults = []
    for run in stage.runs:
        (job,) = await stage.rows("select * from job where id = $1", run.job_id)
        # The last tool declares that its job fails where nobody knows whether it happened.
        (state,) = await stage.rows(
            "select memory #>> '{working_data,count}' as count from job where id = $1", run.job_id
        )
        if state["count"] != "2":
            faults.append(f"{run.label}: its state counts {state['count']}")
        gave_up = job["status"] == "FAILED" and "`act_or_fail` happened" in job["error_message"]
        if job["status"] != "COMPLETED" and not gave_up:
            faults.append(f"{run.label}: {job['status']} {job['holds']} {job['error_message']}")
        for word in WORDS:
            count = acts[str(run.job_id), word]
            allowed = (0, 1) if gave_up and word == "e" else (1,)
            table[Outcome.ONCE if count in allowed else Outcome.REPEATED if count > 1 else Outcome.LOST] += 1
            if count not in allowed:
                faults.append(f"{run.label}: act {word} happened {count} times")
        left = await stage.rows(
            "select 1 from tool_call where job_id = $1 and finished_at is null"
            " union all select 1 from journal_shown where job_id = $1 and status = 'open' and kind <> 'sleep'",
            run.job_id,
        )
        if left and not gave_up:
            faults.append(f"{run.label}: {len(left)} operations are still open")
    for promises in (INVARIANTS, PROMISES):
        faults += [name for name, query in promises.items() if await stage.rows(query)]
    faults += [str(fault) for fault in (await audit.verify(stage.world.db, stage.world.admin.actor)).faults]
    assert not faults, f"{dict(table)}\n" + "\n".join(faults)


@extents
@pytest.mark.proves("D.251", "D.337", "S1.240")
async def test_a_code_agent_is_killed_at_every_point(stage: Stage, whole: bool) -> None:
    async with approving(stage):
        first = await _submit(stage, "nothing")
        worker = await stage.worker(first.app, records=True)
        assert await stage.finished(first.job_id) == "COMPLETED"
        assert await worker.end() == 0, worker.said()
        points = [
            point
            for point in from_the_claim_on(worth_a_try(worker.points()))
            if name(point) in ("advance_job", "tool", "act", "step", "model", "probe", "job_journal", "job_past")
        ]
        if not whole:
            points = apart(points, worker.points())
        reached: list[str] = []

        async def kill(point: str) -> None:
            run = await _submit(stage, point)
            if await _killed(stage, run, point):
                reached.append(point)
            await stage.rescued(run)

        await each(points, kill)
    assert len(reached) >= ENOUGH
    await _judge(stage)


@extents
@pytest.mark.proves("D.251")
async def test_whoever_goes_on_is_killed_too(stage: Stage, whole: bool) -> None:
    """The first worker dies with an effect of a branch under way, the second wherever it gets to while it goes on."""

    async def orphan(label: str) -> Run:
        run = await _submit(stage, label)
        await _killed(stage, run, "act:sent#3")
        return run

    async with approving(stage):
        first = await orphan("nothing")
        worker = await stage.worker(first.app, records=True)
        await stage.finished(first.job_id)
        assert await worker.end() == 0, worker.said()
        points = [
            point
            for point in worth_a_try(worker.points())
            if name(point) in ("advance_job", "tool", "act", "step", "probe")
        ]
        if not whole:
            points = apart(points, worker.points())
        reached: list[str] = []

        async def kill(point: str) -> None:
            run = await orphan(f"act:sent#3, then at {point}")
            if await _killed(stage, run, point):
                reached.append(point)
            await stage.rescued(run)

        await each(points, kill)
    assert reached
    await _judge(stage)
