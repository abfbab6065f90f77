"""Tools, their servers and what stewards confirmed about them, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from cortex_plane.agents.model.tools import (
    ConfirmationDraft,
    PublishedTool,
    ToolConfirmation,
    ToolServer,
    ToolVersion,
)
from cortex_plane.client.transport import Transport


class Tools:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> Sequence[ToolVersion]:
        """The newest version of every tool that a worker has published."""
        return await self._transport.all(ToolVersion, "/v1/tools")

    async def versions(self, app: str) -> Sequence[PublishedTool]:
        """Every version of an app's tools, newest first."""
        return await self._transport.all(PublishedTool, "/v1/tools/versions", app=app)

    async def servers(self) -> Sequence[ToolServer]:
        """The MCP servers of the workers that are there: up or down, since when, and why."""
        return await self._transport.all(ToolServer, "/v1/tools/servers")


class ToolConfirmations:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def confirm(self, draft: ConfirmationDraft) -> ToolConfirmation:
        """Vouch for what a tool of an MCP server is. It holds until the tool changes, or until it is revoked."""
        return await self._transport.one(ToolConfirmation, "POST", "/v1/tools/confirmations", body=draft)

    def list(self, limit: int | None = None, *, holding: bool = False) -> AsyncIterator[ToolConfirmation]:
        """Newest first; ``holding`` leaves out what was revoked or replaced."""
        return self._transport.pages(
            ToolConfirmation, "/v1/tools/confirmations", limit=limit, holding=holding
        )

    async def get(self, id: UUID) -> ToolConfirmation:
        return await self._transport.one(ToolConfirmation, "GET", f"/v1/tools/confirmations/{id}")

    async def revoke(self, id: UUID) -> ToolConfirmation:
        return await self._transport.one(ToolConfirmation, "POST", f"/v1/tools/confirmations/{id}/revoke")
