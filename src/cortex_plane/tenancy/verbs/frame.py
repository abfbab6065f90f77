"""The frame of every verb: who calls and how often, whose turn it is, permission, idempotency, revisions.

Requests in flight in one process: how many an org has, and how many of them are worked on.

A request enters once its caller is known, and leaves with its answer. One that only waits (a stream, a long poll) has left before: it is
counted among the open streams. A process works on one thing at a time, so an org that sends many requests makes all others slow.
While other orgs send requests, one of its requests is worked on at a time, and the next ones wait; if many wait, the process pauses
between two of them for as long as the last one took. Once the others have paused, a few are worked on at a time, so that the
next request of another org waits for these alone. An org that is alone waits for nothing. A request that takes longer than others
waits for something else (a lock, a long read, a slow client), so it is not counted as worked on, and nobody waits for it.

The doors of a process share one ``InFlight``, one ``OpenStreams`` and the reads that concurrent requests share.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import math
import time
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

import structlog

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.pool import PoolPurpose
from cortex_plane.kernel.errors import NotFound, Stale, TooMany, Unauthenticated, Unavailable
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.meters import meters
from cortex_plane.kernel.pages import After
from cortex_plane.kernel.shares import reserve_of
from cortex_plane.proof import store as proof_store
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model import access
from cortex_plane.tenancy.model.access import Actor, Fact, Forged, Permission, SecretKind
from cortex_plane.tenancy.model.orgs import Org

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

log = structlog.get_logger()


async def authenticate_key(db: Database, secret: str, org_slug: str | None = None) -> Actor:
    """The actor behind a key. What is not even shaped like a key is not looked up. Revoked and expired keys raise with the reason."""
    rows: Sequence[Row] = ()
    if SecretKind.KEY.matches(secret):
        key = db.credential_key
        lookup = key.lookup(access.secret_digest(secret))
        rows = await db.own(PoolPurpose.AUTHENTICATION).call("authenticate", None, lookup, org_slug)
    if rows:
        try:
            return access.key_holder(rows[0], key, lookup)
        except Forged as forgery:
            await report_forgery(db, forgery)
    raise Unauthenticated("This key is not known.", code="key_unknown")


PAUSE_SECONDS = 3600
"""A row is on the trail at most so often, and by each process: whoever tries it again and again fills no chain."""
REMEMBERED = 10_000

_forgery_reports: OrderedDict[tuple[UUID, str, str], float] = OrderedDict()


async def report_forgery(db: Database, forgery: Forged) -> None:
    """In the log, in a metric and on the org's trail."""
    meters().forged(forgery.kind)
    details = {"kind": forgery.kind.value, "id": str(forgery.id)}
    log.error("a row has a false MAC and was refused", org_id=str(forgery.org_id), **details)
    if not _is_due((forgery.org_id, forgery.kind.value, str(forgery.id))):
        return
    plane = access.scheduler_actor(forgery.org_id, UUID(int=0), "plane")
    async with db.transaction(forgery.org_id) as tx:
        await record(tx, plane, "credential_refused", **details)


def _is_due(row: tuple[UUID, str, str]) -> bool:
    now = time.monotonic()
    before = _forgery_reports.get(row)
    if before is not None and now - before < PAUSE_SECONDS:
        return False
    _forgery_reports[row] = now
    _forgery_reports.move_to_end(row)
    if len(_forgery_reports) > REMEMBERED:
        _forgery_reports.popitem(last=False)
    return True


BURST_SECONDS = 10
"""How long somebody may have been silent for it to count."""
BATCHES = 10
"""Into so many parts a full budget is taken."""
BATCH_SECONDS = 5.0
REMEMBERED_CALLERS = 10_000
"""Callers whose batch is remembered: those who came longest ago are forgotten first."""


@dataclass(slots=True)
class _Batch:
    left: int = 0
    until: float = 0.0
    """When it is void; or, where nothing is left, when it is worth asking again."""
    want: int = 0
    """How many are asked for next; 0 before the first time."""
    granted: int = 0
    taking: asyncio.Lock = field(default_factory=asyncio.Lock)


class RequestRates:
    """How many requests a key and a person may make, in all processes together.

    ``per_second`` holds for each key, and for each person with all their keys and browsers. Budgets are rows, and a process
    takes from them in batches: most requests cost a subtraction in memory, and one in a hundred a round trip. Unused parts of
    a batch are void after some seconds, in which the row refills by itself; and the next batch is as large as what was used,
    so that few requests through many processes do not use a budget up.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = max(1.0, per_second * BURST_SECONDS)
        self._batch = max(1, int(self._burst / BATCHES))
        self._clock = clock
        self._batches: OrderedDict[tuple[UUID, UUID], _Batch] = OrderedDict()

    async def take(self, db: Database, actor: Actor, *, by_key: bool = True) -> None:
        """Count one request. Raises ``TooMany`` where its key or its person made too many. A browser has no key to count by."""
        if not self._per_second:
            return
        subjects = {actor.key_id} if by_key or actor.user_account_id is None else set()
        if actor.user_account_id is not None:
            subjects.add(actor.user_account_id)
        batch = self._batch_of((actor.org_id, min(subjects) if not by_key else actor.key_id))
        if self._spend(batch):
            return
        async with batch.taking:
            if not self._spend(batch):
                await self._refill(db, actor.org_id, sorted(subjects), batch)

    def _batch_of(self, key: tuple[UUID, UUID]) -> _Batch:
        batch = self._batches.setdefault(key, _Batch())
        self._batches.move_to_end(key)
        if len(self._batches) > REMEMBERED_CALLERS:
            self._batches.popitem(last=False)
        return batch

    def _spend(self, batch: _Batch) -> bool:
        """One of those that are here. Raises ``TooMany`` where there is none, and asking would be in vain."""
        now = self._clock()
        if now >= batch.until:
            return False
        if batch.left == 0:
            # Nothing was left when it was asked for. Nobody asks the database for each request that is refused.
            raise self._too_many(batch.until - now)
        batch.left -= 1
        if batch.left == 0:
            batch.until = now
        return True

    async def _refill(self, db: Database, org_id: UUID, subjects: list[UUID], batch: _Batch) -> None:
        # Twice as many as before where they were used up, twice what was used where some were not.
        wanted = 2 * (batch.granted - batch.left if batch.left else batch.want)
        batch.want = max(1, min(wanted, self._batch)) if batch.want else self._batch
        count, wait = await tenancy_store.take_requests(db, org_id, subjects, batch.want, self._per_second, self._burst)
        now, batch.granted = self._clock(), count
        if count == 0:
            batch.left, batch.until = 0, now + wait
            raise self._too_many(wait)
        batch.left, batch.until = count - 1, now + (BATCH_SECONDS if count > 1 else 0.0)

    def _too_many(self, seconds: float) -> TooMany:
        return TooMany(
            f"More than {self._per_second:g} requests a second came with this key or from this person.",
            code="rate_limited",
            hint="Wait as long as the header Retry-After says, and send fewer requests at a time.",
            retry_after=math.ceil(seconds),
        )


MOST_IN_FLIGHT = 256
STREAMS_OF_ORG = 1000

BESIDE_OTHERS = 1
"""How many requests of an org are worked on at a time while others send some."""
BESIDE_SECONDS = 0.1
"""So soon after a request of another org, others send some."""
AFTER_OTHERS = 16
"""How many are worked on at a time while others may come again."""
AFTER_SECONDS = 1.0
"""An org that was silent for so long is none of those."""
WORK_SECONDS = 0.05
"""A request that began longer ago is not worked on: it waits for something else."""
FLOOD = 8
"""An org with more waiting requests than this gets at most half of the process's time beside others."""


_ENTERED = "in_flight"


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLimits:
    """What one API process serves at a time."""

    in_flight: int = MOST_IN_FLIGHT
    in_flight_of_org: int | None = None
    """None: all but those that are kept for orgs that have none in flight."""
    streams_of_org: int = STREAMS_OF_ORG


DEFAULT_LIMITS = RequestLimits()


class InFlight:
    def __init__(self, limits: RequestLimits = DEFAULT_LIMITS, clock: Callable[[], float] = time.monotonic) -> None:
        self.free = limits.in_flight
        self._share = limits.in_flight if limits.in_flight_of_org is None else limits.in_flight_of_org
        self._reserve = reserve_of(limits.in_flight)
        self.now = self._clock = clock
        # By the number of an org's id: the hash of a UUID is a function of Python's, and this is asked for every request.
        self._begun: dict[int, list[float]] = {}
        """When the requests of each org began that are in flight, oldest first."""
        self._waiting: dict[int, deque[asyncio.Future[float]]] = {}
        self._timed: set[int] = set()
        """Orgs whose waiting requests are looked at again before long."""
        self._paused: set[int] = set()
        """Orgs that flood, between two of their requests."""
        self._newest = 0
        """Which org sent the last request."""
        self._newest_at = self._other_at = -math.inf
        """When it did, and when any other did."""

    def held_by(self, id: int) -> int:
        """How many places an org has, by the number of its id."""
        return len(self._begun.get(id, ())) + len(self._waiting.get(id, ()))

    async def enter(self, state: dict[str, Any], org: UUID) -> None:
        """Waits until its org has a turn. ``state`` is the request's: `leave` finds its place there. Raises ``TooMany`` where the org, or the process, has as many as it may."""
        id, now = org.int, self._clock()
        begun = self._begun.get(id)
        queue = self._waiting.get(id) if self._waiting else None
        places = (len(begun) if begun else 0) + (len(queue) if queue else 0)
        if places >= self._share or self.free <= (self._reserve if places else 0):
            raise TooMany(
                "As many requests of this org, or of this process, are in flight as it serves at a time.",
                code="too_many_in_flight",
                hint="Wait as long as the header Retry-After says, and send fewer requests at a time.",
                retry_after=1,
            )
        self.free -= 1
        if id != self._newest:
            self._newest, self._other_at = id, self._newest_at
        self._newest_at = now
        if queue is not None:
            self._admit(id)
            begun = self._begun.get(id)
        if begun is None:
            self._begun[id] = [now]
        elif id in self._waiting or not self._has_turn(id, now):
            now = await self._wait(id)
        else:
            begun.append(now)
        state[_ENTERED] = (self, id, now)

    def left(self, id: int, began: float) -> None:
        self.free += 1
        begun = self._begun[id]
        begun.remove(began)
        queue = self._waiting.get(id)
        if queue is None:
            if not begun:
                del self._begun[id]
        elif len(queue) > FLOOD and self._at_once(id, now := self._clock()) == BESIDE_OTHERS:
            self._paused.add(id)
            asyncio.get_running_loop().call_later(min(now - began, WORK_SECONDS), self._end_pause, id)
        else:
            self._admit(id)

    def _has_turn(self, id: int, now: float) -> bool:
        """Whether another request of this org may be worked on."""
        if id in self._paused:
            return False
        begun, at_once = self._begun[id], self._at_once(id, now)
        return at_once is None or len(begun) < at_once or begun[-at_once] <= now - WORK_SECONDS

    def _at_once(self, id: int, now: float) -> int | None:
        """How many requests of this org are worked on at a time; None: all of them."""
        silence = now - (self._other_at if id == self._newest else self._newest_at)
        return BESIDE_OTHERS if silence < BESIDE_SECONDS else AFTER_OTHERS if silence < AFTER_SECONDS else None

    def is_beside_others(self, id: int) -> bool:
        """Whether other orgs send requests too, or did a moment ago."""
        return self._at_once(id, self._clock()) is not None

    async def _wait(self, id: int) -> float:
        """When it began."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[float] = loop.create_future()
        self._waiting.setdefault(id, deque()).append(turn)
        if id not in self._timed:
            self._timed.add(id)
            loop.call_later(WORK_SECONDS, self._look_again, id)
        try:
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.left(id, turn.result())  # it had its turn at this very moment
            else:
                self.free += 1
                queue = self._waiting.get(id)
                if queue is not None and turn in queue:
                    queue.remove(turn)
                    self._drop_empty(id)
            raise

    def _look_again(self, id: int) -> None:
        """Turns come with time too, not only when another request leaves."""
        if id in self._waiting:
            self._admit(id)
        if id in self._waiting:
            asyncio.get_running_loop().call_later(WORK_SECONDS, self._look_again, id)
        else:
            self._timed.discard(id)

    def _admit(self, id: int) -> None:
        queue, now = self._waiting[id], self._clock()
        while queue and (queue[0].done() or self._has_turn(id, now)):
            turn = queue.popleft()
            if not turn.done():
                self._begun[id].append(now)
                turn.set_result(now)
        self._drop_empty(id)

    def _drop_empty(self, id: int) -> None:
        """Forget an org of which nothing waits, and nothing is in flight."""
        if not self._waiting[id]:
            del self._waiting[id]
            if not self._begun[id]:
                del self._begun[id]

    def _end_pause(self, id: int) -> None:
        self._paused.discard(id)
        if id in self._waiting:
            self._admit(id)


def others_wait(state: dict[str, Any]) -> Callable[[], bool]:
    """What says, from now on, whether orgs beside the one of this request send requests. Ask for it before the request leaves."""
    entry = state.get(_ENTERED)
    if entry is None:
        return lambda: False
    in_flight, id, _ = entry
    return lambda: bool(in_flight.is_beside_others(id))


def leave(state: dict[str, Any]) -> None:
    """The request of this state is answered, or only waits from now on."""
    entry = state.pop(_ENTERED, None)
    if entry is not None:
        in_flight, id, began = entry
        in_flight.left(id, began)


TURN_SECONDS = 0.5
"""Where an org has as many requests in flight as it may, its streams ask again so much later."""
READS_OF_ORG = 2
"""How many reads of open streams of an org are under way at a time."""


class StreamReads:
    """Reads of streams that catch up. A stream has left its place in flight, so each of its reads takes a turn of its org as a request
    does. Few of an org are under way at a time: the others wait, and none is refused."""

    def __init__(self, in_flight: InFlight) -> None:
        self._in_flight = in_flight
        self._places = WeakValueDictionary[UUID, asyncio.Semaphore]()

    async def run(self, org: UUID, read: Callable[[], Coroutine[Any, Any, T]]) -> T:
        places = self._places.get(org)
        if places is None:
            places = self._places[org] = asyncio.Semaphore(READS_OF_ORG)
        state = dict[str, Any]()
        await places.acquire()
        try:
            await self._take_turn(state, org)
        except BaseException:
            places.release()
            raise

        def end(task: asyncio.Future[T]) -> None:
            leave(state)
            places.release()
            if not task.cancelled():
                task.exception()  # maybe nobody waits any more

        # A query ends although its reader has left, and has its place as long.
        task = asyncio.ensure_future(read())
        task.add_done_callback(end)
        return await asyncio.shield(task)

    async def _take_turn(self, state: dict[str, Any], org: UUID) -> None:
        while True:
            try:
                return await self._in_flight.enter(state, org)
            except TooMany:
                await asyncio.sleep(TURN_SECONDS)


MOST_OF_ONE = 500
"""Open streams of one caller in this process; a program that serves many people has one for each of them."""
MOST_OF_ALL = 2500
"""A tenth is for orgs that have none, so that some may have 2,000 of them."""


class OpenStreams:
    """Who has how many streams open in this process."""

    def __init__(self, most_of_org: int = STREAMS_OF_ORG) -> None:
        self.of: Counter[UUID] = Counter()
        self._of_org: Counter[UUID] = Counter()
        self._most_of_org = most_of_org

    def open(self, who: UUID, org: UUID) -> Callable[[], None]:
        """Counts one more; call what is returned when it ends. Too many are refused, and not counted."""
        count = self._of_org[org]
        if self.of[who] >= MOST_OF_ONE or count >= self._most_of_org:
            own = self.of[who] >= MOST_OF_ONE
            stream = (
                f"You have {MOST_OF_ONE} streams open" if own else f"Your org has {count} streams open in this process"
            )
            raise TooMany(
                f"{stream} already.",
                code="too_many_streams",
                hint="Close those that nobody reads, or follow a whole session instead of each of its jobs.",
            )
        if self.of.total() >= MOST_OF_ALL - (reserve_of(MOST_OF_ALL) if count else 0):
            raise Unavailable(
                f"This process serves {MOST_OF_ALL} streams, and keeps the last for orgs that have none.",
                code="streams_busy",
                hint="Try again in a moment, or start another `cortex api` beside it.",
            )
        self.of[who] += 1
        self._of_org[org] += 1

        def end() -> None:
            for counter, key in ((self.of, who), (self._of_org, org)):
                counter[key] -= 1
                if not counter[key]:
                    del counter[key]

        return end


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedReads(Generic[K, V]):
    """Reads that concurrent callers share. Who asks while a read is under way shares the next one, so no answer is older than its question."""

    def __init__(self) -> None:
        self._next: dict[K, asyncio.Future[V] | None] = {}
        """By key of a read under way: what later callers wait for, if there are any."""
        self._tasks: set[asyncio.Future[V]] = set()

    async def run(self, key: K, read: Callable[[], Coroutine[Any, Any, V]]) -> V:
        if key not in self._next:
            self._next[key] = None
            try:
                return await read()
            finally:
                self._continue(key, read)
        answer = self._next[key]
        if answer is None:
            answer = self._next[key] = asyncio.get_running_loop().create_future()
        # A caller that stops waiting does not cancel it for the others.
        return await asyncio.shield(answer)

    def _continue(self, key: K, read: Callable[[], Coroutine[Any, Any, V]]) -> None:
        answer = self._next.pop(key)
        if answer is not None:
            self._next[key] = None
            # Not in the context of the caller before: its log lines name its request.
            task = contextvars.Context().run(asyncio.ensure_future, read())
            self._tasks.add(task)
            task.add_done_callback(lambda task: self._finish(key, task, read, answer))

    def _finish(
        self, key: K, task: asyncio.Future[V], read: Callable[[], Coroutine[Any, Any, V]], answer: asyncio.Future[V]
    ) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            answer.cancel()
        elif error := task.exception():
            answer.set_exception(error)
            answer.exception()  # maybe nobody waits any more
        else:
            answer.set_result(task.result())
        self._continue(key, read)


class Verb(Protocol[P, T_co]):
    """An operation that knows which permission it asks for, so that surfaces can say so without repeating it."""

    permission: Permission
    heavy: bool
    """It reads long spans: few of them run at a time."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T_co]: ...


def verb(
    permission: Permission, *, heavy: bool = False
) -> Callable[[Callable[Concatenate[Database, Actor, P], Awaitable[T]]], Verb[Concatenate[Database, Actor, P], T]]:
    """Refuse the actor before anything is read. A ``heavy`` verb is also refused while too many of them run."""

    def decorate(
        operation: Callable[Concatenate[Database, Actor, P], Awaitable[T]],
    ) -> Verb[Concatenate[Database, Actor, P], T]:
        @functools.wraps(operation)
        async def guarded(db: Database, actor: Actor, *args: P.args, **kwargs: P.kwargs) -> T:
            actor.require(permission)
            if not heavy:
                return await operation(db, actor, *args, **kwargs)
            with db.heavy_read(actor.org_id):
                return await operation(db, actor, *args, **kwargs)

        guarded.permission, guarded.heavy = permission, heavy  # type: ignore[attr-defined]
        return guarded  # type: ignore[return-value]

    return decorate


def transaction_verb(
    permission: Permission,
) -> Callable[[Callable[Concatenate[Transaction, Actor, P], Awaitable[T]]], Verb[Concatenate[Database, Actor, P], T]]:
    """A verb whose operation gets a transaction of the actor's org instead of the database."""

    def decorate(
        operation: Callable[Concatenate[Transaction, Actor, P], Awaitable[T]],
    ) -> Verb[Concatenate[Database, Actor, P], T]:
        @verb(permission)
        @functools.wraps(operation)
        async def transacted(db: Database, actor: Actor, /, *args: P.args, **kwargs: P.kwargs) -> T:
            async with db.transaction(actor.org_id) as tx:
                return await operation(tx, actor, *args, **kwargs)

        return transacted

    return decorate


def read_verb(
    permission: Permission, read: Callable[Concatenate[Transaction, P], Awaitable[T]]
) -> Verb[Concatenate[Database, Actor, P], T]:
    """A verb that returns what one function of a store reads."""

    @transaction_verb(permission)
    async def operation(tx: Transaction, _: Actor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await read(tx, *args, **kwargs)

    return operation


def get_verb(
    permission: Permission, read: Callable[Concatenate[Transaction, P], Awaitable[T | None]], noun: str
) -> Verb[Concatenate[Database, Actor, P], T]:
    """The same for one record, which must exist."""

    @transaction_verb(permission)
    async def operation(tx: Transaction, _: Actor, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return require_found(await read(tx, *args, **kwargs), noun)

    return operation


async def every_org(db: Database) -> AsyncIterator[Org]:
    """Newest first, for the duties of the whole plane."""
    position: After = None
    while True:
        page = await tenancy_store.list_orgs(db, position, 100)
        for org in page.items:
            yield org
        if page.next is None:
            return
        position = page.next


def require_found(thing: T | None, noun: str) -> T:
    """The thing, or the same answer for "none" and for "another org's"."""
    if thing is None:
        raise NotFound(f"There is no such {noun}.", code=f"{noun}_not_found")
    return thing


def require_revision(current: int, expected: int | None) -> None:
    if expected is not None and expected != current:
        raise Stale(f"It has changed: you saw revision {expected}, it is now at {current}.")


async def record(tx: Transaction, actor: Actor, action: str, **details: Any) -> None:
    """Append an entry to the audit trail of the org: the last statement of a verb."""
    await proof_store.append_to_org(tx, Fact.of(actor, action, **details))


async def once_only(
    tx: Transaction, actor: Actor, name: str, once: IdempotencyKey | None, make: Callable[[], Awaitable[UUID]]
) -> tuple[UUID, bool]:
    """Run ``make`` unless this idempotency key has already done so; returns the id and whether it is an earlier one."""
    if once is None:
        return await make(), False
    earlier: dict[str, Any] | None = await tenancy_store.claim_idempotency_key(tx, actor.key_id, name, once)
    if earlier is not None:
        return UUID(earlier["id"]), True
    id = await make()
    await tenancy_store.settle_idempotency_key(tx, actor.key_id, name, once, {"id": str(id)})
    return id, False
