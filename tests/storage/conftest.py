"""Fixtures of the storage tests: the plane's own login without the pool, an empty database, a moved clock."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

import asyncpg
import pytest_asyncio

from tests.conftest import Urls
from tests.fixtures.clock import Clock
from tests.fixtures.servers import TestServer, create_database, drop_database


@pytest_asyncio.fixture
async def app(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    """A bare connection of the plain login: what row-level security and grants hold against."""
    connection = await asyncpg.connect(urls.app)
    yield connection
    await connection.close()


@pytest_asyncio.fixture
async def clock(admin: asyncpg.Connection) -> Clock:
    return await Clock.install(admin, datetime(2026, 3, 15, 12, tzinfo=UTC))


@pytest_asyncio.fixture
async def empty(server: TestServer) -> AsyncIterator[str]:
    """The name of a new database that nobody has migrated."""
    name = await create_database(server, migrated=False)
    yield name
    await drop_database(server, name)
