"""Which PostgreSQL the plane runs on, with which login, and the master key that opens its secrets.

Three cases. Nothing set: an embedded server in the plane's directory. DATABASE_URL names a plain login: it is used as
it is, and DATABASE_ADMIN_URL, if set, migrates. DATABASE_URL names a login that may create roles: it migrates and creates
a plain login for the plane, because the plane refuses to serve with one that could bypass row-level security.

The master key comes from the environment, or from a file that only its owner can read. A rotation writes the new key into a
second file before the database knows it. The next process puts that file into the place of the first one, once the database
knows its key.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from cortex_plane.channels.root_copies import RootsAddress, RootsFile
from cortex_plane.client.access import private_file, read_private, write_private
from cortex_plane.db import schema
from cortex_plane.db.database import Database, wrong_master_key
from cortex_plane.db.schema import migrate, require_current
from cortex_plane.db.vault import Vault
from cortex_plane.embedded.cluster import sync_folder
from cortex_plane.jobs.verbs.master_key import Resealed, begin_rotation, finish_rotation, read_plane_key, require_key
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import SetupError
from cortex_plane.main.settings import OFF, Settings
from cortex_plane.proof.verbs.audit import RootPlace, copied_to
from cortex_plane.tenancy.verbs import keys

DATABASE = "cortex"
LOGIN_FILE = "database.json"
RUNNING_FILE = "running.json"
CLOSE_SECONDS = 5

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Urls:
    app: str
    """The plain login that serves."""
    admin: str | None
    """The login that migrates; None when only the plain one is known."""


@asynccontextmanager
async def open_database(settings: Settings, url: str) -> AsyncIterator[Database]:
    """A pool on a current schema, with the master key of the plane."""
    if (settings.home / NEXT_KEY_FILE).exists():
        async with _without_key(url) as db:
            await install_next_master_key(settings, db)
    vault = Vault(master_key(settings))
    options = settings.model_dump(include={"prepared_statements", "heavy_reads", "org_connections"})
    db = await Database.open(url, max_size=settings.pool_size, vault=vault, **options)
    try:
        await require_current(db)
        await require_key(db, vault)
        await finish_rotation(db, vault)
        await keys.convert_credentials(db)
        async with copy_roots(settings):
            yield db
    finally:
        with suppress(TimeoutError):
            await asyncio.wait_for(db.close(), CLOSE_SECONDS)


async def rotate_master_key(settings: Settings, url: str, new_key: Callable[[], bytes]) -> tuple[Resealed | None, bool]:
    """Put a new master key into the place of the old one, or finish a rotation that was begun before. ``new_key`` is
    called where the key comes from the environment; else the new one is made beside the old. Returns what was resealed,
    None where the plane has the new key already; and whether the rotation was begun before."""
    async with _without_key(url) as db:
        await install_next_master_key(settings, db)
        old = Vault(master_key(settings))
        plane_key = await read_plane_key(db)
        if plane_key is None or plane_key.fingerprint == old.fingerprint:
            if (resealed := await finish_rotation(db, old)) is not None:
                return resealed, True
        elif settings.master_key is None:
            raise wrong_master_key()
        new = Vault(new_key() if settings.master_key else next_master_key(settings))
        if plane_key is None or plane_key.fingerprint == old.fingerprint or plane_key.fingerprint != new.fingerprint:
            await begin_rotation(db, old, new, settings.poison_deaths)
            await install_next_master_key(settings, db)
        return await finish_rotation(db, new), False


@asynccontextmanager
async def _without_key(url: str) -> AsyncIterator[Database]:
    async with opened(url, max_size=4, prepared_statements=False) as db:
        await require_current(db)
        yield db


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[Database]:
    """A database of any schema, for as long as the block runs. ``options``: of `Database.open`."""
    db = await Database.open(url, **options)
    try:
        yield db
    finally:
        await db.close()


@contextmanager
def database(settings: Settings, progress: Progress = lambda _: None) -> Iterator[Urls]:
    """The database while the block runs; it may not be migrated yet."""
    if settings.database_url:
        yield Urls(settings.database_url, settings.database_admin_url)
        return
    from cortex_plane.embedded import EmbeddedPostgres

    with EmbeddedPostgres(settings.home, binaries=settings.postgres_binaries, on_progress=progress) as running:
        asyncio.run(schema.create_database(running.url(), DATABASE))
        yield Urls(running.url(DATABASE), running.url(DATABASE))


def prepare(settings: Settings, urls: Urls, progress: Progress = lambda _: None) -> str:
    """Migrate where there is a login that may, and return the URL of the plain login."""
    admin = urls.admin
    if admin is None and asyncio.run(schema.may_create_roles(urls.app)):
        admin = urls.app
    if admin is None:
        return urls.app
    progress("checking the schema")
    asyncio.run(migrate(admin, on_progress=progress))
    if urls.app != admin:
        return urls.app
    progress("checking the plane's own login")
    return plain_login(settings.home, admin)


def plain_login(home: Path, admin: str) -> str:
    """The plane's own login on this server: created once, its password in a file that only its owner can read."""
    login = read_private(home / LOGIN_FILE)
    name = login.get("login") or f"cortex_plane_{secrets.token_hex(4)}"
    password = login.get("password") or secrets.token_urlsafe(24)
    asyncio.run(schema.ensure_login(admin, name, password))
    if not login:
        write_private(home / LOGIN_FILE, {"login": name, "password": password})
    parts = urlsplit(admin)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(name, safe='')}:{quote(password, safe='')}@{host}"))


def running_app_url(home: Path) -> str | None:
    """The plain login's URL of the plane that runs in this directory now."""
    plane = read_private(home / RUNNING_FILE)
    try:
        os.kill(int(plane["pid"]), 0)
    except (KeyError, ValueError, OSError):
        return None
    return str(plane["database_url"])


def without_password(url: str) -> str:
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    login = unquote(user.partition(":")[0])
    return urlunsplit(parts._replace(netloc=f"{login}@{host}" if login else host))


def require_home(home: Path) -> None:
    """The launcher makes the directory itself, with the rights that it needs."""
    try:
        # Root's server runs as somebody else, who must be able to pass through.
        home.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(
            f"The plane's directory {home} cannot be made: {error.strerror}.",
            code="home_unusable",
            hint="Run from a folder that you may write to, or set CORTEX_HOME.",
        ) from error


ROOTS_FILE = "roots.jsonl"


@asynccontextmanager
async def copy_roots(settings: Settings) -> AsyncIterator[None]:
    """Copy signed roots to the places of the settings while the block runs."""
    places: list[RootPlace] = []
    async with AsyncExitStack() as stack:
        if settings.roots_file != OFF:
            places.append(RootsFile((settings.home / (settings.roots_file or ROOTS_FILE)).absolute()))
        if settings.roots_url is not None:
            from cortex_plane.channels.pinned_http import PinnedClient

            # The operator chose this address, so it may be a private one.
            own = Allowed(hosts=frozenset({((urlsplit(settings.roots_url).hostname or "").lower(), None)}))
            address = RootsAddress(settings.roots_url, PinnedClient(own))
            stack.push_async_callback(address.close)
            places.append(address)
        stack.enter_context(copied_to(places))
        yield


KEY_FILE = "master.key"
NEXT_KEY_FILE = "master.key.next"
KEY_BYTES = 32


def master_key(settings: Settings) -> bytes:
    if settings.master_key is not None:
        return parse_master_key(settings.master_key, "CORTEX_MASTER_KEY")
    path = settings.home / KEY_FILE
    if not path.exists():
        try:
            _make_key(path)
        except OSError as error:
            raise SetupError(
                f"The master key cannot be kept in {path}: {error.strerror}.",
                code="home_unusable",
                hint="Set CORTEX_MASTER_KEY, or CORTEX_HOME to a folder that you may write to.",
            ) from error
    return _read_key(path)


def next_master_key(settings: Settings) -> bytes:
    """The new key of a rotation: made once, also where two rotations begin at the same moment or one of them died."""
    path = settings.home / NEXT_KEY_FILE
    if not path.exists():
        _make_key(path)
    return _read_key(path)


async def install_next_master_key(settings: Settings, db: Database) -> None:
    """Put the new key in the place of the old one, where the database knows it. Backups need the old one: it is renamed."""
    current, path = settings.home / KEY_FILE, settings.home / NEXT_KEY_FILE
    if settings.master_key is not None or not path.exists():
        return
    plane_key = await read_plane_key(db)
    with suppress(FileNotFoundError):  # another process was faster
        new, old = (Vault(parse_master_key(file.read_text(), str(file))) for file in (path, current))
        if plane_key is not None and plane_key.fingerprint == new.fingerprint:
            try:
                if old.fingerprint != new.fingerprint:
                    with suppress(FileExistsError):
                        os.link(current, current.with_name(f"{KEY_FILE}.{old.fingerprint.hex()[:8]}"))
                path.replace(current)
                sync_folder(settings.home)
            except PermissionError as error:
                raise SetupError(
                    f"{current} cannot be replaced: {error.strerror}.",
                    code="home_unusable",
                    hint=f"{path} holds the master key of this database now: put it into the place of {current}.",
                ) from error


def existing_master_key(settings: Settings) -> bytes | None:
    """For whoever only looks: None where there is none, or not for this user to read. None is made."""
    if settings.master_key is None and not os.access(settings.home / KEY_FILE, os.R_OK):
        return None
    return master_key(settings)


def _make_key(path: Path) -> None:
    """Whole and on the disk before it has its name: what is signed with a lost key could never be opened again."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    with private_file(draft) as file:
        file.write(secrets.token_bytes(KEY_BYTES).hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    try:
        with suppress(FileExistsError):  # whoever was first made the key for all
            os.link(draft, path)
    finally:
        draft.unlink()
    sync_folder(path.parent)


def _read_key(path: Path) -> bytes:
    try:
        return parse_master_key(path.read_text(), str(path))
    except OSError as error:
        raise SetupError(f"The master key in {path} cannot be read: {error.strerror}.", code="home_unusable") from error


def parse_master_key(text: str, source: str) -> bytes:
    try:
        key = bytes.fromhex(text.strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise SetupError(
            f"{source} does not hold a key: 64 hexadecimal digits are needed.",
            code="invalid_setting",
            hint="Make one with `openssl rand -hex 32`, and use the same for every process of the plane.",
        )
    return key
