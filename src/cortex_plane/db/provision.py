"""What only the owner of a server does: make the plane's database, and a plain login for it.

These run before there is a pool or an event loop, so they are plain functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import asyncpg

from cortex_plane.db.faults import border
from cortex_plane.db.queries import SQL
from cortex_plane.kernel.errors import SetupError

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def create_database(url: str, name: str) -> None:
    """The database, unless it exists. For the embedded server, where the login is the owner of everything."""
    run(_create_database(url, name))


def may_create_roles(url: str) -> bool:
    """Whether a login is meant for setting up rather than for serving."""
    return run(_may_create_roles(url))


def ensure_login(url: str, name: str, password: str) -> None:
    """A login that may do what the plane does and nothing else."""
    run(_ensure_login(url, name, password))


async def _create_database(url: str, name: str) -> None:
    with border():
        connection = await asyncpg.connect(url)
    try:
        if not await connection.fetchval("select true from pg_database where datname = $1", name):
            await connection.execute(_quoted("create database {}", name))
    finally:
        await connection.close()


async def _may_create_roles(url: str) -> bool:
    with border():
        connection = await asyncpg.connect(url)
    try:
        login = await connection.fetchrow((SQL / "login.sql").read_text())
        return bool(login["superuser"] or login["create_role"])
    finally:
        await connection.close()


async def _ensure_login(url: str, name: str, password: str) -> None:
    with border():
        connection = await asyncpg.connect(url)
    try:
        known = await connection.fetchval("select true from pg_roles where rolname = $1", name)
        if not known:
            await connection.execute(_quoted("create role {} login password {}", name, password))
        await connection.execute(_quoted("grant cortex_app to {}", name))
    except asyncpg.InsufficientPrivilegeError as error:
        raise SetupError(
            f"The login of DATABASE_URL may not create the plane's own login: {error}",
            code="missing_right",
            hint="Give it CREATEROLE, or create a plain login yourself and set DATABASE_URL to it and"
            " DATABASE_ADMIN_URL to this one.",
        ) from error
    finally:
        await connection.close()


def _quoted(statement: str, *names: str) -> str:
    """Statements that create roles and databases take no parameters: quote by hand, identifier first, then literal."""
    identifier = '"' + names[0].replace('"', '""') + '"'
    literals = ["'" + name.replace("'", "''") + "'" for name in names[1:]]
    return statement.format(identifier, *literals)
