"""The connections of a process, and who gets the next one.

Orgs share the ordinary ones (see ``kernel/shares.py``). Where none is free, orgs wait in turns: whoever asks for many waits
behind their own. A few connections belong to a purpose: what must go on under any load uses them first. A new connection
compiles each function at its first call and plans each statement five times, so a decision on one takes ten times as long;
on connections that only decide it does not happen because somebody else made the pool grow.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from cortex_plane.kernel.shares import Shares

ACQUIRE_SECONDS = 5
"""How long a request waits for a free connection before the plane says that it is busy."""


class Purpose(StrEnum):
    AUTHENTICATION = "authentication"
    SCHEDULER = "scheduler"
    NOTIFIER = "notifier"
    DECISIONS = "decisions"


OWN: Final = {Purpose.AUTHENTICATION: 1, Purpose.SCHEDULER: 1, Purpose.NOTIFIER: 2, Purpose.DECISIONS: 2}
HINTS: Final = 2
"""For NOTIFY, which is sent beside everything else."""

Place = UUID | Purpose
"""Whose connection it is: an ordinary one of an org, or one that belongs to a purpose."""


class SharedPool:
    """The pool of the driver behind a queue that is fair to orgs. Purposes without a pool of their own have places in it."""

    def __init__(
        self, pool: Any, org_connections: int | None = None, pools: Mapping[Purpose, Any] | None = None
    ) -> None:
        self._pool = pool
        self._pools = pools or {}
        size = pool.get_max_size() if pool is not None else 0
        besides = HINTS + sum(OWN[purpose] for purpose in OWN if purpose not in self._pools)
        self._shares = Shares(max(1, size - besides), share=org_connections)
        self._own = dict(OWN)
        self._waiting: dict[UUID, deque[asyncio.Future[Place]]] = {}
        """By org, in the order of their turns."""
        self._urgent: dict[Purpose, deque[tuple[UUID, asyncio.Future[Place]]]] = {p: deque() for p in OWN}
        """Those among them that a connection of their purpose serves too."""

    async def acquire(self, org: UUID, purpose: Purpose | None) -> tuple[Any, Place]:
        """A connection, and the place to give back with it. Raises ``TimeoutError`` where none becomes free."""
        place: Place = org
        if purpose is not None and self._own[purpose]:
            self._own[purpose] -= 1
            place = purpose
        elif (self._waiting and org in self._waiting) or not self._shares.take(org):
            place = await self._wait(org, purpose)
        try:
            pool = self._pool if isinstance(place, UUID) else self._pools.get(place, self._pool)
            return await pool.acquire(), place
        except BaseException:
            self._give_back(place)
            raise

    async def release(self, connection: Any, place: Place) -> None:
        try:
            pool = self._pool if isinstance(place, UUID) else self._pools.get(place, self._pool)
            await pool.release(connection)
        finally:
            self._give_back(place)

    async def _wait(self, org: UUID, purpose: Purpose | None) -> Place:
        future: asyncio.Future[Place] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(org, deque()).append(future)
        if purpose is not None:
            self._urgent[purpose].append((org, future))
        try:
            async with asyncio.timeout(ACQUIRE_SECONDS):
                return await future
        except BaseException:
            if future.done() and not future.cancelled():
                self._give_back(future.result())  # it was given one at this very moment
            future.cancel()
            self._forget(org)
            raise

    def _forget(self, org: UUID) -> None:
        """Drop the turn of an org that nobody waits for any more: whoever comes next is first."""
        queue = self._waiting.get(org)
        if queue is not None and all(future.done() for future in queue):
            del self._waiting[org]

    def _give_back(self, place: Place) -> None:
        if isinstance(place, UUID):
            self._shares.give_back(place)
            if self._waiting:
                self._serve_orgs()
        else:
            self._own[place] += 1
            self._serve_purpose(place)

    def _serve_purpose(self, purpose: Purpose) -> None:
        queue = self._urgent[purpose]
        while queue and self._own[purpose]:
            org, future = queue.popleft()
            if not future.done():
                self._own[purpose] -= 1
                future.set_result(purpose)
                self._forget(org)

    def _serve_orgs(self) -> None:
        """Give what is free to those who wait, one for each org in turn."""
        served = True
        while served and self._shares.free:
            ready = [org for org in self._waiting if self._shares.has_room(org)]
            served = sum(self._serve_org(org) for org in ready) > 0

    def _serve_org(self, org: UUID) -> bool:
        queue, served = self._waiting.pop(org), False
        while queue and (queue[0].done() or not served):
            if not queue[0].done():
                if not self._shares.take(org):
                    break  # another org took the last one
                queue[0].set_result(org)
                served = True
            queue.popleft()
        if queue:
            self._waiting[org] = queue  # behind the others
        return served
