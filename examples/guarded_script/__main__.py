"""Start a plane, run the script beside it, and decide what it asks."""

import asyncio
import os
import sys
from pathlib import Path
from uuid import UUID

from cortex_plane import AgentDraft, Client, ModelConfig
from examples.plane import access, approve, ask, plane, prepare, world

HERE = Path(__file__).parent
# A name under which the script is known: to policies, in the inbox, on the audit trail. It has no model.
AGENT = AgentDraft(
    name="Refund script", slug="refund-script", role="Script", team="main", model_config=ModelConfig(model="scripted")
)


async def decide(client: Client, script: asyncio.subprocess.Process, auto: bool) -> None:
    """Whoever is asked decides in the inbox, as for any agent; the script waits in its call meanwhile."""
    seen: set[UUID] = set()
    while script.returncode is None:
        async for card in client.approvals.pending():
            if card.id not in seen:
                seen.add(card.id)
                await (approve if auto else ask)(client, card)
        await asyncio.sleep(0.2)


async def main(auto: bool) -> int:
    async with plane() as client:
        await prepare(client, AGENT, HERE / "policies.yaml")
        script = await asyncio.create_subprocess_exec(
            sys.executable, str(HERE / "refunds.py"), env={**os.environ, **access()}
        )
        deciding = asyncio.create_task(decide(client, script, auto))
        await script.wait()
        await deciding
        print("audit   whole:", not (await client.audit.verify()).faults)
        print("world  ", ", ".join(world()))
        return script.returncode or 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main("--auto" in sys.argv)))
