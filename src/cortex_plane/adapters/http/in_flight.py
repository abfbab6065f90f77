"""How many requests of an org are in flight in this process, and how many of them are worked on.

A request enters once its caller is known, and leaves with its answer. One that only waits (a stream, a long poll) has left
before: it is counted among the open streams. A process works on one thing at a time, so whoever sends many requests makes all
others slow: while other orgs send requests too, only a few of one org are worked on, and its others wait for them.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from starlette.types import Scope

from cortex_plane.domain.errors import TooMany
from cortex_plane.domain.shares import Shares

MOST = 256
MOST_OF_ORG = 64
STREAMS_OF_ORG = 1000

BESIDE_OTHERS = 2
"""How many requests of an org are worked on at a time while others send some."""
BESIDE_SECONDS = 1.0
"""An org that was silent for so long is none of those."""

_ENTERED = "in_flight"


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLimits:
    """What one API process serves at a time."""

    in_flight: int = MOST
    in_flight_of_org: int = MOST_OF_ORG
    streams_of_org: int = STREAMS_OF_ORG


DEFAULT_LIMITS = RequestLimits()


class InFlight:
    def __init__(
        self, limits: RequestLimits = DEFAULT_LIMITS, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._shares = Shares(limits.in_flight, share=limits.in_flight_of_org)
        self._clock = clock
        self._active: dict[int, int] = {}
        self._waiting: dict[int, deque[asyncio.Future[None]]] = {}
        self._newest = 0
        """Which org sent the last request."""
        self._newest_at = self._other_at = -math.inf
        """When it did, and when any other did."""

    async def enter(self, scope: Scope, org: UUID) -> None:
        """Waits until its org has a turn. Raises ``TooMany`` where the org, or the process, has as many as it may."""
        if not self._shares.take(org):
            raise TooMany(
                "As many requests of this org, or of this process, are in flight as it serves at a time.",
                code="too_many_in_flight",
                hint="Wait as long as the header Retry-After says, and send fewer requests at a time.",
                retry_after=1,
            )
        id = org.int
        if id != self._newest:
            self._newest, self._other_at = id, self._newest_at
        self._newest_at = self._clock()
        active = self._active.get(id, 0)
        if active >= BESIDE_OTHERS and (id in self._waiting or self._is_beside_others(id)):
            await self._wait(org)
        else:
            self._active[id] = active + 1
        scope["state"][_ENTERED] = (self, org)

    def left(self, org: UUID) -> None:
        self._shares.give_back(org)
        id = org.int
        self._active[id] -= 1
        if id in self._waiting:
            self._admit(id)
        if not self._active[id]:
            del self._active[id]

    def _is_beside_others(self, id: int) -> bool:
        at = self._other_at if id == self._newest else self._newest_at
        return self._clock() - at < BESIDE_SECONDS

    async def _wait(self, org: UUID) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(org.int, deque()).append(turn)
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.left(org)  # it had its turn at this very moment
            else:
                self._shares.give_back(org)
            raise

    def _admit(self, id: int) -> None:
        queue = self._waiting[id]
        while queue and (self._active[id] < BESIDE_OTHERS or not self._is_beside_others(id)):
            turn = queue.popleft()
            if not turn.done():
                self._active[id] += 1
                turn.set_result(None)
        if not queue:
            del self._waiting[id]


def leave(scope: Scope) -> None:
    """The request of this scope is answered, or only waits from now on."""
    entered = scope["state"].pop(_ENTERED, None)
    if entered is not None:
        in_flight, org = entered
        in_flight.left(org)
