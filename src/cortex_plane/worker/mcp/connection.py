"""The connection of a worker to one MCP server: what it offers, and its calls. `McpLink` keeps it connected."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

import structlog

from cortex_plane.agents.model.tools import ToolError, trouble
from cortex_plane.mcp_client.connection import McpLink, SessionOver, list_tools
from cortex_plane.mcp_client.servers import McpServer
from cortex_plane.worker.mcp.remote_tool import RemoteTool, as_json, error_text, tool_changed, usable_tools

if TYPE_CHECKING:
    from mcp import Client


log = structlog.get_logger()

WAIT_SECONDS = 5.0
"""How long a call waits for a server that is on its way back."""
SETTLE_SECONDS = 10.0
"""A worker waits so long for its servers before it begins without those that are not up."""

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

    async def call(
        self,
        tool: RemoteTool,
        values: Mapping[str, Any],
        key: str,
        last_moment: float | None = None,  # noqa: ARG002
    ) -> Any:
        """``last_moment`` counts where it is sent over a link; whoever calls from this process has just looked at the clock."""
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
            raise tool_changed(tool.name)
        return await self._link.request(tool.name, tool.remote_name, values, key)

    def is_under_way(self, invocation_id: UUID) -> bool:  # noqa: ARG002
        """What ended here is taken as ended."""
        return False

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


async def wait_until_settled(connections: Iterable[McpConnection]) -> None:
    """Until each was tried once, or for as long as a worker waits for its servers."""
    if waiting := [asyncio.create_task(connection.settled.wait()) for connection in connections]:
        _, late = await asyncio.wait(waiting, timeout=SETTLE_SECONDS)
        for task in late:
            task.cancel()
