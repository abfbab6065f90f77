"""Agents, their tools, and what stewards confirmed about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from cortex_plane.agents import routes
from cortex_plane.agents.model.agents import Agent, AgentChange, AgentDraft, AgentStatus, AgentVersion
from cortex_plane.agents.model.tools import ConfirmationDraft, PublishedTool, ToolConfirmation, ToolServer, ToolVersion
from cortex_plane.client.transport import Noun


class Agents(Noun):
    async def create(self, draft: AgentDraft, *, idempotency_key: str | None = None) -> Agent:
        return await self._plane.call(routes.CREATE_AGENT, body=draft, idempotency_key=idempotency_key)

    async def get(self, ref: str) -> Agent:
        return await self._plane.call(routes.GET_AGENT, ref)

    def list(self, limit: int | None = None, status: AgentStatus | None = None) -> AsyncIterator[Agent]:
        return self._plane.pages(routes.LIST_AGENTS, limit=limit, status=status)

    async def update(self, ref: str, change: AgentChange, *, revision: int | None = None) -> Agent:
        return await self._plane.call(routes.UPDATE_AGENT, ref, body=change, revision=revision)

    async def delete(self, ref: str, *, revision: int | None = None) -> None:
        await self._plane.call(routes.DELETE_AGENT, ref, revision=revision)

    def versions(self, ref: str, limit: int | None = None) -> AsyncIterator[AgentVersion]:
        return self._plane.pages(routes.LIST_AGENT_VERSIONS, ref, limit=limit)


class Tools(Noun):
    async def list(self) -> Sequence[ToolVersion]:
        """The newest version of every tool that a worker has published."""
        return await self._plane.all(routes.LIST_TOOLS)

    async def versions(self, app: str) -> Sequence[PublishedTool]:
        """Every version of an app's tools, newest first."""
        return await self._plane.all(routes.LIST_TOOL_VERSIONS, app=app)

    async def servers(self) -> Sequence[ToolServer]:
        """The MCP servers of the workers that are there: up or down, since when, and why."""
        return await self._plane.all(routes.LIST_TOOL_SERVERS)


class ToolConfirmations(Noun):
    async def confirm(self, draft: ConfirmationDraft) -> ToolConfirmation:
        """Vouch for what a tool of an MCP server is. It holds until the tool changes, or until it is revoked."""
        return await self._plane.call(routes.CONFIRM_TOOL, body=draft)

    def list(self, limit: int | None = None, *, holding: bool = False) -> AsyncIterator[ToolConfirmation]:
        """Newest first; ``holding`` leaves out what was revoked or replaced."""
        return self._plane.pages(routes.LIST_CONFIRMATIONS, limit=limit, holding=holding)

    async def get(self, id: UUID) -> ToolConfirmation:
        return await self._plane.call(routes.GET_CONFIRMATION, id)

    async def revoke(self, id: UUID) -> ToolConfirmation:
        return await self._plane.call(routes.REVOKE_CONFIRMATION, id)
