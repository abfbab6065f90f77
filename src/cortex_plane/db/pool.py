"""The connections of a process: who gets the next one, hints over them (NOTIFY), and the errors of the driver as ours."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import Any, Final, NoReturn
from uuid import UUID

import asyncpg
import structlog

from cortex_plane.kernel import errors
from cortex_plane.kernel.shares import Shares

log = structlog.get_logger()

ACQUIRE_SECONDS = 5
"""How long a request waits for a free connection before the plane says that it is busy."""
IDLE_SECONDS = 5.0
"""How often idle connections are given back to the driver's pool, which closes those that nobody needs."""


class PoolPurpose(StrEnum):
    AUTHENTICATION = "authentication"
    SCHEDULER = "scheduler"
    NOTIFIER = "notifier"
    DECISIONS = "decisions"


OWN: Final = {
    PoolPurpose.AUTHENTICATION: 1,
    PoolPurpose.SCHEDULER: 1,
    PoolPurpose.NOTIFIER: 2,
    PoolPurpose.DECISIONS: 2,
}
HINTS: Final = 2
"""For NOTIFY, which is sent beside everything else."""

Place = UUID | PoolPurpose
"""Whose connection it is: an ordinary one of an org, or one that belongs to a purpose."""


class SharedPool:
    """The pool of the driver behind a queue that is fair to orgs. Purposes without a pool of their own have places in it.

    Orgs share the ordinary connections (``kernel/shares.py``). If none is free, orgs wait in turns, so an org that asks for many waits behind
    itself. A few connections belong to a purpose that must go on under any load. Decisions have theirs because a new connection compiles
    each function and plans each statement anew, which makes a decision ten times as slow.

    A connection that was used without an error stays at hand for the next call: the driver's pool makes a task of giving one back.
    """

    def __init__(
        self, pool: Any, org_connections: int | None = None, pools: Mapping[PoolPurpose, Any] | None = None
    ) -> None:
        self._pool = pool
        self._pools = pools or {}
        size = pool.get_max_size() if pool is not None else 0
        besides = HINTS + sum(OWN[purpose] for purpose in OWN if purpose not in self._pools)
        self._shares = Shares(max(1, size - besides), share=org_connections)
        self._own = dict(OWN)
        self._waiting: dict[UUID, deque[asyncio.Future[Place]]] = {}
        """By org, in the order of their turns."""
        self._urgent: dict[PoolPurpose, deque[tuple[UUID, asyncio.Future[Place]]]] = {p: deque() for p in OWN}
        """Those among them that a connection of their purpose serves too."""
        self._idle: dict[Any, list[Any]] = {each: [] for each in (pool, *self._pools.values())}
        self._sweep: asyncio.TimerHandle | None = None
        self._returns: set[asyncio.Task[None]] = set()
        self._closing = False

    async def acquire(self, org: UUID, purpose: PoolPurpose | None) -> tuple[Any, Place]:
        """A connection, and the place to give back with it. Raises ``TimeoutError`` where none becomes free."""
        place: Place = org
        if purpose is not None and self._own[purpose]:
            self._own[purpose] -= 1
            place = purpose
        elif (self._waiting and org in self._waiting) or not self._shares.take(org):
            place = await self._wait(org, purpose)
        pool = self._pool_of(place)
        idle = self._idle[pool]
        if idle and not _is_lost(idle[-1]):
            return idle.pop(), place
        try:
            return await self._connect(pool), place
        except BaseException:
            self._give_back(place)
            raise

    async def release(self, connection: Any, place: Place, *, failed: bool) -> None:
        """``failed``: whatever is still under way on the connection must end first."""
        pool = self._pool_of(place)
        try:
            await self._put_back(pool, connection, failed=failed)
        finally:
            self._give_back(place)

    async def execute_beside(self, statement: str, *args: Any) -> None:
        """On a connection that is kept for hints, whatever others hold."""
        connection = await self._connect(self._pool)
        failed = True
        try:
            await connection.execute(statement, *args)
            failed = False
        finally:
            await self._put_back(self._pool, connection, failed=failed)

    async def _put_back(self, pool: Any, connection: Any, *, failed: bool) -> None:
        if failed or self._closing:
            await pool.release(connection)
            return
        self._idle[pool].append(connection)  # whoever takes it next looks whether it was lost
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._return_idle)

    def _pool_of(self, place: Place) -> Any:
        return self._pool if isinstance(place, UUID) else self._pools.get(place, self._pool)

    async def _connect(self, pool: Any) -> Any:
        idle = self._idle[pool]
        while idle:
            connection = idle.pop()
            if not _is_lost(connection):
                return connection
            await pool.release(connection)
        return await pool.acquire()

    def _return_idle(self) -> None:
        self._sweep = None
        task = asyncio.get_running_loop().create_task(self.return_connections())
        self._returns.add(task)
        task.add_done_callback(self._returns.discard)

    async def return_connections(self) -> None:
        """Give the idle ones back to the driver's pool."""
        for pool, idle in self._idle.items():
            while idle:
                try:
                    await pool.release(idle.pop())
                except FOREIGN as error:
                    log.info("connection lost", error=str(error))  # the driver has closed it

    async def close(self) -> None:
        self._closing = True
        if self._sweep is not None:
            self._sweep.cancel()
        await self.return_connections()
        if self._returns:
            await asyncio.wait(self._returns)

    async def _wait(self, org: UUID, purpose: PoolPurpose | None) -> Place:
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
            if self._urgent[place]:
                self._serve_purpose(place)

    def _serve_purpose(self, purpose: PoolPurpose) -> None:
        queue = self._urgent[purpose]
        while queue and self._own[purpose]:
            org, future = queue.popleft()
            if not future.done():
                self._own[purpose] -= 1
                future.set_result(purpose)
                self._forget(org)

    def _serve_orgs(self) -> None:
        """Give what is free to those who wait, one for each org in turn."""
        progress = True
        while progress and self._shares.free:
            ready = [org for org in self._waiting if self._shares.has_room(org)]
            progress = sum(self._serve_org(org) for org in ready) > 0

    def _serve_org(self, org: UUID) -> bool:
        queue, is_served = self._waiting.pop(org), False
        while queue and (queue[0].done() or not is_served):
            if not queue[0].done():
                if not self._shares.take(org):
                    break  # another org took the last one
                queue[0].set_result(org)
                is_served = True
            queue.popleft()
        if queue:
            self._waiting[org] = queue  # behind the others
        return is_served


def _is_lost(connection: Any) -> bool:
    """Whether the server closed it, also where the driver's pool has noticed that already and taken it back."""
    try:
        return bool(connection.is_closed())
    except asyncpg.InterfaceError:
        return True


WORK = "cortex_work"
EVENTS = "cortex_events"

WORK_PAUSE = 0.002
"""Hints at work that follow another one within this time are sent as one."""
EVENTS_PAUSE = 0.02
"""Events are told at most this often: a reader fetches all of them at once, and looks no more often."""

# The commit of a hint is not waited for: if the server dies with it, everybody polls again anyway.
_NOTIFY = "select set_config('synchronous_commit', 'off', true), pg_notify($1, '')"


class Hints:
    """Sends hints, in the background: NOTIFY says that there may be work or events. Everybody also polls. No
    hint is sent inside a commit that matters, because NOTIFY takes a lock of the whole server. Hints that come close
    together are one."""

    def __init__(self, shared: SharedPool) -> None:
        self._work = _Channel(shared, WORK, WORK_PAUSE)
        self._events = _Channel(shared, EVENTS, EVENTS_PAUSE)

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

    def __init__(self, shared: SharedPool, name: str, pause: float) -> None:
        self._shared, self._name, self._pause = shared, name, pause
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
                await self._shared.execute_beside(_NOTIFY, self._name)
            await asyncio.sleep(self._pause)

    async def close(self) -> None:
        if self._task is not None:
            self._again = False
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


@contextlib.asynccontextmanager
async def listen_for_hints(url: str, event: asyncio.Event, channel: str = WORK) -> AsyncIterator[None]:
    """Sets ``heard`` with every hint. A connection that is lost is made again; meanwhile polling goes on."""
    task = asyncio.get_running_loop().create_task(_listen_again(url, event, channel))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _listen_again(url: str, event: asyncio.Event, channel: str) -> None:
    while True:
        with contextlib.suppress(Exception), border():
            connection = await asyncpg.connect(url)
            lost = asyncio.Event()
            connection.add_termination_listener(lambda _, lost=lost: lost.set())
            try:
                await connection.add_listener(channel, lambda *_: event.set())
                event.set()
                await lost.wait()
            finally:
                with contextlib.suppress(Exception):
                    await connection.close(timeout=1)
        await asyncio.sleep(1)


# The states that our own SQL raises; `detail` carries the code.
_RAISED: dict[str, type[errors.CortexError]] = {
    "CX401": errors.Unauthenticated,
    "CX403": errors.Forbidden,
    "CX404": errors.NotFound,
    "CX409": errors.Conflict,
    "CX412": errors.Stale,
}

# What a broken unique constraint means to a person.
_TAKEN = {
    "uq_org_slug": "An org with this slug exists.",
    "uq_team_slug": "A team with this slug exists in the org.",
    "uq_agent_name": "An agent with this name exists in the org.",
    "uq_agent_slug": "An agent with this slug exists in the org.",
    "uq_channel_connection_name": "A connection of this type and name exists in the org.",
}

# Out of disk, memory or connections; shutting down; a read-only standby; a lock or a transaction that took too long.
_NOT_NOW = ("53", "57", "58", "25006", "25P03", "55P03")

UNREACHABLE = (
    asyncpg.InvalidCachedStatementError,  # prepared before a migration; the next try prepares it anew
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,  # what the driver says when it has not yet noticed that its server is gone
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.TooManyConnectionsError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)


def translate(error: BaseException) -> errors.CortexError | None:
    """The error of ours that says the same, or None for a defect that must stay loud."""
    if isinstance(error, asyncpg.PostgresError) and error.sqlstate in _RAISED:
        return _RAISED[error.sqlstate](str(error.args[0]), code=error.detail, hint=error.hint)
    match error:
        case asyncpg.UniqueViolationError():
            return errors.AlreadyExists(_TAKEN.get(error.constraint_name, "This already exists."))
        case asyncpg.ForeignKeyViolationError():
            return errors.InUse("Something else still refers to it, or it refers to something that is gone.")
        case asyncpg.DeadlockDetectedError() | asyncpg.SerializationError():
            return errors.Conflict("Two requests got in each other's way.", code="retry", hint="Send it again.")
        case asyncpg.CheckViolationError() | asyncpg.DataError():
            return errors.InvalidInput("A value is outside of what can be stored.")
        case TimeoutError() | asyncpg.QueryCanceledError():
            return errors.Unavailable("The database took too long, or all connections to it are in use.", code="busy")
        case _ if isinstance(error, asyncpg.PostgresError) and str(error.sqlstate).startswith(_NOT_NOW):
            return errors.Unavailable(f"The database cannot do this now: {error}.")
        case _ if isinstance(error, UNREACHABLE):
            return errors.Unavailable("The database cannot be reached.")
    return None


FOREIGN = (asyncpg.PostgresError, TimeoutError, *UNREACHABLE)
"""What the driver raises."""


class border:  # noqa: N801 -- it reads as what it is at every use
    """Errors of the driver leave this block as ours. A class, because every statement passes it."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, FOREIGN):
            raise_ours(error)


def raise_ours(error: BaseException) -> NoReturn:
    """In place of an error of the driver; a defect stays loud."""
    ours = translate(error)
    if ours is None:
        raise error
    raise ours from error
