"""Events of sessions: read, replayed, and followed live."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from cortex_plane.db.database import Database, Transaction
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import TERMINAL, JobStatus
from cortex_plane.jobs.rules import Assignment
from cortex_plane.kernel.errors import CortexError
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.events import Event
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, transaction_verb

PAGE = 200
LOOKED_AT = 20_000
"""Events of a session among which those of its gates are looked for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EventReplay:
    """Events after a number, and what a stream needs to go on from there."""

    org_id: UUID
    session_id: UUID
    job_id: UUID | None
    """Only what this job did; None for the whole session."""
    events: list[Event]
    latest: int
    """How far the session's events go."""
    more: bool
    """There may be more after the last one."""
    over: JobStatus | None
    """How the job ended, once it has: nothing of it comes any more."""


@transaction_verb(Permission.SESSION_READ)
async def of_session(tx: Transaction, actor: Actor, session_id: UUID, after: int, limit: int = PAGE) -> EventReplay:
    """Everything that happened in a session after number ``after``. With a limit of 0 it only tells whether it may be read."""
    require_found(await sessions_store.get_session(tx, session_id, actor.sees), "session")
    return await _replay(tx, session_id, None, after, limit, over=None)


@transaction_verb(Permission.JOB_READ)
async def of_job(tx: Transaction, actor: Actor, job_id: UUID, after: int, limit: int = PAGE) -> EventReplay:
    """What one job did after number ``after``. Numbers are the session's, so they have gaps."""
    # The job first: whatever it says of its end, the events of that are there by then.
    job = require_found(await jobs_store.get_job(tx, job_id, actor.sees), "job")
    over = job.status if job.status in TERMINAL else None
    return await _replay(tx, job.session_id, job_id, after, limit, over=over)


@transaction_verb(Permission.JOB_READ)
async def of_jobs_session(tx: Transaction, actor: Actor, job_id: UUID, after: int, limit: int = PAGE) -> EventReplay:
    """Everything in the session that a job belongs to, whatever becomes of the job."""
    job = require_found(await jobs_store.get_job(tx, job_id, actor.sees), "job")
    return await _replay(tx, job.session_id, None, after, limit, over=None)


@transaction_verb(Permission.JOB_READ)
async def of_gates(tx: Transaction, actor: Actor, job_id: UUID, limit: int = PAGE) -> list[Event]:
    """What gates did in a job: the newest of it, in order."""
    job = require_found(await jobs_store.get_job(tx, job_id, actor.sees), "job")
    latest = await sessions_store.latest_event(tx, job.session_id)
    return await sessions_store.gate_events(tx, job.session_id, job_id, latest - LOOKED_AT, limit)


async def _replay(
    tx: Transaction, session_id: UUID, job_id: UUID | None, after: int, limit: int, *, over: JobStatus | None
) -> EventReplay:
    latest, events = after, list[Event]()
    if limit:
        # Before the events: a reader that follows from there on misses nothing.
        latest = await sessions_store.latest_event(tx, session_id)
        events = await sessions_store.list_events_after(tx, session_id, job_id, after, limit)
    more = bool(limit) and len(events) >= limit
    return EventReplay(
        org_id=tx.org, session_id=session_id, job_id=job_id, events=events, latest=latest, more=more, over=over
    )


async def append_chunks(db: Database, job: Assignment, worker_id: UUID, step: int, texts: Sequence[str]) -> bool:
    """Text of a step, while its model is still answering. False: the job is not this worker's any more, or the step is recorded."""
    rows = await db.call("append_chunks", job.org_id, job.job_id, worker_id, job.epoch, step, list(texts))
    return bool(rows[0]["append_chunks"])


async def void_chunks(db: Database, assignment: Assignment, step: int) -> None:
    """The answer of a step broke off: readers drop what there is of it."""
    await db.call("void_chunks", assignment.org_id, assignment.job_id, assignment.epoch, step)


async def drop_chunks(db: Database, assignment: Assignment, step: int) -> bool:
    """Delete chunks of steps that are durable; whether none of this step are left."""
    rows = await db.call("drop_chunks", assignment.org_id, assignment.job_id, step)
    return bool(rows[0]["drop_chunks"])


async def forget_chunks(db: Database, limit: int = 10_000) -> int:
    """Delete chunks of any org that are an hour old: nobody will finish those answers. Returns how many."""
    return int((await db.call("forget_chunks", None, limit))[0]["forget_chunks"])


log = structlog.get_logger()

POLL_SECONDS = 1.0
PAUSE_SECONDS = 0.02
"""Between two looks, however many hints come."""
QUEUE = 1000
"""How many events wait for a slow reader before it is dropped."""
BATCH = 500
ORGS_AT_ONCE = 4
OVERLAP_SECONDS = 30.0
"""How far back the org-wide reader looks: sessions commit in any order, so a late one may stand before a known one."""


class Subscription:
    """What happened since the last look, for one reader."""

    def __init__(self) -> None:
        self.overflowed = False
        """It was too slow: what came after is lost to it, and it must read again from its own cursor."""
        self.closed = False
        """The process ends."""
        self._events: deque[Event] = deque()
        self._woken = asyncio.Event()

    async def take(self, seconds: float) -> list[Event]:
        """What came meanwhile; nothing if ``seconds`` pass without any, or if this is the end."""
        if not self._woken.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
        self._woken.clear()
        events, self._events = list(self._events), deque()
        if self.closed or self.overflowed:
            self._woken.set()
        return events

    def give(self, new: Sequence[Event]) -> None:
        if self.overflowed:
            return
        if len(self._events) + len(new) > QUEUE:
            self.overflowed = True
            self._events.clear()
        else:
            self._events.extend(new)
        self._woken.set()

    def close(self) -> None:
        self.closed = True
        self._woken.set()


@dataclass(slots=True)
class _Watched:
    """A session that somebody watches."""

    cursor: int
    readers: list[Subscription] = field(default_factory=list)


@dataclass(slots=True)
class _Inbox:
    """The approvals of an org that somebody watches."""

    known: set[tuple[UUID, int]] = field(default_factory=set)
    """Those of the last seconds that were told."""
    readers: list[Subscription] = field(default_factory=list)


class EventFeed:
    """Reads while anybody watches. ``heard`` is set by hints."""

    def __init__(self, db: Database, poll_seconds: float = POLL_SECONDS) -> None:
        self.db = db
        self.heard = asyncio.Event()
        self.closed = False
        self.looks = 0
        """How often the database was asked, for tests and curious people."""
        self._poll_seconds = poll_seconds
        self._sessions: dict[UUID, dict[UUID, _Watched]] = {}
        self._inboxes: dict[UUID, _Inbox] = {}
        self._reader: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watch(self, org_id: UUID, session_id: UUID, latest: int) -> Iterator[Subscription]:
        """Events of a session from now on. ``latest`` is a number that it had reached before: no gap from there. A
        reader that joins others may get some again: it skips what it knows by number."""
        session = self._sessions.setdefault(org_id, {}).setdefault(session_id, _Watched(latest))
        try:
            with self._reading(session.readers) as subscription:
                yield subscription
        finally:
            of_org = self._sessions.get(org_id, {})
            if not session.readers and of_org.get(session_id) is session:
                del of_org[session_id]
            if not of_org:
                self._sessions.pop(org_id, None)

    @contextlib.contextmanager
    def approvals(self, org_id: UUID) -> Iterator[Subscription]:
        """Events of approvals anywhere in an org, to know that an inbox must be read again. Subscribe, then read the
        inbox, then wait: nothing falls between. The first may be some seconds old."""
        inbox = self._inboxes.setdefault(org_id, _Inbox())
        try:
            with self._reading(inbox.readers) as subscription:
                yield subscription
        finally:
            if not inbox.readers and self._inboxes.get(org_id) is inbox:
                del self._inboxes[org_id]

    def close(self) -> None:
        """End every stream at once. Safe to call from a signal handler, and more than once."""
        self.closed = True
        self.heard.set()
        for readers in [
            *(session.readers for of_org in self._sessions.values() for session in of_org.values()),
            *(inbox.readers for inbox in self._inboxes.values()),
        ]:
            for subscription in readers:
                subscription.close()

    @contextlib.contextmanager
    def _reading(self, readers: list[Subscription]) -> Iterator[Subscription]:
        subscription = Subscription()
        readers.append(subscription)
        if self.closed:
            subscription.close()
        elif self._reader is None or self._reader.done():
            self._reader = asyncio.get_running_loop().create_task(self._read())
        try:
            yield subscription
        finally:
            readers.remove(subscription)

    async def _read(self) -> None:
        was_warned = False
        while (self._sessions or self._inboxes) and not self.closed:
            self.heard.clear()
            start = time.monotonic()
            try:
                full = await self._look()
                was_warned = False
            except CortexError as error:
                # Streams stay open: whatever they missed is still there when the database is back.
                full = False
                if not was_warned:
                    log.warning("cannot read events", error=str(error))
                was_warned = True
            except Exception:
                full = False
                log.exception("cannot read events")
            if full:
                continue
            with contextlib.suppress(TimeoutError):
                jitter = random.uniform(0.8, 1.0)  # noqa: S311 -- jitter
                async with asyncio.timeout(self._poll_seconds * jitter):
                    await self.heard.wait()
            await asyncio.sleep(max(0.0, PAUSE_SECONDS - (time.monotonic() - start)))

    async def _look(self) -> bool:
        """One look at everything that is watched; whether there is more of something."""
        some = asyncio.Semaphore(ORGS_AT_ONCE)

        async def look(org_id: UUID) -> bool:
            async with some:
                return await self._look_at(org_id)

        org_ids = set(self._sessions) | set(self._inboxes)
        return any(await asyncio.gather(*(look(org_id) for org_id in org_ids)))

    async def _look_at(self, org_id: UUID) -> bool:
        of_org = self._sessions.get(org_id, {})
        cursors = {session_id: session.cursor for session_id, session in of_org.items()}
        inbox = self._inboxes.get(org_id)
        self.looks += 1
        async with self.db.transaction(org_id) as tx:
            fresh = await sessions_store.fresh_events(tx, cursors, BATCH) if cursors else []
            lately = await sessions_store.approval_events(tx, OVERLAP_SECONDS, QUEUE) if inbox else []
        by_session: dict[UUID, list[Event]] = {}
        for session_id, event in fresh:
            by_session.setdefault(session_id, []).append(event)
        for session_id, new in by_session.items():
            # Looked up again: whoever came or went while the database answered.
            session = of_org.get(session_id)
            if session is not None and session.cursor == cursors[session_id]:
                session.cursor = new[-1].seq
                for subscription in session.readers:
                    subscription.give(new)
        if inbox is not None:
            _tell(inbox, lately)
        return any(len(new) >= BATCH for new in by_session.values())


def _tell(inbox: _Inbox, lately: Sequence[tuple[UUID, Event]]) -> None:
    new = [event for session_id, event in lately if (session_id, event.seq) not in inbox.known]
    inbox.known = {(session_id, event.seq) for session_id, event in lately}
    if new:
        for subscription in inbox.readers:
            subscription.give(new)
