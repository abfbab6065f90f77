"""Start a plane, a worker and the agent; let it ship a version; see it stop before it deploys."""

import asyncio
import sys
from pathlib import Path

from cortex_plane import JobDraft
from examples.plane import approve, ask, follow, plane, prepare, world
from examples.release_agent.agent import AGENT

POLICIES = Path(__file__).parent / "policies.yaml"


async def main(auto: bool) -> int:
    async with plane("examples.release_agent.agent:app") as client:
        await prepare(client, AGENT, POLICIES)
        job = await client.jobs.submit(JobDraft(agent=AGENT.slug, payload={"text": "Ship 2.4, after 2.3."}))
        job = await follow(client, job.id, approve if auto else ask)
        print(f"job     {job.status}; the audit trail is whole: {not (await client.audit.verify()).faults}")
        print("world  ", ", ".join(world()))
        return 0 if job.status == "COMPLETED" else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main("--auto" in sys.argv)))
