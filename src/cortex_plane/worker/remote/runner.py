"""The life of a worker without a database: it connects to a plane, runs what the plane asks for, and connects again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING
from uuid import UUID

import cortex_plane
from cortex_plane.jobs.model import remote_work
from cortex_plane.jobs.model.remote_work import (
    Beat,
    Cancel,
    Failed,
    FailureKind,
    Goodbye,
    Hello,
    Invoke,
    Leaving,
    LinkClosed,
    OfferedApp,
    Welcome,
    WorkerLink,
    WorkerRefusal,
    encode_message,
)
from cortex_plane.kernel.errors import SetupError, TooMany, Unavailable, extra
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.remote.functions import AppFunctions, check_app, check_concurrency, encode_answer, offered_app
from cortex_plane.worker.tools.app import App

if TYPE_CHECKING:
    from cortex_plane.worker.remote.servers import AppServers

log = logging.getLogger("cortex_plane.worker")

Connect = Callable[[], AbstractAsyncContextManager[WorkerLink]]
WELCOME_SECONDS = 20.0
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
STEADY_SECONDS = 5.0
"""A link that lasted so long was a good one: after it the first pause is short again."""
GRACE_SECONDS = 65.0
"""How long a worker that stops waits for what it runs."""


class RemoteWorker:
    """``run`` until ``stop``. It holds nothing that is needed again: jobs and their state are the plane's."""

    def __init__(
        self, apps: Sequence[App], connect: Connect, *, concurrency: int, name: str | None = None,
        grace_seconds: float = GRACE_SECONDS,
    ) -> None:  # fmt: skip
        """``connect`` opens a link, and raises `CortexError` where it cannot."""
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self.apps = sorted(app.name for app in apps)
        for app in apps:
            check_app(app)
        self._apps = list(apps)
        self._servers = _open_servers(apps)
        self._functions = AppFunctions(apps)
        self._connect, self._concurrency = connect, check_concurrency(concurrency)
        self._grace_seconds = grace_seconds
        self._stopping = asyncio.Event()
        self._calls: dict[UUID, asyncio.Task[None]] = {}
        """What runs, by the id of its sending. It goes on where its link ends: nobody waits for it then."""
        self._tasks: set[asyncio.Task[None]] = set()

    def stop(self) -> None:
        """Take nothing new; finish what runs."""
        self._stopping.set()

    async def run(self, on_ready: Callable[[UUID], None] = lambda _: None) -> None:
        """``on_ready`` gets the id under which the plane knows this worker, each time that it is connected. Raises what connecting
        again would not change: a wrong key, an app that the key does not name."""
        async with self._servers.running() if self._servers is not None else contextlib.nullcontext():
            await self._run(on_ready)

    async def _run(self, on_ready: Callable[[UUID], None]) -> None:
        pause = FIRST_PAUSE
        while not self._stopping.is_set():
            began = ticks()
            try:
                async with self._connect() as link:
                    await self._serve(link, on_ready)
            except (Unavailable, TooMany, LinkClosed, TimeoutError) as error:
                log.warning("not connected: %s", error or "the plane does not answer")
            pause = FIRST_PAUSE if ticks() - began > STEADY_SECONDS else min(2 * pause, LONGEST_PAUSE)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause * random.uniform(0.5, 1.0)):  # noqa: S311 -- jitter
                    await self._stopping.wait()
        for call in self._calls.values():
            call.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _offers(self) -> list[OfferedApp]:
        servers = self._servers
        return [offered_app(app, servers.offers(app) if servers is not None else ()) for app in self._apps]

    async def _serve(self, link: WorkerLink, on_ready: Callable[[UUID], None]) -> None:
        hello = Hello(
            version=remote_work.VERSION, release=cortex_plane.__version__, name=self.name, host=socket.gethostname(),
            pid=os.getpid(), concurrency=self._concurrency, tick=ticks(), apps=self._offers(),
        )  # fmt: skip
        await link.send(encode_message(hello))
        async with asyncio.timeout(WELCOME_SECONDS):
            answer = remote_work.read_plane_message(await link.receive())
        if isinstance(answer, WorkerRefusal):
            raise SetupError(answer.message, code=answer.code, hint=answer.hint)
        if not isinstance(answer, Welcome):
            raise LinkClosed("the plane did not welcome this worker")
        on_ready(answer.worker_id)
        duties = [asyncio.create_task(self._beat(link, answer.beat_seconds)), asyncio.create_task(self._leave(link))]
        if self._servers is not None:
            duties.append(asyncio.create_task(_report_servers(link, self._servers)))
        try:
            await self._receive(link, answer.silence_seconds)
        finally:
            for duty in duties:
                duty.cancel()
            await asyncio.gather(*duties, return_exceptions=True)

    async def _receive(self, link: WorkerLink, silence_seconds: float) -> None:
        """Until the plane says goodbye. Raises ``LinkClosed`` where it does not."""
        while True:
            try:
                async with asyncio.timeout(silence_seconds):
                    message = remote_work.read_plane_message(await link.receive())
            except TimeoutError:
                raise LinkClosed("the plane was silent") from None
            match message:
                case Invoke():
                    self._calls[message.id] = task = asyncio.create_task(self._call(link, message))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                case Cancel():
                    if (call := self._calls.get(message.id)) is not None:
                        call.cancel()
                case WorkerRefusal():
                    raise SetupError(message.message, code=message.code, hint=message.hint)
                case Goodbye():
                    log.info("the plane said goodbye: %s", message.reason)
                    return

    async def _call(self, link: WorkerLink, invoke: Invoke) -> None:
        try:
            answer = await self._functions.call(invoke)
        except asyncio.CancelledError:
            # It is over here, and the plane may know.
            answer = Failed(id=invoke.id, failure=FailureKind.TIMED_OUT)
        finally:
            self._calls.pop(invoke.id, None)  # a message that is half sent must not be cancelled
        try:
            await link.send(encode_answer(answer))
        except LinkClosed:
            log.warning("the answer of `%s` found no plane: it settles the call as the tool declares", invoke.name)

    async def _beat(self, link: WorkerLink, seconds: float) -> None:
        with contextlib.suppress(LinkClosed):
            while True:
                await link.send(encode_message(Beat(tick=ticks())))
                await asyncio.sleep(seconds)

    async def _leave(self, link: WorkerLink) -> None:
        """Once it should stop: the plane has so long to hand its jobs back."""
        await self._stopping.wait()
        with contextlib.suppress(LinkClosed):
            await link.send(encode_message(Leaving()))
        await asyncio.sleep(self._grace_seconds)
        await link.close()


def _open_servers(apps: Sequence[App]) -> AppServers | None:
    """Raises `MissingExtra` where what speaks to them is not installed."""
    if not any(app.mcp_servers for app in apps):
        return None
    with extra("mcp"):
        import mcp  # noqa: F401 -- connections import it later, one by one

        from cortex_plane.worker.remote.servers import AppServers

        return AppServers(apps)


async def _report_servers(link: WorkerLink, servers: AppServers) -> None:
    with contextlib.suppress(LinkClosed):
        while True:
            await servers.changed.wait()
            servers.changed.clear()
            for change in servers.take_changes():
                await link.send(encode_message(change))
