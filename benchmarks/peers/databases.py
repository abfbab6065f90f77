"""A fresh database for each engine, on the one server that all of them share."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit, urlunsplit

import asyncpg


@asynccontextmanager
async def fresh_database(admin_url: str, label: str) -> AsyncIterator[str]:
    """The URL of a new database, dropped afterwards whoever is still connected to it."""
    name = f"bench_{label}_{secrets.token_hex(4)}"
    connection = await asyncpg.connect(admin_url)
    try:
        await connection.execute(f"create database {name}")
        try:
            yield urlunsplit(urlsplit(admin_url)._replace(path=f"/{name}"))
        finally:
            await connection.execute(f"drop database if exists {name} with (force)")
    finally:
        await connection.close()
