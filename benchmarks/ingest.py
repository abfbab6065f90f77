"""Taking in a message: as one function call, and over HTTP, against the same rows written bare in one commit."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg

from benchmarks.goals import goal, table
from benchmarks.measuring import Work, compare
from benchmarks.plane import KEY, Plane, plane
from benchmarks.wire import Wire
from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentDraft, ModelConfig
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.sessions.model.sessions import InboundMessage
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.access import Actor, KeyDraft
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections, frame, keys

HERE = Path(__file__).parent
TEXT = "Please plan the release of version 2.4 and tell me before you touch production. " * 3


@dataclass
class Bench:
    db: Database
    floor: asyncpg.Pool
    wire: Wire
    org: UUID
    connection: UUID
    agent: UUID
    actor: Actor

    def first(self) -> dict[str, Work]:
        """A message of somebody new: everything is made."""
        statement = (HERE / "floor_first.sql").read_text()
        body, digest = os.urandom(280), os.urandom(32)

        async def bare(_: int) -> None:
            await self.floor.execute(
                statement, self.org, uuid4(), uuid4().hex, uuid4(), self.connection, uuid4(), self.agent, TEXT,
                uuid4(), digest, body,
            )  # fmt: skip

        async def call(_: int) -> None:
            inbound = InboundMessage(external_user_id=uuid4().hex, agent="bench", text=TEXT)
            await sessions.ingest_message(self.db, self.actor, self.connection, inbound)

        async def http(_: int) -> None:
            said = {"external_user_id": uuid4().hex, "agent": "bench", "text": TEXT}
            await self.wire.post(f"/v1/connections/{self.connection}/messages", said)

        return {"floor": bare, "one call": call, "over HTTP": http}

    async def next(self, concurrency: int) -> dict[str, Work]:
        """A further message of somebody known, in turn over as many people as there are callers."""
        statement = (HERE / "floor_next.sql").read_text()
        first = (HERE / "floor_first.sql").read_text()
        body, digest = os.urandom(280), os.urandom(32)
        session_ids = [uuid4() for _ in range(concurrency)]
        people = [uuid4().hex for _ in range(concurrency)]
        for session, person in zip(session_ids, people, strict=True):
            await self.floor.execute(
                first, self.org, uuid4(), person + "f", uuid4(), self.connection, session, self.agent, TEXT, uuid4(),
                digest, body,
            )  # fmt: skip
        numbers = _count_up()

        async def bare(number: int) -> None:
            session = session_ids[number % concurrency]
            await self.floor.execute(statement, self.org, session, next(numbers), digest, TEXT, body)

        async def call(number: int) -> None:
            person = people[number % concurrency]
            inbound = InboundMessage(external_user_id=person, agent="bench", text=TEXT)
            await sessions.ingest_message(self.db, self.actor, self.connection, inbound)

        async def http(number: int) -> None:
            said = {"external_user_id": people[number % concurrency] + "h", "agent": "bench", "text": TEXT}
            await self.wire.post(f"/v1/connections/{self.connection}/messages", said)

        return {"floor": bare, "one call": call, "over HTTP": http}


def _count_up() -> Iterator[int]:
    number = 10
    while True:
        number += 1
        yield number


async def prepare(db: Database, admin: Actor, floor: asyncpg.Pool, port: int) -> Bench:
    agent = await agents.create_agent(
        db,
        admin,
        AgentDraft(name="Bench", slug="bench", role="Bench", team="main", model_config=ModelConfig(model="none")),
    )
    connection = await connections.create_connection(db, admin, ConnectionDraft(channel_type="web", name="bench"))
    service = await keys.create_key(db, admin, KeyDraft(name="bench", roles=[Role.MEMBER]))
    secret = str(service.secret)
    actor = await frame.authenticate_key(db, secret)
    return Bench(db, floor, Wire(port, secret), admin.org_id, connection.id, agent.id, actor)


async def run(admin_url: str, *, rounds: int = 7, count: int = 200) -> bool:
    """Print the table; whether every aim was met."""
    async with plane(admin_url) as made:
        return await _measure(made, admin_url, rounds, count)


async def _measure(made: Plane, admin_url: str, rounds: int, count: int) -> bool:
    db = await Database.open(made.app_url, min_size=16, max_size=16, vault=Vault(KEY))
    floor = await asyncpg.create_pool(admin_url, min_size=16, max_size=16)
    server, port = await serve(made.app_url)
    met = True
    try:
        bench = await prepare(db, made.actor, floor, port)
        print(f"\n{'taking in a message':34}{'µs each':>10}{'ratio':>8}")
        for concurrency in (1, 16):
            for kind in ("first", "next"):
                rivals = bench.first() if kind == "first" else await bench.next(concurrency)
                medians = await compare(rivals, rounds=rounds, count=count, concurrency=concurrency, url=admin_url)
                for name, seconds in medians.items():
                    label = f"{kind} message, {concurrency:2} at once, {name}"
                    print(f"{label:34}{seconds * 1e6:>10.0f}{seconds / medians['floor']:>8.2f}")
                title = f"{kind} message, {concurrency} at once"
                table(title, "µs each", {name: seconds * 1e6 for name, seconds in medians.items()})
                if concurrency == 16:
                    ratio = medians["over HTTP"] / medians["floor"]
                    met = (
                        goal("messages over HTTP at 16", f"{kind} message: time to the floor's", ratio, "≤", 3.0)
                        and met
                    )
        await bench.wire.close()
    finally:
        server.terminate()
        await server.wait()
        await floor.close()
        await db.close()
    return met


MASTER_KEY = bytes(32).hex()
"""The same as benchmarks.plane uses."""


async def serve(app_url: str, **environment: str) -> tuple[asyncio.subprocess.Process, int]:
    """The API as a process of its own, as in production."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cortex_plane", "api",
        env=os.environ | {
            "DATABASE_URL": app_url, "CORTEX_PORT": "0", "CORTEX_LOG_LEVEL": "warning", "CORTEX_MASTER_KEY": MASTER_KEY,
            "CORTEX_REQUESTS_PER_SECOND": "0",  # one key sends everything
            **environment,
        },
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert server.stdout is not None
    line = (await server.stdout.readline()).decode()
    return server, int(line.rsplit(":", 1)[1])
