"""Requests in flight in one process: how many an org has, and how many of them are worked on.

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
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from uuid import UUID

from cortex_plane.kernel.errors import TooMany, Unavailable
from cortex_plane.kernel.shares import reserve_of

MOST = 256
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

    in_flight: int = MOST
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
