"""Caches of what is compiled: the values that were used last, and one load for all who wait for the same value."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable, Iterator
from typing import Any, Generic, TypeVar

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
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: K, value: V, size: int) -> None:
        """Keep the value, unless the key has one already."""
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return
            self._entries[key] = value, size
            self.size += size
            while len(self._entries) > 1 and (
                self.size > self._max_size
                or (self._max_entries is not None and len(self._entries) > self._max_entries)
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
