"""A warm database for most tests: it is emptied after a test instead of made anew for the next one.

What makes a new database slow is not its files but its first connections: each of them reads the catalogue and compiles
every function that it calls. Emptying takes a millisecond and leaves the connections as they are. A test that changed
the schema uses its database up, and the next test gets a new one; so does every hundredth, so that nothing piles up.

The orgs that most tests begin with are made once per database and kept beside it. To put one back is one statement where
making it takes forty.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import asyncpg

from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import atlas_cache
from cortex_plane.policies.verbs import policy_cache
from cortex_plane.tenancy.verbs import access
from tests.people import EVERYTHING_GOES, World
from tests.servers import (
    CREDENTIAL_KEY,
    SEALED_CREDENTIAL_KEY,
    VAULT,
    TestServer,
    create_database,
    drop_database,
)

MOST_TESTS = 100
"""How many tests one database serves."""

WORLDS = {"acme": EVERYTHING_GOES, "strict": None, "rival": EVERYTHING_GOES}
"""The orgs that most tests begin with, in the order in which they are made, and their policies."""

LEAVING_SECONDS = 10
"""How long the connections of a test may take to end once it is over."""

# Row-level security does not hold for superusers, and a replica runs no triggers and checks no foreign keys.
_PREPARE = """
set session_replication_role = replica;
create schema seed;
do $$
declare
  emptying text := '';
  name text;
  seeded boolean;
begin
  for name in
    select c.oid::regclass::text from pg_class c
    where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' order by c.oid
  loop
    emptying := emptying || format('delete from %s;', name);
    execute format('select exists (select from %s)', name) into seeded;
    if seeded then
      execute format('create table seed.%s as table %s', name, name);
      emptying := emptying || format('insert into %s select * from seed.%s;', name, name);
    end if;
  end loop;
  execute format('create function seed.empty() returns void language plpgsql as %L', 'begin ' || emptying || ' end');
end $$
"""

# What stands in the database beside its seed, as a function that puts it there again. %(name)s is the name of that function.
_KEEP = """
do $$
declare
  putting text := '';
  name text;
  fields text;
  difference text;
  filled boolean;
begin
  for name, fields in
    select c.relname, string_agg(quote_ident(a.attname), ', ')
    from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attgenerated = ''
    where c.relnamespace = 'public'::regnamespace and c.relkind = 'r' group by c.oid order by c.oid
  loop
    difference := format('select %%s from %%I t', fields, name);
    if to_regclass(format('seed.%%I', name)) is not null then
      difference := difference || format(' where not exists (select from seed.%%I s where to_jsonb(s) = to_jsonb(t))', name);
    end if;
    execute format('select exists (%%s)', difference) into filled;
    if filled then
      execute format('create table seed.%%I as %%s', '%(name)s ' || name, difference);
      putting := putting || format(
        'insert into %%I (%%s) overriding system value select * from seed.%%I;', name, fields, '%(name)s ' || name
      );
    end if;
  end loop;
  execute format('create function seed.%(name)s() returns void language plpgsql as %%L', 'begin ' || putting || ' end');
end $$
"""

# Every object of the schema with the transaction that wrote it last. The clock of tests comes and goes.
_SCHEMA = """
select sum(hashtextextended(kind || oid || xmin, 0)) from (
  select 'class', oid, xmin from pg_class where relnamespace = 'public'::regnamespace
  union all select 'function', oid, xmin from pg_proc
    where pronamespace = 'public'::regnamespace and proname <> 'plane_now'
  union all select 'policy', oid, xmin from pg_policy
  union all select 'trigger', oid, xmin from pg_trigger
  union all select 'constraint', oid, xmin from pg_constraint where connamespace = 'public'::regnamespace
  union all select 'namespace', oid, xmin from pg_namespace where nspname not in ('clock') and nspname not like 'pg_%'
  union all select 'setting', d.oid, s.xmin from pg_db_role_setting s join pg_database d on d.oid = s.setdatabase
    where d.datname = current_database()
) as objects (kind, oid, xmin)
"""

_CREDENTIAL_KEY = "insert into credential_key (sealed, converted_at) values ($1, plane_now())"

_CLOCK = "select pg_get_functiondef('plane_now'::regproc)"

_OTHERS = """
select pid, application_name, query from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> all($1::integer[])
"""


class LeftBehind(AssertionError):
    """A test ended and something of it still runs."""


class WarmDatabase:
    """One database, its connections, and how it looked before any test."""

    def __init__(self, server: TestServer, name: str) -> None:
        self.server = server
        self.name = name
        self.tests = 0
        self._sweeper: Any = None
        self._admin: Any = None
        self._pool: Any = None
        self._reusable = False
        """Only a superuser can empty it: with another login every test gets a new database."""
        self._schema: int = 0
        self._clock: str = ""
        self._worlds: dict[str, World] = {}
        self._asked = False
        """Whether a test wanted one of them."""

    @classmethod
    async def create(cls, server: TestServer) -> WarmDatabase:
        name = await create_database(server)
        warm = cls(server, name)
        warm._sweeper = await asyncpg.connect(server.admin(name))
        await warm._sweeper.execute(_CREDENTIAL_KEY, SEALED_CREDENTIAL_KEY)
        warm._reusable = await warm._sweeper.fetchval(
            "select rolsuper from pg_roles where rolname = current_user"
        )
        if not warm._reusable:
            return warm
        await warm._sweeper.execute(_PREPARE)
        warm._clock = await warm._sweeper.fetchval(_CLOCK)
        warm._schema = await warm._sweeper.fetchval(_SCHEMA)
        return warm

    async def database(self) -> Database:
        """A database object of its own for each test, over the connections of all of them."""
        if self._pool is None:
            opened = await Database.open(self.server.app(self.name), max_size=16, vault=VAULT)
            for pool in opened._pools.values():  # of nobody's: all tests use one pool
                await pool.close()
            self._pool = opened._pool
        return Database(self._pool, VAULT, CREDENTIAL_KEY)

    async def admin(self) -> asyncpg.Connection:
        if self._admin is None:
            self._admin = await asyncpg.connect(self.server.admin(self.name))
        return self._admin

    async def world(self, db: Database, slug: str) -> World:
        """One of `WORLDS`. It has the same ids in all tests of this database."""
        self._asked = True
        # Where a test has a time of its own, its org begins there.
        if not self._worlds or await self._sweeper.fetchval(_CLOCK) != self._clock:
            return await World.create(db, slug, policies=WORLDS[slug])
        await self._sweeper.execute(f"select seed.{slug}()")
        return replace(self._worlds[slug], db=db)

    async def _keep_worlds(self) -> None:
        """Make them in a database that is empty, and keep them."""
        db = await self.database()
        for slug, policies in WORLDS.items():
            self._worlds[slug] = await World.create(db, slug, policies=policies)
            await self._sweeper.execute(_KEEP % {"name": slug})
            await self._sweeper.execute("select seed.empty()")
        await db.hints.close()

    async def empty(self) -> bool:
        """Make it as it was for the next test; false where it cannot be used again."""
        self.tests += 1
        if self._sweeper.is_closed():  # the test ended every connection
            return False
        usable = await self._idle()
        await self._require_no_others()
        if not self._reusable or not usable or self.tests >= MOST_TESTS:
            return False
        await self._stop_clock()
        if await self._sweeper.fetchval(_SCHEMA) != self._schema:
            return False
        await self._sweeper.execute("set lock_timeout = '5s'; select seed.empty()")
        if self._asked and not self._worlds:
            await self._keep_worlds()
        _forget()
        return True

    async def _idle(self) -> bool:
        """Whether the connections that are kept can serve another test."""
        if self._admin is not None:
            if self._admin.is_closed():
                self._admin = None
            else:
                await self._admin.reset(timeout=5)
                await self._admin.execute("reset session authorization; reset role; discard temp")
        return self._pool is None or (
            not self._pool.is_closing() and self._pool.get_idle_size() == self._pool.get_size()
        )

    async def _stop_clock(self) -> None:
        if await self._sweeper.fetchval(_CLOCK) != self._clock:
            await self._sweeper.execute(self._clock)
            await self._sweeper.execute("drop schema if exists clock cascade")

    async def _require_no_others(self) -> None:
        own = [connection.get_server_pid() for connection in (self._sweeper, self._admin) if connection]
        if self._pool is not None:
            own += [holder._con.get_server_pid() for holder in self._pool._holders if holder._con is not None]
        deadline = time.monotonic() + LEAVING_SECONDS
        while others := await self._sweeper.fetch(_OTHERS, own):
            if time.monotonic() > deadline:
                queries = "; ".join(row["query"] for row in others)
                raise LeftBehind(
                    f"The test is over and still connected to its database. Last statements: {queries}"
                )
            await asyncio.sleep(0.005)

    async def drop(self) -> None:
        if self._pool is not None:
            self._pool.terminate()
        for connection in (self._sweeper, self._admin):
            if connection is not None:
                connection.terminate()
        await drop_database(self.server, self.name)


def _forget() -> None:
    """What this process remembers of orgs by their ids, because the next test has orgs with the same ids."""
    vars(policy_cache.book).update(vars(policy_cache.PolicyCache()))
    vars(atlas_cache.book).update(vars(atlas_cache.AtlasCache()))
    access._forgery_reports.clear()


class WarmDatabases:
    """The warm databases of one test process: one for each server."""

    def __init__(self) -> None:
        self._idle: dict[str, WarmDatabase] = {}

    async def take(self, server: TestServer) -> WarmDatabase:
        return self._idle.pop(server.name, None) or await WarmDatabase.create(server)

    async def give_back(self, warm: WarmDatabase) -> None:
        usable = False
        try:
            usable = await warm.empty()
        finally:
            if usable:
                self._idle[warm.server.name] = warm
            else:
                await warm.drop()

    async def close(self) -> None:
        for warm in self._idle.values():
            await warm.drop()
