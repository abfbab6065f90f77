"""Two schedulers, and the database dies under them: every deadline is kept once, the oldest first."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from signal import SIGKILL
from typing import Any
from uuid import UUID

import asyncpg
import orjson
import pytest

from cortex_plane.db.database import Database
from cortex_plane.embedded import EmbeddedPostgres
from cortex_plane.policies.model.policies import OWNER_DECIDES
from cortex_plane.proof.verbs import audit
from cortex_plane.worker.scheduler import Scheduler, in_background
from tests.crash.test_soak import PatientConnection, _folder, patiently
from tests.crash.workers import DEADLINE, until
from tests.fixtures.people import World
from tests.fixtures.servers import VAULT, prepare
from tests.storage.leases import Held, call, make_worker, queue

REQUESTS = 80
IN_THE_MIDDLE = 12
TERMS = replace(OWNER_DECIDES, timeout_seconds=36_000, reminder_seconds=3600)
COUNT = "select count(*) from approval_event where event_type = $1"


@dataclass
class Plane:
    """A server of its own, which keeps what it acknowledged, and dies when it is told to."""

    postgres: EmbeddedPostgres
    data: Path
    url: str
    admin_url: str
    admin: PatientConnection
    world: World
    restarted_at: datetime | None = None

    async def restart(self) -> None:
        postmaster = int((self.data / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, SIGKILL)
        await until(lambda: not _lives(postmaster))
        self.postgres.start()
        self.restarted_at = (await self.admin.fetch("select clock_timestamp()"))[0][0]

    async def seen(self, event: str, count: int) -> int:
        async with asyncio.timeout(DEADLINE):
            while True:
                found: int = (await self.admin.fetch(COUNT, event))[0][0]
                if found >= count:
                    return found
                await asyncio.sleep(0.005)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@asynccontextmanager
async def _plane() -> AsyncIterator[Plane]:
    folder = _folder()
    postgres = EmbeddedPostgres(folder, settings={"fsync": "off"})
    try:
        running = postgres.start()
        server = await prepare("deadlines", running.url())
        url = server.app(server.template)
        db = await Database.open(url, vault=VAULT)
        admin_url = server.admin(server.template)
        admin = PatientConnection(admin_url)
        world = await World.create(db, "acme")
        yield Plane(postgres, running.data_directory, url, admin_url, admin, world)
        await admin.close()
        await db.close()
    finally:
        postgres.stop()
        shutil.rmtree(folder)


async def _requests(plane: Plane) -> list[UUID]:
    db = plane.world.db
    connection = await asyncpg.connect(plane.admin_url)
    try:
        await queue(connection, plane.world, REQUESTS)
    finally:
        await connection.close()
    worker = await make_worker(db)
    return [
        (await (await Held.claim(db, worker)).ask(call(input_hash=f"{number:064x}"), terms=TERMS))[0]
        for number in range(REQUESTS)
    ]


async def _due(plane: Plane, made: list[UUID], column: str, chance: random.Random) -> None:
    """All at once, each since another moment, and not in the order in which they were asked for."""
    seconds = list(range(1, len(made) + 1))
    chance.shuffle(seconds)
    await plane.admin.fetch(
        f"update approval_request r set {column} = plane_now() - make_interval(secs => d.seconds),"
        " next_action_at = plane_now() - make_interval(secs => d.seconds)"
        " from unnest($1::uuid[], $2::integer[]) d (id, seconds) where r.id = d.id",
        made, seconds,
    )  # fmt: skip


async def _in_order(plane: Plane) -> Counter[str]:
    """After the outage each scheduler took the oldest first; how many each took."""
    rows = await plane.admin.fetch(
        "select body, created_at from audit_entry where action = 'approval_expired' order by created_at, seq"
    )
    taken: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        body: dict[str, Any] = orjson.loads(row["body"])
        if row["created_at"] > plane.restarted_at:
            taken[body["actor"]["name"]].append(body["data"]["deadline"])
    for deadlines in taken.values():
        assert deadlines == sorted(deadlines)
    return Counter({name: len(deadlines) for name, deadlines in taken.items()})


@pytest.mark.proves("D.103")
async def test_two_schedulers_keep_every_deadline_once_while_the_database_dies() -> None:
    chance = random.Random(1)
    async with _plane() as plane:
        made = await _requests(plane)
        first, second = [await Database.open(plane.url, max_size=3, vault=VAULT) for _ in range(2)]
        schedulers = [Scheduler(db, poll_seconds=0.1, name=f"s{n}") for n, db in enumerate((first, second))]
        async with in_background(schedulers[0].run()), in_background(schedulers[1].run()):
            for column, event in (("remind_at", "reminded"), ("deadline", "expired")):
                await _due(plane, made, column, chance)
                begun = await plane.seen(event, IN_THE_MIDDLE)
                await plane.restart()
                left = REQUESTS - (await plane.admin.fetch(COUNT, event))[0][0]
                assert begun >= IN_THE_MIDDLE
                assert left > 0, "the database must die in the middle of it"
                await plane.seen(event, REQUESTS)
        await first.close()
        await second.close()
        for event in ("reminded", "expired"):
            rows = await plane.admin.fetch(
                "select approval_id, count(*) from approval_event where event_type = $1 group by 1", event
            )
            assert {row[0]: row[1] for row in rows} == dict.fromkeys(made, 1)
        taken = await _in_order(plane)
        assert sum(taken.values()) > 0
        (jobs,) = await plane.admin.fetch(
            "select count(*) filter (where status = 'FAILED') as failed, count(*) as all from job"
        )
        assert tuple(jobs) == (REQUESTS, REQUESTS)
        world = plane.world
        assert (await patiently(lambda: audit.verify(world.db, world.admin.actor))).faults == []
