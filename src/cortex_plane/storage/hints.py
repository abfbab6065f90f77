"""Hints: NOTIFY tells whoever listens that there may be work. Nothing depends on them: everybody polls as well.

Never sent inside a commit that matters, because NOTIFY takes a lock of the whole server; hints that come close
together are sent once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg

from cortex_plane.storage.faults import border

CHANNEL = "cortex_work"


class Hints:
    """Sends hints for a pool, one at a time, in the background."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._again = False
        self._task: asyncio.Task[None] | None = None

    def work(self) -> None:
        """There may be a job to claim."""
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        while self._again:
            self._again = False
            # A hint that is lost costs a second: the next poll finds the work.
            with contextlib.suppress(asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError):
                async with self._pool.acquire(timeout=1) as connection:
                    await connection.execute("select pg_notify($1, '')", CHANNEL)

    async def close(self) -> None:
        if self._task is not None:
            self._again = False
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


@contextlib.asynccontextmanager
async def listening(url: str, heard: asyncio.Event) -> AsyncIterator[None]:
    """Sets ``heard`` with every hint. A connection that is lost is made again; meanwhile polling goes on."""
    task = asyncio.get_running_loop().create_task(_listen(url, heard))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _listen(url: str, heard: asyncio.Event) -> None:
    while True:
        with contextlib.suppress(Exception), border():
            connection = await asyncpg.connect(url)
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _, lost=lost: lost.set())
            try:
                await connection.add_listener(CHANNEL, lambda *_: heard.set())
                heard.set()
                await lost.wait()
            finally:
                with contextlib.suppress(Exception):
                    await connection.close(timeout=1)
        await asyncio.sleep(1)
