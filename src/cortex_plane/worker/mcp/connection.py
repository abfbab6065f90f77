"""The MCP servers of a worker: started with it, announced, called, and stopped with it. `McpLink` keeps each one connected."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import WeakKeyDictionary

import structlog

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.tools import ToolError, trouble
from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import CortexError
from cortex_plane.mcp_client.connection import McpLink, SessionOver, list_tools
from cortex_plane.mcp_client.servers import McpServer
from cortex_plane.worker.mcp.remote_tool import RemoteTool, as_json, error_text, recall_tools, usable_tools
from cortex_plane.worker.tools.app import App

if TYPE_CHECKING:
    from mcp import Client


log = structlog.get_logger()

WAIT_SECONDS = 5.0
"""How long a call waits for a server that is on its way back."""
SETTLE_SECONDS = 10.0
"""A worker waits so long for its servers before it begins without those that are not up."""
TELL_AGAIN_SECONDS = 5.0

Offer = Callable[[Sequence[RemoteTool]], Awaitable[None]]


class McpConnection:
    """``start`` and ``stop`` any number of times; it runs while anybody needs it."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self._users: list[tuple[Offer, Callable[[], None]]] = []
        self._link = McpLink(server, self._read, self._tell)
        self._digests: dict[str, str] | None = None

    @property
    def state(self) -> str:
        return self._link.state

    @property
    def reason(self) -> str:
        return self._link.reason

    @property
    def settled(self) -> asyncio.Event:
        return self._link.settled

    def start(self, offer: Offer, on_change: Callable[[], None]) -> None:
        """Raises ``SetupError`` where a secret is missing."""
        self.server.redaction()
        self._users.append((offer, on_change))
        if len(self._users) == 1:
            self._link.start()

    async def stop(self, on_change: Callable[[], None]) -> None:
        """``on_change``: as it was started with."""
        self._users = [user for user in self._users if user[1] != on_change]
        if not self._users:
            await self._link.stop("the worker stops")

    def _tell(self) -> None:
        for _, on_change in self._users:
            on_change()

    async def _read(self, client: Client) -> None:
        info = client.server_info
        implementation = f"{info.name} {info.version}"[:200] if info is not None else ""
        redaction = self._link.redaction
        tools, reasons = usable_tools(self, self.server, implementation, await list_tools(client), redaction)
        for why in reasons[:20]:
            log.warning("mcp tool skipped", server=self.server.name, tool=redaction.text(why))
        digests = {tool.remote_name: tool.digest for tool in tools}
        if self._digests is not None and digests != self._digests:
            self._link.count_change()
        if digests != self._digests or not self._link.is_up:
            # Known to the database before anybody may call them.
            for offer, _ in list(self._users):
                await offer(tools)
            self._digests = digests
            self._tell()

    async def call(self, tool: RemoteTool, values: Mapping[str, Any], key: str) -> Any:
        try:
            result = await self._send(tool, values, key)
        except SessionOver:
            # It was restarted elsewhere and began nothing: the same call goes to the new session, once.
            result = await self._send(tool, values, key)
        if not hasattr(result, "content"):
            raise _known_failure(tool, "did not finish", "it asks its caller for more, which nobody here answers.")
        if result.is_error:
            raise _known_failure(tool, "failed", error_text(result, self._link.redaction))
        return as_json(result, self._link.redaction)

    async def _send(self, tool: RemoteTool, values: Mapping[str, Any], key: str) -> Any:
        # A server on its way back is waited for, within the time of the call, so that its end is never mistaken.
        is_up = await self._link.wait_until_up(min(WAIT_SECONDS, tool.timeout_seconds / 2))
        if is_up and not self._offers(tool):
            raise ToolError(
                f"`{tool.name}` was changed by its server since this call was made; it was not sent.",
                hint="Call it again: it is looked at as it is now.",
            )
        return await self._link.request(tool.name, tool.remote_name, values, key)

    def _offers(self, tool: RemoteTool) -> bool:
        return (self._digests or {}).get(tool.remote_name) == tool.digest

    async def obstacle(self, tool: RemoteTool) -> str | None:
        """Why this cannot be sent to it, after it was waited for."""
        if not await self._link.wait_until_up(WAIT_SECONDS):
            return f"the MCP server `{self.server.name}` is {self.state}: {trouble(self.reason) or 'not ready yet'}"
        return None if self._offers(tool) else f"`{tool.name}` has just been changed by its server"


def _known_failure(tool: RemoteTool, how: str, reason: str) -> ToolError:
    """The end of the call is known. What it did before is not: the protocol promises nothing about it."""
    if tool.read_only:
        return ToolError(f"`{tool.name}` {how}: {reason}", hint="Correct the call, or go another way.")
    message = f"`{tool.name}` {how}; it may have acted in part: {reason}"
    return ToolError(message, hint="Look at what it did before you call it again.")


_connections: WeakKeyDictionary[App, dict[str, McpConnection]] = WeakKeyDictionary()
"""One for each server and process, whatever runs in it."""


class Servers:
    def __init__(self, db: Database, worker_id: UUID, apps: Sequence[App]) -> None:
        self._db, self._worker_id = db, worker_id
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
            if waiting := [asyncio.create_task(connection.settled.wait()) for _, connection in self._started]:
                _, late = await asyncio.wait(waiting, timeout=SETTLE_SECONDS)
                for task in late:
                    task.cancel()
            yield
        finally:
            await self._stop()

    def tell(self) -> None:
        """From now on, how they are is written down. The worker is registered."""
        if self._started:
            self._changed.set()
            self._telling = asyncio.create_task(self._tell())

    async def _stop(self) -> None:
        connections, self._started = self._started, []
        await asyncio.gather(*(connection.stop(self._changed.set) for _, connection in connections))
        if self._telling is not None:
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

    async def _tell(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                for app, connection in self._started:
                    server, reason = connection.server, connection.reason or None
                    tools = len(_tools_of(app, server))
                    await agents_store.record_tool_server(
                        self._db, app.name, server.name, self._worker_id, connection.state, reason, tools
                    )
            except CortexError as error:
                log.warning("mcp servers not told about", error=str(error))
                self._changed.set()
                await asyncio.sleep(TELL_AGAIN_SECONDS)


def _tools_of(app: App, server: McpServer) -> set[str]:
    return {tool.name for tool in app.tools.values() if isinstance(tool, RemoteTool) and tool.server is server}
