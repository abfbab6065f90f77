"""A worker with MCP servers, killed before, in and after their calls: counted where the calls have their effect."""

from __future__ import annotations

import signal
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import ApprovalKind
from cortex_plane.approvals.verbs import settlements
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import Hold, JobStatus
from cortex_plane.jobs.verbs import steering
from tests.conftest import Urls
from tests.crash.workers import Workers
from tests.crash.workers import until as until_seen
from tests.fixtures.approvals import decide, pending
from tests.fixtures.people import World
from tests.fixtures.workers import call, make_agent, submit, turn, until, whole, working
from tests.mcp_servers.apps import mortal
from tests.mcp_servers.lines import log_of
from tests.worker.test_mcp_servers import alive, started

DEADLINE = 90.0
TEXT = "dear-world"
# Long enough for the lease, the time in which a call may still be sent, and the time of the call.
_LATER = """
create or replace function public.plane_now() returns timestamptz
  language sql volatile parallel safe security definer set search_path = pg_catalog, pg_temp
  return clock_timestamp() + interval '3 minutes'
"""


def letters(folder: Path) -> int:
    """What truly happened, as the server itself wrote it down."""
    return sum(line.startswith(f"note {TEXT} ") for line in log_of(folder))


async def settled(world: World, folder: Path, id: UUID) -> JobStatus:
    """As people: approve what is asked, and say of what is uncertain what the outside world shows."""
    done = (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)
    stops = (JobStatus.PAUSED, JobStatus.WAITING_FOR_APPROVAL)
    while True:
        job = await until(world, id, *done, *stops, seconds=DEADLINE)
        if job.status in done:
            return job.status
        if job.status is JobStatus.WAITING_FOR_APPROVAL:
            for approval in await pending(world, id):
                await decide(world, approval)
        for question in await steering.list_questions(world.db, world.admin.actor, id):
            happened = letters(folder) > 0
            answer = Answer(
                verdict=Verdict.HAPPENED if happened else Verdict.DID_NOT_HAPPEN,
                result={"seen": True} if happened else None,
                note="looked at the world",
            )
            await settlements.settle(world.db, world.admin.actor, id, question.call_id, answer)


@pytest.mark.proves("D.269")
@pytest.mark.parametrize(
    "point",
    [
        "tool:before#1",
        "tool:after#1",
        # The same death as the one before it.
        pytest.param("advance_job:before#2", marks=pytest.mark.soak),
        "advance_job:after#2",
    ],
)
async def test_a_worker_killed_around_a_call_neither_repeats_nor_loses_it(
    strict: World, urls: Urls, admin: asyncpg.Connection, workers: Workers, tmp_path: Path, point: str
) -> None:
    """After the approval: before its intent, after it, in the call, and after its outcome."""
    id = await submit(strict, await make_agent(strict, [turn(call("hostile_note", text=TEXT))]))
    async with working(strict.db, mortal(tmp_path)):
        await until(strict, id, JobStatus.WAITING_FOR_APPROVAL, seconds=DEADLINE)
    (approval,) = await pending(strict, id)
    await decide(strict, approval)
    worker = await workers.start(urls.app, "tests", at=point, folder=str(tmp_path))
    assert await worker.wait() == -signal.SIGKILL, worker.said()
    await until_seen(lambda: not any(map(alive, started(tmp_path))))
    await admin.execute(_LATER)
    async with working(strict.db, mortal(tmp_path)):
        assert await settled(strict, tmp_path, id) is JobStatus.COMPLETED
    assert letters(tmp_path) == 1
    assert await whole(strict)
    assert not any(map(alive, started(tmp_path)))


@pytest.mark.proves("D.269", "D.265")
async def test_a_worker_killed_in_a_call_takes_its_servers_with_it_and_a_person_is_asked(
    world: World, urls: Urls, admin: asyncpg.Connection, workers: Workers, tmp_path: Path
) -> None:
    id = await submit(world, await make_agent(world, [turn(call("hostile_stuck"))]))
    worker = await workers.start(urls.app, "tests", folder=str(tmp_path))
    await until_seen(lambda: "stuck" in log_of(tmp_path))
    (server,) = started(tmp_path)
    assert alive(server)
    assert await worker.end(signal.SIGKILL) == -signal.SIGKILL
    await until_seen(lambda: not alive(server))
    assert (await until(world, id, JobStatus.RUNNING)).status is JobStatus.RUNNING
    await admin.execute(_LATER)
    async with working(world.db, mortal(tmp_path)):
        job = await until(world, id, JobStatus.PAUSED, seconds=DEADLINE)
        assert job.holds == [Hold.UNCERTAIN_EFFECT]
        (card,) = await pending(world, id)
        assert (card.kind, card.tool_name) == (ApprovalKind.UNCERTAIN_EFFECT, "hostile.stuck")
        (question,) = await steering.list_questions(world.db, world.admin.actor, id)
        answer = Answer(verdict=Verdict.HAPPENED, result={"seen": True}, note="looked at the world")
        await settlements.settle(world.db, world.admin.actor, id, question.call_id, answer)
        await until(world, id, JobStatus.COMPLETED, seconds=DEADLINE)
    assert log_of(tmp_path).count("stuck") == 1
    assert await whole(world)
