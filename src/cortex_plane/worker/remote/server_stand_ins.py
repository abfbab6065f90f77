"""What stands in the plane for the MCP servers beside a remote worker.

The tools are `RemoteTool`s with the declarations that the worker told, so they have the digests, confirmations and calls of any tool of
an MCP server. Nothing is started here: a call is one `Invoke`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Any
from uuid import UUID

import structlog

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.tools import InvalidApp, is_tool_name, trouble
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.remote_work import (
    Invoke,
    InvokeTarget,
    LinkClosed,
    OfferedApp,
    OfferedServer,
    OfferedServerTool,
    ServerCall,
    ServerChange,
    ServerState,
)
from cortex_plane.jobs.verbs.remote_workers import admit_worker
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import CortexError, Unavailable
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.schemas import Unusable
from cortex_plane.mcp_client.servers import WITHOUT_PROBE, McpServer
from cortex_plane.mcp_client.transports import Changes
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.worker.calls import storable
from cortex_plane.worker.mcp.connection import WAIT_SECONDS
from cortex_plane.worker.mcp.remote_tool import RemoteTool, recall_tools
from cortex_plane.worker.mcp.servers import TELL_AGAIN_SECONDS
from cortex_plane.worker.remote.stand_ins import RemoteCalls, read_result, require_returned
from cortex_plane.worker.tools.app import App

log = structlog.get_logger()


class StandInServer:
    """One MCP server beside a remote worker."""

    def __init__(self, calls: RemoteCalls, app: App, offer: OfferedServer) -> None:
        if offer.on_uncertain not in WITHOUT_PROBE:
            raise InvalidApp(f"The worker declares the MCP server `{offer.name}` in a way that no app can.")
        self._calls, self.app = calls, app
        # Never run: its command and its address are a part of what names its tools.
        self.server = McpServer(
            name=offer.name, command=tuple(offer.command), url=offer.url, timeout_seconds=offer.timeout_seconds,
            risk=offer.risk, declares_risk=offer.declares_risk, on_uncertain=offer.on_uncertain,
        )  # fmt: skip
        self.state, self.reason = offer.state, storable(offer.reason)
        self.changes = Changes()
        self._up = asyncio.Event()
        self._digests: dict[str, str] = {}
        self.set_state(offer.state, offer.reason)
        self.is_known = offer.tools is not None
        """It has said what it offers."""
        if offer.tools is not None:
            self.offer(self.make_tools(offer.tools))

    def make_tools(self, offers: Sequence[OfferedServerTool]) -> list[RemoteTool]:
        try:
            tools = [
                RemoteTool(
                    self, self.server, remote_name=offer.remote_name, description=offer.description,
                    schema=offer.parameters, hints=offer.hints, implementation=offer.implementation,
                )
                for offer in offers
            ]  # fmt: skip
        except (Unusable, CortexError) as error:
            raise InvalidApp(f"The MCP server `{self.server.name}` has a tool that no worker offers: {error}") from None
        names = {tool.provider_name for tool in tools}
        if len(names) < len(tools) or not all(is_tool_name(tool.name) for tool in tools):
            raise InvalidApp(f"The MCP server `{self.server.name}` has tools whose names no tool may have, or twice.")
        return tools

    def offers_already(self, tools: Iterable[RemoteTool]) -> bool:
        return self._digests == {tool.name: tool.digest for tool in tools}

    def offer(self, tools: Sequence[RemoteTool]) -> None:
        """From now on jobs call these. They are published."""
        self.app.offer(self.server.name, tools)
        self._digests = {tool.name: tool.digest for tool in tools if self.app.tools.get(tool.name) is tool}

    @property
    def tools(self) -> list[RemoteTool]:
        tools = (self.app.tools[name] for name in self._digests)
        return [tool for tool in tools if isinstance(tool, RemoteTool)]

    def set_state(self, state: ServerState, reason: str) -> None:
        self.state, self.reason = state, storable(reason)
        if state is ServerState.UP:
            self._up.set()
        else:
            self._up.clear()

    async def obstacle(self, tool: RemoteTool) -> str | None:
        """Why this cannot be sent to it, after it was waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WAIT_SECONDS):
                await self._up.wait()
        if self.state is not ServerState.UP:
            return f"the MCP server `{self.server.name}` is {self.state}: {trouble(self.reason) or 'not ready yet'}"
        is_offered = self._digests.get(tool.name) == tool.digest
        return None if is_offered else f"`{tool.name}` has just been changed by its server"

    async def call(
        self, tool: RemoteTool, values: Mapping[str, Any], key: str, last_moment: float | None = None
    ) -> Any:
        server_call = ServerCall(key=UUID(key), digest=tool.digest, read_only=tool.read_only)
        invoke = Invoke(
            id=new_id(), target=InvokeTarget.TOOL, app=self.app.name, name=tool.name, arguments=canonical(values).decode(),
            timeout_seconds=tool.timeout_seconds,
            begin_before=None if last_moment is None else self._calls.worker_tick(last_moment),
            context=None, server_call=server_call,
        )  # fmt: skip
        return read_result(require_returned(await self._calls.run(invoke, server_call.key)))

    def is_under_way(self, invocation_id: UUID) -> bool:
        return self._calls.is_under_way(invocation_id)


class StandInServers:
    """All MCP servers beside one remote worker: their tools are published, offered to its jobs, and kept as they are told."""

    def __init__(
        self, db: Database, actor: Actor, calls: RemoteCalls, apps: Sequence[App], offers: Sequence[OfferedApp]
    ) -> None:
        """Raises `CortexError` for what no worker offers."""
        self._db, self._actor = db, actor
        self._servers: dict[tuple[str, str], StandInServer] = {}
        for app, offer in zip(apps, offers, strict=True):
            for server in offer.servers:
                if (app.name, server.name) in self._servers:
                    raise InvalidApp(f"The app `{app.name}` has the MCP server `{server.name}` twice.")
                self._servers[app.name, server.name] = StandInServer(calls, app, server)
        self._pending: dict[tuple[str, str], ServerChange] = {}
        self._changed = asyncio.Event()
        self._worker_id: UUID | None = None
        self._registered = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Publishes first: whoever is asked about a call can look its tool up."""
        for (app, name), stand_in in self._servers.items():
            if stand_in.is_known:
                await self._publish(stand_in, stand_in.tools)
            else:
                # What waits for its tools waits on while the server is down, and is not mistaken for changed code.
                versions = await agents_store.list_server_tools(self._db, app, name, self._actor.org_id)
                stand_in.offer(recall_tools(stand_in, stand_in.server, versions))
        try:
            yield
        finally:
            if self._worker_id is not None and self._servers:
                with contextlib.suppress(CortexError):
                    await agents_store.forget_tool_servers(self._db, self._worker_id)

    @property
    def expects_changes(self) -> bool:
        return bool(self._servers)

    def tell(self, worker_id: UUID) -> None:
        self._worker_id = worker_id
        for (app, name), stand_in in self._servers.items():
            now = ServerChange(app=app, name=name, state=stand_in.state, reason=stand_in.reason)
            self._pending.setdefault((app, name), now)
        self._changed.set()
        self._registered.set()

    def note(self, change: ServerChange) -> None:
        """The worker told of a change: `follow` applies it, and of several only what they lead to."""
        key = change.app, change.name
        if key not in self._servers:
            raise LinkClosed(f"it has no MCP server `{change.name}`")
        before = self._pending.get(key)
        tools = change.tools if change.tools is not None or before is None else before.tools
        self._pending[key] = replace(change, tools=tools)
        self._changed.set()

    async def follow(self) -> None:
        """Raises `CortexError` for changes that this worker may not make."""
        await self._registered.wait()
        while True:
            await self._changed.wait()
            self._changed.clear()
            for key, change in [*self._pending.items()]:
                try:
                    await self._apply(self._servers[key], change)
                except Unavailable as error:
                    log.warning("mcp tools not published", server=change.name, error=str(error))
                    await asyncio.sleep(TELL_AGAIN_SECONDS)
                    self._changed.set()
                else:
                    if self._pending[key] is change:
                        del self._pending[key]

    async def _apply(self, stand_in: StandInServer, change: ServerChange) -> None:
        if change.tools is not None:
            tools = await asyncio.to_thread(stand_in.make_tools, change.tools)
            if not stand_in.offers_already(tools):
                if stand_in.is_known and not stand_in.changes.add(monotonic()):
                    raise LinkClosed(f"its MCP server `{change.name}` changes its tools again and again")
                app = stand_in.app.name
                await admit_worker(self._db, self._actor, {app: [tool.version(app) for tool in tools]})
                await self._publish(stand_in, tools)
                for name in sorted({tool.name for tool in stand_in.tools} - {tool.name for tool in tools}):
                    log.warning("tool_gone", app=app, tool=name, server=change.name)
            stand_in.offer(tools)
            stand_in.is_known = True
        stand_in.set_state(change.state, change.reason)
        await self._record(stand_in)

    async def _publish(self, stand_in: StandInServer, tools: Sequence[RemoteTool]) -> None:
        versions = [tool.version(stand_in.app.name) for tool in tools]
        for version in await agents_store.publish_tools(self._db, versions, self._actor.org_id):
            log.warning(
                "tool_changed", app=version.app, tool=version.name, digest=version.digest, server=version.server
            )

    async def _record(self, stand_in: StandInServer) -> None:
        if self._worker_id is not None:
            await agents_store.record_tool_server(
                self._db, stand_in.app.name, stand_in.server.name, self._worker_id, stand_in.state,
                stand_in.reason or None, len(stand_in.tools),
            )  # fmt: skip
