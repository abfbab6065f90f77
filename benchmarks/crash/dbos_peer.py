"""DBOS: a workflow of three steps; a new process with the same executor id recovers what the dead one left pending.

The executor id is its default ("local"), as for a single worker that is restarted. Several workers need Conductor, its
commercial service, to adopt one another's workflows.
"""

from __future__ import annotations

from typing import Any

from dbos import DBOS, SetWorkflowID

from benchmarks.crash.outcomes import STEPS
from benchmarks.crash.worker import Script, run_worker

_scripts: list[Script] = []  # what a recovered workflow finds in its new process


async def _act(number: int) -> dict[str, Any]:
    return await _scripts[0].act(number)


step = DBOS.step()(_act)


async def _job() -> str:
    for number in range(1, STEPS + 1):
        await step(number)
    return "done"


workflow = DBOS.workflow()(_job)


def _launch(script: Script) -> None:
    _scripts.append(script)
    DBOS(config={"name": "crash", "system_database_url": script.url, "log_level": "CRITICAL"})
    DBOS.launch()


async def start(script: Script) -> None:
    _launch(script)
    with SetWorkflowID(script.job):
        handle = await DBOS.start_workflow_async(workflow)
    await handle.get_result()


async def recover(script: Script) -> None:
    _launch(script)
    handle = await DBOS.retrieve_workflow_async(script.job)
    await handle.get_result()
    DBOS.destroy()


if __name__ == "__main__":
    run_worker(start, recover)
