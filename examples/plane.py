"""What the examples share: a plane to run on, which model answers, an outside world, and telling what a job does."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

from cortex_plane import AgentDraft, Client, CortexError, ModelConfig, ToolContext
from cortex_plane.agents.model.agents import AgentChange
from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.client.access import plane_home, read_access
from cortex_plane.jobs.model.jobs import Job
from cortex_plane.kernel.errors import AlreadyExists
from cortex_plane.policies.model.versions import PolicyFile

ROOT = Path(__file__).parent.parent
Decide = Callable[[Client, Approval], Awaitable[object]]


def model(prompt: str, script: Any) -> ModelConfig:
    """Claude; where only OPENAI_API_KEY is set, GPT. Without a key the script answers, and every step says so."""
    openai = "OPENAI_API_KEY" in os.environ and "ANTHROPIC_API_KEY" not in os.environ
    name = os.environ.get("EXAMPLE_MODEL") or ("openai:gpt-5-mini" if openai else "anthropic:claude-sonnet-4-5")
    return ModelConfig(model=name, system_prompt=prompt, stand_in="script", script=script)


@contextlib.contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[bytes]]:
    """`cortex …` beside us, for as long as the block runs."""
    with Path(os.environ["EXAMPLE_FOLDER"], f"{words[0]}.log").open("a") as log:
        command = (sys.executable, "-m", "cortex_plane", *words)
        started = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


@contextlib.contextmanager
def folder() -> Iterator[None]:
    """For everything that an example leaves behind, and for the plane, unless CORTEX_URL and CORTEX_KEY name one."""
    with tempfile.TemporaryDirectory(prefix="cortex-example-") as name:
        Path(name).chmod(0o755)  # PostgreSQL runs as a user without rights where we are root
        os.environ["EXAMPLE_FOLDER"] = name
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what we started ends with us
        if "CORTEX_URL" not in os.environ:
            os.environ.update({"CORTEX_HOME": f"{name}/.cortex", "CORTEX_PORT": "0"})
        yield


@contextlib.asynccontextmanager
async def plane(*apps: str) -> AsyncIterator[Client]:
    """A plane of our own with a worker that has these apps; or a worker alone, for the plane that CORTEX_URL names."""
    loads = [f"--app={app}" for app in apps]
    words = ["up", *loads] if "CORTEX_URL" not in os.environ else ["worker", *loads]
    print("starting a plane …" if words[0] == "up" else "starting a worker …", flush=True)
    with folder(), process(*words) as started:
        await _answers(started, words[0])
        async with Client.here() as client:
            yield client


def access() -> dict[str, str]:
    """How others reach the plane."""
    kept = read_access(plane_home()) if "CORTEX_URL" not in os.environ else {}
    return {f"CORTEX_{name.upper()}": value for name, value in kept.items()}


async def _answers(started: subprocess.Popen[bytes], log: str) -> None:
    while started.poll() is None:
        with contextlib.suppress(CortexError):
            async with Client.here() as client:
                await client.me()
                return
        await asyncio.sleep(0.1)
    raise SystemExit(await asyncio.to_thread(Path(os.environ["EXAMPLE_FOLDER"], f"{log}.log").read_text))


async def prepare(plane: Client, agent: AgentDraft, policies: Path | None = None) -> None:
    """The agent as it is now, and its policies; an org on a plane that was there before keeps its own."""
    try:
        await plane.agents.create(agent)
    except AlreadyExists:
        change = AgentChange(model_config=agent.model_config, skill_config=agent.skill_config)
        await plane.agents.update(agent.slug, change)
    if policies is not None and "CORTEX_URL" not in os.environ:
        await plane.policies.apply(PolicyFile(text=await asyncio.to_thread(policies.read_text)))


async def follow(plane: Client, job_id: UUID, decide: Decide) -> Job:
    """Tell what a job does until it ends; ``decide`` is called when it asks somebody."""
    answers = None
    async for event in plane.jobs.events(job_id):
        said = event.data
        if said.get("model", answers) != answers:
            answers = said["model"]
            print(f"model   {answers}", flush=True)
        match event.type:
            case "message" if said["role"] == "assistant":
                print(f"agent   {said.get('text')}", flush=True)
            case "tool_result":
                print(f"tool    {said['tool']}: {said['status']}", flush=True)
            case "approval_requested":
                await decide(plane, (await plane.approvals.get(UUID(said["approval_id"]))).approval)
            case "worker_lost":
                print(f"lost    worker {said['worker']}: another one takes the job over", flush=True)
            case "error":
                print(f"error   {said['message']}", flush=True)
    return await plane.jobs.get(job_id)


async def until(seen: Callable[[], bool]) -> None:
    while True:
        if await asyncio.to_thread(seen):
            return
        await asyncio.sleep(0.1)


async def ask(plane: Client, card: Approval) -> None:
    """Say where somebody decides. Nothing waits for it but the job."""
    link = await plane.members.login_link()
    home = f"CORTEX_HOME={os.environ['CORTEX_HOME']} " if "CORTEX_HOME" in os.environ else ""
    print(f"waits   {card.tool_name} {card.arguments} needs a person ({card.rule})")
    print(f"        in the browser: {plane.url}{link.url_path}")
    print(f"        in a terminal:  {home}{Path(sys.executable).parent}/cortex approval approve {card.id}", flush=True)


async def approve(plane: Client, card: Approval) -> None:
    """With --auto the example decides for you."""
    await ask(plane, card)
    await plane.approvals.approve(card)
    print("you     approve it (--auto)", flush=True)


# The outside world: a file to which tools append what they did -----------------------------------------------------------


def did(ctx: ToolContext, what: str) -> None:
    """A tool acts. Whoever acts twice with the same key has acted once, as a good API would have it."""
    line = f"{ctx.idempotency_key} {what}\n"
    if line not in _world().read_text():
        with _world().open("a") as file:
            file.write(line)


def noted(what: str) -> int:
    """Something was done that may be done again; how often it was."""
    with _world().open("a") as file:
        file.write(f"- {what}\n")
    return world().count(what)


def world() -> list[str]:
    return [line.partition(" ")[2] for line in _world().read_text().splitlines()]


def _world() -> Path:
    path = Path(os.environ["EXAMPLE_FOLDER"], "world.txt")
    path.touch()
    return path
