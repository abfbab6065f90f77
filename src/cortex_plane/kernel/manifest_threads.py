"""Reading and compiling files of atlases and policies, apart from everything else: a large one holds up others of its kind, and
nobody else.

They share the threads of the process with whatever else must not stop the loop; so only a few of them run at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from cortex_plane.kernel.errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")


class Turns:
    """So many at a time; whoever finds too many waiting is sent away. ``most`` None: everybody waits. ``code``: of the
    error that they get."""

    def __init__(self, at_once: int, most: int | None = None, code: str = "atlases_busy") -> None:
        self._at_once = at_once
        self._most = most
        self._code = code
        self._here = 0
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def run(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        if self._most is not None and self._here >= self._most:
            raise Unavailable(
                f"{self._here} files are being read already.",
                code=self._code,
                hint="Try again in a few seconds.",
            )
        turns = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(self._at_once))
        self._here += 1
        try:
            async with turns:
                return await asyncio.to_thread(work, *args, **named)
        finally:
            self._here -= 1


reading = Turns(1, most=32, code="atlases_busy")
"""What people ask for: publishing and comparing."""
reading_policies = Turns(1, most=32, code="policies_busy")
"""The same for files of policies."""
loading = Turns(2)
"""What sessions need to go on."""
