"""The PostgreSQL servers that tests run on, and new databases on them.

A server is started once for the whole run, by the process that the other test processes descend from. A migrated
template database is made once per server; test databases are copies of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg

from cortex_plane.db import database
from cortex_plane.db.database import NOBODY
from cortex_plane.db.schema import migrate
from cortex_plane.db.vault import Vault
from cortex_plane.embedded import EmbeddedPostgres, places
from cortex_plane.tenancy.rules import CredentialKey

MASTER_KEY = bytes(range(32)).hex()
"""Of every test."""
VAULT = Vault(bytes.fromhex(MASTER_KEY))
CREDENTIAL_KEY = CredentialKey(bytes(range(32, 64)))
SEALED_CREDENTIAL_KEY = VAULT.seal(NOBODY, database.CREDENTIAL_KEY, bytes(range(32, 64)))
"""Of the warm databases. What a test opens itself makes one of its own."""

VARIABLE = "CORTEX_TEST_SERVERS"
DEBIAN_15 = Path("/usr/lib/postgresql/15/bin")
FAST = {
    "autovacuum": "off", "fsync": "off", "full_page_writes": "off", "max_connections": "300", "synchronous_commit": "off",
}  # fmt: skip


@dataclass(frozen=True)
class TestServer:
    __test__ = False

    name: str
    admin_url: str
    """A login that may create databases and roles."""
    template: str
    login: str
    password: str

    def admin(self, database: str) -> str:
        return with_database(self.admin_url, database)

    def app(self, database: str) -> str:
        """The plain login that the plane uses."""
        return with_database(self.admin_url, database, self.login, self.password)


def with_database(url: str, database: str, user: str | None = None, password: str | None = None) -> str:
    parts = urlsplit(url)
    netloc = parts.netloc
    if user is not None:
        netloc = f"{user}:{password}@{netloc.rpartition('@')[2]}"
    return urlunsplit(parts._replace(netloc=netloc, path=f"/{database}"))


def roomy_memory() -> str | None:
    """Copying the template is most of a small test; in memory it costs a fraction. None: wherever the system likes."""
    try:
        return "/dev/shm" if shutil.disk_usage("/dev/shm").free > 2 * 2**30 else None
    except OSError:
        return None


async def prepare(name: str, admin_url: str) -> TestServer:
    mark = secrets.token_hex(4)
    server = TestServer(name, admin_url, f"cortex_test_{mark}", f"cortex_test_{mark}", secrets.token_hex(16))
    connection = await asyncpg.connect(admin_url)
    try:
        await connection.execute(f"create database {server.template}")
        await migrate(server.admin(server.template))
        await connection.execute(
            f"create role {server.login} login password '{server.password}' in role cortex_app"
        )
    finally:
        await connection.close()
    return server


async def clean(server: TestServer) -> None:
    connection = await asyncpg.connect(server.admin_url)
    try:
        rows = await connection.fetch(
            "select datname from pg_database where datname like $1", server.template + "%"
        )
        for row in rows:
            await connection.execute(f"drop database if exists {row['datname']} with (force)")
        await connection.execute(f"drop role if exists {server.login}")
    finally:
        await connection.close()


@contextmanager
def running() -> Iterator[None]:
    """Start the servers of a test run and tell the test processes about them."""
    given = os.environ.get("DATABASE_URL")
    started: list[EmbeddedPostgres] = []
    folders: list[str] = []
    servers: list[TestServer] = []
    try:
        if given:
            servers.append(asyncio.run(prepare("given", given)))
        else:
            choices: dict[str, Path | None] = {"embedded": None}
            if (DEBIAN_15 / "postgres").exists():
                choices["postgres15"] = DEBIAN_15
            for name, binaries in choices.items():
                folders.append(tempfile.mkdtemp(prefix="cortex-test-", dir=roomy_memory()))
                Path(folders[-1]).chmod(0o711)  # so that a server started by root can run as somebody else
                postgres = EmbeddedPostgres(Path(folders[-1]), binaries=binaries, settings=FAST)
                started.append(postgres)
                servers.append(asyncio.run(prepare(name, postgres.start().url())))
        os.environ[VARIABLE] = json.dumps([asdict(server) for server in servers])
        yield
    finally:
        os.environ.pop(VARIABLE, None)
        if given:
            for server in servers:
                asyncio.run(clean(server))
        for postgres in started:
            postgres.stop()
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def available() -> list[TestServer]:
    return [TestServer(**known) for known in json.loads(os.environ.get(VARIABLE, "[]"))]


async def create_database(server: TestServer, *, migrated: bool = True) -> str:
    """The name of a new database: a copy of the template, or an empty one."""
    name = f"{server.template}_{secrets.token_hex(6)}"
    # Copying files is three times as fast where nothing is flushed to a disk; where it is, it costs two checkpoints.
    how = "wal_log" if server.name == "given" else "file_copy"
    await _run(
        server,
        f"create database {name}" + (f" template {server.template} strategy {how}" if migrated else ""),
    )
    return name


async def drop_database(server: TestServer, name: str) -> None:
    await _run(server, f"drop database if exists {name} with (force)")


async def _run(server: TestServer, statement: str) -> None:
    connection = await asyncpg.connect(server.admin_url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


@contextmanager
def fresh_database(server: TestServer) -> Iterator[str]:
    """The name of a new copy of the template, dropped afterwards."""
    name = asyncio.run(create_database(server))
    try:
        yield name
    finally:
        asyncio.run(drop_database(server, name))


def remove_data_of(directory: Path) -> None:
    """Databases of planes that tests started as root below ``directory``, which the server's user cannot enter."""
    for root in places.SHARED_ROOTS:
        for origin in root.glob(f"*/{places.ORIGIN_NAME}"):
            if Path(origin.read_text().strip()).is_relative_to(directory):
                shutil.rmtree(origin.parent)
