"""The plane's end of remote workers: for each link a `JobRunner` whose tools are stand-ins, in the process where the link arrived.

It claims jobs of the key's org and apps, renews its lease, judges calls and writes intents and outcomes as any worker does. Where the link
is lost all jobs are given back at once; a call without an outcome is settled by whoever takes its job, once it cannot be under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from uuid import UUID

import structlog

from cortex_plane.db.database import Database
from cortex_plane.gates.verbs.answer_checks import StewardCallbacks
from cortex_plane.jobs.model import remote_work
from cortex_plane.jobs.model.remote_work import (
    Beat,
    Failed,
    FromPlane,
    Goodbye,
    Hello,
    Leaving,
    LinkClosed,
    Returned,
    ServerChange,
    Welcome,
    WorkerLink,
    WorkerRefusal,
    encode_message,
)
from cortex_plane.jobs.verbs.remote_workers import CheckKey, admit_worker
from cortex_plane.kernel.errors import Conflict, CortexError, InvalidInput, TooMany, Unavailable
from cortex_plane.kernel.shares import Shares
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.worker.remote.server_stand_ins import StandInServers
from cortex_plane.worker.remote.stand_ins import RemoteCalls, stand_in_app
from cortex_plane.worker.worker import JobRunner, RemotePlace, WorkerSettings

log = structlog.get_logger()

MOST_WORKERS = 200
"""Remote workers of one process; the last ones are for orgs that have none here."""
WORKERS_OF_ORG = 100
HELLO_SECONDS = 10.0
CUT_SECONDS = 15.0
"""How long attempts whose link is lost may take to write where their jobs stand. After that their lease runs out."""
STOP_SECONDS, LAST_SECONDS = 15.0, 8.0
"""How long a process that stops waits for what its remote workers run, and then for the last writes of what it cuts off."""
THREAD_BYTES = 64 * 1024
"""A larger message is parsed in a thread, and only if an answer is due."""
MOST_TOOLS = 1000
"""Of one worker."""
MOST_UNKNOWN = 100
"""Answers to no call over one link: with more of them it is closed."""
Listen = Callable[[asyncio.Event], AbstractAsyncContextManager[None]]


@dataclass(frozen=True, kw_only=True, slots=True)
class HostParts:
    """What the host needs of its process."""

    db: Database
    master_key: bytes
    settings: WorkerSettings
    callbacks: StewardCallbacks | None = None
    listen: Listen | None = None
    """Sets an event with every hint that there is work. None: nobody hints, and runners poll."""


class RemoteWorkers:
    """The remote workers that are connected to this process."""

    def __init__(self, parts: HostParts) -> None:
        self._parts = parts
        self._places = Shares(MOST_WORKERS, share=WORKERS_OF_ORG)
        self._runners: dict[JobRunner, asyncio.Task[None]] = {}
        self._is_stopping = False
        self._waking: asyncio.Task[None] | None = None

    async def close(self) -> None:
        """Attempts stop at their next boundary, or are cut off."""
        self.stop()
        if self._runners:
            await asyncio.wait(self._runners.values(), timeout=STOP_SECONDS)
        for runner in self._runners:
            runner.cut()
        if self._runners:
            await asyncio.wait(self._runners.values(), timeout=LAST_SECONDS)
        if self._waking is not None:
            self._waking.cancel()
            await asyncio.gather(self._waking, return_exceptions=True)

    def stop(self) -> None:
        """Take nothing new."""
        self._is_stopping = True
        for runner in self._runners:
            runner.stop()

    async def _wake_runners(self) -> None:
        if self._parts.listen is None:
            return
        hint = asyncio.Event()
        async with self._parts.listen(hint):
            while True:
                await hint.wait()
                hint.clear()
                for runner in self._runners:
                    runner.work.set()

    @contextlib.contextmanager
    def place(self, org_id: UUID) -> Iterator[None]:
        if self._is_stopping:
            raise Unavailable("This process is about to stop.", code="stopping", hint="Connect again.")
        if not self._places.take(org_id):
            raise TooMany(
                "As many remote workers of this org, or of all orgs, are connected to this process as it serves.",
                code="too_many_workers",
                hint="Start another `cortex api`, or give fewer workers more concurrency.",
                retry_after=5,
            )
        try:
            yield
        finally:
            self._places.give_back(org_id)

    async def serve(self, link: WorkerLink, actor: Actor, check_key: CheckKey) -> None:
        connection = _Connection(self._parts, link, actor, check_key)
        try:
            runner = await connection.open()
            if runner is not None:
                await self._run(connection, runner)
        except LinkClosed as error:
            log.info("remote worker gone", reason=str(error), org_id=str(actor.org_id))
        except Exception:
            log.exception("remote worker given up", org_id=str(actor.org_id))
        finally:
            await link.close()

    async def _run(self, connection: _Connection, runner: JobRunner) -> None:
        task = self._runners[runner] = asyncio.create_task(runner.run())
        task.add_done_callback(lambda _: self._runners.pop(runner, None))
        if self._is_stopping:
            runner.stop()
        if self._waking is None:
            self._waking = asyncio.create_task(self._wake_runners())
        try:
            await connection.run(runner, task)
        except BaseException:
            runner.cut()
            raise


class _Connection:
    """One remote worker."""

    def __init__(self, parts: HostParts, link: WorkerLink, actor: Actor, check_key: CheckKey) -> None:
        self._parts, self._link, self._actor, self._check_key = parts, link, actor, check_key
        self._calls = RemoteCalls(self._send)
        self._name = actor.name
        self._is_refused = False
        self._unknown = 0
        """Answers to calls that it was not sent."""
        self._servers: StandInServers | None = None

    async def _send(self, message: FromPlane) -> None:
        await self._link.send(encode_message(message))

    async def open(self) -> JobRunner | None:
        """Its runner; None where the worker is refused."""
        try:
            runner = await self._admit(await self._hello())
        except Unavailable as error:
            raise LinkClosed(str(error)) from error  # it connects again
        except CortexError as error:
            await self._refuse(error)
            return None
        settings = self._parts.settings
        beat_seconds, silence_seconds = settings.beat_seconds, settings.lease.total_seconds()
        await self._send(Welcome(worker_id=runner.id, beat_seconds=beat_seconds, silence_seconds=silence_seconds))
        log.info("remote worker connected", worker=self._name, org_id=str(self._actor.org_id), apps=sorted(runner.apps))
        return runner

    async def _refuse(self, error: CortexError) -> None:
        self._is_refused = True
        log.warning("remote worker refused", org_id=str(self._actor.org_id), reason=error.message)
        await self._send(WorkerRefusal(code=error.code, message=error.message[:8000], hint=error.hint[:8000]))

    async def _hello(self) -> Hello:
        async with asyncio.timeout(HELLO_SECONDS):
            hello = await asyncio.to_thread(remote_work.read_worker_message, await self._link.receive())
        if not isinstance(hello, Hello):
            raise InvalidInput("The first message of a worker says who it is.", code="invalid_message")
        if hello.version != remote_work.VERSION:
            raise Conflict(
                f"The worker speaks version {hello.version} of the protocol, the plane version {remote_work.VERSION}.",
                code="protocol_version",
                hint="Install the same release of cortex-plane on both sides.",
            )
        self._calls.set_tick(hello.tick)
        return hello

    async def _admit(self, hello: Hello) -> JobRunner:
        # In a thread, because somebody else wrote the schemas, and there may be many.
        apps = await asyncio.to_thread(lambda: [stand_in_app(self._calls, offer) for offer in hello.apps])
        if len({app.name for app in apps}) < len(apps):
            raise InvalidInput("The worker offers an app twice.", code="invalid_app")
        if (count := sum(len(app.tools) for app in apps)) > MOST_TOOLS:
            raise InvalidInput(
                f"The worker offers {count} tools, more than {MOST_TOOLS}.",
                code="too_many_tools",
                hint="Load fewer apps, and the others in another worker.",
            )
        servers = await asyncio.to_thread(StandInServers, self._parts.db, self._actor, self._calls, apps, hello.apps)
        await admit_worker(self._parts.db, self._actor, {app.name: app.versions for app in apps})
        self._name, self._servers = hello.name, servers
        # All of its slots are for the one org that it serves.
        settings = replace(self._parts.settings, concurrency=hello.concurrency, reserved_slots=0, org_slots=None)
        return JobRunner(
            self._parts.db, apps, self._parts.master_key, settings, name=hello.name, callbacks=self._parts.callbacks,
            remote=RemotePlace(org_id=self._actor.org_id, host=hello.host, pid=hello.pid),
            servers=servers,
        )  # fmt: skip

    async def run(self, runner: JobRunner, task: asyncio.Task[None]) -> None:
        """Until the runner has ended. It is cut off where the link is lost, or its key does not hold any more."""
        duties = [asyncio.create_task(self._receive(runner)), asyncio.create_task(self._beat())]
        if self._servers is not None:
            duties.append(asyncio.create_task(self._follow_servers(self._servers)))
        try:
            await asyncio.wait([task, *duties], return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                with contextlib.suppress(LinkClosed):
                    await self._send(Goodbye(reason="its jobs are handed back"))
                if (error := task.exception()) is not None:
                    log.error("remote worker ended", worker=self._name, error=repr(error))
                return
            reason = next((str(duty.exception()) for duty in duties if duty.done()), "")
            log.warning("remote worker cut off", worker=self._name, reason=reason)
            if self._is_refused:
                runner.stop()  # its key ended, and no job is to blame
            runner.cut()
            await asyncio.wait([task], timeout=CUT_SECONDS)
        finally:
            for duty in duties:
                duty.cancel()
            await asyncio.gather(*duties, return_exceptions=True)

    async def _receive(self, runner: JobRunner) -> None:
        """Raises where the worker is gone, silent, or says what no worker may."""
        silence = self._parts.settings.lease.total_seconds()
        while True:
            try:
                async with asyncio.timeout(silence):
                    message = await self._next_message()
            except TimeoutError:
                raise LinkClosed("it was silent") from None
            match message:
                case Beat():
                    self._calls.set_tick(message.tick)
                case Returned() | Failed() | None:
                    if message is None or not self._calls.settle(message):
                        self._unknown += 1
                        if self._unknown > MOST_UNKNOWN:
                            raise LinkClosed("it answered calls that it was not sent")
                case ServerChange():
                    if self._servers is not None:
                        self._servers.note(message)
                case Leaving():
                    runner.stop()
                case Hello():
                    raise LinkClosed("it said a second time who it is")

    async def _next_message(self) -> remote_work.FromWorker | None:
        """None for a large one that answers nothing: it is not even parsed."""
        content = await self._link.receive()
        if len(content) <= THREAD_BYTES:
            return remote_work.read_worker_message(content)
        if not self._calls.expects_answers and not (self._servers and self._servers.expects_changes):
            return None
        return await asyncio.to_thread(remote_work.read_worker_message, content)

    async def _follow_servers(self, servers: StandInServers) -> None:
        """Raises where its MCP servers change in a way that this worker may not publish."""
        try:
            await servers.follow()
        except CortexError as error:
            await self._refuse(error)
            raise LinkClosed(error.message) from error

    async def _beat(self) -> None:
        """Raises where the key was revoked, or the link is lost."""
        while True:
            try:
                await self._check_key()
            except Unavailable as error:
                log.warning("key not checked", error=str(error))  # the lease runs out, where that goes on
            except CortexError as error:
                await self._refuse(error)
                raise LinkClosed(error.message) from error
            await self._send(Beat())
            await asyncio.sleep(min(1.0, self._parts.settings.beat_seconds))
