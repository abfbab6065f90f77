"""The client for programs without an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Self, TypeVar

from cortex_plane.client.client import Client

T = TypeVar("T")


class _End:
    """After the last item."""


_END = _End()


class SyncClient:
    """Everything that `Client` does, for plain functions:

        with SyncClient() as plane:
            job = plane.run(lambda client: client.jobs.wait(id))
            for card in plane.each(lambda client: client.approvals.watch()): ...

    The event loop runs in one thread, which starts with the first request and ends with `close`. Guarded functions need no event loop: give
    them a `Client`.
    """

    def __init__(self, url: str | None = None, key: str | None = None, **options: Any) -> None:
        """As `Client`."""
        self.client = Client(url, key, **options)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def run(self, request: Callable[[Client], Awaitable[T]]) -> T:
        """What the request returns. Interrupted, it is cancelled."""

        async def await_request() -> T:
            return await request(self.client)

        future = asyncio.run_coroutine_threadsafe(await_request(), self._running_loop())
        try:
            return future.result()
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
            if isinstance(items, AsyncGenerator):
                self.run(lambda _: items.aclose())

    def close(self) -> None:
        """Ends the connections and the thread."""
        with self._lock:
            if self._loop is None or self._thread is None:
                return
            loop, thread = self._loop, self._thread
            asyncio.run_coroutine_threadsafe(self.client.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
            self._loop = self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="cortex-plane client", daemon=True)
                self._thread.start()
            return self._loop
