"""How many requests a key and a person may make, in all processes together.

Budgets are rows, and each process takes from them in batches: a request costs nothing but a subtraction in memory, and one in
a hundred a round trip. What a process has taken and not used is void after some seconds, in which the row refills by itself; and
the next batch is as large as what was used, so that few requests through many processes do not use a budget up.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import TooMany
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.store import orgs as orgs_store

BURST_SECONDS = 10
"""How long somebody may have been silent for it to count."""
BATCHES = 10
"""Into so many parts a full budget is taken."""
HELD_SECONDS = 5.0
KEPT = timedelta(days=1)
"""How long a budget that nobody uses keeps its row: it was full again after seconds."""
FORGOTTEN_AT_ONCE = 10_000
KNOWN = 10_000
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
    """The batches of one process. ``per_second`` holds for each key, and for each person with all their keys and browsers."""

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
        if len(self._batches) > KNOWN:
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
        self._resize(batch)
        count, wait = await orgs_store.take_requests(db, org_id, subjects, batch.want, self._per_second, self._burst)
        now, batch.granted = self._clock(), count
        if count == 0:
            batch.left, batch.until = 0, now + wait
            raise self._too_many(wait)
        batch.left, batch.until = count - 1, now + (HELD_SECONDS if count > 1 else 0.0)

    def _resize(self, batch: _Batch) -> None:
        """Twice as many as before where they were used up, twice what was used where some were not."""
        used = batch.granted - batch.left
        wanted = 2 * (used if batch.left else batch.want)
        batch.want = max(1, min(wanted, self._batch)) if batch.want else self._batch

    def _too_many(self, seconds: float) -> TooMany:
        return TooMany(
            f"More than {self._per_second:g} requests a second came with this key or from this person.",
            code="rate_limited",
            hint="Wait as long as the header Retry-After says, and send fewer requests at a time.",
            retry_after=math.ceil(seconds),
        )


async def forget(db: Database) -> None:
    """Delete the rows of budgets that have long been full again: a budget without a row is full."""
    while await orgs_store.forget_request_budgets(db, KEPT, FORGOTTEN_AT_ONCE) >= FORGOTTEN_AT_ONCE:
        pass
