"""Where a crash test plays: one database, the outside world, workers that die, and one that finishes what they left."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from signal import SIGKILL
from typing import Any
from uuid import UUID

import asyncpg
from benchmarks.world import World as Outside

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import Agent
from cortex_plane.approvals.verbs import settlements
from cortex_plane.jobs.model.effects import STEP, Answer, Verdict
from cortex_plane.jobs.model.jobs import JobDraft
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.sessions.model.sessions import InboundMessage
from cortex_plane.sessions.verbs import sessions
from cortex_plane.worker.worker import STEADY_BEATS, JobRunner
from tests.crash.tools import SHORT, Kind, act_name, crash_app, renamed
from tests.crash.workers import DEADLINE, WorkerProcess, Workers
from tests.fixtures.people import World
from tests.fixtures.workers import KEY, call, make_agent, turn

ENDED = ("COMPLETED", "FAILED", "CANCELLED")
LOOK_SECONDS = 0.05
RESCUER = replace(SHORT, poll_seconds=0.1)
VICTIMS = 3
"""So many work at once; while they are dead, their runs only wait."""

PASSED_FOR_CALLS = """
    update tool_call set dispatch_before = dispatch_before - (settle_after - plane_now()), settle_after = plane_now()
    where job_id = $1 and finished_at is null and settle_after > plane_now()"""
PASSED_FOR_WORKER = """
    update worker set expires_at = least(expires_at, plane_now() - interval '1 ms') where name = $1"""

Act = tuple[int, str]
"""The step and the word of an act."""


@dataclass(eq=False, kw_only=True)
class Run:
    """One job, and what was done to it."""

    label: str
    kind: Kind
    app: str
    agent: Agent
    job_id: UUID
    acts: Sequence[Act]
    steps: int | None
    """How many it ends with; None: that depends."""
    session_id: UUID
    asked: set[UUID] = field(default_factory=set)
    """Calls that a person was asked about."""


def script(kind: Kind) -> list[dict[str, Any]]:
    """A look and an act in one response; two acts in one response; then the end."""
    return [
        turn(call("look", at="here"), call(kind, word="a"), text="I look, then I act."),
        turn(call(kind, word="b"), call(kind, word="c")),
    ]


ACTS: Sequence[Act] = ((0, "a"), (1, "b"), (1, "c"))


class Stage:
    def __init__(self, url: str, world: World, admin: Any, outside: Outside, workers: Workers) -> None:
        self.url, self.world, self.outside = url, world, outside
        self.code = crash_app(outside)
        self.runs: list[Run] = []
        self._admin, self._workers = admin, workers
        self._admin_lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._processors = asyncio.Semaphore(VICTIMS)
        self._ends: dict[UUID, asyncio.Future[str]] = {}
        self._answering: dict[UUID, asyncio.Task[None]] = {}
        self.rescuer = JobRunner(world.db, [], KEY, RESCUER, name="rescuer")
        self.rescuer._steady = STEADY_BEATS  # as one that has been there for a while

    @contextlib.asynccontextmanager
    async def playing(self, *, rescuer: bool = True) -> AsyncIterator[Stage]:
        watch = asyncio.create_task(self._watch())
        rescue = asyncio.create_task(self.rescuer.run()) if rescuer else None
        try:
            yield self
        finally:
            self.rescuer.stop()
            if rescue is not None:
                await asyncio.wait_for(rescue, DEADLINE)
            watch.cancel()
            await asyncio.wait([watch])
            if not watch.cancelled() and watch.exception():
                raise AssertionError("the watch ended") from watch.exception()

    # Jobs ------------------------------------------------------------------------------------------------------

    def new_app(self) -> str:
        return f"crash-{next(self._numbers)}"

    async def agent(
        self,
        turns: Sequence[dict[str, Any]],
        app: str | None = None,
        slug: str | None = None,
        limits: dict[str, Any] | None = None,
        defer_outcomes: bool = False,
    ) -> tuple[Agent, str]:
        """An agent with an app of its own, so that only the workers that are meant to take its jobs."""
        app = app or self.new_app()
        slug = slug or app
        return await make_agent(
            self.world, turns, app=app, slug=slug, limits=limits, defer_outcomes=defer_outcomes
        ), app

    async def submit(self, kind: Kind, label: str, **more: Any) -> Run:
        return await self.submit_script(kind, script(kind), ACTS, label, **more)

    async def submit_script(
        self, kind: Kind, turns: Sequence[dict[str, Any]], acts: Sequence[Act], label: str = "nothing", **more: Any
    ) -> Run:
        agent, app = await self.agent(turns, **more)
        job = await jobs.submit(
            self.world.db, self.world.admin.actor, JobDraft(agent=agent.slug, payload={"text": "go"})
        )
        return self.add(
            Run(
                label=label, kind=kind, app=app, agent=agent, job_id=job.id, session_id=job.session_id, acts=acts,
                steps=len(turns) + 1,
            )
        )  # fmt: skip

    async def say(self, agent: Agent, text: str) -> tuple[UUID, UUID]:
        """A message of the agent's only user: its session, and the job that will read it."""
        inbound = InboundMessage(external_user_id=f"user-of-{agent.slug}", agent=agent.slug, text=text)
        delivery = await sessions.ingest_message(
            self.world.db, self.world.service.actor, self.world.connection.id, inbound
        )
        return delivery.session_id, delivery.job_id

    def add(self, run: Run) -> Run:
        self.runs.append(run)
        self._ends[run.job_id] = asyncio.get_running_loop().create_future()
        return run

    def done(self, job_id: UUID) -> bool:
        return self._ends[job_id].done()

    async def finished(self, job_id: UUID) -> str:
        """The status that a job ended with."""
        try:
            async with asyncio.timeout(DEADLINE):
                return await asyncio.shield(self._ends[job_id])
        except TimeoutError:
            rows = await self.rows(
                "select status, worker_id, epoch, holds, runnable_at, deaths, error_message, step_index"
                " from job where id = $1",
                job_id,
            )
            raise AssertionError(f"job {job_id} does not end: {dict(rows[0])}") from None

    # Workers ---------------------------------------------------------------------------------------------------

    async def worker(self, app: str, **more: Any) -> WorkerProcess:
        return await self._workers.start(self.url, app, **more)

    async def killed(self, run: Run, point: str) -> None:
        """A worker takes the job and dies at a point, which may be one that it passes only when it is told to end."""
        async with self._processors, asyncio.timeout(DEADLINE):
            victim = await self.worker(run.app, at=point)
            ends: list[asyncio.Future[Any]] = [victim.ended, self._ends[run.job_id]]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            code = await (victim.wait() if victim.ended.done() else victim.end())
        assert code == -SIGKILL, f"{point} was never reached:\n{victim.said()}"
        await self.let_time_pass(victim, run)

    async def let_time_pass(self, victim: WorkerProcess, run: Run) -> None:
        """Until the lease of a dead worker has run out, and nothing of it can be under way any more.

        Tests of interruptions wait in real time: there the worker is alive.
        """
        assert not victim.alive
        await self.change(PASSED_FOR_CALLS, run.job_id)
        await self.change(PASSED_FOR_WORKER, victim.order.name)

    def rescue(self, app: str) -> None:
        """Let the worker that is never killed take over the jobs of an app."""
        self.rescuer.apps[app] = renamed(self.code, app)
        self.rescuer.work.set()

    async def rescued(self, run: Run) -> None:
        self.rescue(run.app)
        await self.finished(run.job_id)
        self.leave(run.app)

    def leave(self, app: str) -> None:
        self.rescuer.apps.pop(app, None)

    async def bring(self, run: Run, query: str) -> None:
        """Let the rescuer work on a job until a query about it has a row. Then it takes no job of that app any more."""
        await agents_store.publish_tools(self.world.db, renamed(self.code, run.app).versions)
        self.rescue(run.app)
        await self.until(query, run.job_id)
        self.leave(run.app)
        async with self.rescuer._claiming:
            pass  # the claim that was under way still named the app

    # Looking ---------------------------------------------------------------------------------------------------

    async def rows(self, query: str, *args: Any) -> list[asyncpg.Record]:
        async with self._admin_lock:
            found: list[asyncpg.Record] = await self._admin.fetch(query, *args)
        return found

    async def change(self, statement: str, *args: Any) -> None:
        async with self._admin_lock:
            await self._admin.execute(statement, *args)

    async def until(self, query: str, *args: Any) -> asyncpg.Record:
        """The first row of a query, once it has one."""
        async with asyncio.timeout(DEADLINE):
            while True:
                rows = await self.rows(query, *args)
                if rows:
                    return rows[0]
                await asyncio.sleep(LOOK_SECONDS)

    async def _watch(self) -> None:
        query = "select id, status from job where id = any ($1) and status in ('PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')"
        while True:
            waiting = [id for id, end in self._ends.items() if not end.done()]
            for row in await self.rows(query, waiting) if waiting else []:
                if row["status"] in ENDED:
                    self._ends[row["id"]].set_result(row["status"])
                elif (task := self._answering.get(row["id"])) is None or task.done():
                    self._answering[row["id"]] = asyncio.create_task(self._answer(row["id"]))
            await asyncio.sleep(LOOK_SECONDS)

    async def _answer(self, job_id: UUID) -> None:
        """As an operator: look at the outside world, then say what is true."""
        db, actor = self.world.db, self.world.admin.actor
        run = next((run for run in self.runs if run.job_id == job_id), None)
        with contextlib.suppress(CortexError):
            for question in await steering.list_questions(db, actor, job_id):
                if run is not None:
                    run.asked.add(question.call_id)
                arguments = question.arguments
                word = arguments["arguments"][0] if question.tool_name == STEP else arguments["word"]
                named = act_name(job_id, question.step_index, word)
                key = str(question.call_id) if question.tool_name == Kind.PROBED else named
                happened = await self.outside.count(key) > 0
                answer = Answer(
                    verdict=Verdict.HAPPENED if happened else Verdict.DID_NOT_HAPPEN,
                    result={"seen": True} if happened else None,
                    note="looked at the world",
                )
                with contextlib.suppress(Conflict):  # somebody else was faster
                    await settlements.settle(db, actor, job_id, question.call_id, answer)
