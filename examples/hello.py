"""Two tools, an agent, and a job that asks before it acts. Run it while `make up` runs."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

from cortex_plane import AgentDraft, App, Client, JobDraft, ModelConfig, ToolContext

app = App("hello", instructions="You ship releases. Read before you act.")


@app.tool(read_only=True)
async def read_changelog(version: str) -> list[str]:
    """What changed in a version."""
    return [f"{version} resumes where it stopped", "no side effect is repeated"]


@app.tool(risk="high", timeout=5, on_uncertain="retry_with_key")
def ship(version: str, ctx: ToolContext) -> str:
    """Ship a version. A second call with the same key changes nothing."""
    Path(f"{ctx.idempotency_key}.shipped").write_text(version)
    return f"{version} is out"


# The scripted model follows a script instead of asking a provider, so this needs no key.
SCRIPT: Any = [
    {"text": "I read first.", "calls": [{"tool": "read_changelog", "arguments": {"version": "2.4"}}]},
    {"text": "Now I ship it.", "calls": [{"tool": "ship", "arguments": {"version": "2.4"}}]},
    {"text": "Done: {result}."},
]
NAMES: Any = {"name": "Hello", "slug": "hello", "role": "DevOps", "team": "main"}
MODEL = ModelConfig(model="scripted", script=SCRIPT)
AGENT = AgentDraft(**NAMES, model_config=MODEL, skill_config={"app": app.name})


async def main() -> None:
    command = (sys.executable, "-m", "cortex_plane", "worker", "--app", "examples.hello:app")
    worker = await asyncio.create_subprocess_exec(*command, stdout=subprocess.DEVNULL)
    try:
        async with Client() as plane:
            await plane.agents.create(AGENT, idempotency_key="hello-agent")
            job = await plane.jobs.submit(JobDraft(agent="hello", payload={"text": "Ship 2.4"}))
            async for card in plane.approvals.watch(job.id):
                yes = await asyncio.to_thread(input, f"{card.tool_name} {card.arguments}? [y/n] ") == "y"
                await (plane.approvals.approve if yes else plane.approvals.deny)(card)
            job = await plane.jobs.wait(job.id)
            async for step in plane.jobs.steps(job.id):
                print(step.text, [(call.tool_name, call.result) for call in step.calls])
            print(job.status, "· audit whole:", (await plane.audit.verify()).faults == [])
    finally:
        worker.terminate()
        await worker.wait()


if __name__ == "__main__":
    asyncio.run(main())
