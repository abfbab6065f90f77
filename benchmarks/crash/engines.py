"""The side of the crash that watches: it starts the worker, kills it, starts it again and counts."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol
from uuid import uuid4

from benchmarks.crash.outcomes import FATAL_STEP, STEPS, Outcome, Place, act_key
from benchmarks.world import REPOSITORY, World

KILLED = -9
PATIENCE_SECONDS = 30.0
_TICK = 0.01


class Engine(Protocol):
    """Whoever wants a row in the table."""

    @property
    def name(self) -> str: ...

    async def run(self, place: Place) -> Outcome: ...


@dataclass(frozen=True)
class ProcessEngine:
    """An engine whose worker is ``module``, a process that speaks the command line of ``benchmarks.crash.worker``."""

    name: str
    module: str
    url: str
    world: World

    async def run(self, place: Place) -> Outcome:
        job = f"{self.name}-{place}-{uuid4().hex[:8]}"
        await self._start_and_kill(job, place)
        started = time.perf_counter()
        trouble = await self._recover(job, place)
        acts = [await self.world.count(act_key(job, step)) for step in range(1, STEPS + 1)]
        return Outcome(tuple(acts), trouble, time.perf_counter() - started)

    async def _start_and_kill(self, job: str, place: Place) -> None:
        async with self._worker("start", job, place) as worker, asyncio.timeout(PATIENCE_SECONDS):
            if place is Place.INSIDE:
                while worker.returncode is None and not await self.world.count(act_key(job, FATAL_STEP)):  # noqa: ASYNC110
                    await asyncio.sleep(_TICK)  # the world is another process
                with contextlib.suppress(ProcessLookupError):
                    worker.kill()
            _, said = await worker.communicate()
            if worker.returncode != KILLED:
                raise RuntimeError(f"{self.name} did not die {place} step {FATAL_STEP}: {said.decode()[-2000:]}")

    async def _recover(self, job: str, place: Place) -> str | None:
        """What kept the job from finishing."""
        async with self._worker("recover", job, place) as worker:
            try:
                _, said = await asyncio.wait_for(worker.communicate(), PATIENCE_SECONDS)
            except TimeoutError:
                return f"did not finish in {PATIENCE_SECONDS:.0f} s"
            if worker.returncode == 0:
                return None
            return f"failed: {(said.decode().strip().splitlines() or ['no word'])[-1][:60]}"

    @contextlib.asynccontextmanager
    async def _worker(self, phase: str, job: str, place: Place) -> AsyncIterator[asyncio.subprocess.Process]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", self.module, "--phase", phase, "--place", place,
            "--url", self.url, "--world", self.world.url, "--job", job,
            cwd=REPOSITORY, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            yield process
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
