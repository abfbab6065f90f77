"""Ours, once for each way of settling what nobody knows. The same job, the same outside world, no idempotency key unless the
tool declares that it uses one.

``ask_human`` is answered by whoever runs the table, who looks at the world as a person would.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from typing import Any
from uuid import UUID

from benchmarks.crash.outcomes import STEPS, act_key
from benchmarks.crash.worker import Script, run_worker
from benchmarks.plane import KEY, Plane, plane
from cortex_plane.agents.model.tools import DidNotHappen, Happened
from cortex_plane.approvals.verbs import settlements
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.worker import JobRunner, WorkerSettings

FAST = WorkerSettings(concurrency=1, poll_seconds=0.05, adoption_seconds=2, dispatch_seconds=0.5)
TIMEOUT = 0.8


def slug_of(job: str) -> str:
    return "crash-" + hashlib.sha256(job.encode()).hexdigest()[:20]


def _app(script: Script, kind: str) -> App:
    app = App(slug_of(script.job))

    async def act(step: int) -> dict[str, Any]:
        """The side effect of a step."""
        return await script.act(step)

    async def act_with_key(step: int) -> dict[str, Any]:
        """The same, with a key that the world honours."""
        return await script.act(step, key=f"{script.job}-{step}")

    async def happened(step: int) -> Happened | DidNotHappen:
        found = await script.world.count(act_key(script.job, step))
        return Happened({"count": found}) if found else DidNotHappen()

    if kind == "probe":
        app.tool(name="act", timeout=TIMEOUT, on_uncertain="probe", probe=happened)(act)
    elif kind == "retry_with_key":
        app.tool(name="act", timeout=TIMEOUT, on_uncertain="retry_with_key")(act_with_key)
    else:
        app.tool(name="act", timeout=TIMEOUT, on_uncertain=kind)(act)
    return app


def _kind(script: Script) -> str:
    return script.job.split("(", 1)[1].split(")", 1)[0]


async def start(script: Script) -> None:
    async with plane(script.url) as made:
        slug = slug_of(script.job)
        turns = [{"calls": [{"tool": "act", "arguments": {"step": n}}]} for n in range(1, STEPS + 1)]
        await made.agent(slug, [*turns, {"text": "done"}], app=slug)
        await made.submit(slug)
        # Inside the effect the world keeps its answer back for long; the tool must not give up before it is killed.
        await JobRunner(made.db, [_app(script, _kind(script))], KEY, FAST).run()


async def recover(script: Script) -> None:
    async with plane(script.url) as made:
        worker = JobRunner(made.db, [_app(script, _kind(script))], KEY, FAST)
        running = asyncio.create_task(worker.run())
        page = await jobs.list_page(made.db, made.actor, None, 1, agent=slug_of(script.job))
        ended = await _until_ended(made, script, page.items[0].id)
        worker.stop()
        await running
        if ended is not JobStatus.COMPLETED:
            sys.exit(f"ended {ended}")


async def _until_ended(made: Plane, script: Script, id: UUID) -> JobStatus:
    while True:
        job = await jobs.get(made.db, made.actor, id)
        if job.status in (JobStatus.COMPLETED, JobStatus.FAILED):
            return job.status
        for question in await steering.list_questions(made.db, made.actor, id):
            count = await script.world.count(act_key(script.job, question.arguments["step"]))
            answer = Answer(verdict=Verdict.HAPPENED if count else Verdict.DID_NOT_HAPPEN)
            await settlements.settle(made.db, made.actor, id, question.call_id, answer)
        await asyncio.sleep(0.02)


if __name__ == "__main__":
    run_worker(start, recover)
