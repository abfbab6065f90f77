"""The MCP servers of a worker beside the database: started with it, announced, and stopped with it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Protocol
from uuid import UUID
from weakref import WeakKeyDictionary

import structlog

from cortex_plane.agents import store as agents_store
from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import CortexError
from cortex_plane.mcp_client.servers import McpServer
from cortex_plane.worker.mcp.connection import McpConnection, wait_until_settled
from cortex_plane.worker.mcp.remote_tool import RemoteTool, recall_tools
from cortex_plane.worker.tools.app import App

log = structlog.get_logger()

TELL_AGAIN_SECONDS = 5.0

_connections: WeakKeyDictionary[App, dict[str, McpConnection]] = WeakKeyDictionary()
"""One for each server and process, whatever runs in it."""


class ToolServers(Protocol):
    """What keeps the MCP servers of a worker's apps, wherever they run."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """For as long as the worker runs."""

    def tell(self, worker_id: UUID) -> None:
        """From now on, how they are is written down. The worker is registered."""


class Servers:
    def __init__(self, db: Database, apps: Sequence[App]) -> None:
        self._db = db
        self._worker_id: UUID | None = None
        self._apps = [app for app in apps if app.mcp_servers]
        self._started: list[tuple[App, McpConnection]] = []
        self._changed = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """For as long as the worker runs, and no longer, however it ends. Raises ``SetupError`` where a secret is missing. A server
        that does not come up is tried on, in the background."""
        try:
            for app in self._apps:
                connections = _connections.setdefault(app, {})
                for server in app.mcp_servers.values():
                    connection = connections.setdefault(server.name, McpConnection(server))
                    await self._recall(app, connection)
                    connection.start(partial(self._offer, app, connection), self._changed.set)
                    self._started.append((app, connection))
            await wait_until_settled(connection for _, connection in self._started)
            yield
        finally:
            await self._stop()

    def tell(self, worker_id: UUID) -> None:
        """From now on, how they are is written down. The worker is registered."""
        if self._started:
            self._worker_id = worker_id
            self._changed.set()
            self._telling = asyncio.create_task(self._tell(worker_id))

    async def _stop(self) -> None:
        connections, self._started = self._started, []
        await asyncio.gather(*(connection.stop(self._changed.set) for _, connection in connections))
        if self._telling is not None and self._worker_id is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
            self._telling = None
            with contextlib.suppress(CortexError):
                await agents_store.forget_tool_servers(self._db, self._worker_id)

    async def _recall(self, app: App, connection: McpConnection) -> None:
        """What waits for its tools waits on while the server is down, and is not mistaken for changed code."""
        server = connection.server
        if not _tools_of(app, server):
            versions = await agents_store.list_server_tools(self._db, app.name, server.name)
            app.offer(server.name, recall_tools(connection, server, versions))

    async def _offer(self, app: App, connection: McpConnection, tools: Sequence[RemoteTool]) -> None:
        """Published first: whoever is asked about a call can look its tool up."""
        server = connection.server
        for version in await agents_store.publish_tools(self._db, [tool.version(app.name) for tool in tools]):
            log.warning("tool_changed", app=app.name, tool=version.name, digest=version.digest, server=server.name)
        for name in sorted(_tools_of(app, server) - {tool.name for tool in tools}):
            log.warning("tool_gone", app=app.name, tool=name, server=server.name)
        app.offer(server.name, tools)

    async def _tell(self, worker_id: UUID) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                for app, connection in self._started:
                    server, reason = connection.server, connection.reason or None
                    tools = len(_tools_of(app, server))
                    await agents_store.record_tool_server(
                        self._db, app.name, server.name, worker_id, connection.state, reason, tools
                    )
            except CortexError as error:
                log.warning("mcp servers not told about", error=str(error))
                self._changed.set()
                await asyncio.sleep(TELL_AGAIN_SECONDS)


def _tools_of(app: App, server: McpServer) -> set[str]:
    return {tool.name for tool in app.tools.values() if isinstance(tool, RemoteTool) and tool.server is server}
