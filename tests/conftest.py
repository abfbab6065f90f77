"""Fixtures: an empty database, a plane in it, its people, and the HTTP application over it."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import asyncpg
import httpx
import pytest
import pytest_asyncio
from starlette.datastructures import State

from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.db.database import Database
from cortex_plane.http.app import Api, framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.kernel.shares import Throttle
from cortex_plane.main.api_process import create_app
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.tenancy.verbs.served_channels import ServedChannels
from tests.browser.chromium import tell
from tests.fixtures import loopback_guard
from tests.fixtures.listeners import nowhere
from tests.fixtures.people import World
from tests.fixtures.servers import TestServer, available, remove_data_of, running
from tests.fixtures.warm_databases import WarmDatabase, WarmDatabases

PAGES = {"Accept": "application/json"}
"""Without a socket nothing can be streamed: events come in pages."""

# As `make test` does: else each process of the run, and each program that a test starts, compiles every source anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

_servers = pytest.StashKey[AbstractContextManager[None]]()


def pytest_configure(config: pytest.Config) -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # As behind `&` in a script: the programs that tests start, and end with Ctrl-C, would ignore it too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    loopback_guard.install()
    if hasattr(config, "workerinput") or config.option.collectonly:
        return
    config.stash[_servers] = running()
    config.stash[_servers].__enter__()


def pytest_unconfigure(config: pytest.Config) -> None:
    if _servers in config.stash:
        config.stash[_servers].__exit__(None, None, None)
        factory: pytest.TempPathFactory = config._tmp_path_factory  # type: ignore[attr-defined]
        remove_data_of(factory.getbasetemp())


def pytest_collection_finish() -> None:
    """What was imported stays: the garbage collector need not look at it again and again, which took a tenth of the time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    tell(terminalreporter)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Storage tests run on every PostgreSQL that is there, all others on the first."""
    if "server" in metafunc.fixturenames:
        servers = available() or [TestServer("none", "", "", "", "")]
        chosen = servers if "storage" in metafunc.module.__name__.split(".") else servers[:1]
        metafunc.parametrize("server", chosen, ids=[s.name for s in chosen], indirect=True)


@pytest.fixture
def server(request: pytest.FixtureRequest) -> TestServer:
    chosen: TestServer = request.param
    return chosen


@dataclass(frozen=True)
class Urls:
    app: str
    admin: str


@pytest.fixture(autouse=True)
def on_this_machine() -> Iterator[None]:
    """Fails whatever tried to reach another one."""
    loopback_guard.take_refusals()
    yield
    assert loopback_guard.take_refusals() == []


@pytest.fixture(autouse=True)
def own_threads(request: pytest.FixtureRequest) -> None:
    """All tests share one event loop, so that database connections outlive a test. Threads must not: one that a test left
    busy would be missing in the next."""
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("new_threads")


@pytest_asyncio.fixture
async def new_threads() -> AsyncIterator[None]:
    loop, threads = asyncio.get_running_loop(), ThreadPoolExecutor()
    loop.set_default_executor(threads)
    yield
    loop.set_default_executor(ThreadPoolExecutor())  # for the fixtures of tests that are no coroutines
    threads.shutdown(wait=False, cancel_futures=True)


@pytest_asyncio.fixture(scope="session")
async def warm_databases() -> AsyncIterator[WarmDatabases]:
    databases = WarmDatabases()
    yield databases
    await databases.close()


@pytest_asyncio.fixture
async def warm(
    request: pytest.FixtureRequest, server: TestServer, warm_databases: WarmDatabases
) -> AsyncIterator[WarmDatabase]:
    """A migrated database without a row of anybody's: a new one where the test is marked so, else an emptied one."""
    if request.node.get_closest_marker("fresh_database"):
        database = await WarmDatabase.create(server)
        yield database
        await database.drop()
    else:
        database = await warm_databases.take(server)
        before = asyncio.all_tasks()
        yield database
        await _cancel(asyncio.all_tasks() - before)
        await warm_databases.give_back(database)


async def _cancel(tasks: set[asyncio.Task[Any]]) -> None:
    """What a test started and left running would write into the database of the next one."""
    tasks.discard(cast("asyncio.Task[Any]", asyncio.current_task()))
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.fixture
def urls(warm: WarmDatabase) -> Urls:
    return Urls(warm.server.app(warm.name), warm.server.admin(warm.name))


@pytest_asyncio.fixture
async def db(warm: WarmDatabase) -> AsyncIterator[Database]:
    database = await warm.database()
    yield database
    await database.hints.close()


@pytest_asyncio.fixture
async def admin(warm: WarmDatabase) -> asyncpg.Connection:
    """A connection of the migrating login, for looking behind row-level security and for moving time."""
    return await warm.admin()


@pytest_asyncio.fixture
async def world(warm: WarmDatabase, db: Database) -> World:
    """An org with an admin, an agent, a connection and a service."""
    return await warm.world(db, "acme")


@pytest_asyncio.fixture
async def strict(warm: WarmDatabase, db: Database) -> World:
    """An org without policies of its own: whatever may change something needs its owner's approval."""
    return await warm.world(db, "strict")


@pytest_asyncio.fixture
async def other(warm: WarmDatabase, db: Database) -> World:
    """A second org in the same database, with the same names."""
    return await warm.world(db, "rival")


@pytest_asyncio.fixture
async def http(db: Database) -> AsyncIterator[httpx.AsyncClient]:
    """The HTTP application as a server would run it, without a socket."""
    metrics = Metrics()
    app = _application()
    app.state.db, app.state.metrics, app.state.feed = db, metrics, EventFeed(db, poll_seconds=0.05)
    app.state.throttle = Throttle()
    app.state.webhooks = WebhookChannel(resolver=nowhere)
    app.state.channels = ServedChannels()
    transport = httpx.ASGITransport(framed(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://plane", headers=PAGES) as client:
        yield client
    app.state.feed.close()
    metrics.close()


@pytest.fixture
def app_state(http: httpx.AsyncClient) -> State:
    """What the HTTP application was started with."""
    return _application().state


@functools.cache
def _application() -> Api:
    """Made once per process: its routes take longer to build than most tests to run."""
    return create_app(Database(None), Metrics())
