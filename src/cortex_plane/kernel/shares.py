"""What orgs share in one process: places, turns for large files, a throttle for failures by address, caches and loads."""

from __future__ import annotations

import asyncio
import ipaddress
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Iterator
from typing import Any, Generic, ParamSpec, TypeVar
from uuid import UUID
from weakref import WeakKeyDictionary

from cortex_plane.kernel.errors import TooMany, Unavailable

FEW = 4
"""Fewer places have no reserve."""


def reserve_of(size: int) -> int:
    """A tenth of the places, and at least one."""
    return 0 if size < FEW else max(1, size // 10)


class Shares:
    """How many places each org has. It only counts; whoever takes a place gives it back."""

    def __init__(self, size: int, share: int | None = None) -> None:
        self.free = size
        self._share = size if share is None else share
        self._reserve = reserve_of(size)
        # By the number of an org's id: the hash of a UUID is a function of Python's, and this is counted for every request.
        self._held: dict[int, int] = {}

    def has_room(self, org: UUID) -> bool:
        places = self._held.get(org.int, 0)
        return places < self._share and self.free > (self._reserve if places else 0)

    def take(self, org: UUID) -> bool:
        """False where there is no room for this org."""
        places = self._held.get(org.int, 0)
        if places >= self._share or self.free <= (self._reserve if places else 0):
            return False
        self.free -= 1
        self._held[org.int] = places + 1
        return True

    def give_back(self, org: UUID) -> None:
        self.free += 1
        places = self._held[org.int]
        if places == 1:
            del self._held[org.int]
        else:
            self._held[org.int] = places - 1


FAILURES = 30
PER_SECONDS = 60.0
ADDRESSES = 10_000
"""How many are remembered: those that failed longest ago are forgotten first."""


class Throttle:
    """A bucket of failures for each address, which fills again by itself. In the memory of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def failed(self, host: str) -> None:
        """Count a failure. Raises ``TooMany`` in the place of its reason where the address failed too often."""
        address = _network(host)
        tokens, at = self._buckets.get(address, (float(FAILURES), 0.0))
        remaining = min(float(FAILURES), tokens + (self._clock() - at) * FAILURES / PER_SECONDS)
        self._buckets[address] = (max(remaining - 1, 0.0), self._clock())
        self._buckets.move_to_end(address)
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        if remaining < 1:
            raise TooMany(
                "Too many tokens or links from this address were wrong.",
                code="too_many_failures",
                hint="Wait a minute, then open the link or copy the token from the newest message.",
            )


def _network(host: str) -> str:
    """Of IPv6 the network: whoever has one address there has all of them."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv4Address):
        return host
    return str(ipaddress.ip_network((address, 64), strict=False))


P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """So many at a time; whoever finds too many waiting gets the error ``code``. ``most`` None: everybody waits."""

    def __init__(self, at_once: int, most: int | None = None, code: str = "atlases_busy") -> None:
        self._at_once, self._most, self._code = at_once, most, code
        self._here = 0
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._most is not None and self._here >= self._most:
            raise Unavailable(
                f"{self._here} files are being read already.", code=self._code, hint="Try again in a few seconds."
            )
        turns = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._at_once))
        self._here += 1
        try:
            await turns.acquire()
        except BaseException:
            self._here -= 1
            raise

        def end(thread: asyncio.Future[T]) -> None:
            turns.release()
            self._here -= 1
            if not thread.cancelled():
                thread.exception()  # maybe nobody waits any more

        # A thread goes on although its caller has left, and has its turn as long.
        thread = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
        thread.add_done_callback(end)
        return await asyncio.shield(thread)


reading = Turns(1, most=32, code="atlases_busy")
"""What people ask for: publishing and comparing."""
reading_policies = Turns(1, most=32, code="policies_busy")
"""The same for files of policies."""
loading = Turns(2)
"""What sessions need to go on."""
searching = Turns(2)
"""The same for long texts in which gates look for keywords."""


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LruCache(Generic[K, V]):
    """The values that were used last, up to a number of them and a sum of their sizes. The newest is always kept."""

    def __init__(self, *, max_size: int, max_entries: int | None = None) -> None:
        self._max_entries, self._max_size = max_entries, max_size
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.size = 0

    def get(self, key: K) -> V | None:
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep the value, unless the key has one already."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return
            self._entries[key] = value, size
            self.size += size
            while len(self._entries) > 1 and (
                self.size > self._max_size or (self._max_entries is not None and len(self._entries) > self._max_entries)
            ):
                self.size -= self._entries.popitem(last=False)[1][1]

    def items(self) -> Iterator[tuple[K, V]]:
        with self._lock:
            return iter([(key, value) for key, (value, _) in self._entries.items()])


class SharedLoads(Generic[K, V]):
    """Loads that are under way: whoever asks for the same key waits for the same load."""

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[V]] = {}

    async def run(self, key: K, load: Callable[[], Coroutine[Any, Any, V]], keep: Callable[[V], None]) -> V:
        """``keep`` is called once, with what was loaded."""
        task = self._tasks.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = self._tasks[key] = asyncio.create_task(load())
            task.add_done_callback(lambda task: self._finish(key, task, keep))
        # A caller that stops waiting does not cancel it for the others.
        return await asyncio.shield(task)

    def _finish(self, key: K, task: asyncio.Task[V], keep: Callable[[V], None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and task.exception() is None:
            keep(task.result())
