"""A sender killed at every statement: everybody who waited was told, or nobody was and the next one tells them."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from signal import SIGKILL
from typing import Any

import asyncpg
import pytest

from cortex_plane.jobs.verbs import steering
from cortex_plane.proof.verbs import audit
from tests.conftest import Urls
from tests.crash.points import naming
from tests.crash.workers import DEADLINE, WorkerProcess, Workers
from tests.fixtures.people import World
from tests.fixtures.signals import park, send, wait
from tests.storage.leases import Held, claim, make_agent, make_worker, queue

PAID = {"paid": True}
WAITERS = 3

PARTS = {
    "signal": "select count(*), count(told_at) from signal where key = $1",
    "waits": "select count(*), count(arrived_at), count(signal_id) from job_wait where key = $1",
    "awake": """
        select count(*) from job j join job_wait w on w.job_id = j.id where w.key = $1 and j.runnable_at is not null""",
    "told": """
        select count(*) from event e join job_wait w on w.job_id = e.job_id where w.key = $1 and e.type = 'signal_received'""",
    "trail": """
        select count(*) from audit_entry a where a.action like 'signal%'
          and convert_from(a.body, 'utf8')::jsonb #>> '{data,key}' = $1""",
}
Parts = dict[str, tuple[int, ...]]
BEFORE: Parts = {"signal": (0, 0), "waits": (3, 0, 0), "awake": (0,), "told": (0,), "trail": (0,)}
AFTER: Parts = {"signal": (1, 1), "waits": (3, 3, 3), "awake": (3,), "told": (3,), "trail": (4,)}
HALF: Parts = {"signal": (1, 0), "waits": (3, 2, 2), "awake": (2,), "told": (2,), "trail": (3,)}


@dataclass
class Sending:
    url: str
    world: World
    admin: asyncpg.Connection
    workers: Workers

    async def parked(self, key: str) -> None:
        """Three jobs that wait for it."""
        agent = await make_agent(self.world, f"agent-{key}")
        await queue(self.admin, self.world, WAITERS, agent=agent)
        worker, parked = await make_worker(self.world.db), 0
        while parked < WAITERS:
            for given in await claim(self.world.db, worker, WAITERS):
                held = Held(self.world.db, worker, given, given.write_seq)
                if given.agent_id == agent.id:
                    await park(held, wait(key=key))
                    parked += 1

    async def process(self, key: str, at_once: int, **more: Any) -> WorkerProcess:
        arguments = {
            "secret": self.world.admin.secret, "name": "payment.received", "key": key, "payload": PAID, "once": key,
            "at_once": at_once,
        }  # fmt: skip
        return await self.workers.start(self.url, "none", verb="send_signal", arguments=arguments, **more)

    async def gone(self, process: WorkerProcess) -> None:
        """A backend may need a moment to notice that its client is gone."""
        async with asyncio.timeout(DEADLINE):
            while await self.admin.fetchval(  # noqa: ASYNC110
                "select count(*) from pg_stat_activity where application_name = $1", process.order.name
            ):
                await asyncio.sleep(0.01)

    async def everything(self, key: str) -> Parts:
        return {name: tuple(await self.admin.fetchrow(query, key) or ()) for name, query in PARTS.items()}

    async def recorded(self, key: str, at_once: int) -> list[str]:
        """The points of a sender that nobody kills."""
        await self.parked(key)
        assert await self.everything(key) == BEFORE
        process = await self.process(key, at_once, records=True)
        assert await process.wait() == 0, process.said()
        assert await self.everything(key) == AFTER
        points = process.points()
        # To die after a statement is to die before the next one, or before the commit.
        return points[points.index("statement:before#1") :]

    async def killed(self, key: str, at_once: int, point: str) -> Parts:
        victim = await self.process(key, at_once, at=point)
        assert await victim.wait() == -SIGKILL, victim.said()
        await self.gone(victim)
        return await self.everything(key)


@pytest.fixture
def sending(urls: Urls, world: World, admin: asyncpg.Connection, workers: Workers) -> Sending:
    return Sending(urls.app, world, admin, workers)


@pytest.mark.proves("D.259")
async def test_a_sender_is_killed_at_every_statement(sending: Sending) -> None:
    points = await sending.recorded("whole", 1000)
    committed = [n for n, point in enumerate(points) if point.startswith("commit:before")]
    assert sum(point.startswith("statement:before") for point in points) >= 5
    last = committed[-1]

    async def send_again(key: str) -> tuple[bool, int]:
        """Whoever lost the answer sends it once more, with the same key or without one."""
        again = await send(sending.world.db, sending.world.admin, key=key, payload=PAID)
        assert await sending.everything(key) == AFTER
        return again.changed, again.woken

    # Who dies before the commit leaves everything as it was: the next one dies at the next point.
    await sending.parked("before")
    for point in points[: last + 1]:
        assert await sending.killed("before", 1000, point) == BEFORE, point
    assert await send_again("before") == (True, WAITERS)
    assert points[last + 1 :]
    for number, point in enumerate(points[last + 1 :]):
        with naming(point):
            await sending.parked(f"after-{number}")
            assert await sending.killed(f"after-{number}", 1000, point) == AFTER
            assert await send_again(f"after-{number}") == (False, 0)
    assert (await audit.verify_org(sending.world.db, sending.world.org_id)).faults == []


@pytest.mark.proves("D.258", "D.259")
async def test_a_sender_is_killed_between_the_many_that_wait(sending: Sending) -> None:
    """Two of three are woken by the first transaction; whoever dies after it leaves the last one to somebody else."""
    points = await sending.recorded("whole", 2)
    commits = [n for n, point in enumerate(points) if point.startswith("commit:before")]
    first, last = commits[-2], commits[-1]
    for number, point in enumerate(points[first:], first):
        key = f"k-{number}"
        await sending.parked(key)
        left = await sending.killed(key, 2, point)
        expected = BEFORE if number == first else AFTER if number > last else HALF
        assert left == expected, point
        if number % 2:
            again = await send(sending.world.db, sending.world.admin, key=key, payload=PAID)
            assert again.changed == (left == BEFORE), point
        else:
            await sending.admin.execute(
                "update signal set created_at = created_at - interval '2 minutes' where key = $1", key
            )
            await steering.deliver_waiting_signals(sending.world.db)
        if left != BEFORE or number % 2:
            assert await sending.everything(key) == AFTER, point
    assert (await audit.verify_org(sending.world.db, sending.world.org_id)).faults == []
