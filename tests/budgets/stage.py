"""A PostgreSQL of its own, because the position of its log belongs to the whole server, and a crowded plane on it.

Nothing runs by itself there: no autovacuum, no checkpoint on a timer, no full pages after one. The tables hold thousands of rows
of the same org before anything is counted: with a handful PostgreSQL prefers to read the whole table, whatever its indexes are.
"""

from __future__ import annotations

import asyncio
import functools
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import asyncpg

from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.db.database import Database
from cortex_plane.embedded import EmbeddedPostgres
from cortex_plane.http.app import Api
from cortex_plane.http.metrics import Metrics
from cortex_plane.kernel.shares import Throttle
from cortex_plane.main.api_process import create_app
from cortex_plane.sessions.verbs.events import EventFeed
from tests.budgets.operations import OPERATIONS, Stage
from tests.fixtures.listeners import nowhere
from tests.fixtures.people import World
from tests.fixtures.servers import VAULT, TestServer, prepare, roomy_memory

CONNECTIONS = 4
CROWD = 2_000
"""Rows that a table holds at least, once it is crowded."""
_SETTINGS = {
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "checkpoint_timeout": "1d",
    "max_wal_size": "4GB",
    "jit": "off",
}
_QUIET_SECONDS = 24 * 3600.0


@contextmanager
def server() -> Iterator[TestServer]:
    folder = Path(tempfile.mkdtemp(prefix="cortex-budgets-", dir=roomy_memory()))
    folder.chmod(0o711)
    try:
        with EmbeddedPostgres(folder, settings=_SETTINGS) as started:
            yield asyncio.run(prepare("budgets", started.url()))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _application() -> Api:
    return create_app(Database(None), Metrics())


@asynccontextmanager
async def stage(url: str) -> AsyncIterator[Stage]:
    """The plane as a process would run it, in this one."""
    # As many connections as there may be: none is opened, and nothing is prepared on a new one, while something is counted.
    db = await Database.open(url, min_size=CONNECTIONS, max_size=CONNECTIONS, vault=VAULT)
    metrics, api = Metrics(), _application()
    try:
        # Hints to readers are sent at most every 30 ms, so their number depends on the clock. One is sent, and no other.
        db.hints._events._pause = _QUIET_SECONDS
        db.hints.events()
        api.state.db, api.state.metrics, api.state.feed = db, metrics, EventFeed(db)
        api.state.throttle = Throttle()
        api.state.webhooks = WebhookChannel(resolver=nowhere)
        world = await World.create(db, "budgets")
        strict = await World.create(db, "strict", policies=None)
        yield Stage(world, strict, api)
        api.state.feed.close()
    finally:
        metrics.close()
        await db.close()


@asynccontextmanager
async def crowded(server: TestServer) -> AsyncIterator[Stage]:
    """Every operation was performed, and what it left is there thousands of times."""
    async with stage(server.app(server.template)) as made:
        for operation in OPERATIONS.values():
            async with operation(made, 1) as perform:
                await perform()
        connection = await asyncpg.connect(server.admin(server.template))
        try:
            await crowd(connection)
        finally:
            await connection.close()
        yield made


# The crowd -------------------------------------------------------------------------------------------------------

_COLUMNS = """
select c.oid::regclass::text as name, a.attname as column, format_type(a.atttypid, null) as type,
  exists (select from pg_index i where i.indrelid = c.oid and i.indisunique and a.attnum = any (i.indkey)) as is_unique
from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition and a.attgenerated = ''
  and a.attidentity = ''
order by c.oid, a.attnum
"""
_DISTINCT = {
    "text": "case when {0} ~ '^[0-9a-f]{{64}}$' then encode(sha256(({0} || n)::bytea), 'hex') else {0} || '-' || n end",
    "bytea": "sha256({0} || n::text::bytea)",
}

_ONE_OF_ORG = "signing_secret"
"""An org has one, so there is nothing to copy."""


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    is_unique: bool

    @property
    def copy(self) -> str:
        """The value of the n-th copy. Ids change everywhere in the same way, so that copies belong together."""
        quoted = f't."{self.name}"'
        if self.name == "org_id":
            return quoted
        if self.type == "uuid":
            return f"md5({quoted}::text || n)::uuid"
        return _DISTINCT.get(self.type, "{0}").format(quoted) if self.is_unique else quoted


async def crowd(connection: asyncpg.Connection) -> None:
    """Copy every row of every table of orgs within its org, until there are as many as ``CROWD``."""
    tables: dict[str, list[Column]] = {}
    for row in await connection.fetch(_COLUMNS):
        tables.setdefault(row["name"], []).append(Column(row["column"], row["type"], row["is_unique"]))
    await connection.execute("set session_replication_role = replica")
    for name, columns in tables.items():
        if name == _ONE_OF_ORG or not any(column.name == "org_id" for column in columns):
            continue
        known = await connection.fetchval(f"select count(*) from {name}")
        if known:
            names = ", ".join(f'"{column.name}"' for column in columns)
            copies = ", ".join(column.copy for column in columns)
            await connection.execute(
                f"insert into {name} ({names}) select {copies} from {name} t, generate_series(1, $1) n on conflict do nothing",
                CROWD // known + 1,
            )
    await connection.execute("reset session_replication_role")
    await connection.execute("vacuum analyze")
