"""Worker processes as a test holds them: started in a moment, killed, stopped, continued, ended."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.world import World

from tests.crash.fork_server import Order

REPOSITORY = Path(__file__).parent.parent.parent
DEADLINE = 90.0


async def until(seen: Callable[[], bool], seconds: float = DEADLINE) -> None:
    """What another process does can only be looked at."""
    async with asyncio.timeout(seconds):
        while not seen():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@dataclass(eq=False)
class WorkerProcess:
    order: Order
    pid: int
    ended: asyncio.Task[int]
    """Its exit code; below zero the signal that ended it."""
    _writer: asyncio.StreamWriter = field(repr=False)

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self.alive:
                os.kill(self.pid, number)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.send(number)
        return await self.wait()

    async def stopped(self) -> None:
        """Until it stands still."""
        await until(lambda: self._state() == "T")

    def _state(self) -> str:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0]

    async def wait(self) -> int:
        async with asyncio.timeout(DEADLINE):
            return await asyncio.shield(self.ended)

    def said(self) -> str:
        return Path(self.order.output).read_text()

    async def reached(self, point: str) -> None:
        await until(lambda: point in self.points())

    def points(self) -> list[str]:
        assert self.order.points is not None
        file = Path(self.order.points)
        return file.read_text().split() if file.exists() else []

    async def close(self) -> None:
        self._writer.close()
        await asyncio.wait([self.ended])


class Workers:
    """The way to the fork server. One for all tests of a process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count(1)
        self._started: list[WorkerProcess] = []

    async def start(
        self, url: str, app: str, *, at: str | None = None, records: bool = False, **more: object
    ) -> WorkerProcess:
        number = next(self._numbers)
        order = Order(
            url=url,
            app=app,
            name=f"worker-{number}",
            output=str(self.folder / f"{number}.log"),
            at=at,
            points=str(self.folder / f"{number}.points") if records else None,
            **more,  # type: ignore[arg-type]
        )
        reader, writer = await asyncio.open_unix_connection(str(self.folder / "orders"))
        writer.write(json.dumps(asdict(order)).encode() + b"\n")
        pid = json.loads(await reader.readline())["pid"]

        async def ending() -> int:
            try:
                line = await reader.readline()
                return int(json.loads(line)["status"]) if line else -signal.SIGKILL
            finally:
                writer.close()

        started = WorkerProcess(order, pid, asyncio.create_task(ending()), writer)
        self._started.append(started)
        return started

    async def close(self) -> None:
        """End whatever a test has left."""
        for worker in self._started:
            await worker.close()
        self._started = []


@contextlib.contextmanager
def fork_server(world: World) -> Iterator[Workers]:
    with tempfile.TemporaryDirectory(prefix="cortex-crash-") as name:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.fork_server", f"{name}/orders", world.url],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield Workers(Path(name))
        finally:
            process.stdin.close()
            process.wait(20)
            process.stdout.close()
