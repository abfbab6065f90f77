"""`cortex doctor`: what works, what does not, and what to do about it."""

from __future__ import annotations

import asyncio
import platform
import stat
from collections.abc import Callable
from dataclasses import dataclass

from cortex_plane.client import Client
from cortex_plane.client.access import ACCESS_FILE
from cortex_plane.db.database import Database
from cortex_plane.db.schema import pending
from cortex_plane.db.vault import Vault
from cortex_plane.embedded.account import choose_account
from cortex_plane.embedded.binaries import find_binaries
from cortex_plane.kernel.errors import CortexError
from cortex_plane.main import databases
from cortex_plane.main.master_key import master_key_at_hand
from cortex_plane.main.settings import Settings
from cortex_plane.policies.verbs import policies


@dataclass(frozen=True, slots=True)
class Finding:
    name: str
    ok: bool
    detail: str
    hint: str = ""


def examine(settings: Settings) -> list[Finding]:
    checks: list[tuple[str, Callable[[Settings], str]]] = [
        ("python", _python),
        ("directory", _directory),
        ("postgres", _postgres),
        ("database", _database),
        ("policies", _policies),
        ("api", _api),
    ]
    return [_finding(name, check, settings) for name, check in checks]


def _finding(name: str, check: Callable[[Settings], str], settings: Settings) -> Finding:
    try:
        return Finding(name, True, check(settings))
    except CortexError as error:
        return Finding(name, False, error.message, error.hint)


def _python(_: Settings) -> str:
    return platform.python_version()


def _directory(settings: Settings) -> str:
    access = settings.home / ACCESS_FILE
    if not settings.home.exists():
        return f"{settings.home} does not exist yet; `cortex up` makes it"
    if access.exists() and stat.S_IMODE(access.stat().st_mode) & 0o077:
        raise CortexError(f"Others can read {access}, which holds a key.", hint=f"Run `chmod 600 {access}`.")
    return str(settings.home)


def _postgres(settings: Settings) -> str:
    if settings.database_url:
        return f"a server: {databases.shown(settings.database_url)}"
    account = choose_account(settings.home, settings.home / "postgres")
    binaries = find_binaries(settings.postgres_binaries, account, lambda _: None)
    return f"embedded, PostgreSQL {binaries.version}"


def _database(settings: Settings) -> str:
    url = settings.database_url or databases.running_app_url(settings.home)
    if url is None:
        return "the embedded server is not running; `cortex up` starts it"
    return asyncio.run(_examine_database(url))


async def _examine_database(url: str) -> str:
    db = await Database.open(url, max_size=2)
    try:
        missing = await pending(db)
        if missing:
            raise CortexError(f"It lacks {', '.join(missing)}.", hint="Run `cortex db migrate`.")
        await db.check()
    finally:
        await db.close()
    return "reachable, the login is safe, the schema is current, every query fits"


def _policies(settings: Settings) -> str:
    url = settings.database_url or databases.running_app_url(settings.home)
    key = master_key_at_hand(settings)
    if url is None or key is None:
        return "not looked at: that needs a database that runs, and the master key"
    return asyncio.run(_examine_policies(url, key))


async def _examine_policies(url: str, key: bytes) -> str:
    db = await Database.open(url, max_size=2, vault=Vault(key), reads_only=True)
    try:
        forged = await policies.forged_policies(db) if db.credential_key_at_hand else []
    finally:
        await db.close()
    if forged:
        raise CortexError(
            f"The policies of {', '.join(forged[:10])} were not put in force by the plane, so nothing is allowed there.",
            hint="Look at `cortex audit verify`, then apply them again: `cortex policy apply`.",
        )
    return "those in force were put there by the plane"


def _api(settings: Settings) -> str:
    async def ask() -> str:
        async with Client.here(settings.home) as plane:
            me = await plane.me()
        return f"answers; the key is {me.name}'s ({', '.join(me.roles)})"

    return asyncio.run(ask())
