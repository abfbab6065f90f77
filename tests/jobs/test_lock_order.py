"""Workers, operators and people on the same few sessions at once: every verb locks in one order, so none deadlocks.

The order stands at the head of the migrations in db/migrations. A short form runs with every `make test`, the long one with
`make soak`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from uuid import UUID

import asyncpg
import orjson
import pytest

from cortex_plane.db.database import NOBODY, Database
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft, JobStatus, Pause, Resumption
from cortex_plane.jobs.rules import Adoption, StepWrite
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import Conflict, NotFound
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.model.sessions import InboundMessage, MessageDraft, Termination
from cortex_plane.sessions.verbs import sessions
from tests.acceptance.test_campaign import INVARIANTS
from tests.conftest import Urls
from tests.fixtures.people import World
from tests.fixtures.servers import VAULT
from tests.storage.leases import APP, LEASE, Held, call, ledger, make_agent, make_worker

PEOPLE = 3
CALLERS = 14

LEASES = {
    "a job that nobody runs, nobody can claim and nobody holds": """
        select 1 from job where status in ('PENDING', 'RUNNING', 'RETRY', 'SLEEPING') and worker_id is null
        and runnable_at is null and holds = '{}'""",
    "a cancel that was asked for and forgotten": """
        select 1 from job where cancel_requested_at is not null and worker_id is null and runnable_at is null
        and status not in ('COMPLETED', 'FAILED', 'CANCELLED')""",
    "an agent above its limit": """
        select 1 from job where worker_id is not null group by agent_id having count(*) > 4""",
}


class Crowd:
    """Everybody's shared picture: which jobs and sessions there are, and which leases are kept."""

    def __init__(self, world: World, db: Database, agents: list[str], seed: int) -> None:
        self.world, self.db, self.agents = world, db, agents
        self.chance = random.Random(seed)
        self.sessions: list[UUID] = []
        self.jobs: list[UUID] = []
        self.leases: list[Held] = []
        self.did: Counter[str] = Counter()
        self.in_the_way: list[str] = []

    async def act(self, worker: UUID) -> None:
        acts = [
            *(self.claim, self.claim, self.advance, self.advance, self.advance, self.give_up),
            *(self.cancel, self.pause, self.pause, self.resume, self.resume),
            *(self.pause_session, self.resume_session, self.resume_session, self.terminate),
            *(self.post, self.ingest, self.ingest, self.submit, self.lose),
        ]
        act = self.chance.choice(acts) if self.jobs else self.ingest
        try:
            await act(worker)
            self.did[act.__name__] += 1
        except (Conflict, NotFound) as error:
            self.did[f"{act.__name__} {error.code}"] += 1
            if error.code == "retry":
                self.in_the_way.append(act.__name__)

    # Workers

    async def claim(self, worker: UUID) -> None:
        wanted = self.chance.randint(1, 4)
        claimed, _ = await jobs_store.claim_jobs(self.db, worker, [APP], wanted, NOBODY)
        self.leases += [Held(self.db, worker, given) for given in claimed]

    async def advance(self, _: UUID) -> None:
        if not self.leases:
            return
        held = self.leases.pop(self.chance.randrange(len(self.leases)))
        end = self.chance.choice([None, None, *ENDS])
        events = [("status", {"status": end})]
        if end is None:
            intent = call(step=held.number)
            kept = StepWrite(**ledger(intent), dispatches=True, reply="hm", events=events, facts=[held.fact])
            if await held.write(kept) is None:
                return
            done = {"id": intent["id"], "status": "completed", "result": None}
            if await held.write(StepWrite(outcomes=orjson.dumps([done]), facts=[held.fact])) is not None:
                self.leases.append(held)
            return
        hold = "code_changed" if end is JobStatus.PAUSED and self.chance.random() < 0.5 else None
        write = StepWrite(status=end, hold=hold, error="x", message_seq=10**6, events=events, facts=[held.fact])
        await held.write(write)

    async def give_up(self, _: UUID) -> None:
        if self.leases:
            held = self.leases.pop(self.chance.randrange(len(self.leases)))
            given = held.given
            await jobs_store.release_job(self.db, given.org_id, given.job_id, held.worker, given.epoch, held.fact)

    async def lose(self, _: UUID) -> None:
        """A worker dies with what it runs, and whoever notices takes it over."""
        doomed = await make_worker(self.db)
        claimed, _busy = await jobs_store.claim_jobs(self.db, doomed, [APP], 2, NOBODY)
        await jobs_store.stop_worker(self.db, doomed)
        for orphan in await jobs_store.find_orphans(self.db, 100):
            held = next((Held(self.db, doomed, given) for given in claimed if given.job_id == orphan.id), None)
            if held is not None:
                status = JobStatus.PAUSED if orphan.held else JobStatus.RUNNING
                if orphan.cancelled:
                    status = JobStatus.CANCELLED
                await jobs_store.adopt_job(
                    self.db, orphan, Adoption(status=status, action="job_adopted", error="x"), held.fact
                )

    # Operators

    async def cancel(self, _: UUID) -> None:
        await steering.cancel(self.db, self.world.admin.actor, self.chance.choice(self.jobs), Cancellation())

    async def pause(self, _: UUID) -> None:
        await steering.pause(self.db, self.world.admin.actor, self.chance.choice(self.jobs), Pause())

    async def resume(self, _: UUID) -> None:
        await steering.resume(self.db, self.world.admin.actor, self.chance.choice(self.jobs), Resumption())

    async def pause_session(self, _: UUID) -> None:
        await steering.pause_session(self.db, self.world.admin.actor, self.chance.choice(self.sessions), Pause())

    async def resume_session(self, _: UUID) -> None:
        await steering.resume_session(self.db, self.world.admin.actor, self.chance.choice(self.sessions), Resumption())

    async def terminate(self, _: UUID) -> None:
        await session_lifecycle.terminate(
            self.db, self.world.admin.actor, self.chance.choice(self.sessions), Termination()
        )

    # People

    async def post(self, _: UUID) -> None:
        session = self.chance.choice(self.sessions)
        told = await sessions.post_message(self.db, self.world.admin.actor, session, MessageDraft(text="by hand"))
        self.met(told.session_id, told.job_id)

    async def ingest(self, _: UUID) -> None:
        inbound = InboundMessage(
            external_user_id=f"u-{self.chance.randrange(PEOPLE)}", agent=self.chance.choice(self.agents), text="hi"
        )
        world = self.world
        told = await sessions.ingest_message(self.db, world.service.actor, world.connection.id, inbound)
        self.met(told.session_id, told.job_id)

    async def submit(self, _: UUID) -> None:
        """A second and third job in a session that has one."""
        session = self.chance.choice(self.sessions)
        found = await sessions.get_session(self.db, self.world.admin.actor, session)
        draft = JobDraft(agent=str(found.agent_id), session_id=session)
        self.met(session, (await jobs.submit(self.db, self.world.admin.actor, draft)).id)

    def met(self, session: UUID, job: UUID) -> None:
        """Only the newest are acted on, so that most acts find something to do."""
        for known, new, most in ((self.sessions, session, 6), (self.jobs, job, 12)):
            if new not in known:
                known.append(new)
                del known[:-most]


ENDS = (
    JobStatus.COMPLETED, JobStatus.RUNNING, JobStatus.RUNNING, JobStatus.SLEEPING, JobStatus.PAUSED, JobStatus.RETRY,
)  # fmt: skip


async def _race(urls: Urls, world: World, admin: asyncpg.Connection, acts: int, seed: int) -> None:
    db = await Database.open(urls.app, min_size=CALLERS, max_size=CALLERS, vault=VAULT)
    try:
        agents = [(await make_agent(world, slug, limit=4)).slug for slug in ("one", "two")]
        crowd = Crowd(world, db, agents, seed)
        left = iter(range(acts))

        async def caller() -> None:
            worker = await make_worker(db, lease=LEASE * 100)
            for _ in left:
                await crowd.act(worker)

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
    finally:
        await db.close()
    assert crowd.in_the_way == []
    await admin.execute("select pg_stat_force_next_flush()")
    deadlocks = "select deadlocks from pg_stat_database where datname = current_database()"
    assert await admin.fetchval(deadlocks) == 0
    broken = [name for name, query in (INVARIANTS | LEASES).items() if await admin.fetch(query)]
    assert broken == []
    assert (await audit.verify(world.db, world.admin.actor)).faults == []
    for verb in ("claim", "advance", "cancel", "pause", "resume", "terminate", "post", "give_up", "submit"):
        assert crowd.did[verb] > acts // 200, crowd.did


async def test_workers_operators_and_people_never_deadlock(urls: Urls, world: World, admin: asyncpg.Connection) -> None:
    await _race(urls, world, admin, acts=800, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
async def test_they_never_deadlock_for_long(urls: Urls, world: World, admin: asyncpg.Connection, seed: int) -> None:
    await _race(urls, world, admin, acts=10_000, seed=seed)
