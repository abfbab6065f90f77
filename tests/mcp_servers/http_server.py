"""An MCP server over HTTP, made with the ``mcp`` package, that lets in only whoever has its token.

    python http_server.py PORT DIRECTORY TOKEN      (PORT 0: any; it says which)

What it did is in the directory's ``log.txt``. It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer

HERE, TOKEN = Path(sys.argv[-2]), sys.argv[-1]
server = MCPServer("remote", version="1")


def happened(what: str) -> None:
    with (HERE / "log.txt").open("a") as log:
        log.write(what + "\n")


@server.tool()
def note(text: str) -> str:
    """Write a line."""
    happened(f"note {text}")
    return "noted"


@server.tool()
def leak() -> str:
    """Say what nobody should hear."""
    return f"my token is {TOKEN}"


@server.tool()
def die() -> str:
    """End before the answer."""
    happened("die")
    os._exit(9)


@server.tool()
def huge() -> str:
    """Say too much."""
    happened("huge")
    return "x" * (6 * 1024 * 1024)


@server.tool()
def fail() -> str:
    """Fail, and say so."""
    raise ValueError("this cannot be done")


def guarded(inner: Any) -> Any:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            sent = dict(scope["headers"]).get(b"authorization", b"").decode()
            if sent != f"Bearer {TOKEN}":
                await send({"type": "http.response.start", "status": 401, "headers": []})
                await send({"type": "http.response.body", "body": b"who are you?"})
                return
        await inner(scope, receive, send)

    return application


async def main() -> None:
    listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    config = uvicorn.Config(guarded(server.streamable_http_app()), log_level="error", timeout_graceful_shutdown=1)
    threading.Thread(target=_end_with_input, daemon=True).start()
    await uvicorn.Server(config).serve(sockets=[listening])


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
