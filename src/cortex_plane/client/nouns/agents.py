"""Agents, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from cortex_plane.agents.model.agents import Agent, AgentChange, AgentDraft, AgentStatus, AgentVersion
from cortex_plane.client.nouns import Noun


class Agents(Noun):
    async def create(self, draft: AgentDraft, *, idempotency_key: str | None = None) -> Agent:
        return await self._transport.one(
            Agent, "POST", "/v1/agents", body=draft, idempotency_key=idempotency_key
        )

    async def get(self, ref: str) -> Agent:
        return await self._transport.one(Agent, "GET", f"/v1/agents/{quote(ref, safe='')}")

    def list(self, limit: int | None = None, status: AgentStatus | None = None) -> AsyncIterator[Agent]:
        return self._transport.pages(Agent, "/v1/agents", limit=limit, status=status)

    async def update(self, ref: str, change: AgentChange, *, revision: int | None = None) -> Agent:
        return await self._transport.one(
            Agent, "PATCH", f"/v1/agents/{quote(ref, safe='')}", body=change, revision=revision
        )

    async def delete(self, ref: str, *, revision: int | None = None) -> None:
        await self._transport.send("DELETE", f"/v1/agents/{quote(ref, safe='')}", revision=revision)

    def versions(self, ref: str, limit: int | None = None) -> AsyncIterator[AgentVersion]:
        return self._transport.pages(AgentVersion, f"/v1/agents/{quote(ref, safe='')}/versions", limit=limit)
