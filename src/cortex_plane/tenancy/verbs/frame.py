"""The frame of every verb: who calls and how often, permission, idempotency, revisions."""

from __future__ import annotations

import asyncio
import functools
import math
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from uuid import UUID

import structlog

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.pool import PoolPurpose
from cortex_plane.kernel.errors import NotFound, Stale, TooMany, Unauthenticated
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.meters import meters
from cortex_plane.kernel.pages import After
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
