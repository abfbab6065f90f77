"""One org floods every door; another decides and starts jobs as if it were alone.

The short form asserts what holds on any machine: the neighbour is served, and every bound is kept. `make soak` also compares
times, in processes of their own: `CORTEX_NEIGHBOUR_ROUNDS` says how often.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest

from cortex_plane.db.database import Database
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.worker import JobRunner
from tests.acceptance.neighbours import Flood, Neighbour, app, p99
from tests.conftest import Urls
from tests.fixtures.people import World
from tests.fixtures.streams import serving
from tests.fixtures.workers import KEY, call, make_agent, turn, working

ROUNDS = int(os.environ.get("CORTEX_NEIGHBOUR_ROUNDS", "300"))
CALLERS = 32
SLOTS = 4
KEYS = 4

pytestmark = pytest.mark.fresh_database


async def _noisy(world: World) -> tuple[str, list[str]]:
    """An agent whose jobs sleep, and the keys of the flood: the one for messages, then those of people."""
    agent = await make_agent(
        world, [turn(call("nap", seconds=2.0))], app="neighbours", slug="sleeper", limits={"max_concurrent_jobs": 100}
    )
    people = [await world.person(Role.ADMIN, name=f"Noisy {number}") for number in range(KEYS)]
    return agent.slug, [world.service.secret, *(person.secret for person in people)]


async def _quiet(strict: World) -> str:
    agent = await make_agent(
        strict, [turn(call("act"))], app="neighbours", slug="asker", limits={"max_concurrent_jobs": 100}
    )
    return agent.slug


async def _watched(worker: JobRunner, noisy: World, most: list[int]) -> None:
    """The most slots that the flood had at a time."""
    while True:
        held = Counter(attempt.lease.assignment.org_id for attempt in worker._running.values())
        most[0] = max(most[0], held[noisy.org_id])
        await asyncio.sleep(0.005)


@pytest.mark.proves("D.626")
async def test_a_flood_of_one_org_leaves_the_other_served(world: World, strict: World) -> None:
    sleeper, keys = await _noisy(world)
    asker = await _quiet(strict)
    (bridge, *headers), most = [{"Authorization": f"Bearer {key}"} for key in keys], [0]
    async with (
        serving(world.db) as plane,
        working(world.db, app, concurrency=SLOTS, grace_seconds=0) as worker,
        httpx.AsyncClient(base_url=plane.url, timeout=30) as http,
        httpx.AsyncClient(base_url=plane.url, timeout=30) as other,
    ):
        flood = Flood(http, bridge, headers, sleeper, str(world.connection.id), str(world.agent.id))
        tasks = [asyncio.create_task(flood.run(CALLERS // 2)), asyncio.create_task(_watched(worker, world, most))]
        neighbour = Neighbour(other, strict.admin.headers, asker)
        try:
            await neighbour.rounds(3)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    assert set(neighbour.statuses) <= {200, 201}
    assert len(neighbour.decisions) == 3
    assert 0 < most[0] <= SLOTS - 1, "a slot was kept for others"
    assert {status for _, status in flood.answers} <= {200, 201, 202, 401, 404, 409, 429}, flood.answers


# In processes of their own -----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _process(*words: str, env: dict[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as out:
        started = subprocess.Popen([sys.executable, "-m", *words], env=env, stdout=out, stderr=out)
        try:
            yield started
        finally:
            started.terminate()
            started.wait(30)


@contextlib.asynccontextmanager
async def _plane(urls: Urls, folder: Path) -> AsyncIterator[str]:
    """`cortex api` and `cortex worker`; where they serve."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
    env = clean | {
        "DATABASE_URL": urls.app, "CORTEX_HOME": str(folder), "CORTEX_MASTER_KEY": KEY.hex(), "CORTEX_PORT": "0",
        "CORTEX_LOG_LEVEL": "error", "CORTEX_GRACE_SECONDS": "1", "CORTEX_PROCESSES": "1",
    }  # fmt: skip
    api, worker = folder / "api.log", folder / "worker.log"
    with (
        _process("cortex_plane", "api", env=env, log=api),
        _process("cortex_plane", "worker", "--app=tests.acceptance.neighbours:app", env=env, log=worker),
    ):
        async with asyncio.timeout(300):
            while "serving on" not in api.read_text() or "runs" not in worker.read_text():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        yield api.read_text().partition("serving on ")[2].split()[0]


async def _analyze(urls: Urls) -> None:
    """What autovacuum does on a real server, once a minute. Test servers run without it."""
    admin = await asyncpg.connect(urls.admin)
    await admin.execute("vacuum analyze")
    await admin.close()


@pytest.mark.soak
@pytest.mark.proves("D.626")
async def test_times_of_the_other_org_stay_within_three_times_those_of_a_quiet_plane(
    world: World, strict: World, db: Database, urls: Urls, tmp_path: Path
) -> None:
    sleeper, keys = await _noisy(world)
    asker = await _quiet(strict)
    async with _plane(urls, tmp_path) as url, httpx.AsyncClient(base_url=url, timeout=30) as http:
        quiet, loud = (Neighbour(http, strict.admin.headers, asker) for _ in range(2))
        await Neighbour(http, strict.admin.headers, asker).rounds(20)
        await _analyze(urls)
        await quiet.rounds(ROUNDS)
        words = [url, str(CALLERS), sleeper, str(world.connection.id), str(world.agent.id), *keys]
        with _process("tests.acceptance.neighbours", *words, env=dict(os.environ), log=tmp_path / "flood.log"):
            await Neighbour(http, strict.admin.headers, asker).rounds(20)
            await _analyze(urls)
            await loud.rounds(ROUNDS)
    figures = {
        name: (p99(getattr(quiet, name)) * 1000, p99(getattr(loud, name)) * 1000)
        for name in ("decisions", "first_steps")
    }
    for name, (before, after) in figures.items():
        line = f"{name}: p99 {before:.1f} ms quiet, {after:.1f} ms beside a flood, {after / before:.1f} times"
        print(line)  # noqa: T201 -- what the soak is for
    assert all(after <= 3 * before for before, after in figures.values()), figures
