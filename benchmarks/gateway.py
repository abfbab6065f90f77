"""A call of a tool through the MCP gateway, against the same call of the same server without it: what the plane costs an agent that speaks MCP.

The server does nothing. Client, gateway, server and API are processes of their own; all pipes are local. The gateway asks the API twice for each
call: may it, with the intent, and then the outcome.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

from mcp import Client, StdioServerParameters
from mcp.server import MCPServer

from benchmarks.goals import goal, table
from benchmarks.ingest import serve
from benchmarks.peers.databases import fresh_database
from benchmarks.plane import plane
from cortex_plane.tenancy.verbs import keys

DIRECT, THROUGH = "direct", "through the gateway"
HERE = Path(__file__).parent
SERVER = [sys.executable, str(HERE / "gateway.py")]


def act(number: int) -> str:
    """Do nothing."""
    return f"did {number}"


@asynccontextmanager
async def _client(command: list[str], **environment: str) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(command=command[0], args=command[1:], env={**os.environ, **environment})
    async with Client(parameters, cache=None) as client:
        await client.list_tools()
        yield client


def _write_file(folder: Path, agent: str) -> Path:
    file = folder / "cortex-mcp.toml"
    file.write_text(f'agent = "{agent}"\n[servers.bench]\ncommand = {SERVER!r}\nenv = ["PYTHONPATH"]\n')
    return file


async def run(admin_url: str, *, rounds: int = 5, count: int = 200) -> bool:
    async with fresh_database(admin_url, "gateway") as url, plane(url) as made:
        secret = str(await keys.issue_key_for_owner(made.db))
        agent = await made.agent(f"elsewhere-{uuid4().hex[:8]}", [])
        server, port = await serve(made.app_url)
        with tempfile.TemporaryDirectory() as folder:
            file = _write_file(Path(folder), agent.slug)
            gateway = [sys.executable, "-m", "cortex_plane", "mcp", "--file", str(file)]
            place = {"CORTEX_URL": f"http://127.0.0.1:{port}", "CORTEX_KEY": secret, "PYTHONPATH": str(HERE.parent)}
            try:
                async with _client(SERVER, PYTHONPATH=str(HERE.parent)) as direct, _client(gateway, **place) as through:
                    taken = await _measure({DIRECT: (direct, "act"), THROUGH: (through, "bench__act")}, rounds, count)
            finally:
                server.terminate()
                await server.wait()
    return _print({name: statistics.median(seconds) * 1e3 for name, seconds in taken.items()})


async def _measure(rivals: dict[str, tuple[Client, str]], rounds: int, count: int) -> dict[str, list[float]]:
    """The seconds of each call. In turn, so that a slow moment of the machine meets both."""
    taken = dict[str, list[float]]({name: [] for name in rivals})
    for turn in range(rounds + 1):
        for name, (client, tool) in rivals.items():
            for number in range(count):
                began = time.perf_counter()
                result = await client.call_tool(tool, {"number": turn * count + number})
                if turn:  # the first turn warms up
                    taken[name].append(time.perf_counter() - began)
                if result.is_error:
                    raise RuntimeError(result.content)
    return taken


def _print(medians: dict[str, float]) -> bool:
    title = "a call of an MCP tool, p50"
    print(f"\n{title:44}{'ms':>10}")
    for name, median in medians.items():
        print(f"{'  ' + name:44}{median:>10.2f}")
    table(title, "ms", medians)
    return goal(
        "MCP gateway where policy allows", "more than direct", medians[THROUGH] - medians[DIRECT], "≤", 3, " ms"
    )


if __name__ == "__main__":
    behind = MCPServer("bench", version="1")
    behind.tool()(act)
    asyncio.run(behind.run_stdio_async())
