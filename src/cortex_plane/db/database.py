"""The database: pools, transactions that carry their org, named queries, rows."""

from __future__ import annotations

import contextlib
import copy
import functools
import re
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from uuid import UUID

import asyncpg
import orjson

from cortex_plane.db import crash_points
from cortex_plane.db.pool import FOREIGN, HINTS, OWN, Hints, PoolPurpose, SharedPool, border, raise_ours
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.errors import SetupError, TooMany
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.pages import After, Page, Position
from cortex_plane.kernel.shares import Shares
from cortex_plane.tenancy.model.access import KEY_BYTES, CredentialKey

SQL = Path(__file__).parent
"""Where functions and migrations are."""

_NAME = re.compile(r"^-- name: (\w+)\n", re.MULTILINE)


class Queries:
    """The queries of a noun: ``queries.get_key`` of ``tenancy`` stands in ``tenancy/queries.sql`` under ``-- name: get_key``."""

    def __init__(self, noun: str) -> None:
        self._texts = read_queries((SQL.parent / noun / "queries.sql").read_text())

    def __getattr__(self, name: str) -> str:
        try:
            return self._texts[name]
        except KeyError:
            raise AttributeError(f"no query named {name}") from None


def read_queries(text: str) -> dict[str, str]:
    """By name. Raises ``ValueError`` where something stands before the first name, or a name stands twice."""
    before, *parts = _NAME.split(text)
    names = parts[::2]
    if before.strip() or len(set(names)) != len(names):
        raise ValueError("Every query has a name of its own.")
    return {name: query.strip() for name, query in zip(names, parts[1::2], strict=True)}


def every_query() -> dict[str, str]:
    """All queries, by ``noun/name``."""
    return {
        f"{path.parent.name}/{name}": query
        for path in sorted(SQL.parent.glob("*/queries.sql"))
        for name, query in read_queries(path.read_text()).items()
    }


T = TypeVar("T")


def one(kind: type[T], row: Row | None) -> T | None:
    return None if row is None else parse(kind, row)


def many(kind: type[T], rows: Sequence[Row]) -> list[T]:
    return [parse(kind, row) for row in rows]


def page(kind: type[T], rows: Sequence[Row], limit: int) -> Page[T]:
    """A page of ``limit`` items from a query that was asked for one more, which tells whether there is a next."""
    shown_rows = rows[:limit]
    last = shown_rows[-1] if len(rows) > limit else None
    return Page(
        items=[parse(kind, row) for row in shown_rows],
        next=Position(created_at=last["created_at"], id=last["id"]) if last is not None else None,
    )


def after(position: After) -> tuple[object, object]:
    """The two parameters that say where a page starts."""
    return (position.created_at, position.id) if position else (None, None)


def ids(rows: Sequence[Row]) -> list[UUID]:
    return [row["id"] for row in rows]


Row = Mapping[str, Any]

NOBODY: Final = UUID(int=0)
"""The org of verbs that run before an org is known: no row belongs to it."""

CREDENTIAL_KEY = "credential-key"
"""What the key that recognises credentials is sealed for."""

HEAVY_READS = 4
"""How many reads of long spans run at a time in a process."""
HEAVY_RETRY_SECONDS = 5

EVENT_VERBS: Final = frozenset(
    {
        "adopt_job", "advance_job", "append_chunks", "authorize_call", "claim_jobs", "hear_signal", "ingest_message", "intend_call", "join_doubt", "join_waiting",
        "post_message", "record_deliveries", "release_job", "settle_call", "void_chunks",
    }
)  # fmt: skip
"""The hot verbs that append events: readers of events get a hint after their commit."""

_VERBS: dict[str, str] = {}


def verb(name: str, arity: int) -> str:
    """The statement that calls the function ``name``; kept, so that the driver prepares it once."""
    if name not in _VERBS:
        places = ", ".join(f"${n}" for n in range(1, arity + 1))
        _VERBS[name] = f"select * from {name}({places})"  # noqa: S608 -- the name is a constant of ours
    return _VERBS[name]


class Transaction:
    """An open transaction of one org. Row-level security sees to it that it reaches nothing else."""

    def __init__(self, connection: Any, org: UUID, credential_key: CredentialKey | None = None) -> None:
        self._connection = connection
        self.org = org
        self._credential_key = credential_key
        self.has_events = False
        """Events were appended: readers get a hint after the commit."""

    @property
    def credential_key(self) -> CredentialKey:
        return _at_hand(self._credential_key)

    async def rows(self, query: str, *args: Any) -> Sequence[Row]:
        rows: Sequence[Row] = await self._run(self._connection.fetch, query, args)
        return rows

    async def row(self, query: str, *args: Any) -> Row | None:
        row: Row | None = await self._run(self._connection.fetchrow, query, args)
        return row

    async def value(self, query: str, *args: Any) -> Any:
        return await self._run(self._connection.fetchval, query, args)

    async def _run(self, fetch: Callable[..., Awaitable[Any]], query: str, args: Sequence[Any]) -> Any:
        if crash_points.armed:
            crash_points.reached("statement:before")
        with border():
            result = await fetch(query, *args)
        if crash_points.armed:
            crash_points.reached("statement:after")
        return result

    async def call(self, name: str, org: UUID | None, *args: Any) -> Sequence[Row]:
        """A hot verb as a part of this transaction."""
        self.has_events = self.has_events or name in EVENT_VERBS
        values = args if org is None else (org, *args)
        return await self.rows(verb(name, len(values)), *values)

    @contextlib.asynccontextmanager
    async def part(self) -> AsyncIterator[None]:
        """What fails in here is undone by itself, and the transaction goes on."""
        with border():
            await self._connection.execute("savepoint part")
        try:
            yield
        except BaseException:
            # Where the connection itself is gone, so is all of it; the error that led here tells more than that.
            with contextlib.suppress(Exception):
                await self._connection.execute("rollback to savepoint part; release savepoint part")
            raise
        with border():
            await self._connection.execute("release savepoint part")

    async def stream(self, query: str, *args: Any, batch: int = 500) -> AsyncIterator[Row]:
        """Rows one after the other in flat memory, for results of any size."""
        with border():
            async for row in self._connection.cursor(query, *args, prefetch=batch):
                yield row


class Database:
    """A pool of connections. It is the only thing that other layers need to hold."""

    def __init__(
        self,
        pool: Any,
        vault: Vault | None = None,
        credential_key: CredentialKey | None = None,
        *,
        heavy_reads: int = HEAVY_READS,
        org_connections: int | None = None,
        pools: Mapping[PoolPurpose, Any] | None = None,
    ) -> None:
        self._pool = pool
        self._pools = pools or {}
        self._shared = SharedPool(pool, org_connections, pools)
        self._purpose: PoolPurpose | None = None
        self._views: dict[PoolPurpose, Database] = {}
        self.vault_at_hand = vault
        self.credential_key_at_hand = credential_key
        self._heavy = Shares(heavy_reads, share=max(1, heavy_reads // 2))
        self.hints = Hints(self._shared)

    def own(self, purpose: PoolPurpose) -> Database:
        """The same database for whoever may use the connections of this purpose."""
        try:
            return self._views[purpose]
        except KeyError:
            view = self._views[purpose] = copy.copy(self)
            view._purpose = purpose
            return view

    def require_heavy_read(self, org: UUID) -> None:
        """Raises ``TooMany`` where no further long read may begin now."""
        if not self._heavy.has_room(org):
            raise _too_many_reads()

    @contextlib.contextmanager
    def heavy_read(self, org: UUID) -> Iterator[None]:
        """A place among the few reads that take long."""
        if not self._heavy.take(org):
            raise _too_many_reads()
        try:
            yield
        finally:
            self._heavy.give_back(org)

    @property
    def vault(self) -> Vault:
        """What opens the secrets that are kept in it. Programs that only look have none."""
        if self.vault_at_hand is None:
            raise SetupError("This program was started without the master key.", code="no_master_key")
        return self.vault_at_hand

    async def seal(self, tx: Transaction, purpose: str, secret: bytes) -> bytes:
        """Seal a secret of the org of ``tx``, unless the master key of the plane was replaced meanwhile."""
        await self.require_current_key(tx)
        return self.vault.seal(tx.org, purpose, secret)

    async def require_current_key(self, tx: Transaction) -> None:
        """Raises ``SetupError`` where the plane has another master key by now. No rotation begins before ``tx`` ends."""
        fingerprint = await tx.value((SQL / "plane_key.sql").read_text())
        if self.vault_at_hand is not None and fingerprint is not None and fingerprint != self.vault_at_hand.fingerprint:
            raise wrong_master_key()

    @property
    def credential_key(self) -> CredentialKey:
        """What recognises credentials, and proves that a row was written by the plane."""
        return _at_hand(self.credential_key_at_hand)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        min_size: int = 1,
        max_size: int = 20,
        prepared_statements: bool = True,
        vault: Vault | None = None,
        reads_only: bool = False,
        heavy_reads: int = HEAVY_READS,
        org_connections: int | None = None,
    ) -> Database:
        """Connect and refuse a login that could see past row-level security. ``max_size`` counts ordinary connections.

        With a vault it opens the credential key too, and makes it where there is none, unless the program ``reads_only``."""
        create = functools.partial(
            asyncpg.create_pool, url, init=_speak_json, reset=_keep, command_timeout=60,
            statement_cache_size=1024 if prepared_statements else 0,
        )  # fmt: skip
        with border():
            pool = await create(min_size=min_size, max_size=max_size + HINTS)
            pools = {
                purpose: await create(min_size=0, max_size=size, max_inactive_connection_lifetime=0)
                for purpose, size in OWN.items()
            }
        database = cls(pool, vault, heavy_reads=heavy_reads, org_connections=org_connections, pools=pools)
        try:
            await database._refuse_powerful_login()
            if vault is not None:
                await database._open_credential_key(vault, make=not reads_only)
        except BaseException:
            await database._close_pools()
            raise
        return database

    async def close(self) -> None:
        await self.hints.close()
        await self._close_pools()

    async def _close_pools(self) -> None:
        await self._shared.close()
        for pool in (self._pool, *self._pools.values()):
            await pool.close()

    @contextlib.asynccontextmanager
    async def transaction(self, org: UUID, *, snapshot: bool = False) -> AsyncIterator[Transaction]:
        """``snapshot`` shows one state of the database to all statements, and lets none write."""
        shared = self._shared
        failed = False
        with border():
            connection, place = await shared.acquire(org, self._purpose)
        try:
            with border():
                # One round trip: an org is a UUID, so its text needs no quoting.
                mode = "isolation level repeatable read, read only" if snapshot else ""
                await connection.execute(f"begin {mode}; set local app.org_id = '{UUID(str(org))}'")
            transaction = Transaction(connection, org, self.credential_key_at_hand)
            yield transaction
            if crash_points.armed:
                crash_points.reached("commit:before")
            with border():
                answer = await connection.execute("commit")
            if crash_points.armed:
                crash_points.reached("commit:after")
            if answer != "COMMIT":
                # After an error that somebody caught, PostgreSQL answers COMMIT with ROLLBACK and raises nothing.
                raise RuntimeError(f"The transaction was rolled back: COMMIT answered {answer}.")
        except BaseException:
            failed = True
            await _roll_back(connection)
            raise
        finally:
            await shared.release(connection, place, failed=failed)
        if transaction.has_events:
            self.hints.events()

    async def call(self, name: str, org: UUID | None, *args: Any) -> Sequence[Row]:
        """Run a hot verb: one function, one round trip, one commit. It sets the org itself."""
        values = args if org is None else (org, *args)
        shared = self._shared
        try:
            connection, place = await shared.acquire(NOBODY if org is None else org, self._purpose)
            failed = True
            try:
                if crash_points.armed:
                    crash_points.reached(f"{name}:before")
                rows: Sequence[Row] = await connection.fetch(verb(name, len(values)), *values)
                if crash_points.armed:
                    crash_points.reached(f"{name}:after")
                failed = False
            finally:
                await shared.release(connection, place, failed=failed)
        except FOREIGN as error:
            raise_ours(error)
        if rows and name in EVENT_VERBS:
            self.hints.events()
        return rows

    async def check(self) -> None:
        """Prepare every query, so that a file that does not fit this schema is known at the start."""
        async with self.transaction(NOBODY) as tx:
            for name, text in every_query().items():
                try:
                    await tx._connection.prepare(text)
                except asyncpg.PostgresError as error:
                    raise SetupError(
                        f"The query {name} does not fit this database: {error}",
                        code="query_mismatch",
                        hint="Run `cortex db migrate` with the same release as this program.",
                    ) from error

    async def _open_credential_key(self, vault: Vault, *, make: bool) -> None:
        """Nothing is opened where the schema is older, or the key was sealed with another master key: whoever needs it is told."""
        read, insert = ((SQL / f"{name}.sql").read_text() for name in ("credential_key", "make_credential_key"))
        with contextlib.suppress(asyncpg.UndefinedTableError, SetupError), border():
            async with self._pool.acquire() as connection:
                sealed = await connection.fetchval(read)
                if sealed is None and make:
                    new_key = vault.seal(NOBODY, CREDENTIAL_KEY, secrets.token_bytes(KEY_BYTES))
                    # Of two that make one at the same moment the first one's counts.
                    await connection.execute(insert, new_key, vault.fingerprint)
                    sealed = await connection.fetchval(read)
            if sealed is not None:
                self.credential_key_at_hand = CredentialKey(vault.open(NOBODY, CREDENTIAL_KEY, sealed))

    async def _refuse_powerful_login(self) -> None:
        async with self.transaction(NOBODY) as tx:
            (login,) = await tx.rows((SQL / "login.sql").read_text())
        if login["version"] < 150000:
            raise SetupError(
                f"PostgreSQL {login['version'] // 10000} is too old.",
                code="postgres_too_old",
                hint="Use PostgreSQL 15 or newer.",
            )
        powers = {
            "superuser": "a superuser",
            "bypass": "allowed to bypass row-level security",
            "resolver": "a member of cortex_resolver, cortex_claimer or cortex_scheduler",
            "owner": "the owner of tenant tables",
            "create_role": "allowed to create roles",
        }
        power = next((power for column, power in powers.items() if login[column]), None)
        if power:
            raise SetupError(
                f"The login {login['name']} is {power}, so one org could see another's rows. Refusing to start.",
                code="powerful_login",
                hint="Create a plain login with `cortex db provision` and put its URL into DATABASE_URL.",
            )


def wrong_master_key() -> SetupError:
    return SetupError(
        "The master key is not the one that this database was used with.",
        code="wrong_master_key",
        hint="Set CORTEX_MASTER_KEY to the same value for every process of the plane; with `cortex up` it is"
        " kept in the file master.key of the plane's directory.",
    )


def _at_hand(key: CredentialKey | None) -> CredentialKey:
    if key is None:
        raise SetupError(
            "This program cannot open the key that recognises credentials.",
            code="no_credential_key",
            hint="Start every process of the plane with the same CORTEX_MASTER_KEY.",
        )
    return key


def _too_many_reads() -> TooMany:
    return TooMany(
        "As many long reads of this org, or of this process, are under way as it runs at a time.",
        code="too_many_reads",
        hint="Wait as long as the header Retry-After says, and send one after the other.",
        retry_after=HEAVY_RETRY_SECONDS,
    )


async def _speak_json(connection: Any) -> None:
    for name in ("json", "jsonb"):
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=lambda v: orjson.dumps(v).decode(), decoder=orjson.loads
        )


async def _roll_back(connection: Any) -> None:
    """Leave nothing open; a connection that cannot even do that is closed, which ends its transaction too."""
    try:
        if not connection.is_closed() and connection.is_in_transaction():
            await connection.execute("rollback")
    except Exception:
        # The error that led here tells more than this one. What was lost may be back in the pool, and closed, already.
        with contextlib.suppress(asyncpg.InterfaceError):
            connection.terminate()


async def _keep(_: Any) -> None:
    """Nothing to reset: every transaction sets its state with SET LOCAL, and is ended before its connection is given back."""


class NestedDatabase(Database):
    """What is a transaction elsewhere is a savepoint here: it is undone by itself where it fails, and never needs a second
    connection."""

    def __init__(self, db: Database, tx: Transaction) -> None:
        self.vault_at_hand = db.vault_at_hand
        self.credential_key_at_hand = db.credential_key_at_hand
        self._tx = tx
        self.hints = db.hints

    @contextlib.asynccontextmanager
    async def transaction(self, org: UUID, *, snapshot: bool = False) -> AsyncIterator[Transaction]:
        if org != self._tx.org or snapshot:
            raise AssertionError("a part of a transaction sees what it sees")
        async with self._tx.part():
            yield self._tx

    async def call(self, name: str, org: UUID | None, *args: Any) -> Sequence[Row]:
        async with self._tx.part():
            return await self._tx.call(name, org, *args)


class NotAtHand(Exception):
    """Under locks nothing is loaded: they are given back, it is loaded, and whoever needs it begins again."""

    def __init__(self, load: Callable[[Database], Awaitable[object]]) -> None:
        super().__init__("what is needed is not loaded")
        self.load = load


async def at_hand(db: Database, value: T | None, load: Callable[[Database], Awaitable[T]]) -> T:
    if value is not None:
        return value
    if isinstance(db, NestedDatabase):
        raise NotAtHand(load)
    return await load(db)
