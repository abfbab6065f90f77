"""Fixtures of the storage tests: the plane's own login without the pool, an empty database, a moved clock."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime

import asyncpg
import pytest
import pytest_asyncio

from tests.clock import Clock
from tests.conftest import Urls
from tests.servers import TestServer


@pytest_asyncio.fixture
async def app(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    """A bare connection of the plain login: what row-level security and grants hold against."""
    connection = await asyncpg.connect(urls.app)
    yield connection
    await connection.close()


@pytest_asyncio.fixture
async def clock(admin: asyncpg.Connection) -> Clock:
    return await Clock.install(admin, datetime(2026, 3, 15, 12, tzinfo=UTC))


@pytest.fixture
def empty(server: TestServer) -> Iterator[str]:
    """The name of a new database that nobody has migrated."""
    name = f"{server.template}_{secrets.token_hex(6)}"

    async def run(statement: str) -> None:
        connection = await asyncpg.connect(server.admin_url)
        try:
            await connection.execute(statement)
        finally:
            await connection.close()

    asyncio.run(run(f"create database {name}"))
    try:
        yield name
    finally:
        asyncio.run(run(f"drop database if exists {name} with (force)"))
