"""mcp-server-sqlite of the registry, on the protocol package that is installed here.

    python sqlite_server.py --db-path PATH

Its newest release registers its handlers with decorators that the second version of the ``mcp`` package does not have, and
would not start. Its code runs unchanged: only the decorators are given back to it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import mcp.types as types
import mcp_server_sqlite.server as sqlite  # type: ignore[import-untyped]
from mcp.server.lowlevel import Server


class Decorated:
    """``Server`` of the first version, as far as mcp-server-sqlite uses it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._handlers: dict[str, Any] = {}

    def __getattr__(self, verb: str) -> Any:
        def register(handler: Any) -> Any:
            self._handlers[verb] = handler
            return handler

        return lambda: register

    def get_capabilities(self, **_: Any) -> types.ServerCapabilities:
        return types.ServerCapabilities(tools=types.ToolsCapability(list_changed=False))

    async def run(self, read: Any, write: Any, options: Any, **_: Any) -> None:
        async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
            return types.ListToolsResult(tools=await self._handlers["list_tools"]())

        async def call_tool(_: Any, params: Any) -> types.CallToolResult:
            content = await self._handlers["call_tool"](params.name, params.arguments)
            return types.CallToolResult(content=content)

        served = Server(self._name, version="2025.4.25", on_list_tools=list_tools, on_call_tool=call_tool)
        await served.run(read, write, served.create_initialization_options())


if __name__ == "__main__":
    sqlite.Server = Decorated
    sqlite.InitializationOptions = lambda **_: None
    asyncio.run(sqlite.main(sys.argv[sys.argv.index("--db-path") + 1]))
