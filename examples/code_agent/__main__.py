"""Run the agent, kill its worker with SIGKILL in the middle of a step, and see it go on where it was."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from cortex_plane import Client, JobDraft
from cortex_plane.jobs.model.jobs import Job
from examples.code_agent.agent import AGENT
from examples.plane import approve, ask, follow, plane, prepare, until, world

ORDER = "1002"
POLICIES = Path(__file__).parent / "policies.yaml"


async def kill_its_worker(client: Client) -> None:
    """`cortex up` starts another one, which adopts the job once the lease of the dead one is over."""
    await until(lambda: any(line.startswith("pack ") for line in world()))
    (worker,) = [each for each in await client.workers.list() if each.alive and "code-example" in each.apps]
    os.kill(worker.pid, signal.SIGKILL)
    print(f"killed  worker {worker.pid}, in the middle of the step `pack`", flush=True)


async def deliver_parcel(client: Client, job: Job) -> None:
    """The world outside answers while the job sleeps: it waits for this signal and holds nothing."""
    async for event in client.jobs.events(job.id):
        if event.data.get("status") == "SLEEPING" and "parcel-delivered" in event.data["reason"]:
            await client.signals.send("parcel-delivered", f"parcel-{ORDER}", {"by": "Ada"})
            print("signal  parcel-delivered, signed by Ada", flush=True)
            return


async def main(auto: bool) -> int:
    os.environ.setdefault("CORTEX_ADOPTION_SECONDS", "2")
    async with plane("examples.code_agent.agent:app") as client:
        await prepare(client, AGENT, POLICIES)
        job = await client.jobs.submit(JobDraft(agent=AGENT.slug, payload={"order": ORDER}))
        outside = asyncio.gather(kill_its_worker(client), deliver_parcel(client, job))
        job = await follow(client, job.id, approve if auto else ask)
        await outside
        print(f"job     {job.status}: {job.result}")
        print("world  ", ", ".join(world()))
        return 0 if job.status == "COMPLETED" else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main("--auto" in sys.argv)))
