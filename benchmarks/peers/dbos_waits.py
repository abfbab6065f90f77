"""DBOS: a workflow that waits for a message (``recv``) before its step. Somebody's yes is a ``send``.

The workflow stays in the process that runs it, so that nothing has to be claimed: the cheapest way it has.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from dbos import DBOS

from benchmarks.peers.dbos_steps import launched, step
from benchmarks.peers.payloads import TOOL_ARGUMENTS

_done: dict[str, asyncio.Future[float]] = {}


async def _waits(arguments: dict[str, Any]) -> str:
    await DBOS.recv_async("approval", timeout_seconds=60)
    await step(arguments)
    # It may run on a loop of DBOS's own.
    done = _done[str(DBOS.workflow_id)]
    done.get_loop().call_soon_threadsafe(done.set_result, time.perf_counter())
    return "done"


workflow = DBOS.workflow()(_waits)


async def resumes(url: str, n: int) -> list[float]:
    """Seconds from the message until the step after it is recorded."""
    taken = []
    async with launched(url):
        for _ in range(n + 5):
            handle = await DBOS.start_workflow_async(workflow, TOOL_ARGUMENTS)
            id = handle.get_workflow_id()
            _done[id] = asyncio.get_running_loop().create_future()
            # Until it waits: nobody approves what was not asked for yet.
            await asyncio.sleep(0.2)
            started = time.perf_counter()
            await DBOS.send_async(id, "yes", "approval")
            taken.append(await _done[id] - started)
    return taken[5:]
