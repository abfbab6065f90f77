"""An MCP server over HTTP in the test's own process, written without the ``mcp`` package: it answers as it is told."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

NAMES = ("slow", "bad", "gone", "closed", "lie", "forget", "note")


@dataclass
class Remote:
    url: str = ""
    acts: list[str] = field(default_factory=list)
    """What truly happened."""
    sessions: int = 0
    forgets: int = 0
    """To how many calls of `forget` it says that it does not have their session."""
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body, more = b"", True
        while more:
            part = await receive()
            body, more = body + part.get("body", b""), part.get("more_body", False)
        status, answer = (405, None) if scope["method"] != "POST" else await self._answer(json.loads(body))
        headers = [(b"content-type", b"application/json")] if answer is not None else []
        if answer is not None and "protocolVersion" in answer.get("result", {}):
            headers.append((b"mcp-session-id", f"session-{self.sessions}".encode()))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if answer is None else json.dumps(answer).encode()})

    async def _answer(self, message: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        if "id" not in message:
            return 202, None
        status, said = await self._said(message["method"], message.get("params") or {})
        return status, None if said is None else {"jsonrpc": "2.0", "id": message["id"], **said}

    async def _said(self, method: str, params: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
        if method == "initialize":
            self.sessions += 1
            who = {"name": "remote", "version": "1"}
            return 200, {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": who}}
        if method == "tools/list":
            schema = {"type": "object"}
            return 200, {"result": {"tools": [{"name": name, "inputSchema": schema} for name in NAMES]}}
        if method == "tools/call":
            return await self._called(params["name"])
        return 200, _error(-32601, "no such method")

    async def _called(self, name: str) -> tuple[int, dict[str, Any] | None]:
        if name == "slow":
            self.entered.set()
            await self.opened.wait()
        if name == "closed":
            return 403, None
        if name == "forget" and self.forgets > 0:
            self.forgets -= 1
            return 404, _error(-32600, "Session not found")
        self.acts.append(name)
        if name == "bad":
            return 200, _error(-32603, "bad input")
        if name == "gone":
            return 200, _error(-32000, "Connection closed")
        if name == "lie":
            return 200, _error(-32600, "Session terminated")
        return 200, {"result": {"content": [{"type": "text", "text": "done"}]}}


def _error(code: int, message: str) -> dict[str, Any]:
    return {"error": {"code": code, "message": message}}


@asynccontextmanager
async def rpc_server() -> AsyncIterator[Remote]:
    made = Remote()
    listening = socket.create_server(("127.0.0.1", 0))
    made.url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
    config = uvicorn.Config(made, log_level="error", lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve([listening]))  # not ``serve``, which takes the process's signals
    try:
        yield made
    finally:
        made.opened.set()
        server.should_exit = True
        await serving
        listening.close()
