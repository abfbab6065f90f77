"""Hints: NOTIFY tells whoever listens that there may be work, or that something happened. Nothing depends on them:
everybody polls as well.

Never sent inside a commit that matters, because NOTIFY takes a lock of the whole server; hints that come close
together are sent once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from cortex_plane.db.driver_errors import UNREACHABLE, border

WORK = "cortex_work"
EVENTS = "cortex_events"

EVENTS_PAUSE = 0.03
"""Events are told at most this often: a reader fetches all of them at once."""

# The commit of a hint is not waited for: if the server dies with it, everybody polls again anyway.
_NOTIFY = "select set_config('synchronous_commit', 'off', true), pg_notify($1, '')"


class Hints:
    """Sends hints for a pool, in the background."""

    def __init__(self, pool: Any) -> None:
        self._work = _Channel(pool, WORK, 0)
        self._events = _Channel(pool, EVENTS, EVENTS_PAUSE)

    def work(self) -> None:
        """There may be a job to claim."""
        self._work.hint()

    def events(self) -> None:
        """Something was committed that readers of events wait for."""
        self._events.hint()

    async def close(self) -> None:
        await self._work.close()
        await self._events.close()


class _Channel:
    """One hint at a time; whatever is asked for meanwhile is one more."""

    def __init__(self, pool: Any, name: str, pause: float) -> None:
        self._pool = pool
        self._name = name
        self._pause = pause
        self._again = False
        self._task: asyncio.Task[None] | None = None

    def hint(self) -> None:
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        while self._again:
            self._again = False
            # A hint that is lost costs a second: the next poll finds what there is.
            with contextlib.suppress(asyncpg.PostgresError, TimeoutError, *UNREACHABLE):
                async with self._pool.acquire(timeout=1) as connection:
                    await connection.execute(_NOTIFY, self._name)
            if self._pause:
                await asyncio.sleep(self._pause)

    async def close(self) -> None:
        if self._task is not None:
            self._again = False
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


@contextlib.asynccontextmanager
async def listening(url: str, heard: asyncio.Event, channel: str = WORK) -> AsyncIterator[None]:
    """Sets ``heard`` with every hint. A connection that is lost is made again; meanwhile polling goes on."""
    task = asyncio.get_running_loop().create_task(_listen(url, heard, channel))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _listen(url: str, heard: asyncio.Event, channel: str) -> None:
    while True:
        with contextlib.suppress(Exception), border():
            connection = await asyncpg.connect(url)
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _, lost=lost: lost.set())
            try:
                await connection.add_listener(channel, lambda *_: heard.set())
                heard.set()
                await lost.wait()
            finally:
                with contextlib.suppress(Exception):
                    await connection.close(timeout=1)
        await asyncio.sleep(1)
