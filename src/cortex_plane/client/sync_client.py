"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import CancelledError
from typing import Any, Self, TypeVar

from cortex_plane.client.client import Client
from cortex_plane.kernel.errors import Conflict

T = TypeVar("T")


class _End:
    """After the last item."""


_END = _End()


class SyncClient:
    """Everything that `Client` does, for plain functions:

        with SyncClient() as plane:
            job = plane.run(lambda client: client.jobs.wait(id))
            for card in plane.each(lambda client: client.approvals.watch()): ...

    The event loop runs in one thread, which starts with the first request and ends with `close`. Requests of other threads that are under way
    then are cancelled, and later ones are refused. A forked child makes a client of its own. Guarded functions need no event loop: give them
    a `Client`.
    """

    def __init__(self, url: str | None = None, key: str | None = None, **options: Any) -> None:
        """As `Client`."""
        self.client = Client(url, key, **options)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, request: Callable[[Client], Awaitable[T]]) -> T:
        """What the request returns. Interrupted, it is cancelled."""

        async def await_request() -> T:
            return await request(self.client)

        if self._pid != os.getpid():
            raise Conflict(
                "This client belongs to the process that made it.",
                code="client_forked",
                hint="Make a `SyncClient` in the child.",
            )
        with self._lock:
            # Under the lock, so that `close` finds it among the tasks of the loop.
            loop = self._running_loop()
            future = asyncio.run_coroutine_threadsafe(await_request(), loop)
        try:
            return future.result()
        except CancelledError as error:
            if self._is_closed:
                raise _closed() from error
            raise
        except BaseException:
            future.cancel()
            raise

    def each(self, request: Callable[[Client], AsyncIterator[T]]) -> Iterator[T]:
        """What an iterator of the client gives, one after the other."""
        items = request(self.client)
        try:
            while not isinstance(item := self.run(lambda _: anext(items, _END)), _End):
                yield item
        finally:
            # `close` ends the generators of its loop, and those of its parent are no business of a child.
            if isinstance(items, AsyncGenerator) and not self._is_closed and self._pid == os.getpid():
                self.run(lambda _: items.aclose())

    def close(self) -> None:
        """Ends the requests, the connections and the thread."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._is_closed = True
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is None or thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(self._end(loop), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        try:
            await self.client.close()
        finally:
            await loop.shutdown_asyncgens()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._is_closed:
            raise _closed()
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._loop.run_forever, name="cortex-plane client", daemon=True)
            self._thread.start()
        return self._loop


def _closed() -> Conflict:
    return Conflict("This client is closed.", code="client_closed", hint="Make a new `SyncClient`.")
