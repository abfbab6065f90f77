"""`cortex worker --url` as a process, at `cortex api` as others: started, killed, stopped, cut off."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.tenancy.model.access import KeyDraft
from cortex_plane.tenancy.verbs import keys
from tests.conftest import Urls
from tests.fixtures.people import World
from tests.fixtures.workers import call, ended, make_agent, steps_of, submit, turn, whole
from tests.main.test_api_processes import served
from tests.main.test_worker_processes import WAIT_SECONDS

REPOSITORY = Path(__file__).parent.parent.parent
LEASES = {
    "CORTEX_ADOPTION_SECONDS": "2",
    "CORTEX_DISPATCH_SECONDS": "0.5",
    "CORTEX_POLL_SECONDS": "0.1",
    "CORTEX_GRPC": "off",
}


@dataclass
class WorkerProcess:
    process: asyncio.subprocess.Process
    folder: Path

    async def connected(self) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(WAIT_SECONDS):
            line = (await self.process.stdout.readline()).decode()
        assert line.startswith("worker "), (line, await self.errors())

    async def errors(self) -> str:
        assert self.process.stderr is not None
        return (await self.process.stderr.read()).decode()

    async def end(self, number: int) -> int:
        self.process.send_signal(number)
        async with asyncio.timeout(WAIT_SECONDS):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def remote_process(
    folder: Path, url: str, secret: str, *arguments: str, app: str = "tests.fixtures.remote_app:app"
) -> AsyncIterator[WorkerProcess]:
    """In a folder of its own, without any variable that names a database."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CORTEX_", "DATABASE_", "PG"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cortex_plane", "worker", "--url", url, "--app", app, *arguments,
        env={**clean, "CORTEX_KEY": secret, "REMOTE_APP_FOLDER": str(folder), "PYTHONPATH": str(REPOSITORY)},
        cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        yield WorkerProcess(process, folder)
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def secret_key(world: World, *apps: str) -> tuple[UUID, str]:
    new = await keys.create_key(world.db, world.admin.actor, KeyDraft(name="remote", apps=list(apps)))
    assert new.secret is not None
    return new.key.id, new.secret


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():  # noqa: ASYNC110 -- what another process does can only be looked at
            await asyncio.sleep(0.02)


async def until_given_back(world: World, id: UUID) -> None:
    """Its intent is written, and no worker holds it."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            async with world.db.transaction(world.org_id) as tx:
                if await tx.value("select epoch > 0 and worker_id is null from job where id = $1", id):
                    return
            await asyncio.sleep(0.05)


@dataclass
class Campaign:
    world: World
    folder: Path
    agents: dict[str, object]
    number: int = 0

    async def jobs(self, phase: str) -> tuple[UUID, UUID]:
        """A job of each tool, both standing at the phase."""
        self.number += 1
        ids = []
        for tool in ("act_asked", "act_with_key"):
            word = f"{tool}-{phase}-{self.number}"
            agent = await make_agent(
                self.world, [turn(call(tool, word=word))], app="remote", slug=word.replace("_", "-")
            )
            ids.append(await submit(self.world, agent))
            await until((self.folder / word).exists)
        return ids[0], ids[1]

    def acts(self) -> list[str]:
        """The words and keys of this round, each as often as it was acted."""
        file = self.folder / "acts"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.split()[0].endswith(f"-{self.number}")]

    async def judge(self, asked: UUID, keyed: UUID, phase: str) -> None:
        doubtful, certain = await ended(self.world, asked, WAIT_SECONDS), await ended(self.world, keyed, WAIT_SECONDS)
        acts = self.acts()
        assert doubtful.status is JobStatus.PAUSED, "nobody knows, so a person is asked"
        assert [each.status for step in await steps_of(self.world, asked) for each in step.calls] == ["uncertain"]
        assert sum("asked" in act for act in acts) == (phase == "after"), "and it is not done again"
        assert certain.status is JobStatus.COMPLETED, certain.error_message
        assert len({act for act in acts if "with_key" in act}) == 1, "one key, however often it is sent"


@pytest.mark.fresh_database
@pytest.mark.proves("D.1071")
@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["short", "whole"])
async def test_nothing_is_repeated_and_nothing_lost_whoever_dies(
    urls: Urls, world: World, tmp_path: Path, is_whole: bool
) -> None:
    folder = tmp_path / "worker"
    folder.mkdir()
    _, secret = await secret_key(world, "remote")
    campaign = Campaign(world, folder, {})
    async with served(urls, tmp_path, "--processes=2", **LEASES) as api:
        for _ in range(2):
            await api.ready()
        phase = "after"
        for phase in ("before", "after") if is_whole else ("after",):
            # The worker dies.
            async with remote_process(folder, api.url, secret) as worker:
                await worker.connected()
                ids = await campaign.jobs(phase)
                await worker.end(signal.SIGKILL)
            if is_whole and phase == "before":
                async with remote_process(folder, api.url, secret) as worker:
                    await worker.connected()
                    await campaign.judge(*ids, phase)
        async with remote_process(folder, api.url, secret) as worker:
            await worker.connected()
            await campaign.judge(*ids, phase)
            for phase in ("before", "after") if is_whole else ("before",):
                # The process that runs its attempts dies; the worker connects to another one.
                ids = await campaign.jobs(phase)
                for pid in api.pids:
                    os.kill(pid, signal.SIGKILL)
                await worker.connected()
                await campaign.judge(*ids, phase)
                for _ in range(2):
                    await api.ready()
            # The worker stands still past its lease, and wakes up when another one has its jobs.
            ids = await campaign.jobs("before")
            worker.process.send_signal(signal.SIGSTOP)
            async with remote_process(folder, api.url, secret) as second:
                await second.connected()
                await campaign.judge(*ids, "before")
                await second.end(signal.SIGTERM)
            worker.process.send_signal(signal.SIGCONT)
            await worker.connected()
            # It stands still before it is sent a call: the message is in its buffer when it wakes up.
            worker.process.send_signal(signal.SIGSTOP)
            agent = await make_agent(world, [turn(call("act_asked", word="too-late"))], app="remote", slug="too-late")
            id = await submit(world, agent)
            await until_given_back(world, id)
            worker.process.send_signal(signal.SIGCONT)
            await worker.connected()
            late = await ended(world, id, WAIT_SECONDS)
            await campaign.judge(*ids, "before")
            assert late.status is JobStatus.PAUSED
            assert "too-late" not in (folder / "acts").read_text()
            assert await api.end(signal.SIGTERM) == 0, "no link keeps the plane from ending"
            assert await worker.end(signal.SIGTERM) == 0
    assert await whole(world)


async def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("CORTEX_", "DATABASE_", "PG"))}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=folder, env={**clean, "PYTHONPATH": str(REPOSITORY), **environment},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    async with asyncio.timeout(WAIT_SECONDS):
        output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, " ".join(output.decode().split())


@pytest.mark.proves("D.1078")
async def test_a_worker_without_a_database_and_an_address_says_both_ways(tmp_path: Path) -> None:
    status, output = await run(tmp_path, "-m", "cortex_plane", "worker", "--app", "tests.fixtures.remote_app:app")
    assert status == 1
    assert "DATABASE_URL" in output
    assert "cortex worker --url" in output
    assert os.listdir(tmp_path) == [], "and leaves nothing behind"  # noqa: PTH208 -- a look at a folder of this test


@pytest.mark.proves("D.1070")
async def test_a_remote_worker_imports_nothing_of_a_database(tmp_path: Path) -> None:
    code = (
        "import sys, cortex_plane.main.remote_worker, tests.fixtures.remote_app\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'asyncpg', 'structlog', 'starlette', 'mcp', 'uuid_utils'}"
        " | {name for name in sys.modules if name.startswith('cortex_plane.db')}))"
    )
    assert await run(tmp_path, "-c", code) == (0, "[]")


@pytest.mark.proves("D.1070")
async def test_what_a_remote_worker_cannot_run_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "coded.py").write_text(
        "from cortex_plane.worker.tools.app import App\napp = App('coded')\n@app.agent\nasync def run(ctx): pass\n"
    )
    command = ("-m", "cortex_plane", "worker", "--url", "http://127.0.0.1:9", "--app", "coded:app")
    status, output = await run(tmp_path, *command, CORTEX_KEY="cortex_key_x")
    assert status == 1
    assert "code agents" in output
    status, output = await run(tmp_path, *command)
    assert (status, "worker key" in output) == (1, True)


@pytest.mark.proves("D.1115")
async def test_a_worker_process_with_mcp_servers_names_the_secret_that_one_lacks(tmp_path: Path) -> None:
    (tmp_path / "served.py").write_text(
        "from cortex_plane.worker.tools.app import App\napp = App('served')\n"
        "app.mcp_server('files', command=['none'], secrets=['FILES_TOKEN'])\n"
    )
    command = ("-m", "cortex_plane", "worker", "--url", "http://127.0.0.1:9", "--app", "served:app")
    status, output = await run(tmp_path, *command, CORTEX_KEY="cortex_key_x")
    assert (status, "FILES_TOKEN" in output) == (1, True)
