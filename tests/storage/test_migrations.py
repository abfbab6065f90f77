"""Migrations: in order, once, safe when several start at the same moment, and refused when they do not fit."""

from __future__ import annotations

import asyncio
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import pytest

import cortex_plane
from cortex_plane.db import schema
from cortex_plane.db.database import SQL, Database, every_query, read_queries
from cortex_plane.db.schema import migrate, pending, require_current, scripts
from cortex_plane.embedded import EmbeddedPostgres
from cortex_plane.kernel.errors import SetupError, Unavailable
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.verbs import frame
from tests.architecture.places import NOUNS
from tests.conftest import Urls
from tests.crash.points import extents
from tests.fixtures.people import World
from tests.fixtures.servers import DEBIAN_15, FAST, VAULT, TestServer, roomy_memory, with_database
from tests.storage.leases import Held, make_worker
from tests.storage.tenants import digest, populate, tables

EVERYTHING = [script.name for script in scripts()]
FIRST = EVERYTHING[0]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the SQL files that a test may change."""
    return Path(shutil.copytree(SQL, tmp_path / "sql"))


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


async def ledger(admin: asyncpg.Connection) -> dict[str, str]:
    return dict(await admin.fetch("select name, checksum from schema_migration"))


# Applying ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.13")
async def test_an_empty_database_gets_everything_once(server: TestServer, empty: str) -> None:
    told: list[str] = []
    assert await migrate(server.admin(empty), on_progress=told.append) == EVERYTHING
    numbered = [name for name in EVERYTHING if name[0].isdigit()]
    assert told == [f"applying {name}" for name in (*numbered, "functions")]
    assert await migrate(server.admin(empty)) == []
    db = await Database.open(server.app(empty), vault=VAULT)
    try:
        await require_current(db)
        await World.create(db, "acme")
    finally:
        await db.close()


async def test_the_ledger_names_every_file(admin: asyncpg.Connection) -> None:
    rows = await admin.fetch("select name, kind, checksum from schema_migration")
    assert {tuple(row) for row in rows} == {(s.name, s.kind, s.checksum) for s in scripts()}
    files = [*(SQL / "migrations").iterdir(), *(SQL / "functions").iterdir()]
    assert {path.stem for path in files} == set(EVERYTHING)
    assert all(path.suffix == ".sql" for path in files)


@pytest.mark.proves("D.13")
async def test_four_at_once_apply_everything_once(server: TestServer, empty: str) -> None:
    done = await asyncio.gather(*(migrate(server.admin(empty)) for _ in range(4)))
    assert sorted(done, key=len) == [[], [], [], EVERYTHING]


async def test_a_changed_function_is_applied_again(urls: Urls, folder: Path) -> None:
    append(folder / "functions" / "post_message.sql", "\n-- changed\n")
    assert await migrate(urls.admin, folder=folder) == ["post_message"]
    assert await migrate(urls.admin, folder=folder) == []


async def test_applying_functions_again_keeps_the_data(
    urls: Urls, admin: asyncpg.Connection, world: World, folder: Path
) -> None:
    await populate(world)
    names = await tables(admin)
    before = await digest(admin, names)
    functions = sorted((folder / "functions").glob("*.sql"))
    for path in functions:
        append(path, "\n-- changed\n")
    assert await migrate(urls.admin, folder=folder) == [path.stem for path in functions]
    assert await digest(admin, names) == before
    await world.say("still there?")
    assert (await audit.verify_org(world.db, world.org_id)).faults == []


async def test_a_new_migration_reaches_a_populated_database(
    urls: Urls, admin: asyncpg.Connection, world: World, folder: Path
) -> None:
    await populate(world)
    (folder / "migrations" / "0097_more.sql").write_text("alter table team add column colour text;")
    assert await migrate(urls.admin, folder=folder) == ["0097_more"]
    assert await admin.fetchval("select count(*) from team where colour is null") == 1


# Refusing ----------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.13")
async def test_an_edited_migration_is_refused(
    urls: Urls, db: Database, admin: asyncpg.Connection, folder: Path
) -> None:
    append(folder / "migrations" / f"{FIRST}.sql", "\ncreate table sneaked_in ();\n")
    append(folder / "functions" / "post_message.sql", "\n-- changed\n")
    before = await ledger(admin)
    with pytest.raises(SetupError, match=f"{FIRST} was edited") as raised:
        await migrate(urls.admin, folder=folder)
    assert raised.value.code == "edited_migration"
    assert "new migration" in raised.value.hint
    assert await admin.fetchval("select to_regclass('sneaked_in')") is None
    assert await ledger(admin) == before
    with pytest.raises(SetupError, match="edited"):
        await pending(db, folder=folder)


@pytest.mark.proves("D.13")
async def test_a_database_of_a_newer_release_is_refused(urls: Urls, db: Database, folder: Path) -> None:
    (folder / "migrations" / "0099_future.sql").write_text("select 1;")
    assert await pending(db, folder=folder) == ["0099_future"]
    await migrate(urls.admin, folder=folder)
    for attempt in (migrate(urls.admin), pending(db), require_current(db)):
        with pytest.raises(SetupError, match="0099_future, which this release does not know") as raised:
            await attempt
        assert raised.value.code == "unknown_migration"
        assert "newer" in raised.value.hint


async def test_a_failing_migration_leaves_nothing_behind(urls: Urls, admin: asyncpg.Connection, folder: Path) -> None:
    broken = folder / "migrations" / "0097_broken.sql"
    broken.write_text("create table half ();\ninsert into nowhere values (1);")
    (folder / "migrations" / "0098_after.sql").write_text("create table after_it ();")
    before = await ledger(admin)
    with pytest.raises(SetupError, match=r"migration 0097_broken failed: .*nowhere") as raised:
        await migrate(urls.admin, folder=folder)
    assert raised.value.code == "migration_failed"
    assert "Nothing of it was kept" in raised.value.hint
    assert await admin.fetchval("select coalesce(to_regclass('half'), to_regclass('after_it'))") is None
    assert await ledger(admin) == before
    broken.write_text("create table whole ();")
    assert await migrate(urls.admin, folder=folder) == ["0097_broken", "0098_after"]


async def test_an_old_database_is_refused_with_what_to_run(
    server: TestServer, empty: str, urls: Urls, db: Database, admin: asyncpg.Connection
) -> None:
    old = await Database.open(server.app(empty))
    try:
        assert await pending(old) == EVERYTHING
        with pytest.raises(SetupError, match=f"lacks {FIRST}") as raised:
            await require_current(old)
        assert (raised.value.code, raised.value.hint) == ("schema_outdated", "Run `cortex db migrate` first.")
    finally:
        await old.close()
    await require_current(db)
    await admin.execute("update schema_migration set checksum = 'of an older text' where name = 'post_message'")
    assert await pending(db) == ["post_message"]
    with pytest.raises(SetupError, match="lacks post_message"):
        await require_current(db)
    with pytest.raises(Unavailable, match="lacks post_message"):
        await schema.require_ready(db)
    assert await migrate(urls.admin) == ["post_message"]
    await require_current(db)


async def test_an_unreachable_server_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        await migrate("postgresql://nobody@127.0.0.1:1/nothing")


# Rights ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def login(server: TestServer, options: str) -> AsyncIterator[tuple[asyncpg.Connection, str, str]]:
    """A new role of the server, gone afterwards with whatever it owns in the databases it was let into."""
    name, password = f"{server.template}_{secrets.token_hex(4)}", secrets.token_hex(8)
    admin = await asyncpg.connect(server.admin_url)
    try:
        await admin.execute(f"create role {name} login password '{password}' {options}")
        yield admin, name, password
        await admin.execute(f"drop role {name}")
    finally:
        await admin.close()


async def give_back(admin_url: str, name: str) -> None:
    connection = await asyncpg.connect(admin_url)
    try:
        await connection.execute(f"reassign owned by {name} to current_user; drop owned by {name}")
    finally:
        await connection.close()


async def test_a_login_without_rights_is_told_what_it_needs(server: TestServer, empty: str) -> None:
    async with login(server, "") as (_, name, password):
        with pytest.raises(SetupError) as raised:
            await migrate(with_database(server.admin_url, empty, name, password))
        assert raised.value.code == "missing_right"
        for word in ("database", "CREATEROLE", "cortex_app", "cortex_resolver", "cortex_claimer", "cortex_scheduler"):
            assert word in raised.value.hint


async def test_a_login_that_may_use_the_roles_but_owns_nothing_is_told_so(server: TestServer, empty: str) -> None:
    async with login(server, "createrole") as (admin, name, password):
        await admin.execute(
            f"grant cortex_app, cortex_resolver, cortex_claimer, cortex_scheduler to {name} with admin option"
        )
        with pytest.raises(SetupError, match="schema public") as raised:
            await migrate(with_database(server.admin_url, empty, name, password))
        assert raised.value.code == "missing_right"


async def test_an_owner_who_is_no_superuser_can_migrate(server: TestServer, empty: str, folder: Path) -> None:
    """The roles exist already, made by somebody else."""
    async with login(server, "") as (admin, name, password):
        await admin.execute(f"grant cortex_resolver, cortex_claimer, cortex_scheduler to {name}")
        await admin.execute(f"alter database {empty} owner to {name}")
        url = with_database(server.admin_url, empty, name, password)
        assert await migrate(url) == EVERYTHING
        for changed in ("claiming", "resolvers"):
            append(folder / "functions" / f"{changed}.sql", "\n-- changed\n")
        assert await migrate(url, folder=folder) == ["claiming", "resolvers"]
        assert await migrate(url) == ["claiming", "resolvers"]
        try:
            await use(server.app(empty))
        finally:
            await admin.execute(f"alter database {empty} owner to current_user")
            await give_back(server.admin(empty), name)


@pytest.fixture
def bare_server(server: TestServer) -> Iterator[str]:
    """A server of the same version on which no plane has ever been."""
    if server.name not in ("embedded", "postgres15"):
        pytest.skip("needs a server of its own")
    binaries = DEBIAN_15 if server.name == "postgres15" else None
    with tempfile.TemporaryDirectory(prefix="cortex-test-", dir=roomy_memory()) as directory:
        Path(directory).chmod(0o711)  # so that a server started by root can run as somebody else
        with EmbeddedPostgres(Path(directory), binaries=binaries, settings=FAST) as started:
            yield started.url()


@extents
async def test_several_databases_of_a_new_server_at_once(bare_server: str, whole: bool) -> None:
    """Roles belong to the server: whoever is late finds them made. Superusers and plain owners, each in turn."""
    admin = await asyncpg.connect(bare_server)
    try:
        await admin.execute("create role owner login createrole")
        for owner in ("postgres", "owner"):
            names = [f"plane_{n}" for n in range(3 if whole else 2)]
            for name in names:
                await admin.execute(f"create database {name} owner {owner}")
            urls = [bare_server.replace("postgres@/postgres", f"{owner}@/{name}") for name in names]
            done = await asyncio.gather(*(migrate(url) for url in (*urls, *urls)))
            assert sorted(done, key=len) == [[]] * len(names) + [EVERYTHING] * len(names)
            await admin.execute("create role app login in role cortex_app")
            await use(bare_server.replace("postgres@/postgres", f"app@/{names[0]}"))
            for name in names:
                await admin.execute(f"drop database {name} with (force)")
            await admin.execute("drop role app, cortex_app, cortex_resolver, cortex_claimer, cortex_scheduler")
    finally:
        await admin.close()


async def use(app_url: str) -> None:
    """What needs every right that migrating gives: resolvers, partitions, verbs."""
    db = await Database.open(app_url, vault=VAULT)
    try:
        await require_current(db)
        world = await World.create(db, "acme")
        await world.say()
        await frame.authenticate_key(db, world.admin.secret, "acme")
        await Held.claim(db, await make_worker(db))
    finally:
        await db.close()


# The files ---------------------------------------------------------------------------------------------------


async def test_every_query_fits_the_schema(db: Database) -> None:
    await db.check()


async def test_a_query_that_does_not_fit_is_named(db: Database, admin: asyncpg.Connection) -> None:
    await admin.execute("alter table message rename column text to words")
    with pytest.raises(SetupError, match=r"jobs/list_step_messages does not fit this database.*text") as raised:
        await db.check()
    assert raised.value.code == "query_mismatch"
    assert "cortex db migrate" in raised.value.hint
    await admin.execute("alter table message rename column words to text")
    await db.check()


def _queries_run() -> Iterator[tuple[str, Path]]:
    """Each query that a store or a verb runs, with the module: `queries.NAME` or `<noun>_store.queries.NAME`."""
    package = Path(cortex_plane.__file__).parent
    for module in (path for noun in NOUNS for path in (package / noun).rglob("*.py")):
        text = module.read_text()
        imported = re.search(r"from cortex_plane\.(\w+)\.store import .*\bqueries\b", text)
        noun = imported[1] if imported else module.relative_to(package).parts[0]
        for prefix, name in re.findall(r"\b(?:(\w+)_store\.)?queries\.(\w+)", text):
            yield f"{prefix or noun}/{name}", module


def test_every_query_is_run() -> None:
    assert set(every_query()) - {name for name, _ in _queries_run()} == set()


@pytest.mark.parametrize("text", ["select 1\n", "-- name: get\nselect 1\n-- name: get\nselect 2\n"])
def test_a_query_without_a_name_of_its_own_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="name of its own"):
        read_queries(text)


def test_no_query_is_run_that_has_no_file() -> None:
    files = every_query()
    assert [(name, module.name) for name, module in _queries_run() if name not in files] == []


@pytest.mark.proves("D.14")
def test_the_committed_schema_is_what_the_migrations_make(server: TestServer) -> None:
    if server.name != "embedded":
        pytest.skip("dumps differ between versions: the file is made with the embedded one")
    command = [sys.executable, str(ROOT / "scripts" / "schema.py"), "--check", "--server", server.admin_url]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
