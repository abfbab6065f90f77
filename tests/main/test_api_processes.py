"""`cortex api --processes`: one supervisor, several API processes on one port."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

import grpc
from cortex_plane.grpc.upsquad.governance.v1.approval_pb2 import ListApprovalsRequest
from tests.conftest import Urls
from tests.fixtures.listeners import listen
from tests.fixtures.people import World
from tests.fixtures.servers import MASTER_KEY
from tests.grpc.door import Client
from tests.main.test_worker_processes import WAIT_SECONDS, is_running


class Served:
    """The API as its callers see it, and its processes as the system does."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.url = ""

    async def ready(self) -> None:
        """One more process accepts requests."""
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_SECONDS):
            line = (await self.process.stdout.readline()).decode()
        assert line.startswith("serving on http"), line
        assert self.url in ("", line.split()[-1]), "all of them on one port"
        self.url = line.split()[-1]

    @property
    def pids(self) -> set[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return {pid for pid in map(int, children.split()) if is_running(pid)}

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            while not condition():  # noqa: ASYNC110 -- nothing tells of the end of a foreign child
                await asyncio.sleep(0.05)

    async def ask(self, world: World) -> int:
        """Each time over a new connection."""
        async with httpx.AsyncClient(base_url=self.url) as http:
            return (await http.get("/v1/me", headers=world.admin.headers)).status_code

    async def end(self, number: int) -> int:
        self.process.send_signal(number)
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def served(urls: Urls, home: Path, *arguments: str, **settings: str) -> AsyncIterator[Served]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cortex_plane", "api", *arguments,
        env={
            **os.environ, "DATABASE_URL": urls.app, "CORTEX_HOME": str(home), "CORTEX_MASTER_KEY": MASTER_KEY,
            "CORTEX_PORT": "0", "CORTEX_LOG_LEVEL": "error", **settings,
        },
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield Served(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.fresh_database
async def test_each_of_the_processes_serves_and_one_that_dies_is_replaced(
    urls: Urls, world: World, tmp_path: Path
) -> None:
    with listen(0) as listener:
        grpc_port = listener.getsockname()[1]
    async with served(urls, tmp_path, "--processes=2", CORTEX_GRPC_PORT=str(grpc_port)) as api:
        for _ in range(2):
            await api.ready()
        first, second = sorted(api.pids)
        assert [await api.ask(world) for _ in range(8)] == [200] * 8
        os.kill(first, signal.SIGKILL)
        await api.until(lambda: not is_running(first))
        assert [await api.ask(world) for _ in range(4)] == [200] * 4, "the second one serves"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{grpc_port}") as channel:
            client = Client(channel, world.admin)
            assert not (await client.call(client.approvals.ListApprovals, ListApprovalsRequest())).approvals
        await api.ready()
        os.kill(second, signal.SIGKILL)
        await api.until(lambda: not is_running(second))
        assert [await api.ask(world) for _ in range(4)] == [200] * 4, "the third one serves"
        await api.ready()
        last = api.pids
        assert (len(last), last & {first, second}) == (2, set())
        assert await api.end(signal.SIGTERM) == 0
        assert not any(map(is_running, last))


@pytest.mark.fresh_database
async def test_api_processes_end_with_their_supervisor(urls: Urls, tmp_path: Path) -> None:
    async with served(urls, tmp_path, "--processes=2") as api:
        for _ in range(2):
            await api.ready()
        pids = api.pids
        await api.end(signal.SIGKILL)
        await api.until(lambda: not any(map(is_running, pids)))


@pytest.mark.fresh_database
async def test_a_port_that_others_share_is_in_use_all_the_same(urls: Urls, tmp_path: Path) -> None:
    async with served(urls, tmp_path, "--processes=2") as api:
        for _ in range(2):
            await api.ready()
        port = api.url.rsplit(":", 1)[1]
        for processes in ("1", "2"):
            async with served(urls, tmp_path, f"--processes={processes}", CORTEX_PORT=port) as other:
                async with asyncio.timeout(WAIT_SECONDS):
                    _, errors = await other.process.communicate()
                assert (other.process.returncode, b"cannot_listen" in errors) == (1, True)
        assert await api.end(signal.SIGTERM) == 0
