"""The examples of each adapter: how far they are from the plain agents, and that they go on in another process."""

from __future__ import annotations

import asyncio
import difflib
import json
import re
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest

from cortex_plane import AgentDraft, ModelConfig
from cortex_plane.agents import verbs as agents
from cortex_plane.client.access import ACCESS_FILE, write_private
from tests.cli.test_cli import Shell
from tests.client.test_authorization import server
from tests.client.test_guard import decide_soon, ledger
from tests.fixtures.apart import Apart
from tests.fixtures.people import World

__all__ = ["server"]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "frameworks"
FRAMEWORKS = ("langchain", "pydantic_ai", "openai_agents", "google_adk", "agent_framework")
EXAMPLE_FILES = [
    *((f"{name}_{{}}.py", f"{name.replace('_', '-')}.md") for name in FRAMEWORKS),
    ("mcp_{}.py", "mcp-gateway.md"),
    ("claude_code_{}.json", "coding-agents.md"),
]
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


def changes_between(plain: str, guarded: str) -> list[str]:
    lines = list(difflib.unified_diff(plain.splitlines(), guarded.splitlines(), lineterm="", n=0))[2:]
    return [line for line in lines if not line.startswith("@@")]


def cost_of(changes: list[str]) -> int:
    """Lines that somebody writes or deletes; one that is changed counts once."""
    written = Counter(line[0] for line in changes if line[1:].strip())
    return max(written["+"], written["-"])


@pytest.mark.proves("D.946")
@pytest.mark.parametrize(("names", "guide"), EXAMPLE_FILES)
def test_the_plane_costs_five_lines_and_the_page_shows_them(names: str, guide: str) -> None:
    plain, guarded = ((EXAMPLES / names.format(kind)).read_text() for kind in ("plain", "guarded"))
    changes = changes_between(plain, guarded)
    page = (ROOT / "docs" / "guides" / guide).read_text()
    shown = re.search(r"```diff\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    assert shown[1].splitlines() == changes
    settings = (EXAMPLES / names.format("guarded")).with_suffix(".toml")
    more = settings.read_text() if settings.exists() else ""
    assert more in page
    assert 0 < cost_of(changes) + len(more.splitlines()) <= 5


@pytest.mark.proves("D.946")
def test_a_sixth_line_counts() -> None:
    plain, five = "a\nb\n", "a\n1\n\n2\n3\n4\n5\nb\n"
    assert [cost_of(changes_between(*texts)) for texts in ((plain, five), (plain, f"{five}6\n"))] == [5, 6]
    assert cost_of(changes_between(five, plain)) == 5
    assert cost_of(changes_between("a\nb\n", "A\nB\n")) == 2


@pytest.mark.proves("D.946")
async def test_the_settings_of_claude_code_are_those_that_the_command_writes(
    server: Apart, world: World, tmp_path: Path
) -> None:
    shell = Shell(tmp_path, await access_of(server, world))
    written = shell.folder / ".claude" / "settings.json"
    written.parent.mkdir()
    written.write_text((EXAMPLES / "claude_code_plain.json").read_text())
    await asyncio.to_thread(shell.run, "hook", "install", "claude", "--command")
    text = written.read_text().replace(server.url, "https://plane.example.org")
    assert json.loads(text) == json.loads((EXAMPLES / "claude_code_guarded.json").read_text())


@pytest.mark.proves("D.946")
async def test_an_mcp_client_waits_goes_on_in_another_process_and_acts_once(
    server: Apart, strict: World, tmp_path: Path
) -> None:
    access = await access_of(server, strict)
    for path in EXAMPLES.glob("mcp_*"):
        shutil.copy(path, tmp_path)
    # As `cortex up` leaves it: a client starts a server with few variables of its own environment.
    (tmp_path / ".cortex").mkdir()
    write_private(tmp_path / ".cortex" / ACCESS_FILE, {"url": access["CORTEX_URL"], "key": access["CORTEX_KEY"]})

    async def call(kind: str) -> str:
        program = f"import runpy, sys; sys.argv = ['agent', 'Refund A-1']; runpy.run_path('mcp_{kind}.py', run_name='__main__')"
        code, output = await run(tmp_path, {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}, program)
        assert code == 0, output
        return output

    assert "500 cents for A-1 were paid back." in await call("plain")
    (tmp_path / "bank.txt").unlink()
    (tmp_path / "mcp_guarded.toml").write_text(f"wait = 0\n{(tmp_path / 'mcp_guarded.toml').read_text()}")
    assert "Pending" in await call("guarded")
    assert not (tmp_path / "bank.txt").exists()
    await decide_soon(strict)
    assert "500 cents for A-1 were paid back." in await call("guarded")
    assert (tmp_path / "bank.txt").read_text() == "500 for A-1\n"
    assert [call.status for call in await ledger(strict)] == ["completed"]


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
