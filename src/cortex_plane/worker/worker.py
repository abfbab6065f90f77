"""A worker: leases jobs, runs them, renews its lease, adopts what dead workers left behind, and ends cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import DEFAULT_APP
from cortex_plane.db.database import NOBODY, Database
from cortex_plane.db.vault import Vault
from cortex_plane.gates.verbs.answer_checks import StewardCallbacks
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.rules import Assignment, SlotShares
from cortex_plane.jobs.verbs import workers
from cortex_plane.jobs.verbs.master_key import require_key
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import meters
from cortex_plane.worker.attempt import Attempt
from cortex_plane.worker.code.attempt import CodeAttempt
from cortex_plane.worker.ends import refuse
from cortex_plane.worker.lease import WorkerContext, WriteFailed
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.mcp.servers import Servers, ToolServers
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.models.credentials import ProviderKeys
from cortex_plane.worker.tools.app import App

log = structlog.get_logger()

FORGET_SECONDS = 3600
STEADY_BEATS = 2
FEW_SLOTS = 4
"""A worker with fewer keeps none free for others."""
MOMENT_SECONDS = 0.05
"""A worker claims ahead as many jobs as end in this time: so it begins them within about as long."""
PATIENCE_SECONDS = 0.5
"""How long a job that was claimed ahead may wait: then others may have it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings:
    concurrency: int = 16
    reserved_slots: int | None = None
    """None: one where there are at least four."""
    org_slots: int | None = None
    org_jobs: int | None = None
    poll_seconds: float = 1.0
    adoption_seconds: float = 10.0
    """A dead worker's jobs are taken over within this time."""
    grace_seconds: float = 65.0
    poison_deaths: int = 3
    dispatch_seconds: float = 2.0
    """How long after its intent a call may still be sent."""
    defer_seconds: float = 0.0
    """How long the outcomes of a step may wait for the next response; 0: not at all."""
    inline_result_bytes: int = 16 * 1024
    max_result_bytes: int = 8 * 1024 * 1024

    @property
    def shares(self) -> SlotShares:
        few = 0 if self.concurrency < FEW_SLOTS else 1
        reserve = min(few if self.reserved_slots is None else self.reserved_slots, self.concurrency - 1)
        return SlotShares(share=self.org_slots, reserve=reserve, org_jobs=self.org_jobs)

    # Together they stay below adoption_seconds: silent for a lease, noticed by the next look.
    @property
    def lease(self) -> timedelta:
        return timedelta(seconds=self.adoption_seconds * 0.75)

    @property
    def beat_seconds(self) -> float:
        return self.adoption_seconds * 0.15

    @property
    def look_seconds(self) -> float:
        return self.adoption_seconds * 0.1


@dataclass(frozen=True, kw_only=True, slots=True)
class RemotePlace:
    """Where the functions of a worker's apps run, if not in this process; it claims jobs of one org alone, and of these apps."""

    org_id: UUID
    host: str
    pid: int


def attempt_of(worker: WorkerContext, assignment: Assignment) -> Attempt | CodeAttempt:
    """An agent follows its model, or is a function of its app."""
    return CodeAttempt(worker, assignment) if assignment.skill_config.get("run") else Attempt(worker, assignment)


class JobRunner:
    """``run`` until ``stop``. Nothing of it is needed again after a crash: all state is in the database."""

    def __init__(
        self,
        db: Database,
        apps: Sequence[App],
        master_key: bytes,
        settings: WorkerSettings | None = None,
        backends: Backends | None = None,
        name: str | None = None,
        callbacks: StewardCallbacks | None = None,
        remote: RemotePlace | None = None,
        servers: ToolServers | None = None,
    ) -> None:
        """``servers``: the MCP servers of apps that run elsewhere."""
        self.db = db
        self.settings = settings or WorkerSettings()
        self.id = new_id()
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._remote = remote
        self.apps = {app.name: app for app in (*(() if remote else (App(DEFAULT_APP),)), *apps)}
        self.work = asyncio.Event()
        """Set by a hint: look for jobs now."""
        self.stopping = asyncio.Event()
        self._servers = servers or Servers(db, list(self.apps.values()))
        self._master_key = master_key
        self._running: dict[asyncio.Task[None], Attempt | CodeAttempt] = {}
        self._ready: deque[Attempt | CodeAttempt] = deque()
        """Claimed ahead: begun when slots become free."""
        self._late: set[UUID] = set()
        """Jobs that were claimed ahead, found no slot, and are not handed back yet."""
        self._ends: deque[float] = deque(maxlen=10 * self.settings.concurrency)
        """The ticks at which the last attempts ended."""
        self._refusing: set[asyncio.Task[None]] = set()
        self._claiming = asyncio.Lock()
        """Held while it is open what this worker runs."""
        self._is_cut = False
        """Nothing that is claimed begins any more."""
        self._last_org: UUID = NOBODY
        self._beaten = ticks()
        self._steady = 0
        """How often in a row the lease was renewed in time."""
        self._host = WorkerContext(
            db=db,
            worker_id=self.id,
            worker_name=self.name,
            apps=self.apps,
            backends=backends or Backends(keys=ProviderKeys(db, master_key)),
            master_key=master_key,
            dispatch_seconds=self.settings.dispatch_seconds,
            defer_seconds=self.settings.defer_seconds,
            inline_result_bytes=self.settings.inline_result_bytes,
            max_result_bytes=self.settings.max_result_bytes,
            stopping=self.stopping,
            callbacks=callbacks,
        )

    def stop(self) -> None:
        """Take nothing new; finish or hand back what runs."""
        self.stopping.set()
        self.work.set()

    def cut(self) -> None:
        """Whatever runs elsewhere for this worker cannot be reached any more: give all jobs back at once. Calls without an outcome
        are settled by whoever takes them, once they cannot be under way any more. Where nobody asked it to stop, each hand-back counts:
        a job may have ended its worker."""
        is_lost = not self.stopping.is_set()
        self._is_cut = True
        self.stop()
        for task, attempt in self._running.items():
            attempt.lease.is_worker_lost = attempt.lease.is_worker_lost or is_lost
            task.cancel()

    async def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        await require_key(self.db, Vault(self._master_key))
        async with self._servers.running():
            await self._run(on_ready)

    async def _run(self, on_ready: Callable[[], None]) -> None:
        await self._register()
        self._servers.tell(self.id)
        # What MCP servers offer is published when they say so.
        mine = [version for app in self.apps.values() for version in app.versions if version.server is None]
        await agents_store.publish_tools(self.db, mine, self._remote.org_id if self._remote else None)
        duties = [
            asyncio.create_task(self._every(self.settings.beat_seconds, self._beat)),
            asyncio.create_task(self._every(self.settings.look_seconds, self._adopt)),
            # Apart from the beat, which must not wait for a claim that takes long.
            asyncio.create_task(self._every(self.settings.beat_seconds, self._release_forgotten)),
            asyncio.create_task(self._every(PATIENCE_SECONDS, self._release_late)),
            asyncio.create_task(self._every(FORGET_SECONDS, lambda: jobs_store.forget_workers(self.db))),
        ]
        on_ready()
        try:
            await self._claim_until_stopped()
            await self._drain()
        finally:
            for duty in duties:
                duty.cancel()
            await asyncio.gather(*duties, return_exceptions=True)
            await self._host.backends.close()
        with contextlib.suppress(CortexError):
            await jobs_store.stop_worker(self.db, self.id)

    async def _claim_until_stopped(self) -> None:
        while not self.stopping.is_set():
            self.work.clear()
            number = self.settings.concurrency + self._ahead() - len(self._leased())
            # What was claimed ahead does not use up the slots that are kept for orgs that run nothing here.
            free = self.settings.concurrency - len(self._running)
            number = max(number, min(self.settings.shares.reserve, free))
            count, busy = await self._claim(number) if number > 0 else (0, False)
            if busy:
                # Somebody claims at this very moment. Their turn is over in a moment.
                await asyncio.sleep(random.uniform(0.001, 0.01))  # noqa: S311 -- jitter
            elif count < number or number <= 0:
                await self._rest()

    def _ahead(self) -> int:
        """How many jobs will find a free slot within a moment, as far as the last moment tells."""
        if not self._ends:
            return 0
        now = ticks()
        lately, before = (
            sum(end > now - seconds for end in self._ends) for seconds in (MOMENT_SECONDS, PATIENCE_SECONDS)
        )
        # Jobs that ended all at once began all at once: the next ones will not end before these would have waited too long.
        span = min(max(now - self._ends[0], MOMENT_SECONDS), PATIENCE_SECONDS)
        return min(lately, round(before * MOMENT_SECONDS / span))

    def _leased(self) -> list[Assignment]:
        return [attempt.lease.assignment for attempt in (*self._running.values(), *self._ready)]

    async def _claim(self, number: int) -> tuple[int, bool]:
        """How many jobs were claimed, and whether others were claiming at the same moment."""
        async with self._claiming:
            try:
                orgs = [assignment.org_id for assignment in self._leased()]
                assignments, busy = await jobs_store.claim_jobs(
                    self.db, self.id, list(self.apps), number, self._last_org, orgs, self.settings.shares
                )
            except CortexError as error:
                log.warning("cannot claim", error=str(error))
                return 0, False
            for assignment in assignments:
                self._accept(assignment)
            self._begin()
        if assignments:
            self._last_org = assignments[-1].org_id
        return len(assignments), busy

    async def _rest(self) -> None:
        """Until a hint, the end of a job, or the next poll."""
        seconds = self.settings.poll_seconds * random.uniform(0.8, 1.2)  # noqa: S311 -- jitter
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.work.wait()

    def _accept(self, assignment: Assignment) -> None:
        try:
            attempt = attempt_of(self._host, assignment)
        except Exception as error:
            # Whatever was stored about its agent: it must not stop the others.
            log.exception("job refused", job_id=str(assignment.job_id))
            self._refusing.add(task := asyncio.create_task(refuse(self._host, assignment, error)))
            task.add_done_callback(self._refused)
            return
        if assignment.waited_seconds is not None:
            meters().woken(assignment.org_id, assignment.waited_seconds)
        self._ready.append(attempt)

    def _begin(self) -> None:
        """Begin what is claimed, as far as slots are free. The last ones are for orgs that run nothing here."""
        orgs = {attempt.lease.assignment.org_id for attempt in self._running.values()}
        for attempt in list(self._ready) if not self._is_cut else ():
            free, org = self.settings.concurrency - len(self._running), attempt.lease.assignment.org_id
            if free > self.settings.shares.reserve or (free > 0 and org not in orgs):
                self._ready.remove(attempt)
                orgs.add(org)
                task = asyncio.create_task(self._attempt(attempt), name=f"job {attempt.lease.assignment.job_id}")
                self._running[task] = attempt
                task.add_done_callback(self._ended)

    async def _attempt(self, attempt: Attempt | CodeAttempt) -> None:
        try:
            await attempt.run()
        except WriteFailed as error:
            log.error("attempt abandoned", job_id=str(attempt.lease.assignment.job_id), error=str(error))

    def _refused(self, task: asyncio.Task[None]) -> None:
        self._refusing.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.warning("refusal not written: it is made again", error=repr(task.exception()))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        self._ends.append(ticks())
        self._begin()
        if 2 * len(self._ready) <= self._ahead():
            self.work.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("attempt crashed", error=repr(task.exception()))

    async def _every(self, seconds: float, duty: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            try:
                await duty()
            except (CortexError, TimeoutError) as error:
                log.warning("duty failed", duty=getattr(duty, "__name__", "forget"), error=str(error))
            except Exception:
                # A worker that does not beat any more, and goes on, would be worse than a loud one.
                log.exception("duty failed", duty=getattr(duty, "__name__", "forget"))
            await asyncio.sleep(seconds * random.uniform(0.9, 1.0))  # noqa: S311 -- jitter

    async def _register(self) -> None:
        place = self._remote
        host, pid = (socket.gethostname(), os.getpid()) if place is None else (place.host, place.pid)
        await jobs_store.register_worker(
            self.db, self.id, self.name, host, pid, sorted(self.apps), self.settings.concurrency, self.settings.lease,
            place.org_id if place else None,
        )  # fmt: skip

    async def _beat(self) -> None:
        lease = self.settings.lease
        late = ticks() - self._beaten > lease.total_seconds()
        try:
            # A connection that hangs must not cost the lease: the next try gets another one.
            async with asyncio.timeout(lease.total_seconds() / 3):
                beaten = await jobs_store.beat_worker(self.db, self.id, lease)
        except BaseException:
            self._steady = 0
            raise
        self._steady = 0 if late else self._steady + 1
        self._beaten = ticks()
        if beaten is None:
            await self._register()
            return
        cancelled, overdue = set(beaten[1]), beaten[2]
        for attempt in (*self._running.values(), *self._ready):
            if attempt.lease.assignment.job_id in cancelled and not attempt.lease.cancel_requested:
                attempt.interrupt()
            attempt.lease.cut_after(overdue.get(attempt.lease.assignment.job_id), attempt.cut)

    async def _adopt(self) -> None:
        # After an outage everybody looks dead for a moment. Whoever could not beat either lets the others beat first.
        if self._steady < STEADY_BEATS or ticks() - self._beaten > 2 * self.settings.beat_seconds:
            return
        if orphans := await workers.adopt_jobs(self.db, self.id, self.name, self.settings.poison_deaths):
            log.warning("adopted", jobs=[str(orphan.id) for orphan in orphans])
            self.work.set()

    async def _release_forgotten(self) -> None:
        """Hand back what is leased to this worker and not run by it: nobody takes a job from a living worker. The answer to
        its claim was lost, or its attempt ended without a write; the next attempt finds out which. What was claimed ahead and
        found no free slot is handed back too."""
        async with self._claiming:
            late = {attempt.lease.assignment.job_id for attempt in self._ready if self._is_late(attempt)}
            self._late |= late
            self._ready = deque(each for each in self._ready if each.lease.assignment.job_id not in late)
            run = {(assignment.job_id, assignment.epoch) for assignment in self._leased()}
            for job in await jobs_store.find_leased(self.db, self.id):
                if (job.id, job.epoch) in run:
                    continue
                is_late = job.id in self._late
                counted = not is_late and not self.stopping.is_set()
                if await workers.release_job(self.db, job, self.id, self.name, is_late=is_late, counted=counted):
                    log.log(
                        logging.DEBUG if is_late else logging.WARNING,
                        "handed back a job that nobody ran",
                        job_id=str(job.id),
                    )
                    self.work.set()
            self._late.clear()

    async def _release_late(self) -> None:
        if any(self._is_late(attempt) for attempt in self._ready):
            await self._release_forgotten()

    def _is_late(self, attempt: Attempt | CodeAttempt) -> bool:
        return self.stopping.is_set() or ticks() - attempt.lease.limits.start > PATIENCE_SECONDS

    async def _drain(self) -> None:
        """Attempts stop by themselves at their next boundary; whoever does not within the grace time is stopped."""
        if self._ready:
            with contextlib.suppress(CortexError):  # whoever looks next adopts them
                await self._release_forgotten()
        if not self._running:
            return
        _, late = await asyncio.wait(self._running, timeout=self.settings.grace_seconds)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late, timeout=5)
