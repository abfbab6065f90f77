"""The long campaign: a thousand kills at random moments, while jobs stream in and the database itself dies.

    make soak                                   the whole of it, some ten minutes
    CORTEX_SOAK_KILLS=100 pytest -m soak …      less of it

A worker is stopped for longer than its lease, and for less than a tool may take: one that stands still for longer
just between its last look at the clock and its act would act late, and only an idempotency key helps against that.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP, SIGTERM
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import pytest
from benchmarks.world import World as Outside

from cortex_plane.approvals.verbs import settlements
from cortex_plane.db.database import Database
from cortex_plane.embedded import EmbeddedPostgres
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import JobDraft
from cortex_plane.jobs.verbs import jobs
from cortex_plane.kernel.errors import Conflict, Unavailable
from tests.crash.outcomes import judged
from tests.crash.stage import ACTS, Run, Stage
from tests.crash.tools import SHORT, Kind, act_name
from tests.crash.workers import DEADLINE, WorkerProcess, Workers, until
from tests.fixtures.people import World
from tests.fixtures.servers import VAULT, prepare
from tests.fixtures.workers import call, turn

KILLS = int(os.environ.get("CORTEX_SOAK_KILLS", "1000"))
WORKERS = 4
OPEN_JOBS = 40
DATABASE_DEATHS = 8
TOOL_SECONDS = 4.0
STOP_SECONDS = (SHORT.lease.total_seconds() + 0.2, TOOL_SECONDS - 1.0)
POINTS = ("advance_job:before", "advance_job:after", "tool:before", "act:sent", "tool:after", "claim_jobs:after",
          "probe:after", "adopt_job:after", "model:after")  # fmt: skip
APP = "soak"

T = TypeVar("T")
_GONE = (OSError, asyncpg.PostgresConnectionError, asyncpg.InterfaceError, asyncpg.CannotConnectNowError,
         asyncpg.AdminShutdownError, asyncpg.CrashShutdownError, asyncpg.InternalClientError, Unavailable)  # fmt: skip


async def patiently(do: Callable[[], Awaitable[T]]) -> T:
    """Again, until the database is there."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                return await do()
            except _GONE:
                await asyncio.sleep(0.1)


class PatientConnection:
    """A connection that is made again whenever the database has died."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: Any = None

    async def fetch(self, query: str, *args: Any) -> list[Any]:
        async def once() -> list[Any]:
            if self._connection is None or self._connection.is_closed():
                self._connection = await asyncpg.connect(self._url)
            rows: list[Any] = await self._connection.fetch(query, *args)
            return rows

        return await patiently(once)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


def _turns(kind: Kind, chance: random.Random) -> list[dict[str, Any]]:
    """The same acts as everywhere, at their own pace."""

    def some() -> int:
        return chance.choice((0, 20, 100))

    return [
        turn(call("look", at="here"), call(kind, word="a", delay_ms=some()), delay_ms=some()),
        turn(call(kind, word="b", delay_ms=some()), call(kind, word="c", delay_ms=some()), delay_ms=some()),
    ]


@dataclass
class Campaign:
    stage: Stage
    postgres: EmbeddedPostgres
    data: Path
    chance: random.Random
    slugs: dict[str, Kind] = field(default_factory=dict)
    living: list[WorkerProcess] = field(default_factory=list)
    asked: set[UUID] = field(default_factory=set)
    deeds: Counter[str] = field(default_factory=Counter)
    last_words: Counter[str] = field(default_factory=Counter)
    over: bool = False

    async def run(self) -> None:
        for kind in Kind:
            for number in range(3):
                slug = f"{kind.replace('_', '-')}-{number}"
                limits, defers = {"max_concurrent_jobs": 100}, number == 0
                await self.stage.agent(_turns(kind, self.chance), APP, slug, limits, defer_outcomes=defers)
                self.slugs[slug] = kind
        async with asyncio.TaskGroup() as group:
            duties = [group.create_task(duty()) for duty in (self._feed, self._answer, self._slay, self._storm)]
            slots = [group.create_task(self._keep_a_worker()) for _ in range(WORKERS)]
            await asyncio.wait([duties[2]])  # the kills are done
            self.over = True
            await self.stage.until("select 1 where not exists (select from job where finished_at is null)")
            for worker in self.living:
                worker.send(SIGTERM)
            await asyncio.wait(slots)
            duties[1].cancel()

    # Work ------------------------------------------------------------------------------------------------------

    async def _feed(self) -> None:
        world = self.stage.world
        while not self.over:
            for _ in range(OPEN_JOBS - await self._open_jobs()):
                draft = JobDraft(agent=self.chance.choice(sorted(self.slugs)), payload={"text": "go"})
                # One that was taken in although its answer was lost is one more, and counted like all others.
                await patiently(functools.partial(jobs.submit, world.db, world.admin.actor, draft))
            await asyncio.sleep(0.1)

    async def _answer(self) -> None:
        """As an operator who looks at the outside world, and not at the very first moment."""
        world, outside = self.stage.world, self.stage.outside
        seen: dict[UUID, float] = {}
        while True:
            rows = await self.stage.rows(
                "select job_id, id, step_index, tool_name, arguments ->> 'word' as word, attempt from tool_call"
                " where status = 'uncertain'"
            )
            for row in rows:
                if time.monotonic() - seen.setdefault(row["id"], time.monotonic()) < 0.5:
                    continue
                del seen[row["id"]]
                self.asked.add(row["id"])
                named = act_name(row["job_id"], row["step_index"], row["word"])
                key = str(row["id"]) if row["tool_name"] == Kind.PROBED else named
                happened = await outside.count(key) > 0
                answer = Answer(verdict=Verdict.HAPPENED if happened else Verdict.DID_NOT_HAPPEN)
                settle = functools.partial(
                    settlements.settle, world.db, world.admin.actor, row["job_id"], row["id"], answer
                )
                with contextlib.suppress(Conflict):  # it was answered, and only the receipt was lost
                    await patiently(settle)
            await asyncio.sleep(0.1)

    async def _open_jobs(self) -> int:
        (row,) = await self.stage.rows("select count(*) from job where finished_at is null")
        return int(row[0])

    # Death -----------------------------------------------------------------------------------------------------

    async def _keep_a_worker(self) -> None:
        while not self.over or await self._open_jobs():
            at = None
            if not self.over and self.chance.random() < 0.3:
                at = f"{self.chance.choice(POINTS)}#{self.chance.randint(1, 20)}"
            worker = await self.stage.worker(
                APP, at=at, tool_seconds=TOOL_SECONDS, pool=6, listens=self.chance.random() < 0.3,
                settings={"concurrency": 12},
            )  # fmt: skip
            self.living.append(worker)
            code = await asyncio.shield(worker.ended)
            self.living.remove(worker)
            self.deeds["kills" if code == -SIGKILL else f"ends with {code}"] += 1
            if code > 0:
                self.last_words[worker.said().strip().rpartition("\n")[2][:200]] += 1
                await asyncio.sleep(0.2)

    async def _slay(self) -> None:
        while self.deeds["kills"] < KILLS:
            await asyncio.sleep(self.chance.expovariate(4))
            victim = self.chance.choice(self.living) if self.living else None
            match self.chance.random():
                case _ if victim is None:
                    pass
                case roll if roll < 0.85:
                    victim.send(SIGKILL)
                case roll if roll < 0.95:
                    asyncio.get_running_loop().create_task(self._stop_for_a_while(victim))
                case _:
                    self.deeds["SIGTERM"] += 1
                    victim.send(SIGTERM)

    async def _stop_for_a_while(self, victim: WorkerProcess) -> None:
        self.deeds["stops"] += 1
        victim.send(SIGSTOP)
        await asyncio.sleep(self.chance.uniform(*STOP_SECONDS))
        victim.send(SIGCONT)

    async def _storm(self) -> None:
        """Now and then the database dies: one of its processes, which ends all the others, or all of it."""
        for number in range(DATABASE_DEATHS):
            due = (number + 1) * KILLS // (DATABASE_DEATHS + 1)
            await until(lambda due=due: self.deeds["kills"] >= due, seconds=3600)  # type: ignore[misc]
            postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
            if number % 2:
                os.kill(postmaster, SIGKILL)
                self.deeds["deaths of the database"] += 1
                await asyncio.sleep(0.5)
                self.postgres.start()
            else:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.chance.choice(list(_children(postmaster))), SIGKILL)
                self.deeds["deaths of a database process"] += 1


def _children(parent: int) -> Iterator[int]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                yield int(stat.parent.name)


def _folder() -> Path:
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="cortex-soak-", dir=memory))
    folder.chmod(0o711)  # so that a server started by root can run as somebody else
    return folder


@contextlib.asynccontextmanager
async def _campaign(outside: Outside, workers: Workers, seed: int) -> AsyncIterator[Campaign]:
    """On a server of its own, which keeps what it acknowledged."""
    folder = _folder()
    postgres = EmbeddedPostgres(folder, settings={"fsync": "off", "max_connections": "200"})
    try:
        running = postgres.start()
        server = await prepare("soak", running.url())
        db = await Database.open(server.app(server.template), vault=VAULT)
        admin = PatientConnection(server.admin(server.template))
        world = await World.create(db, "acme")
        stage = Stage(server.app(server.template), world, admin, outside, workers)
        yield Campaign(stage, postgres, running.data_directory, random.Random(seed))
        await workers.close()
        await admin.close()
        await db.close()
    finally:
        postgres.stop()
        shutil.rmtree(folder)


@pytest.mark.soak
@pytest.mark.proves("D.38")
async def test_a_thousand_kills(outside: Outside, workers: Workers, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("CORTEX_SOAK_SEED", str(random.randrange(2**31))))
    began = time.monotonic()
    async with _campaign(outside, workers, seed) as campaign:
        await campaign.run()
        stage = campaign.stage
        for row in await stage.rows("select j.id, j.session_id, a.slug from job j join agent a on a.id = j.agent_id"):
            kind = campaign.slugs[row["slug"]]
            stage.runs.append(
                Run(
                    label="random moments", kind=kind, app=APP, agent=stage.world.agent, job_id=row["id"],
                    session_id=row["session_id"], acts=ACTS, steps=3, asked=campaign.asked,
                )
            )  # fmt: skip
        table = await judged(stage)
        deeds = ", ".join(f"{count} {deed}" for deed, count in sorted(campaign.deeds.items()))
        words = "\n".join(f"{count} said: {words}" for words, count in campaign.last_words.items())
        report = f"seed {seed}, {time.monotonic() - began:.0f} s, {len(stage.runs)} jobs, {deeds}\n{words}\n{table}"
        with capsys.disabled():
            sys.stdout.write(f"\n{report}\n")
        assert table.clean, report
