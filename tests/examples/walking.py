"""Examples as a reader runs them: the command of the README, in a process of its own, on its own plane or on another one."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.fixtures.people import World, apply_policies
from tests.fixtures.servers import MASTER_KEY, available, create_database, drop_database
from tests.fixtures.streams import serving

ROOT = Path(__file__).parent.parent.parent
EXAMPLES = ROOT / "examples"
SECONDS = 120
"""Far more than an example takes: a busy machine is no reason to fail."""
_OURS = ("CORTEX_", "DATABASE_", "EXAMPLE_", "ANTHROPIC_", "OPENAI_")


def command(name: str) -> list[str]:
    """What the README says to type where everything is installed, and how this machine types it."""
    readme = (EXAMPLES / name / "README.md").read_text()
    (typed,) = set(re.findall(r"\.venv/bin/python -m examples\.\S+(?: --\w+)?", readme))
    words = typed.split()
    assert words[1:3] == ["-m", f"examples.{name}"]
    return [sys.executable, *words[1:]]


def environment(**more: str) -> dict[str, str]:
    """As after a fresh clone: no settings, no keys. A proxy of this machine does not serve loopback."""
    return {k: v for k, v in os.environ.items() if not k.startswith(_OURS)} | {"NO_PROXY": "*"} | more


@asynccontextmanager
async def started(*words: str, **more: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *words, cwd=ROOT, env=environment(**more), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


@asynccontextmanager
async def database() -> AsyncIterator[dict[str, str]]:
    """Settings that spare a plane its own PostgreSQL, where that is not what an example is about."""
    server = available()[0]
    name = await create_database(server)
    try:
        yield {"DATABASE_URL": server.app(name), "DATABASE_ADMIN_URL": server.admin(name)}
    finally:
        await drop_database(server, name)


@asynccontextmanager
async def plane(world: World, name: str, database_url: str) -> AsyncIterator[dict[str, str]]:
    """Settings with which an example runs on a plane that is there already: this one, under the example's policies."""
    policies = EXAMPLES / name / "policies.yaml"
    if policies.exists():
        await apply_policies(world.db, world.admin.actor, policies.read_text())
    with tempfile.TemporaryDirectory(prefix="cortex-example-home-") as home:
        async with serving(world.db) as served:
            yield {
                "CORTEX_URL": served.url,
                "CORTEX_KEY": world.admin.secret,
                "CORTEX_HOME": home,
                "CORTEX_MASTER_KEY": MASTER_KEY,
                "DATABASE_URL": database_url,
            }


async def walked(name: str, **more: str) -> str:
    """What an example says from its start to its end, which is a good one."""
    async with asyncio.timeout(SECONDS), started(*command(name), **more) as process:
        out, _ = await process.communicate()
    assert process.returncode == 0, out.decode()
    return out.decode()
