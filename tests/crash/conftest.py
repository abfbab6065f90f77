"""Fixtures: the outside world and the fork server, once per test process; a stage for each test."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import pytest
import pytest_asyncio
from benchmarks.world import HOST
from benchmarks.world import World as Outside

from cortex_plane.db.database import Database
from tests.conftest import Urls
from tests.crash.stage import Stage
from tests.crash.workers import REPOSITORY, Workers, fork_server
from tests.fixtures.people import World
from tests.fixtures.servers import VAULT
from tests.worker.conftest import plain_logs

__all__ = ["plain_logs"]


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
    """A process of its own, so that what it counted is true whoever died."""
    log = _memory(tmp_path_factory) / "acts.jsonl"
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.world", "--log", str(log), "--with-parent"],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Outside(f"http://{HOST}:{int(process.stdout.readline())}")
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(20)


def _memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("world")


@pytest.fixture(scope="session")
def fork(outside: Outside) -> Iterator[Workers]:
    with fork_server(outside) as workers:
        yield workers


@pytest_asyncio.fixture
async def workers(fork: Workers) -> AsyncIterator[Workers]:
    yield fork
    await fork.close()


@pytest_asyncio.fixture
async def db(urls: Urls) -> AsyncIterator[Database]:
    """With few connections: what a new one costs until it has seen every statement is more than what jobs wait for it."""
    database = await Database.open(urls.app, max_size=3, vault=VAULT)
    yield database
    await database.close()


@pytest_asyncio.fixture
async def stage(
    urls: Urls, world: World, admin: asyncpg.Connection, outside: Outside, workers: Workers
) -> AsyncIterator[Stage]:
    async with Stage(urls.app, world, admin, outside, workers).playing() as stage:
        yield stage


@pytest_asyncio.fixture
async def lonely_stage(
    urls: Urls, world: World, admin: asyncpg.Connection, outside: Outside, workers: Workers
) -> AsyncIterator[Stage]:
    """Without the worker that finishes what others left."""
    async with Stage(urls.app, world, admin, outside, workers).playing(rescuer=False) as stage:
        yield stage
