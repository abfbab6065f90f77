"""Workers without a database: the plane runs their attempts, and sends them the calls alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID, uuid4

import orjson
import pytest

from cortex_plane.agents.model.tools import DidNotHappen, Happened, ToolError
from cortex_plane.db.database import Database
from cortex_plane.jobs.model import remote_work
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.model.remote_work import Hello, LinkClosed
from cortex_plane.jobs.verbs import jobs, workers
from cortex_plane.kernel.errors import CortexError, SetupError, TooMany, Unauthenticated
from cortex_plane.tenancy.model.access import Actor, KeyDraft
from cortex_plane.tenancy.verbs import frame, keys
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.remote import host as host_module
from cortex_plane.worker.remote.functions import offered_app
from cortex_plane.worker.remote.host import HostParts, RemoteWorkers
from cortex_plane.worker.remote.runner import RemoteWorker
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.fixtures.people import World
from tests.fixtures.workers import FAST, KEY, Gate, actions, call, ended, make_agent, steps_of, submit, turn, until, whole

BRISK = replace(FAST, adoption_seconds=1.2, dispatch_seconds=0.5)


class MemoryLink:
    """One end of a link within a process."""

    def __init__(self) -> None:
        self.incoming: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.other: MemoryLink
        self.is_cut = False
        self.sent: list[dict[str, Any]] = []

    @classmethod
    def pair(cls) -> tuple[MemoryLink, MemoryLink]:
        one, two = cls(), cls()
        one.other, two.other = two, one
        return one, two

    async def send(self, content: bytes) -> None:
        if self.is_cut or self.other.is_cut:
            raise LinkClosed("cut")
        self.sent.append(orjson.loads(content))
        self.other.incoming.put_nowait(content)

    async def receive(self) -> bytes:
        content = await self.incoming.get()
        if content is None or self.is_cut:
            self.incoming.put_nowait(None)
            raise LinkClosed("cut")
        return content

    async def close(self) -> None:
        self.cut()

    def cut(self) -> None:
        for end in (self, self.other):
            end.is_cut = True
            end.incoming.put_nowait(None)


async def worker_key(world: World, *apps: str, maker: Actor | None = None) -> Actor:
    new = await keys.create_key(world.db, maker or world.admin.actor, KeyDraft(name="remote", apps=list(apps)))
    assert new.secret is not None
    return await frame.authenticate_key(world.db, new.secret)


@dataclass
class Remote:
    """A remote worker and its plane, with the ends of their links."""

    worker: RemoteWorker
    hosts: RemoteWorkers
    actor: Actor
    plane_ends: list[MemoryLink] = field(default_factory=list)
    worker_ends: list[MemoryLink] = field(default_factory=list)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    revoked: bool = False
    serving: set[asyncio.Task[None]] = field(default_factory=set)

    @contextlib.asynccontextmanager
    async def connect(self) -> AsyncIterator[MemoryLink]:
        plane_end, worker_end = MemoryLink.pair()
        self.plane_ends.append(plane_end)
        self.worker_ends.append(worker_end)

        async def check_key() -> None:
            if self.revoked:
                raise Unauthenticated("This key was revoked.", code="key_revoked")

        task = asyncio.create_task(self.hosts.serve(plane_end, self.actor, check_key))
        self.serving.add(task)
        try:
            yield worker_end
        finally:
            worker_end.cut()

    def invokes(self) -> list[dict[str, Any]]:
        return [each for end in self.plane_ends for each in end.sent if each["kind"] == "invoke"]

    async def settled(self) -> None:
        await asyncio.gather(*self.serving, return_exceptions=True)


@contextlib.asynccontextmanager
async def remote_worker(
    world: World, *apps: App, actor: Actor | None = None, hosts: RemoteWorkers | None = None
) -> AsyncIterator[Remote]:
    hosts = hosts or RemoteWorkers(HostParts(db=world.db, master_key=KEY, settings=BRISK))
    actor = actor or await worker_key(world, *(app.name for app in apps))
    remote = Remote(None, hosts, actor)  # type: ignore[arg-type]
    remote.worker = RemoteWorker(apps, remote.connect, concurrency=4, name="afar", grace_seconds=5)
    task = asyncio.create_task(remote.worker.run(lambda _: remote.ready.set()))
    try:
        async with asyncio.timeout(10):
            waiting = asyncio.create_task(remote.ready.wait())
            await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
        if task.done():
            task.result()
        yield remote
    finally:
        remote.worker.stop()
        await asyncio.wait([task], timeout=10)
        await hosts.close()
        await remote.settled()
        if task.done() and not task.cancelled() and task.exception() is not None and remote.ready.is_set() and not remote.revoked:
            task.result()


def tool_app(acts: list[str]) -> App:
    app = App("tests", instructions="Be brief.")

    @app.tool(read_only=True)
    async def look(at: str) -> str:
        return f"saw {at}"

    @app.tool
    def act(word: str, ctx: ToolContext) -> dict[str, Any]:
        """Acts in a thread, and remembers."""
        before = ctx.state.get("count", 0)
        ctx.state.set("count", before + 1)
        acts.append(word)
        return {"word": word, "count": before + 1, "key": ctx.idempotency_key}

    @app.tool
    async def refuse(word: str) -> str:
        raise ToolError(f"not {word}")

    return app


@pytest.mark.proves("D.1070")
async def test_a_worker_without_a_database_runs_the_tools_of_an_agent(world: World) -> None:
    acts: list[str] = []
    script = [turn(call("look", at="x")), turn(call("act", word="a"), call("act", word="b")), turn(call("refuse", word="c"))]
    agent = await make_agent(world, script)
    async with remote_worker(world, tool_app(acts)) as remote:
        job = await ended(world, await submit(world, agent))
        assert job.status is JobStatus.COMPLETED, job.error_message
        assert acts == ["a", "b"]
        # What takes no context is sent nothing of the job but its arguments.
        by_name = {each["name"]: each for each in remote.invokes()}
        assert by_name["look"]["context"] is None
        assert by_name["act"]["context"]["state"] == {"count": "1"}
        assert by_name["act"]["begin_before"] is not None
        (row,) = [each for each in await workers.list_workers(world.db, world.admin.actor) if each.name == "afar"]
        assert row.org_id == world.org_id
        assert row.alive
    calls = [each for step in await steps_of(world, job.id) for each in step.calls]
    assert [each.status.value for each in calls] == ["completed", "completed", "failed"]
    assert calls[2].error == "not c Nothing was changed: correct the call, or go another way."
    assert await whole(world)
