"""Migrations, roles, and whether the schema is the one that this code needs."""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg

from cortex_plane.db.database import NOBODY, SQL, Database
from cortex_plane.db.pool import border
from cortex_plane.kernel.errors import CortexError, SetupError, Unavailable


@contextlib.asynccontextmanager
async def _connected(url: str) -> AsyncIterator[Any]:
    with border():
        connection = await asyncpg.connect(url)
    try:
        yield connection
    finally:
        await connection.close()


async def create_database(url: str, name: str) -> None:
    """The database, unless it exists. For the embedded server, where the login is the owner of everything."""
    async with _connected(url) as connection:
        if not await connection.fetchval("select true from pg_database where datname = $1", name):
            await connection.execute(_quoted("create database {}", name))


async def may_create_roles(url: str) -> bool:
    """Whether a login is meant for setting up rather than for serving."""
    async with _connected(url) as connection:
        login = await connection.fetchrow((SQL / "login.sql").read_text())
        return bool(login["superuser"] or login["create_role"])


async def ensure_login(url: str, name: str, password: str) -> None:
    """A login that may do what the plane does and nothing else."""
    async with _connected(url) as connection:
        try:
            if not await connection.fetchval("select true from pg_roles where rolname = $1", name):
                await connection.execute(_quoted("create role {} login password {}", name, password))
            await connection.execute(_quoted("grant cortex_app to {}", name))
        except asyncpg.InsufficientPrivilegeError as error:
            raise SetupError(
                f"The login of DATABASE_URL may not create the plane's own login: {error}",
                code="missing_right",
                hint="Give it CREATEROLE, or create a plain login yourself and set DATABASE_URL to it and"
                " DATABASE_ADMIN_URL to this one.",
            ) from error


def _quoted(statement: str, *names: str) -> str:
    """Statements that create roles and databases take no parameters: quote by hand, identifier first, then literal."""
    identifier = '"' + names[0].replace('"', '""') + '"'
    literals = ["'" + name.replace("'", "''") + "'" for name in names[1:]]
    return statement.format(identifier, *literals)


EVENT_MONTHS_AHEAD = 3
Ledger = dict[tuple[str, str], str]
_LEDGER = "select kind, name, checksum from schema_migration"
BASELINE = "baseline.txt"
"""Which migrations the first one of this release replaces, with their checksums. Written by `python -m scripts.baseline`."""
_LOCK = 4_859_274_401  # any constant: whoever migrates this database holds it


@dataclass(frozen=True, slots=True)
class Script:
    name: str
    kind: str
    text: str

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def scripts(folder: Path = SQL) -> list[Script]:
    files = [Script(p.stem, "migration", p.read_text()) for p in sorted((folder / "migrations").glob("*.sql"))]
    return [*files, *(Script(p.stem, "function", p.read_text()) for p in sorted((folder / "functions").glob("*.sql")))]


@dataclass(frozen=True, slots=True)
class Replaced:
    """The migrations that became one, and the last commit that had them."""

    commit: str = ""
    checksums: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Replaced:
        path = folder / BASELINE
        lines = [line.split() for line in path.read_text().splitlines() if line[:1] != "#"] if path.exists() else []
        commit = "".join(value for key, value in lines if key == "commit")
        return cls(commit, {name: checksum for checksum, name in lines if checksum != "commit"})

    def are(self, ledger: Ledger) -> bool:
        """Whether these, all of them and no others, are what a database has."""
        migrations = {name: checksum for (kind, name), checksum in ledger.items() if kind == "migration"}
        return bool(migrations) and migrations == self.checksums


@functools.cache
def _release() -> tuple[list[Script], Replaced]:
    """This release's own, read once: readiness is asked every few seconds."""
    return scripts(), Replaced.read(SQL)


async def migrate(url: str, *, folder: Path = SQL, on_progress: Callable[[str], None] = lambda _: None) -> list[str]:
    """Apply what is missing; returns the names of what was applied. The login must own the schema."""
    async with _connected(url) as connection:
        try:
            return await _migrate(connection, scripts(folder), folder, on_progress)
        except asyncpg.InsufficientPrivilegeError as error:
            raise SetupError(
                f"The migrating login lacks a right: {error}",
                code="missing_right",
                hint="It must own the database and have CREATEROLE; where the roles cortex_app, cortex_resolver,"
                " cortex_claimer and cortex_scheduler exist already, the last three must be granted to it.",
            ) from error


async def _migrate(
    connection: Any, release: list[Script], folder: Path, on_progress: Callable[[str], None]
) -> list[str]:
    await connection.execute("select pg_advisory_lock($1)", _LOCK)
    await connection.execute((folder / "roles.sql").read_text())
    await connection.execute((folder / "ledger.sql").read_text())
    ledger = _ledger(await connection.fetch(_LEDGER))
    replaced = Replaced.read(folder)
    _refuse_strange(release, ledger, replaced)
    names: list[str] = []
    if replaced.are(ledger):
        # Its schema is what the baseline makes, so only the record changes.
        baseline = release[0]
        on_progress(f"adopting the schema as {baseline.name}")
        async with connection.transaction():
            await connection.execute("delete from schema_migration where kind = 'migration'")
            await connection.execute(
                (folder / "record.sql").read_text(), baseline.name, baseline.kind, baseline.checksum
            )
        names.append(baseline.name)
        ledger[baseline.key] = baseline.checksum
    doing = ""
    for script in release:
        if ledger.get(script.key) == script.checksum:
            continue
        doing, before = script.name if script.kind == "migration" else "functions", doing
        if doing != before:
            on_progress(f"applying {doing}")
        async with connection.transaction():
            try:
                await connection.execute(script.text)
            except asyncpg.InsufficientPrivilegeError:
                raise
            except asyncpg.PostgresError as error:
                raise SetupError(
                    f"{script.kind} {script.name} failed: {error}",
                    code="migration_failed",
                    hint="Nothing of it was kept. Correct the cause and run `cortex db migrate` again.",
                ) from error
            await connection.execute((folder / "record.sql").read_text(), script.name, script.kind, script.checksum)
        names.append(script.name)
    await connection.execute("select prepare_event_partitions($1)", EVENT_MONTHS_AHEAD)
    return names


def _ledger(rows: Sequence[Mapping[str, Any]]) -> Ledger:
    return {(row["kind"], row["name"]): row["checksum"] for row in rows}


def _refuse_strange(release: list[Script], ledger: Ledger, replaced: Replaced) -> None:
    if replaced.are(ledger):
        return
    keys = {script.key for script in release}
    if any(("migration", name) in ledger and ("migration", name) not in keys for name in replaced.checksums):
        differs = next(
            (name for name, checksum in replaced.checksums.items() if ledger.get(("migration", name)) != checksum), ""
        )
        if differs:
            raise SetupError(
                f"The database does not have {differs} as it was when {release[0].name} replaced it.",
                code="before_baseline",
                hint=f"Run `cortex db migrate` of commit {replaced.commit[:12]} first, then of this release.",
            )
    for kind, name in sorted(ledger):
        # Functions come and go with releases; what a migration made stays.
        if kind == "migration" and (kind, name) not in keys:
            raise SetupError(
                f"The database has {name}, which this release does not know.",
                code="unknown_migration",
                hint="Run the release that applied it, or a newer one.",
            )
    for script in release:
        if script.kind == "migration" and ledger.get(script.key, script.checksum) != script.checksum:
            raise SetupError(
                f"The migration {script.name} was edited after it had been applied.",
                code="edited_migration",
                hint="Restore the file, and put the change into a new migration.",
            )


async def pending(database: Database, *, folder: Path = SQL) -> list[str]:
    """What this database still lacks, asked with the app's own login."""
    release, replaced = _release() if folder == SQL else (scripts(folder), Replaced.read(folder))
    async with database.transaction(NOBODY) as tx:
        if not await tx.value("select to_regclass('schema_migration') is not null"):
            return [script.name for script in release]
        ledger = _ledger(await tx.rows(_LEDGER))
    _refuse_strange(release, ledger, replaced)
    return [script.name for script in release if ledger.get(script.key) != script.checksum]


async def require_current(database: Database) -> None:
    """Refuse to run on a schema of another release, and on queries that do not fit."""
    await _require_applied(database, SetupError, "Run `cortex db migrate` first.")
    await database.check()
    await database.call("prepare_event_partitions", None, EVENT_MONTHS_AHEAD)


async def require_ready(database: Database) -> None:
    await _require_applied(database, Unavailable, "Run `cortex db migrate`.")


async def _require_applied(database: Database, error: type[CortexError], hint: str) -> None:
    missing = await pending(database)
    if missing:
        raise error(f"The database lacks {', '.join(missing)}.", code="schema_outdated", hint=hint)
