"""How many requests of an org are in flight in this process, and how many of them are worked on.

A request enters once its caller is known, and leaves with its answer. One that only waits (a stream, a long poll) has left
before: it is counted among the open streams. A process works on one thing at a time, so an org that sends many requests makes
all others slow. While other orgs send requests too, one of its requests is worked on at a time, and the next ones wait. If many
wait, the process pauses between two of them for as long as the last one took. A request that takes longer than others waits for
something else (a lock, a long read, a slow client), so it is not counted as worked on, and nobody waits for it.
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

from cortex_plane.kernel.errors import TooMany
from cortex_plane.kernel.shares import Shares

MOST = 256
STREAMS_OF_ORG = 1000

BESIDE_OTHERS = 1
"""How many requests of an org are worked on at a time while others send some."""
BESIDE_SECONDS = 1.0
"""An org that was silent for so long is none of those."""
WORK_SECONDS = 0.05
"""A request that began longer ago is not worked on: it waits for something else."""
FLOOD = 8
"""An org with more waiting requests than this gets at most half of the process's time beside others."""

_ENTERED = "in_flight"


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLimits:
    """What one API process serves at a time."""

    in_flight: int = MOST
    in_flight_of_org: int | None = None
    """None: all but those that are kept for orgs that have none in flight."""
    streams_of_org: int = STREAMS_OF_ORG


DEFAULT_LIMITS = RequestLimits()


class InFlight:
    def __init__(self, limits: RequestLimits = DEFAULT_LIMITS, clock: Callable[[], float] = time.monotonic) -> None:
        self._shares = Shares(limits.in_flight, share=limits.in_flight_of_org)
        self.now = self._clock = clock
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

    async def enter(self, scope: Scope, org: UUID) -> None:
        """Waits until its org has a turn. Raises ``TooMany`` where the org, or the process, has as many as it may."""
        if not self._shares.take(org):
            raise TooMany(
                "As many requests of this org, or of this process, are in flight as it serves at a time.",
                code="too_many_in_flight",
                hint="Wait as long as the header Retry-After says, and send fewer requests at a time.",
                retry_after=1,
            )
        id, now = org.int, self._clock()
        if id != self._newest:
            self._newest, self._other_at = id, self._newest_at
        self._newest_at = now
        if self._waiting and id in self._waiting:
            self._admit(id)
        begun = self._begun.get(id)
        if begun is None:
            self._begun[id] = [now]
        elif id in self._waiting or (len(begun) >= BESIDE_OTHERS and not self._has_turn(id, now)):
            now = await self._wait(org)
        else:
            begun.append(now)
        scope["state"][_ENTERED] = (self, org, now)

    def left(self, org: UUID, began: float) -> None:
        self._shares.give_back(org)
        id = org.int
        begun = self._begun[id]
        begun.remove(began)
        queue = self._waiting.get(id)
        if queue is None:
            if not begun:
                del self._begun[id]
        elif len(queue) > FLOOD and self.is_beside_others(id, now := self._clock()):
            self._paused.add(id)
            asyncio.get_running_loop().call_later(min(now - began, WORK_SECONDS), self._end_pause, id)
        else:
            self._admit(id)

    def _has_turn(self, id: int, now: float) -> bool:
        """Whether another request of this org may be worked on."""
        begun = self._begun[id]
        if id in self._paused:
            return False
        if len(begun) < BESIDE_OTHERS or begun[-BESIDE_OTHERS] <= now - WORK_SECONDS:
            return True
        return not self.is_beside_others(id, now)

    def is_beside_others(self, id: int, now: float) -> bool:
        """Whether other orgs send requests too."""
        other_at = self._other_at if id == self._newest else self._newest_at
        return now - other_at < BESIDE_SECONDS

    async def _wait(self, org: UUID) -> float:
        """When it began."""
        loop, id = asyncio.get_running_loop(), org.int
        turn: asyncio.Future[float] = loop.create_future()
        self._waiting.setdefault(id, deque()).append(turn)
        if id not in self._timed:
            self._timed.add(id)
            loop.call_later(WORK_SECONDS, self._look_again, id)
        try:
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.left(org, turn.result())  # it had its turn at this very moment
            else:
                self._shares.give_back(org)
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
        begun = self._begun[id]
        while queue and (queue[0].done() or self._has_turn(id, now)):
            turn = queue.popleft()
            if not turn.done():
                begun.append(now)
                turn.set_result(now)
        if not queue:
            del self._waiting[id]
            if not begun:
                del self._begun[id]

    def _end_pause(self, id: int) -> None:
        self._paused.discard(id)
        if id in self._waiting:
            self._admit(id)


def others_wait(scope: Scope) -> Callable[[], bool]:
    """What says, from now on, whether orgs beside the one of this request send requests. Ask for it before the request leaves."""
    entry = scope["state"].get(_ENTERED)
    if entry is None:
        return lambda: False
    in_flight, org, _ = entry
    return lambda: in_flight.is_beside_others(org.int, in_flight.now())


def leave(scope: Scope) -> None:
    """The request of this scope is answered, or only waits from now on."""
    entry = scope["state"].pop(_ENTERED, None)
    if entry is not None:
        in_flight, org, began = entry
        in_flight.left(org, began)
