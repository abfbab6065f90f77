"""Which PostgreSQL the plane runs on, with which login, and the master key that opens its secrets.

Three cases. Nothing set: an embedded server in the plane's directory. DATABASE_URL names a plain login: it is used as
it is, and DATABASE_ADMIN_URL, if set, migrates. DATABASE_URL names a login that may create roles: it migrates and creates
a plain login for the plane, because the plane refuses to serve with one that could bypass row-level security.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from cortex_plane.channels.root_copies import RootsAddress, RootsFile
from cortex_plane.client.access import write_private
from cortex_plane.db import schema
from cortex_plane.db.database import Database, wrong_master_key
from cortex_plane.db.schema import migrate, require_current
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.verbs.master_key import Resealed, begin_rotation, finish_rotation, read_plane_key, require_key
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import SetupError
from cortex_plane.main.master_key import NEXT_KEY_FILE, install_next_master_key, master_key, next_master_key
from cortex_plane.main.settings import OFF, Settings
from cortex_plane.proof.verbs.roots import RootPlace, copied_to
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
    db = await Database.open(
        url,
        max_size=settings.pool_size,
        prepared_statements=settings.prepared_statements,
        vault=vault,
        heavy_reads=settings.heavy_reads,
        org_connections=settings.org_connections,
    )
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


@dataclass(frozen=True)
class Rotation:
    """``resealed`` is None where the plane has the new key already."""

    resealed: Resealed | None
    resumed: bool


async def rotate_master_key(settings: Settings, url: str, read_new_key: Callable[[], bytes]) -> Rotation:
    """Put a new master key into the place of the old one, or finish a rotation that was begun before.

    ``read_new_key`` is called where the key comes from the environment; else the new one is made beside the old."""
    async with _without_key(url) as db:
        await install_next_master_key(settings, db)
        old = Vault(master_key(settings))
        known = await read_plane_key(db)
        if known is None or known.fingerprint == old.fingerprint:
            resealed = await finish_rotation(db, old)
            if resealed is not None:
                return Rotation(resealed, resumed=True)
        elif settings.master_key is None:
            raise wrong_master_key()
        new = Vault(read_new_key() if settings.master_key else next_master_key(settings))
        if known is None or known.fingerprint == old.fingerprint or known.fingerprint != new.fingerprint:
            await begin_rotation(db, old, new, settings.poison_deaths)
            await install_next_master_key(settings, db)
        return Rotation(await finish_rotation(db, new), resumed=False)


@asynccontextmanager
async def _without_key(url: str) -> AsyncIterator[Database]:
    db = await Database.open(url, max_size=4, prepared_statements=False)
    try:
        await require_current(db)
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

    server = EmbeddedPostgres(settings.home, binaries=settings.postgres_binaries, on_progress=progress)
    with server as running:
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
    login = _read_json(home / LOGIN_FILE)
    name = login.get("login") or f"cortex_plane_{secrets.token_hex(4)}"
    password = login.get("password") or secrets.token_urlsafe(24)
    asyncio.run(schema.ensure_login(admin, name, password))
    if not login:
        write_private(home / LOGIN_FILE, {"login": name, "password": password})
    return with_login(admin, name, password)


def with_login(url: str, name: str, password: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{quote(name, safe='')}:{quote(password, safe='')}@{host}"))


def running_app_url(home: Path) -> str | None:
    """The plain login's URL of the plane that runs in this directory now."""
    plane = _read_json(home / RUNNING_FILE)
    try:
        os.kill(int(plane["pid"]), 0)
    except (KeyError, ValueError, OSError):
        return None
    return str(plane["database_url"])


def without_password(url: str) -> str:
    """A URL without its password."""
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


def _read_json(path: Path) -> dict[str, str]:
    try:
        content: dict[str, str] = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content


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
            parts = urlsplit(settings.roots_url)
            own = Allowed(hosts=frozenset({((parts.hostname or "").lower(), None)}))
            address = RootsAddress(settings.roots_url, PinnedClient(own))
            stack.push_async_callback(address.close)
            places.append(address)
        stack.enter_context(copied_to(places))
        yield
