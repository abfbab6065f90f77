"""The border to the driver: what really goes wrong in PostgreSQL reaches callers as one of our errors, or stays loud."""

# ruff: noqa: PT012 -- what raises is a whole transaction
from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.db.database import NOBODY, Database, Transaction
from cortex_plane.db.pool import translate
from cortex_plane.embedded import EmbeddedPostgres
from cortex_plane.kernel.errors import (
    AlreadyExists,
    Conflict,
    CortexError,
    Forbidden,
    InUse,
    InvalidInput,
    NotFound,
    SetupError,
    Stale,
    Unauthenticated,
    Unavailable,
)
from cortex_plane.kernel.ids import new_id
from cortex_plane.tenancy import store as tenancy_store
from tests.conftest import Urls
from tests.fixtures.people import World
from tests.fixtures.servers import TestServer, with_database

TEAM = "update team set name = name where slug = $1"


async def add_team(tx: Transaction, slug: str) -> None:
    await tenancy_store.insert_team(tx, new_id(), slug, slug.title(), None)


async def slugs(db: Database, org: UUID) -> set[str]:
    async with db.transaction(org) as tx:
        return {row["slug"] for row in await tx.rows("select slug from team")}


@contextlib.asynccontextmanager
async def opened(url: str, max_size: int = 4) -> AsyncIterator[Database]:
    db = await Database.open(url, max_size=max_size)
    try:
        yield db
    finally:
        await db.close()


# Constraints -------------------------------------------------------------------------------------------------


async def test_a_taken_name_says_which(db: Database, world: World) -> None:
    async def fails(message: str, statement: str | None = None, *args: object) -> None:
        with pytest.raises(AlreadyExists) as raised:
            async with db.transaction(world.org_id) as tx:
                if statement is None:
                    await tenancy_store.insert_connection(tx, new_id(), "web", "site", {})
                else:
                    await tx.rows(statement, *args)
        assert raised.value.message == message
        assert raised.value.hint

    agent = """
        insert into agent (org_id, id, team_id, name, slug, role) select org_id, $1, team_id, $2, $3, 'x' from agent
    """
    team = "insert into team (org_id, id, slug, name) values ($1, $2, 'main', 'Main')"
    await fails("A team with this slug exists in the org.", team, world.org_id, new_id())
    await fails("An agent with this name exists in the org.", agent, new_id(), world.agent.name, "another")
    await fails("An agent with this slug exists in the org.", agent, new_id(), "Another", world.agent.slug)
    await fails("A connection of this type and name exists in the org.")
    await fails("This already exists.", "insert into org_head (org_id) values ($1)", world.org_id)
    with pytest.raises(AlreadyExists, match="An org with this slug exists"):
        async with db.transaction(new := new_id()) as tx:
            await tenancy_store.insert_org(tx, new, "acme", "Another", {})


async def test_a_reference_in_use_or_to_nothing(db: Database, world: World) -> None:
    async with db.transaction(world.org_id) as tx:
        team = await tenancy_store.get_team(tx, "main")
    assert team is not None
    with pytest.raises(InUse):
        async with db.transaction(world.org_id) as tx:
            await tx.rows(tenancy_store.queries.delete_team, team.id)
    with pytest.raises(InUse):
        async with db.transaction(world.org_id) as tx:
            await tenancy_store.insert_team(tx, new_id(), "child", "Child", new_id())
    assert await slugs(db, world.org_id) == {"main"}


async def test_a_deferred_constraint_is_translated_at_the_commit(db: Database, world: World) -> None:
    with pytest.raises(InUse):
        async with db.transaction(world.org_id) as tx:
            await tx.rows("update agent set config_version = 99 where id = $1", world.agent.id)


async def test_values_that_cannot_be_stored(db: Database, world: World) -> None:
    for statement, args in (
        ("insert into team (org_id, id, slug, name) values ($1, $2, 'No Slug', 'x')", (world.org_id, new_id())),
        ("insert into team (org_id, id, slug, name) values ($1, $2, 'blank', ' ')", (world.org_id, new_id())),
        ("select 1 / $1::integer", (0,)),
        ("select $1::text", ("x\x00y",)),
        ("select ($1::text)::uuid", ("not a uuid",)),
        ("select $1::integer", (2**40,)),
        ("select $1::uuid", ("neither",)),
    ):
        with pytest.raises(InvalidInput) as raised:
            async with db.transaction(world.org_id) as tx:
                await tx.rows(statement, *args)
        assert isinstance(raised.value.__cause__, asyncpg.PostgresError)


async def test_what_our_own_sql_raises_keeps_its_words(db: Database) -> None:
    kinds: dict[str, type[CortexError]] = {
        "CX401": Unauthenticated,
        "CX403": Forbidden,
        "CX404": NotFound,
        "CX409": Conflict,
        "CX412": Stale,
    }
    for state, kind in kinds.items():
        with pytest.raises(kind) as raised:
            async with db.transaction(NOBODY) as tx:
                await tx.rows(
                    f"""
                    do $$ begin
                      raise exception using errcode = '{state}', message = 'What.', detail = 'the_code', hint = 'Do.';
                    end $$
                    """
                )
        error = raised.value
        assert (type(error), error.message, error.code, error.hint) == (kind, "What.", "the_code", "Do.")


async def test_a_defect_stays_loud(db: Database) -> None:
    for statement, kind in (
        ("select * from nowhere", asyncpg.UndefinedTableError),
        ("selec", asyncpg.PostgresSyntaxError),
        ("delete from audit_entry", asyncpg.InsufficientPrivilegeError),
    ):
        with pytest.raises(kind):
            async with db.transaction(NOBODY) as tx:
                await tx.rows(statement)
    assert translate(ValueError("ours")) is None
    assert translate(KeyboardInterrupt()) is None


# Concurrency -------------------------------------------------------------------------------------------------


async def test_a_deadlock_is_a_conflict_to_send_again(urls: Urls, admin: asyncpg.Connection, world: World) -> None:
    name = await admin.fetchval("select current_database()")
    await admin.execute(f"alter database {name} set deadlock_timeout = '10ms'")
    async with opened(urls.app) as db:
        async with db.transaction(world.org_id) as tx:
            await add_team(tx, "left")
            await add_team(tx, "right")
        holding = asyncio.Barrier(2)

        async def lock(first: str, second: str) -> None:
            async with db.transaction(world.org_id) as tx:
                await tx.rows(TEAM, first)
                await holding.wait()
                await tx.rows(TEAM, second)

        results = await asyncio.gather(lock("left", "right"), lock("right", "left"), return_exceptions=True)
        (error,) = [result for result in results if result is not None]
        assert isinstance(error, Conflict)
        assert isinstance(error.__cause__, asyncpg.DeadlockDetectedError)
        assert (error.code, error.hint) == ("retry", "Send it again.")


async def test_a_serialization_failure_is_a_conflict_to_send_again(db: Database, world: World) -> None:
    with pytest.raises(Conflict) as raised:
        async with db.transaction(world.org_id) as tx:
            await tx.rows("set transaction isolation level repeatable read")
            await tx.rows("select * from team")
            async with db.transaction(world.org_id) as faster:
                await faster.rows(TEAM, "main")
            await tx.rows(TEAM, "main")
    assert raised.value.code == "retry"


async def test_an_error_that_was_swallowed_does_not_pass_for_a_commit(db: Database, world: World) -> None:
    """PostgreSQL answers COMMIT with ROLLBACK then, and no error."""
    with pytest.raises(RuntimeError, match="rolled back"):
        async with db.transaction(world.org_id) as tx:
            await add_team(tx, "kept-or-not")
            with contextlib.suppress(AlreadyExists):
                await add_team(tx, "main")
    assert await slugs(db, world.org_id) == {"main"}


async def test_an_exception_rolls_back(db: Database, world: World) -> None:
    with pytest.raises(ZeroDivisionError):
        async with db.transaction(world.org_id) as tx:
            await add_team(tx, "gone")
            raise ZeroDivisionError
    assert await slugs(db, world.org_id) == {"main"}


async def test_a_cancelled_task_rolls_back_and_gives_its_connection_back(urls: Urls, world: World) -> None:
    async with opened(urls.app, max_size=1) as db:
        inside = asyncio.Event()

        async def work() -> None:
            async with db.transaction(world.org_id) as tx:
                await add_team(tx, "gone")
                inside.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await inside.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await slugs(db, world.org_id) == {"main"}


async def test_a_task_cancelled_in_the_middle_of_a_statement_too_and_twice(
    urls: Urls, admin: asyncpg.Connection, world: World
) -> None:
    """The second time while it rolls back: whoever comes next must not find an open transaction."""
    waiting = "select count(*) from pg_locks where locktype = 'advisory' and objid = 77 and not granted"
    await admin.execute("select pg_advisory_lock(77)")
    async with opened(urls.app, max_size=1) as db:

        async def work() -> None:
            async with db.transaction(world.org_id) as tx:
                await add_team(tx, "gone")
                await tx.rows("select pg_advisory_xact_lock(77)")

        for turns in range(6):
            task = asyncio.create_task(work())
            while not await admin.fetchval(waiting):
                assert not task.done()
            task.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            if turns:
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await slugs(db, world.org_id) == {"main"}, turns
            while await admin.fetchval(waiting):
                pass


# Reachability ------------------------------------------------------------------------------------------------


async def test_a_refused_connection_is_unavailable(urls: Urls, server: TestServer) -> None:
    for url in ("postgresql://nobody@127.0.0.1:1/nothing", server.app("no_such_database")):
        with pytest.raises(Unavailable) as raised:
            await Database.open(url)
        assert raised.value.hint


async def test_a_terminated_backend_is_unavailable_once(urls: Urls, admin: asyncpg.Connection, world: World) -> None:
    async with opened(urls.app, max_size=1) as db:
        with pytest.raises(Unavailable):
            async with db.transaction(world.org_id) as tx:
                await add_team(tx, "gone")
                await admin.execute("select pg_terminate_backend($1)", await tx.value("select pg_backend_pid()"))
                await tx.rows("select 1")
        assert await slugs(db, world.org_id) == {"main"}


async def test_a_backend_that_ended_while_it_was_idle_is_replaced(
    urls: Urls, admin: asyncpg.Connection, world: World
) -> None:
    async with opened(urls.app, max_size=4) as db:

        async def backend() -> int:
            async with db.transaction(world.org_id) as tx:
                pid: int = await tx.value("select pg_backend_pid() from pg_sleep(0.05)")
                return pid

        pids = await asyncio.gather(*(backend() for _ in range(4)))
        for pid in pids:
            await admin.execute("select pg_terminate_backend($1, 1000)", pid)
        await asyncio.sleep(0.05)  # the driver notices
        assert set(await asyncio.gather(*(backend() for _ in range(4)))).isdisjoint(pids)


async def test_a_backend_that_ends_before_the_commit_is_unavailable(
    urls: Urls, admin: asyncpg.Connection, world: World
) -> None:
    async with opened(urls.app, max_size=1) as db:
        with pytest.raises(Unavailable):
            async with db.transaction(world.org_id) as tx:
                await add_team(tx, "gone")
                await admin.execute("select pg_terminate_backend($1)", await tx.value("select pg_backend_pid()"))
        assert await slugs(db, world.org_id) == {"main"}


async def test_a_callers_own_error_is_not_hidden_by_a_lost_connection(
    urls: Urls, admin: asyncpg.Connection, world: World
) -> None:
    async with opened(urls.app, max_size=1) as db:
        with pytest.raises(ZeroDivisionError):
            async with db.transaction(world.org_id) as tx:
                await admin.execute("select pg_terminate_backend($1)", await tx.value("select pg_backend_pid()"))
                raise ZeroDivisionError
        assert await slugs(db, world.org_id) == {"main"}


async def test_a_statement_that_takes_too_long_is_unavailable(db: Database) -> None:
    with pytest.raises(Unavailable):
        async with db.transaction(NOBODY) as tx:
            await tx.rows("set local statement_timeout = '5ms'")
            await tx.rows("select pg_sleep(60)")


def test_a_server_that_went_away_is_unavailable_until_it_is_back(tmp_path: Path) -> None:
    postgres = EmbeddedPostgres(tmp_path / "plane", settings={"fsync": "off"})

    async def provision() -> str:
        url = postgres.start().url()
        admin = await asyncpg.connect(url)
        await admin.execute("create role app login")
        await admin.close()
        return url.replace("postgres@/", "app@/")

    async def scenario() -> None:
        url = await provision()
        async with opened(url, max_size=1) as db:
            async with db.transaction(NOBODY) as tx:
                await tx.rows("select 1")
            postgres.stop()
            for _ in range(2):
                with pytest.raises(Unavailable):
                    async with db.transaction(NOBODY) as tx:
                        await tx.rows("select 1")
            with pytest.raises(Unavailable):
                await db.call("version", None)
            with pytest.raises(Unavailable):
                await Database.open(url)
            postgres.start()
            async with db.transaction(NOBODY) as tx:
                assert await tx.value("select 1") == 1

    try:
        asyncio.run(scenario())
    finally:
        postgres.stop()


# Logins ------------------------------------------------------------------------------------------------------


POWERS = {
    "a superuser": ("superuser", "cortex_app"),
    "allowed to bypass row-level security": ("bypassrls", "cortex_app"),
    "a member of cortex_resolver": ("", "cortex_app, cortex_resolver"),
    "a member of cortex_resolver, cortex_claimer": ("", "cortex_app, cortex_claimer"),
    "a member of cortex_resolver, cortex_claimer or cortex_scheduler": ("", "cortex_app, cortex_scheduler"),
}


@pytest.mark.proves("D.1")
async def test_a_login_that_could_see_past_row_level_security_is_refused(
    server: TestServer, admin: asyncpg.Connection, world: World
) -> None:
    database = await admin.fetchval("select current_database()")
    await world.say()
    for power, (options, roles) in POWERS.items():
        name, password = f"{server.template}_{secrets.token_hex(4)}", secrets.token_hex(8)
        await admin.execute(f"create role {name} login password '{password}' {options} in role {roles}")
        try:
            url = with_database(server.admin_url, database, name, password)
            danger = await asyncpg.connect(url)
            seen = {"cortex_claimer": "agent", "cortex_scheduler": "session"}
            table = seen.get(roles.rpartition(" ")[2], "org")
            assert await danger.fetchval(f"select count(*) from {table}") == 1, (
                "it sees an org's row without being in one"
            )
            await danger.close()
            with pytest.raises(SetupError) as raised:
                await Database.open(url)
            assert raised.value.code == "powerful_login"
            assert f"The login {name} is {power}" in raised.value.message
            assert "cortex db provision" in raised.value.hint
            assert "DATABASE_URL" in raised.value.hint
            while await admin.fetchval("select count(*) from pg_stat_activity where usename = $1", name):
                pass
        finally:
            await admin.execute(f"drop role {name}")


@pytest.mark.parametrize("options", ["noinherit", "noinherit claimer", "createrole", "owner"])
@pytest.mark.proves("D.1")
async def test_a_login_that_could_give_itself_such_power_is_refused(
    server: TestServer, admin: asyncpg.Connection, world: World, options: str
) -> None:
    """It sees nothing yet; one statement later it would."""
    database = await admin.fetchval("select current_database()")
    name, password = f"{server.template}_{secrets.token_hex(4)}", secrets.token_hex(8)
    attributes = "" if options == "owner" else options.removesuffix("claimer")
    roles = {"noinherit": "cortex_app, cortex_resolver", "noinherit claimer": "cortex_app, cortex_claimer"}.get(
        options, "cortex_app"
    )
    await admin.execute(f"create role {name} login password '{password}' {attributes} in role {roles}")
    owner = await admin.fetchval("select current_user")
    try:
        if options == "owner":
            await admin.execute(f"alter table message owner to {name}")
        with pytest.raises(SetupError) as raised:
            await Database.open(with_database(server.admin_url, database, name, password))
        assert raised.value.code == "powerful_login"
        while await admin.fetchval("select count(*) from pg_stat_activity where usename = $1", name):
            pass
    finally:
        await admin.execute(f"alter table message owner to {owner}")
        await admin.execute(f"drop role {name}")
