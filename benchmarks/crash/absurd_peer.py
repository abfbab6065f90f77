"""Absurd: a task of three ``ctx.step``; any worker takes it up again once the dead one's claim has run out.

The claim is short (its default is 120 s) so that the table does not wait for it; every step extends it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from absurd_sdk import AsyncAbsurd

from benchmarks.crash.outcomes import STEPS
from benchmarks.crash.worker import Script, run_worker
from benchmarks.peers.absurd_steps import install

QUEUE = "crash"
CLAIM_SECONDS = 2
POLL_SECONDS = 0.05


async def work(script: Script) -> None:
    """Both phases: spawning twice with one idempotency key makes one task."""
    await install(script.url)
    submitting, working = (AsyncAbsurd(script.url, queue_name=QUEUE) for _ in range(2))

    async def job(_: dict[str, Any], ctx: Any) -> str:
        for number in range(1, STEPS + 1):
            await ctx.step(f"step-{number}", lambda number=number: script.act(number))
        return "done"

    working.register_task("job")(job)
    await submitting.create_queue()
    task = await submitting.spawn("job", {}, queue=QUEUE, idempotency_key=script.job)
    running = asyncio.create_task(working.start_worker(claim_timeout=CLAIM_SECONDS, poll_interval=POLL_SECONDS))
    result = await submitting.await_task_result(task["task_id"])
    working.stop_worker()
    await running
    await working.close()
    await submitting.close()
    if result.state != "completed":
        raise RuntimeError(f"Absurd's task is {result.state}")


if __name__ == "__main__":
    run_worker(work, work)
