"""The baseline: one migration for many. A database that has exactly those is adopted, any other is refused and unchanged."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import asyncpg
import pytest
from scripts.baseline import Schema, replace_migrations, write_baseline
from scripts.schema import dump, normalised

from cortex_plane.db.database import SQL, Database
from cortex_plane.db.schema import BASELINE, Replaced, migrate, pending, scripts
from cortex_plane.kernel.errors import SetupError
from cortex_plane.proof.verbs import audit
from tests.fixtures.people import World
from tests.fixtures.servers import VAULT, TestServer, create_database, drop_database
from tests.storage.tenants import digest, populate, tables

LAST = "9998_last"
NAME = "9998_baseline"
COMMIT = "0123456789abcdef0123456789abcdef01234567"

REMOVALS: dict[str, str] = {
    "0070_short_check: drop function tool_call_is_sound(text": ("only the CHECK that the migration replaces called it"),
    "0126_org_tools: drop column publisher": ("no release had it"),
}
"""What a migration after the baseline removes, as `name: statement`, and why no process of the release before it needs that."""


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The SQL files of a release whose migrations are not one yet."""
    folder = Path(shutil.copytree(SQL, tmp_path_factory.mktemp("old") / "sql"))
    (folder / BASELINE).unlink(missing_ok=True)
    (folder / "migrations" / f"{LAST}.sql").write_text(
        "-- As people paint it.\nalter table team add column colour text not null default 'it''s (red), or 5';\n"
    )
    return folder


@pytest.fixture
async def new(server: TestServer, old: Path, tmp_path: Path) -> Path:
    """The same release with one migration."""
    folder = Path(shutil.copytree(old, tmp_path / "sql"))
    baseline = await asyncio.to_thread(write_baseline, server.admin_url, folder)
    replace_migrations(folder, baseline, COMMIT)
    return folder


async def migrations(admin: asyncpg.Connection) -> dict[str, str]:
    return dict(await admin.fetch("select name, checksum from schema_migration where kind = 'migration'"))


def schema_of(server: TestServer, name: str) -> str:
    return normalised(dump(server.admin(name)))


async def test_a_populated_database_is_adopted_and_equals_a_new_one(
    server: TestServer, empty: str, old: Path, new: Path
) -> None:
    url = server.admin(empty)
    await migrate(url, folder=old)
    db = await Database.open(server.app(empty), vault=VAULT)
    admin = await asyncpg.connect(url)
    other = await create_database(server, migrated=False)
    try:
        world = await World.create(db, "acme")
        await populate(world)
        names = [name for name in await tables(admin) if name != "schema_migration"]
        before = await digest(admin, names)
        assert await pending(db, folder=new) == [NAME]

        progress: list[str] = []
        assert await migrate(url, folder=new, on_progress=progress.append) == [NAME]
        assert progress == [f"adopting the schema as {NAME}"]
        assert await migrate(url, folder=new) == []

        assert await migrations(admin) == {NAME: scripts(new)[0].checksum}
        assert await pending(db, folder=new) == []
        assert await digest(admin, names) == before
        assert await migrate(server.admin(other), folder=new) == [script.name for script in scripts(new)]
        assert schema_of(server, empty) == schema_of(server, other)
        await world.say("still there?")
        assert (await audit.verify_org(db, world.org_id)).faults == []
    finally:
        await admin.close()
        await db.close()
        await drop_database(server, other)


_LATER_INDEXES = """
select c.relname from pg_index i join pg_class c on c.oid = i.indrelid join pg_index p on p.indrelid = i.indrelid and p.indisprimary
where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and i.indexrelid > p.indexrelid
"""


async def test_the_primary_key_is_the_last_index_of_its_table(server: TestServer, empty: str, new: Path) -> None:
    """Without statistics the planner takes the one that was made last where several seem to cost the same."""
    await migrate(server.admin(empty), folder=new)
    admin = await asyncpg.connect(server.admin(empty))
    try:
        assert await admin.fetch(_LATER_INDEXES) == []
    finally:
        await admin.close()


async def test_several_that_adopt_at_once_do_it_once(server: TestServer, empty: str, old: Path, new: Path) -> None:
    await migrate(server.admin(empty), folder=old)
    done = await asyncio.gather(*(migrate(server.admin(empty), folder=new) for _ in range(4)))
    assert sorted(done, key=len) == [[], [], [], [NAME]]


@pytest.mark.parametrize("change", ["lacks the last", "another checksum", "one more"])
async def test_any_other_database_is_refused_and_unchanged(
    server: TestServer, empty: str, old: Path, new: Path, tmp_path: Path, change: str
) -> None:
    folder = Path(shutil.copytree(old, tmp_path / "before"))
    if change == "lacks the last":
        (folder / "migrations" / f"{LAST}.sql").unlink()
    if change == "one more":
        (folder / "migrations" / "9999_more.sql").write_text("create table more ();")
    await migrate(server.admin(empty), folder=folder)
    # A function of another release must not be touched either.
    admin = await asyncpg.connect(server.admin(empty))
    db = await Database.open(server.app(empty), vault=VAULT)
    try:
        await admin.execute("update schema_migration set checksum = 'of an older text' where name = 'post_message'")
        if change == "another checksum":
            await admin.execute("update schema_migration set checksum = 'another' where name = $1", LAST)
        before = await admin.fetch("select * from schema_migration order by 1"), schema_of(server, empty)
        for attempt in (migrate(server.admin(empty), folder=new), pending(db, folder=new)):
            with pytest.raises(SetupError) as raised:
                await attempt
            if change == "one more":
                assert raised.value.code == "unknown_migration"
            else:
                assert raised.value.code == "before_baseline"
                assert LAST in str(raised.value)
                assert (
                    raised.value.hint == f"Run `cortex db migrate` of commit {COMMIT[:12]} first, then of this release."
                )
                assert "\n" not in f"{raised.value} {raised.value.hint}"
        assert (await admin.fetch("select * from schema_migration order by 1"), schema_of(server, empty)) == before
    finally:
        await db.close()
        await admin.close()


async def test_the_baseline_of_a_baseline_is_the_same(server: TestServer, new: Path) -> None:
    (first,) = (script for script in scripts(new) if script.kind == "migration")
    assert await asyncio.to_thread(write_baseline, server.admin_url, new) == first
    assert "-- As people paint it." in first.text
    assert len(Replaced.read(new).checksums) == len([s for s in scripts() if s.kind == "migration"]) + 1


def test_a_statement_that_the_baseline_cannot_write_is_refused() -> None:
    with pytest.raises(SystemExit, match="create sequence"):
        Schema("CREATE SEQUENCE public.strange;\n")


# From the baseline on ----------------------------------------------------------------------------------------


def removals(text: str) -> list[str]:
    """The statements of a migration that take away what the release before it may use."""
    code = re.sub(r"--.*", "", text)
    found = re.findall(r"\bdrop (?:table|column|view|function)[^;,]*|\brename [^;,]*", code, re.IGNORECASE)
    return [" ".join(statement.split()) for statement in found]


def test_a_migration_removes_nothing_that_the_release_before_it_uses() -> None:
    replaced = Replaced.read(SQL).checksums
    migrations = [script for script in scripts() if script.kind == "migration"]
    after_baseline = migrations[1:] if replaced else []
    found = {f"{script.name}: {statement}" for script in after_baseline for statement in removals(script.text)}
    assert found == set(REMOVALS), "remove it one release later, or list it here with the reason"


@pytest.mark.parametrize(
    ("text", "statements"),
    [
        ("alter table job drop column app, add column x text;", ["drop column app"]),
        ("DROP TABLE if exists step;", ["DROP TABLE if exists step"]),
        ("alter table job rename column app\n  to apps;", ["rename column app to apps"]),
        ("drop function old(uuid);", ["drop function old(uuid)"]),
        ("alter table job drop constraint chk_job_kind; drop index idx_job_due; -- drop table job", []),
    ],
)
def test_what_counts_as_a_removal(text: str, statements: list[str]) -> None:
    assert removals(text) == statements
