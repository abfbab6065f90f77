"""A campaign of everything at once: many people, many verbs, and afterwards the whole must be in order.

A short form runs with every `make test`, the long one with `make soak`.
"""

from __future__ import annotations

import asyncio
import random

import asyncpg
import pytest

from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import Conflict, CortexError, NotFound
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.model.sessions import InboundMessage, IngestedMessage, MessageDraft, Termination
from cortex_plane.sessions.verbs import sessions
from tests.fixtures.people import World

PEOPLE = 12
CALLERS = 16

# What must hold at any time, whoever did what: each query must find nothing.
INVARIANTS = {
    "an open job in an ended session that nobody asked to stop": """
        select 1 from job j join session s using (org_id) where s.id = j.session_id and s.status = 'TERMINATED'
        and j.status not in ('COMPLETED', 'FAILED', 'CANCELLED') and j.cancel_requested_at is null""",
    "messages with gaps in their numbers": """
        select 1 from message group by org_id, session_id having max(seq) <> count(*)""",
    "a head that does not count its messages": """
        select 1 from session_head h where h.message_seq <>
        (select count(*) from message m where m.org_id = h.org_id and m.session_id = h.session_id)""",
    "a head that does not count its events": """
        select 1 from session_head h where h.event_seq <>
        (select count(*) from event e where e.org_id = h.org_id and e.session_id = h.session_id)""",
    "a job without the beginning of its history": """
        select 1 from job j where not exists (select from job_history h
        where h.org_id = j.org_id and h.job_id = j.id and h.previous_status is null and h.new_status = 'PENDING')""",
    "a job whose history does not end where it is": """
        select 1 from job j where j.status <> (select new_status from job_history h
        where h.org_id = j.org_id and h.job_id = j.id order by h.id desc limit 1)""",
    "two open conversations of one person": """
        select 1 from session where kind = 'conversation' and status <> 'TERMINATED'
        group by org_id, user_account_id, agent_id having count(*) > 1""",
}


async def _one_act(world: World, chance: random.Random, seen: list[IngestedMessage]) -> None:
    db, admin, service = world.db, world.admin.actor, world.service.actor
    known = chance.choice(seen) if seen else None
    match chance.randrange(8) if known else 0:
        case 1:
            assert known
            await session_lifecycle.terminate(db, admin, known.session_id, Termination(reason="enough"))
        case 2:
            assert known
            await steering.cancel(db, admin, known.job_id, Cancellation())
        case 3:
            assert known
            await jobs.resubmit(db, admin, known.job_id)
        case 4:
            assert known
            await sessions.post_message(db, admin, known.session_id, MessageDraft(text="by hand"))
        case 5:
            await jobs.submit(db, admin, JobDraft(agent="deployer", payload={"n": chance.random()}))
        case _:
            person = f"person-{chance.randrange(PEOPLE)}"
            inbound = InboundMessage(external_user_id=person, agent="deployer", text=f"hello from {person}")
            seen.append(await sessions.ingest_message(db, service, world.connection.id, inbound))


async def _campaign(world: World, admin: asyncpg.Connection, acts: int, seed: int) -> None:
    chance = random.Random(seed)
    seen: list[IngestedMessage] = []
    left = iter(range(acts))
    unexpected: list[CortexError] = []

    async def caller() -> None:
        for _ in left:
            try:
                await _one_act(world, chance, seen)
            except (Conflict, NotFound) as error:
                # To be refused is fine; to be told to send it again means that two verbs lock in different orders.
                if error.code == "retry":
                    unexpected.append(error)

    await asyncio.gather(*(caller() for _ in range(CALLERS)))
    assert unexpected == []
    broken = [name for name, query in INVARIANTS.items() if await admin.fetch(query)]
    assert broken == []
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


async def test_everything_at_once(world: World, admin: asyncpg.Connection) -> None:
    await _campaign(world, admin, acts=400, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(10))
async def test_everything_at_once_for_long(world: World, admin: asyncpg.Connection, seed: int) -> None:
    await _campaign(world, admin, acts=10_000, seed=seed)
