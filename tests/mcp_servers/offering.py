"""An MCP server over HTTP in the test's own process, with tools, resources and prompts, that changes what it offers when it is told to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import mcp_types as types
import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel


class Sum(BaseModel):
    total: int


@dataclass
class Offering:
    url: str
    server: MCPServer
    acts: list[tuple[str, Any]] = field(default_factory=list)
    """What truly happened, with the idempotency key."""
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)
    headers: list[str | None] = field(default_factory=list)
    """The `Authorization` of each request."""


def _server(offering: Offering) -> MCPServer:
    server = offering.server

    @server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
    def add(a: int, b: int) -> Sum:
        """Add two numbers."""
        return Sum(total=a + b)

    @server.tool()
    async def pay(cents: int, ctx: Context[Any]) -> str:
        """Pay."""
        meta = dict(ctx.request_context.meta or {})
        offering.acts.append((f"pay {cents}", meta.get("cortex-plane/idempotency-key")))
        return f"paid {cents}"

    @server.tool()
    async def slow() -> str:
        """Take as long as it is told to."""
        offering.acts.append(("slow", None))
        offering.entered.set()
        await offering.opened.wait()
        return "done at last"

    @server.tool()
    def late() -> str:
        """Be offered later."""
        return "late"

    @server.resource("memo://today")
    def memo() -> str:
        return "milk"

    @server.prompt()
    def greet(name: str) -> str:
        return f"Greet {name}."

    server.remove_tool("late")
    return server


@asynccontextmanager
async def serving(app: Any, listener: socket.socket) -> AsyncIterator[None]:
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", timeout_graceful_shutdown=1))
    task = asyncio.create_task(server._serve([listener]))  # not ``serve``, which takes the process's signals
    try:
        yield
    finally:
        server.should_exit = True
        await task
        listener.close()


@asynccontextmanager
async def offering_server() -> AsyncIterator[Offering]:
    listener = socket.create_server(("127.0.0.1", 0))
    offering = Offering(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", MCPServer("offering", version="1"))
    server = _server(offering)
    inner = server.streamable_http_app()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        offering.headers.append(dict(scope["headers"]).get(b"authorization", b"").decode() or None)
        await inner(scope, receive, send)

    async with server.session_manager.run(), serving(app, listener):
        yield offering
