"""The examples of each adapter: how far they are from the plain agents, and that they go on in another process."""

from __future__ import annotations

import asyncio
import difflib
import re
import signal
import sys
from pathlib import Path

import pytest

from cortex_plane import AgentDraft, ModelConfig
from cortex_plane.agents import verbs as agents
from tests.client.test_authorization import server
from tests.client.test_guard import decide_soon, ledger
from tests.fixtures.apart import Apart
from tests.fixtures.people import World

__all__ = ["server"]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "frameworks"
FRAMEWORKS = ("langchain", "pydantic_ai", "openai_agents")
DIES = """
import os, signal
from examples.frameworks import {framework}_parts as parts
pay = parts.pay
def pay_and_die(order, cents):
    pay(order, cents)
    os.kill(os.getpid(), signal.SIGKILL)
parts.pay = pay_and_die
"""
RUNS = """
from examples.frameworks.{framework}_{kind} import main
main("Refund A-1")
"""


async def run(folder: Path, access: dict[str, str], code: str) -> tuple[int | None, str]:
    """Each run is a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, cwd=folder, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", **access},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.fixture(params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def access_of(server: Apart, world: World) -> dict[str, str]:
    draft = AgentDraft(
        name="Support", slug="support", role="Support", team="main", model_config=ModelConfig(model="scripted")
    )
    await agents.create_agent(world.db, world.admin.actor, draft)
    assert world.service.secret is not None
    return {"CORTEX_URL": server.url, "CORTEX_KEY": world.service.secret}


@pytest.mark.proves("D.946")
def test_the_plane_costs_five_lines_and_the_page_shows_them(framework: str) -> None:
    plain, guarded = ((EXAMPLES / f"{framework}_{kind}.py").read_text() for kind in ("plain", "guarded"))
    lines = list(difflib.unified_diff(plain.splitlines(), guarded.splitlines(), lineterm="", n=0))[2:]
    changes = [line for line in lines if not line.startswith("@@")]
    assert 0 < sum(line.startswith("+") and line != "+" for line in changes) <= 5
    page = (ROOT / "docs" / "guides" / f"{framework.replace('_', '-')}.md").read_text()
    shown = re.search(r"```diff\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert shown[1].splitlines() == changes


@pytest.mark.proves("D.946")
async def test_an_example_waits_goes_on_in_another_process_and_acts_once(
    server: Apart, strict: World, framework: str, tmp_path: Path
) -> None:
    access = await access_of(server, strict)
    plain, guarded = (RUNS.format(framework=framework, kind=kind) for kind in ("plain", "guarded"))
    (tmp_path / "plain").mkdir()
    (_, paid), (code, waits) = await asyncio.gather(run(tmp_path / "plain", {}, plain), run(tmp_path, access, guarded))
    assert paid == "500 cents for A-1 were paid back.\n"
    assert (code, "/approvals/" in waits, (tmp_path / "bank.txt").exists()) == (0, True, False), waits
    await decide_soon(strict)
    # Another process runs what was approved, and dies before it can say so.
    code, output = await run(tmp_path, access, DIES.format(framework=framework) + guarded)
    assert code == -signal.SIGKILL, output
    code, output = await run(tmp_path, access, guarded)
    assert (code, "'in_doubt': True" in output) == (0, True), output
    assert (tmp_path / "bank.txt").read_text() == "500 for A-1\n"
    assert [call.status for call in await ledger(strict)] == ["intended"]
