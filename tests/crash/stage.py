"""Where a crash test plays: one database, the outside world, workers that die, and one that finishes what they left."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg
from benchmarks.world import World as Outside

from cortex_plane.domain.agents import Agent
from cortex_plane.domain.effects import Answer, Verdict
from cortex_plane.domain.errors import Conflict, CortexError
from cortex_plane.domain.messages import InboundMessage
from cortex_plane.operations import messages, steering
from cortex_plane.operations import workers as worker_operations
from cortex_plane.runtime.worker import Worker
from tests.crash.tools import SHORT, Kind, act_name, crash_app
from tests.crash.workers import DEADLINE, WorkerProcess, Workers
from tests.people import World
from tests.runtime.planes import KEY, call, make_agent, submit, turn

ENDED = ("COMPLETED", "FAILED", "CANCELLED")
LOOK_SECONDS = 0.03

Act = tuple[int, str]
"""The step and the word of an act."""


@dataclass(eq=False)
class Run:
    """One job, and what was done to it."""

    label: str
    kind: Kind
    app: str
    agent: Agent
    job_id: UUID
    acts: Sequence[Act]
    steps: int
    session_id: UUID | None = None
    asked: set[UUID] = field(default_factory=set)
    """Calls that a person was asked about."""


def script(kind: Kind) -> list[dict[str, Any]]:
    """A look and an act in one response; two acts in one response; then the end."""
    return [
        turn(call("look", at="here"), call(kind, word="a"), text="I look, then I act."),
        turn(call(kind, word="b"), call(kind, word="c")),
    ]


ACTS: Sequence[Act] = ((0, "a"), (1, "b"), (1, "c"))
STEPS = 3


class Stage:
    def __init__(
        self, url: str, world: World, admin: asyncpg.Connection, outside: Outside, workers: Workers
    ) -> None:
        self.url, self.world, self.outside = url, world, outside
        self.runs: list[Run] = []
        self._admin, self._workers = admin, workers
        self._admin_lock = asyncio.Lock()
        self._numbers = itertools.count(1)
        self._ends: dict[UUID, asyncio.Future[str]] = {}
        self._answering: dict[UUID, asyncio.Task[None]] = {}
        self.rescuer = Worker(world.db, [], KEY, SHORT, name="rescuer")

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

    async def submit(self, kind: Kind, label: str, *, app: str | None = None) -> Run:
        app = app or self.new_app()
        agent = await make_agent(self.world, script(kind), app=app, slug=app)
        return self._add(Run(label, kind, app, agent, await submit(self.world, agent), ACTS, STEPS))

    async def submit_script(self, kind: Kind, turns: Sequence[dict[str, Any]], acts: Sequence[Act]) -> Run:
        app = self.new_app()
        agent = await make_agent(self.world, turns, app=app, slug=app)
        job_id = await submit(self.world, agent)
        return self._add(Run(app, kind, app, agent, job_id, acts, len(turns) + 1))

    async def say(self, run_or_agent: Run | Agent, text: str) -> tuple[UUID, UUID]:
        """A message of the agent's only user: its session, and the job that will read it."""
        agent = run_or_agent.agent if isinstance(run_or_agent, Run) else run_or_agent
        inbound = InboundMessage(external_user_id=f"user-of-{agent.slug}", agent=agent.slug, text=text)
        delivery = await messages.ingest(
            self.world.db, self.world.service.actor, self.world.connection.id, inbound
        )
        return delivery.session_id, delivery.job_id

    def follow(self, job_id: UUID) -> None:
        self._ends[job_id] = asyncio.get_running_loop().create_future()

    def _add(self, run: Run) -> Run:
        self.runs.append(run)
        self.follow(run.job_id)
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
        return await self._workers.start(self.url, self.outside, app, **more)

    async def until_dead(self, victim: WorkerProcess, job_id: UUID) -> int:
        """A victim dies at its point, which may be one that it passes only when it is told to end."""
        ends: list[asyncio.Future[Any]] = [victim.ended, self._ends[job_id]]
        async with asyncio.timeout(DEADLINE):
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if not victim.ended.done():
                return await victim.end()
            return await victim.wait()

    async def rescue(self, app: str) -> None:
        """Let the worker that is never killed take over the jobs of an app."""
        code = crash_app(app, self.outside)
        await worker_operations.publish(self.world.db, code.versions)
        self.rescuer.apps[app] = code
        self.rescuer.work.set()

    def leave(self, app: str) -> None:
        self.rescuer.apps.pop(app, None)

    # Looking ---------------------------------------------------------------------------------------------------

    async def rows(self, query: str, *args: Any) -> list[asyncpg.Record]:
        async with self._admin_lock:
            found: list[asyncpg.Record] = await self._admin.fetch(query, *args)
        return found

    async def until(self, query: str, *args: Any) -> asyncpg.Record:
        """The first row of a query, once it has one."""
        async with asyncio.timeout(DEADLINE):
            while True:
                rows = await self.rows(query, *args)
                if rows:
                    return rows[0]
                await asyncio.sleep(0.01)

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
            for question in await steering.questions(db, actor, job_id):
                if run is not None:
                    run.asked.add(question.call_id)
                named = act_name(job_id, question.step_index, question.arguments["word"])
                key = str(question.call_id) if question.tool_name == Kind.PROBED else named
                happened = await self.outside.count(key) > 0
                answer = Answer(
                    verdict=Verdict.HAPPENED if happened else Verdict.DID_NOT_HAPPEN,
                    result={"seen": True} if happened else None,
                    note="looked at the world",
                )
                with contextlib.suppress(Conflict):  # somebody else was faster
                    await steering.settle(db, actor, job_id, question.call_id, answer)
