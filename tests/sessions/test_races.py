"""What must hold when many do the same thing at the same moment. Real connections, real processes, no sleeps."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange, AgentDraft, ModelConfig
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import AlreadyExists, Conflict, CortexError, Stale
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.model.sessions import InboundMessage, MessageDraft, SessionDraft, Termination
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.model.orgs import MemberChange, OrgDraft, Role, TeamDraft
from cortex_plane.tenancy.verbs import connections, orgs
from tests.conftest import Urls
from tests.fixtures.people import World

T = TypeVar("T")
PROCESSES, EACH = 4, 50


async def together(*calls: Awaitable[T]) -> tuple[list[T], list[CortexError]]:
    """Run them at once; the results, and the errors that were raised on purpose. Any other error is a defect."""
    results: list[T] = []
    errors: list[CortexError] = []
    for outcome in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(outcome, CortexError):
            errors.append(outcome)
        elif isinstance(outcome, BaseException):
            raise outcome
        else:
            results.append(outcome)
    return results, errors


async def _every_chain_holds(world: World) -> None:
    assert (await audit.verify(world.db, world.admin.actor)).faults == []


@pytest.mark.proves("S2.6", "D.7")
async def test_two_hundred_first_messages_over_four_processes_make_one_of_everything(
    urls: Urls, world: World, admin: asyncpg.Connection
) -> None:
    arguments = [urls.app, world.service.secret, str(world.connection.id), str(EACH)]
    workers = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "tests.sessions.ingest_worker", *arguments,
            cwd=Path(__file__).parents[2],
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for _ in range(PROCESSES)
    ]  # fmt: skip
    for worker in workers:
        assert worker.stdout is not None
        assert await worker.stdout.readline() == b"ready\n"
    outputs = await asyncio.gather(*(worker.communicate(b"go\n") for worker in workers))
    assert [worker.returncode for worker in workers] == [0] * PROCESSES
    made = [created for output, _ in outputs for created in json.loads(output)]
    assert len(made) == PROCESSES * EACH
    assert Counter(each for created in made for each in created) == {"account": 1, "session": 1, "job": 1}

    counts = await admin.fetchrow(
        "select (select count(*) from user_account where roles = '{guest}') as accounts,"
        " (select count(*) from channel_mapping) as mappings, (select count(*) from session) as sessions,"
        " (select count(*) from job) as jobs, (select count(*) from message) as messages"
    )
    expected = {"accounts": 1, "mappings": 1, "sessions": 1, "jobs": 1, "messages": PROCESSES * EACH}
    assert dict(counts) == expected
    numbers = [row["seq"] for row in await admin.fetch("select seq from message order by seq")]
    assert numbers == [*range(1, PROCESSES * EACH + 1)]
    await _every_chain_holds(world)


@pytest.mark.proves("S2.11")
async def test_a_message_never_gets_lost_in_a_session_that_is_ending(world: World, admin: asyncpg.Connection) -> None:
    rounds, at_once = 25, 4
    for _ in range(rounds):
        first = await world.say("first")
        end = session_lifecycle.terminate(world.db, world.admin.actor, first.session_id, Termination())
        results, errors = await together(end, *(world.say(f"more {n}") for n in range(at_once)))
        assert errors == []
        assert len(results) == at_once + 1
    assert await admin.fetchval("select count(*) from message") == rounds * (at_once + 1)
    in_ended = await admin.fetchval(
        "select count(*) from job j join session s on s.id = j.session_id where s.status = 'TERMINATED'"
        " and j.status not in ('COMPLETED', 'FAILED', 'CANCELLED')"
    )
    assert in_ended == 0, "an open job in an ended session"
    unread = await admin.fetchval(
        "select count(*) from message m join session s on s.id = m.session_id where s.status <> 'TERMINATED'"
        " and not exists (select from job j where j.session_id = s.id and j.kind = 'conversation'"
        "   and j.status not in ('COMPLETED', 'FAILED', 'CANCELLED'))"
    )
    assert unread == 0, "a message that no job will read"
    open_sessions = await admin.fetchval("select count(*) from session where status <> 'TERMINATED'")
    assert open_sessions <= 1
    await _every_chain_holds(world)


@pytest.mark.proves("D.8")
async def test_one_idempotency_key_makes_one_job_however_often_it_is_sent(
    world: World, admin: asyncpg.Connection
) -> None:
    once = IdempotencyKey(key="k", fingerprint=b"the same request")
    draft = JobDraft(agent="deployer")
    made, errors = await together(*(jobs.submit(world.db, world.admin.actor, draft, once) for _ in range(20)))
    assert errors == []
    assert len({job.id for job in made}) == 1
    assert await admin.fetchval("select count(*) from job") == 1
    assert await admin.fetchval("select count(*) from session") == 1


async def test_one_idempotency_key_takes_in_one_message_however_often_it_is_sent(
    world: World, admin: asyncpg.Connection
) -> None:
    once = IdempotencyKey(key="k", fingerprint=b"the same request")
    inbound = InboundMessage(external_user_id="u-1", agent="deployer", text="Hello")
    delivered, errors = await together(
        *(sessions.ingest_message(world.db, world.service.actor, world.connection.id, inbound, once) for _ in range(20))
    )
    assert errors == []
    assert [delivery.replayed for delivery in delivered].count(False) == 1
    assert {delivery.message_seq for delivery in delivered} == {1}
    assert await admin.fetchval("select count(*) from message") == 1


async def test_one_slug_is_given_once(db: Database, world: World) -> None:
    actor = world.admin.actor
    agent = AgentDraft(name="Twin", slug="twin", role="R", team="main", model_config=ModelConfig(model="scripted"))
    races: list[list[Awaitable[Any]]] = [
        [orgs.create_team(db, actor, TeamDraft(slug="twin", name="Twin")) for _ in range(8)],
        [agents.create_agent(db, actor, agent) for _ in range(8)],
        [orgs.create_org(db, actor, OrgDraft(slug="twin", name="Twin")) for _ in range(8)],
        [connections.create_connection(db, actor, ConnectionDraft(channel_type="web", name="twin")) for _ in range(8)],
    ]
    for race in races:
        made, errors = await together(*race)
        assert len(made) == 1
        assert [type(error) for error in errors] == [AlreadyExists] * 7


@pytest.mark.proves("D.9")
async def test_of_several_edits_of_one_revision_exactly_one_wins(world: World, admin: asyncpg.Connection) -> None:
    changes = [AgentChange(name=f"Name {n}", model_config=ModelConfig(model=f"model-{n}")) for n in range(10)]
    won, lost = await together(
        *(agents.update_agent(world.db, world.admin.actor, "deployer", change, 1) for change in changes)
    )
    assert len(won) == 1
    assert [type(error) for error in lost] == [Stale] * 9
    now = await agents.get_agent(world.db, world.admin.actor, "deployer")
    assert now == won[0]
    assert (now.revision, now.config_version) == (2, 2)
    assert await admin.fetchval("select count(*) from agent_version") == 2


async def test_edits_without_a_revision_all_count_and_none_is_half_done(world: World) -> None:
    changes = [AgentChange(model_config=ModelConfig(model=f"model-{n}")) for n in range(10)]
    won, lost = await together(
        *(agents.update_agent(world.db, world.admin.actor, "deployer", change, None) for change in changes)
    )
    assert lost == []
    assert sorted(agent.config_version for agent in won) == [*range(2, 12)]


async def test_messages_to_a_paused_session_wake_it_without_a_deadlock(world: World, admin: asyncpg.Connection) -> None:
    first = await world.say()
    for _ in range(15):
        await admin.execute("update session set status = 'PAUSED' where id = $1", first.session_id)
        delivered, errors = await together(
            world.say("one"),
            world.say("two"),
            sessions.post_message(world.db, world.admin.actor, first.session_id, MessageDraft(text="three")),
        )
        assert errors == []
        assert {delivery.session_id for delivery in delivered} == {first.session_id}
        assert await admin.fetchval("select status from session") == "ACTIVE"
    assert await admin.fetchval("select count(*) from job") == 1
    await _every_chain_holds(world)


async def test_cancelling_a_job_of_a_session_that_is_ending(world: World, admin: asyncpg.Connection) -> None:
    actor, db = world.admin.actor, world.db
    for _ in range(15):
        job = await jobs.submit(db, actor, JobDraft(agent="deployer"))
        draft = JobDraft(agent="deployer", session_id=job.session_id)
        second = await jobs.submit(db, actor, draft)
        calls: list[Awaitable[Any]] = [
            steering.cancel(db, actor, job.id, Cancellation()),
            session_lifecycle.terminate(db, actor, job.session_id, Termination()),
            steering.cancel(db, actor, second.id, Cancellation()),
            session_lifecycle.terminate(db, actor, job.session_id, Termination()),
        ]
        _, errors = await together(*calls)
        assert errors == []
    assert await admin.fetchval("select count(*) from job where status <> 'CANCELLED'") == 0
    assert await admin.fetchval("select count(*) from session where status <> 'TERMINATED'") == 0
    changes = await admin.fetchval("select count(*) from job_history where new_status = 'CANCELLED'")
    assert changes == await admin.fetchval("select count(*) from job"), "a job was cancelled twice"
    await _every_chain_holds(world)


async def test_a_job_is_never_added_to_a_session_that_has_ended(world: World, admin: asyncpg.Connection) -> None:
    actor, db = world.admin.actor, world.db
    for _ in range(15):
        session = await session_lifecycle.create(db, actor, SessionDraft(agent="deployer"))
        draft = JobDraft(agent="deployer", session_id=session.id)
        calls: list[Awaitable[Any]] = [
            jobs.submit(db, actor, draft),
            session_lifecycle.terminate(db, actor, session.id, Termination()),
            jobs.submit(db, actor, draft),
        ]
        _, errors = await together(*calls)
        assert {error.code for error in errors} <= {"session_not_active"}
    left = await admin.fetchval(
        "select count(*) from job j join session s on s.id = j.session_id"
        " where s.status = 'TERMINATED' and j.status = 'PENDING'"
    )
    assert left == 0


@pytest.mark.parametrize("change", [MemberChange(roles=[Role.MEMBER]), MemberChange(active=False)])
async def test_two_admins_cannot_remove_each_other(
    world: World, admin: asyncpg.Connection, change: MemberChange
) -> None:
    """Both at once: one may win, never both; whoever loses is told to look again."""
    ada, bob = world.admin, await world.person(Role.ADMIN, name="Bob")
    assert ada.actor.user_account_id is not None
    assert bob.actor.user_account_id is not None
    pairs = [(ada.actor, bob.actor.user_account_id), (bob.actor, ada.actor.user_account_id)]
    won, lost = await together(*(orgs.update_member(world.db, actor, target, change, None) for actor, target in pairs))
    assert (len(won), len(lost)) == (1, 1)
    assert isinstance(lost[0], Conflict)
    assert lost[0].code in ("last_admin", "retry")
    left = await admin.fetchval(
        "select count(*) from user_account where 'admin' = any (roles) and deactivated_at is null"
    )
    assert left == 1
