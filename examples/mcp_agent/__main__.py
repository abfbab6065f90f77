"""A steward confirms that one tool of an MCP server only reads; everything else that the server offers needs a person."""

import asyncio
import os
import sys
from pathlib import Path

from cortex_plane import Client, JobDraft
from cortex_plane.agents.model.tools import ConfirmationDraft, ToolVersion
from examples.mcp_agent.agent import AGENT
from examples.plane import approve, ask, follow, plane, prepare


async def published(client: Client, tool: str) -> ToolVersion:
    """Once a worker has started the server and told what it offers."""
    while True:
        for each in await client.tools.list():
            if each.name == tool:
                return each
        await asyncio.sleep(0.2)


async def main(auto: bool) -> int:
    async with plane("examples.mcp_agent.agent:app") as client:
        await prepare(client, AGENT)
        tool = await published(client, "notes.list_notes")
        # A server's own word that a tool is harmless counts for nothing. A steward's does, until the tool changes.
        await client.tool_confirmations.confirm(
            ConfirmationDraft(tool=tool.name, app=tool.app, digest=tool.digest, read_only=True, note="I read its code.")
        )
        print("steward confirms that notes.list_notes only reads", flush=True)
        job = await client.jobs.submit(JobDraft(agent=AGENT.slug, payload={"text": "Note that lamps are sold out."}))
        job = await follow(client, job.id, approve if auto else ask)
        print(f"job     {job.status}")
        print("notes  ", await asyncio.to_thread(Path(os.environ["EXAMPLE_FOLDER"], "notes.txt").read_text), end="")
        return 0 if job.status == "COMPLETED" else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main("--auto" in sys.argv)))
