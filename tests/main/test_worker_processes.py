"""`cortex worker --processes`: one supervisor, several workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import asyncpg
import pytest

from tests.conftest import Urls
from tests.fixtures.servers import MASTER_KEY

WAIT_SECONDS = 30


class Supervisor:
    def __init__(self, process: asyncio.subprocess.Process, admin: asyncpg.Connection) -> None:
        self.process, self._admin = process, admin

    async def pids(self) -> list[int]:
        """Of the workers that run, by the database."""
        rows = await self._admin.fetch(
            "select pid from worker where stopped_at is null and expires_at > plane_now() and name like 'shared-%' order by name"
        )
        return [row["pid"] for row in rows]

    async def until(self, condition: Callable[[list[int]], bool]) -> list[int]:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                pids = [pid for pid in await self.pids() if is_running(pid)]
                if condition(pids):
                    return pids
                await asyncio.sleep(0.05)

    async def end(self, number: int) -> int:
        self.process.send_signal(number)
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.process.wait()


def is_running(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, FileNotFoundError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@contextlib.asynccontextmanager
async def supervised(urls: Urls, admin: asyncpg.Connection, home: Path, *arguments: str) -> AsyncIterator[Supervisor]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cortex_plane", "worker", "--name", "shared", *arguments,
        env={**os.environ, "DATABASE_URL": urls.app, "CORTEX_HOME": str(home), "CORTEX_MASTER_KEY": MASTER_KEY},
        stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        yield Supervisor(process, admin)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.fresh_database
async def test_workers_share_jobs_and_one_that_dies_is_replaced(
    urls: Urls, admin: asyncpg.Connection, tmp_path: Path
) -> None:
    async with supervised(urls, admin, tmp_path, "--processes=2", "--concurrency=5") as supervisor:
        first, second = await supervisor.until(lambda pids: len(pids) == 2)
        rows = await admin.fetch("select name, concurrency from worker order by name")
        assert [tuple(row) for row in rows] == [("shared-1", 3), ("shared-2", 2)]
        os.kill(first, signal.SIGKILL)
        replaced = await supervisor.until(lambda pids: len(pids) == 2 and first not in pids)
        assert second in replaced
        assert await supervisor.end(signal.SIGTERM) == 0
        assert not any(map(is_running, replaced))
        assert (
            await admin.fetchval("select count(*) from worker where stopped_at is null and pid = any ($1)", replaced)
            == 0
        )


@pytest.mark.fresh_database
async def test_workers_end_with_their_supervisor(urls: Urls, admin: asyncpg.Connection, tmp_path: Path) -> None:
    async with supervised(urls, admin, tmp_path, "--processes=2") as supervisor:
        pids = await supervisor.until(lambda pids: len(pids) == 2)
        await supervisor.end(signal.SIGKILL)
        async with asyncio.timeout(WAIT_SECONDS):
            while any(map(is_running, pids)):  # noqa: ASYNC110 -- nothing tells of the end of a foreign child
                await asyncio.sleep(0.05)


@pytest.mark.fresh_database
async def test_a_worker_that_cannot_start_ends_its_supervisor(
    urls: Urls, admin: asyncpg.Connection, tmp_path: Path
) -> None:
    async with supervised(urls, admin, tmp_path, "--processes=2", "--app=nowhere.at.all:app") as supervisor:
        async with asyncio.timeout(WAIT_SECONDS):
            _, errors = await supervisor.process.communicate()
        assert supervisor.process.returncode == 1
        assert b"app_not_loadable" in errors
