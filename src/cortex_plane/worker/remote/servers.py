"""The MCP servers of a remote worker's apps: they run beside it, and what they offer is told to the plane."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from cortex_plane.jobs.model.remote_work import OfferedServer, OfferedServerTool, ServerChange, ServerState
from cortex_plane.worker.mcp.connection import McpConnection, wait_until_settled
from cortex_plane.worker.mcp.remote_tool import RemoteTool
from cortex_plane.worker.tools.app import App

MAX_REASON = 500


class _AppServer:
    """One server, and what the plane was told of it last."""

    def __init__(self, app: App, connection: McpConnection, changed: asyncio.Event) -> None:
        self.app, self.connection = app, connection
        self._changed = changed
        self._tools: list[RemoteTool] | None = None
        self._report: tuple[ServerState, str, list[RemoteTool] | None] | None = None

    def start(self) -> None:
        self.connection.start(self._offer, self._changed.set)

    async def stop(self) -> None:
        await self.connection.stop(self._changed.set)

    async def _offer(self, tools: Sequence[RemoteTool]) -> None:
        self.app.offer(self.connection.server.name, tools)
        self._tools = [tool for tool in tools if self.app.tools.get(tool.name) is tool]
        self._changed.set()

    def offer(self) -> OfferedServer:
        server = self.connection.server
        self._report = state, reason, tools = self._current
        return OfferedServer(
            name=server.name, command=list(server.command), url=server.url, timeout_seconds=server.timeout_seconds,
            risk=server.risk, declares_risk=server.declares_risk, on_uncertain=server.on_uncertain, state=state,
            reason=reason, tools=None if tools is None else [_offered_tool(tool) for tool in tools],
        )  # fmt: skip

    def take_change(self) -> ServerChange | None:
        before, self._report = self._report, self._current
        if before == self._report:
            return None
        state, reason, tools = self._report
        has_other_tools = tools is not None and (before is None or before[2] is not tools)
        return ServerChange(
            app=self.app.name, name=self.connection.server.name, state=state, reason=reason,
            tools=[_offered_tool(tool) for tool in tools or ()] if has_other_tools else None,
        )  # fmt: skip

    @property
    def _current(self) -> tuple[ServerState, str, list[RemoteTool] | None]:
        return ServerState(self.connection.state), self.connection.reason[:MAX_REASON], self._tools


def _offered_tool(tool: RemoteTool) -> OfferedServerTool:
    return OfferedServerTool(
        remote_name=tool.remote_name, description=tool.description, parameters=tool.parameters, hints=tool.hints,
        implementation=tool.implementation,
    )  # fmt: skip


class AppServers:
    """All MCP servers of the apps that a remote worker loaded."""

    def __init__(self, apps: Sequence[App]) -> None:
        self.changed = asyncio.Event()
        """What they offer, or how they are, is not as the plane was told."""
        self._servers = [
            _AppServer(app, McpConnection(server), self.changed) for app in apps for server in app.mcp_servers.values()
        ]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises ``SetupError`` where a secret is missing. A server that does not come up is tried on, in the background."""
        servers: list[_AppServer] = []
        try:
            for server in self._servers:
                server.start()
                servers.append(server)
            await wait_until_settled(server.connection for server in servers)
            yield
        finally:
            await asyncio.gather(*(server.stop() for server in servers))

    def offers(self, app: App) -> list[OfferedServer]:
        """As they are now: the plane is about to be told."""
        return [server.offer() for server in self._servers if server.app is app]

    def take_changes(self) -> list[ServerChange]:
        """What the plane has not been told yet."""
        return [change for server in self._servers if (change := server.take_change()) is not None]
