"""Connections to servers that misbehave, without a worker around them."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from cortex_plane.worker.mcp.connection import McpConnection
from cortex_plane.worker.mcp.remote_tool import RemoteTool
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent


def hostile(app: App, folder: Path, name: str = "hostile", **more: Any) -> None:
    app.mcp_server(name, command=[sys.executable, "-I", "-S", str(HERE / "hostile.py"), str(folder)], **more)


def sqlite(app: App, database: Path, name: str = "files", **more: Any) -> None:
    app.mcp_server(name, command=[sys.executable, str(HERE / "sqlite_server.py"), "--db-path", str(database)], **more)


def log_of(folder: Path) -> list[str]:
    """What truly happened."""
    kept = folder / "log.txt"
    return kept.read_text().splitlines() if kept.exists() else []


@dataclass
class Spoken:
    connection: McpConnection
    tools: dict[str, RemoteTool] = field(default_factory=dict)
    lists: int = 0

    async def offer(self, tools: Sequence[RemoteTool]) -> None:
        self.tools = {tool.remote_name: tool for tool in tools}
        self.lists += 1

    def told(self) -> None:
        pass

    async def call(self, name: str, **values: Any) -> Any:
        return await self.connection.call(self.tools[name], values, "key-1")


@asynccontextmanager
async def spoken(app: App, name: str = "hostile") -> AsyncIterator[Spoken]:
    """A connection that was tried once, for as long as the block runs."""
    made = Spoken(McpConnection(app.mcp_servers[name]))
    made.connection.start(made.offer, made.told)
    try:
        await made.connection.settled.wait()
        yield made
    finally:
        await made.connection.stop(made.told)


def context() -> ToolContext:
    """A call that belongs to no job."""
    nobody = UUID(int=0)
    return ToolContext(
        org_id=nobody, session_id=nobody, job_id=nobody, agent_id=nobody, invocation_id=UUID(int=1), step=0, attempt=1
    )  # fmt: skip
