"""Streams of events from a plane that really listens on a socket, and something for them to tell."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import httpx
import orjson
import uvicorn

from cortex_plane.db.database import Database
from cortex_plane.http.app import framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.main.api_process import create_app
from cortex_plane.proof import store as proof_store
from cortex_plane.sessions.verbs.events import EventFeed
from tests.listeners import listen
from tests.people import Person, World


async def append(
    world: World, session_id: UUID, count: int = 1, job: UUID | None = None, **data: Any
) -> None:
    """Events of one commit, as a verb appends them."""
    async with world.db.transaction(world.org_id) as tx:
        await proof_store.append_to_session(tx, session_id, [], [("status", job, data)] * count)


@dataclass
class Plane:
    url: str
    feed: EventFeed
    metrics: Metrics


@asynccontextmanager
async def serving(db: Database, feed: EventFeed | None = None, port: int = 0) -> AsyncIterator[Plane]:
    metrics = Metrics()
    feed = feed or EventFeed(db, poll_seconds=0.05)
    config = uvicorn.Config(
        framed(create_app(db, metrics, feed)), log_config=None, access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)
    with listen(port) as listener:
        task = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield Plane(f"http://127.0.0.1:{listener.getsockname()[1]}", feed, metrics)
        finally:
            feed.close()
            server.should_exit = True
            await task
    metrics.close()


@dataclass
class Told:
    """One message of a stream."""

    event: str
    data: Any
    id: int | None = None


@dataclass
class Reader:
    """Somebody who reads a stream."""

    answer: httpx.Response
    comments: list[str] = field(default_factory=list)
    _blocks: list[bytes] = field(default_factory=list)
    _rest: bytes = b""

    def __post_init__(self) -> None:
        self._pieces = self.answer.aiter_bytes()

    async def next(self, seconds: float = 10) -> Told | None:
        """The next message; None at the end."""
        async with asyncio.timeout(seconds):
            while True:
                while self._blocks:
                    told = self._told(self._blocks.pop(0))
                    if told is not None:
                        return told
                piece = await anext(self._pieces, None)
                if piece is None:
                    return None
                *whole, self._rest = (self._rest + piece).split(b"\n\n")
                self._blocks += whole

    async def rest(self, seconds: float = 20) -> list[Told]:
        told = []
        async with asyncio.timeout(seconds):
            while (each := await self.next(seconds)) is not None:
                told.append(each)
        return told

    async def ids(self, count: int) -> list[int | None]:
        found = []
        for _ in range(count):
            told = await self.next()
            assert told is not None, "the stream ended"
            found.append(told.id)
        return found

    def _told(self, block: bytes) -> Told | None:
        fields = {}
        for line in block.decode().split("\n"):
            name, _, value = line.partition(": ")
            if name == "":
                self.comments.append(value)
            else:
                fields[name] = value
        if "event" not in fields:
            return None
        id = int(fields["id"]) if "id" in fields else None
        return Told(fields["event"], orjson.loads(fields["data"]), id)


@asynccontextmanager
async def reading(
    plane: Plane, person: Person, path: str, last: int | None = None, **query: Any
) -> AsyncIterator[Reader]:
    headers = {**person.headers, "Accept": "text/event-stream"}
    if last is not None:
        headers["Last-Event-ID"] = str(last)
    async with (
        httpx.AsyncClient(base_url=plane.url, timeout=30, trust_env=False, verify=False) as http,
        http.stream("GET", path, headers=headers, params=query) as answer,
    ):
        assert answer.status_code == 200, (await answer.aread()).decode()
        yield Reader(answer)
