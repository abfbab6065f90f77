"""A conversation: a customer complains, a person turns the refund down, the agent goes another way, and remembers it later."""

import asyncio
import sys
from pathlib import Path

from cortex_plane import Client
from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.sessions.model.sessions import SessionDraft
from examples.plane import ask, follow, plane, prepare, world
from examples.support_agent.agent import AGENT, COMPLAINT, LATER

POLICIES = Path(__file__).parent / "policies.yaml"


async def deny(client: Client, card: Approval) -> None:
    """With --auto the example decides for you: no, and why. The agent is told the reason."""
    await ask(client, card)
    await client.approvals.deny(card, reason="At most 20 for broken glass. Offer a discount as well.")
    print("you     deny it: at most 20 (--auto)", flush=True)


async def main(auto: bool) -> int:
    async with plane("examples.support_agent.agent:app") as client:
        await prepare(client, AGENT, POLICIES)
        session = await client.sessions.create(SessionDraft(agent=AGENT.slug, title="Ada's lamp"))
        statuses = []
        for message in (COMPLAINT, LATER):
            print(f"Ada     {message}", flush=True)
            sent = await client.sessions.send(session.id, message)
            job = await follow(client, sent.job_id, deny if auto else ask)
            statuses.append(job.status)
        print(f"jobs    {', '.join(statuses)}; {len([m async for m in client.sessions.messages(session.id)])} messages")
        print("world  ", ", ".join(world()))
        return 0 if set(statuses) == {"COMPLETED"} else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main("--auto" in sys.argv)))
