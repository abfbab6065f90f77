"""Absurd: a task that waits for an event before its step. Somebody's yes is ``emit_event``.

A waiting task is let go and claimed again, as with us. Its SDK's worker, which is what resumes by itself, polls every
0.25 s; ``without_a_pause`` claims again and again instead, which no one would do to a database, and is its floor.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from absurd_sdk import AsyncAbsurd

from benchmarks.peers.absurd_steps import QUEUE, install
from benchmarks.peers.payloads import TOOL_ARGUMENTS, effect


async def resumes(url: str, n: int) -> list[float]:
    """Seconds from the event until the step after it is recorded, with the SDK's worker as it is."""
    return await _resumes(url, n, pause=True)


async def without_a_pause(url: str, n: int) -> list[float]:
    return await _resumes(url, n, pause=False)


async def _resumes(url: str, n: int, *, pause: bool) -> list[float]:
    await install(url)
    asking, working = (AsyncAbsurd(url, queue_name=QUEUE) for _ in range(2))
    done: asyncio.Queue[float] = asyncio.Queue()
    waits: asyncio.Queue[str] = asyncio.Queue()
    try:
        await asking.create_queue()

        async def job(params: dict[str, Any], ctx: Any) -> str:
            waits.put_nowait(params["event"])
            await ctx.await_event(params["event"])
            await ctx.step("act", lambda: effect(params["arguments"]))
            done.put_nowait(time.perf_counter())
            return "done"

        for client in (asking, working):
            client.register_task("job")(job)
        stopped = asyncio.Event()

        async def work() -> None:
            while not stopped.is_set():
                await working.work_batch(batch_size=1)

        worker = asyncio.create_task(working.start_worker() if pause else work())
        taken = []
        for number in range(n + 5):
            event = f"approved-{number}"
            await asking.spawn("job", {"arguments": TOOL_ARGUMENTS, "event": event})
            await waits.get()
            await asyncio.sleep(0.1)
            started = time.perf_counter()
            await asking.emit_event(event, "yes")
            taken.append(await done.get() - started)
            while not waits.empty():
                waits.get_nowait()
        stopped.set()
        if pause:
            working.stop_worker()
        await worker
        return taken[5:]
    finally:
        await asking.close()
        await working.close()
