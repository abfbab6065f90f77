"""The side of the crash that dies: a worker process of some engine, and the steps that it runs.

    python -m benchmarks.crash.<engine>_peer --phase start|recover --place … --url … --world … --job …

``start`` creates the job and works on it until it is killed in step 2. ``recover`` is a new process that brings the
engine up again as it recommends and ends when the job is complete.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.crash.outcomes import FATAL_STEP, Place, act_key
from benchmarks.peers.payloads import TOOL_ARGUMENTS
from benchmarks.world import World

WINDOW_MS = 60_000  # how long the world keeps its answer back; the worker is killed as soon as the act is seen


@dataclass(frozen=True)
class Script:
    """One job of three steps, and the place where its worker dies (none: it lives)."""

    url: str
    world: World
    job: str
    place: Place | None

    async def act(self, step: int, key: str | None = None) -> dict[str, Any]:
        """The side effect of a step. Without an idempotency key, what happens twice is seen twice."""
        place = self.place if step == FATAL_STEP else None
        if place is Place.BEFORE:
            _die()
        delay = WINDOW_MS if place is Place.INSIDE else 0
        answer = await self.world.act(
            act_key(self.job, step), delay_ms=delay, payload=TOOL_ARGUMENTS, idempotency_key=key
        )
        if place is Place.AFTER:
            _die()
        return answer


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_worker(start: Callable[[Script], Awaitable[None]], recover: Callable[[Script], Awaitable[None]]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--phase", choices=["start", "recover"], required=True)
    parser.add_argument("--place", type=Place, required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--world", type=World, required=True)
    parser.add_argument("--job", required=True)
    asked = parser.parse_args()

    async def work() -> None:
        if asked.phase == "start":
            await start(Script(asked.url, asked.world, asked.job, asked.place))
        else:
            await recover(Script(asked.url, asked.world, asked.job, None))

    asyncio.run(work())
