"""Agents, their tools and what stewards confirmed about them, policies and atlases."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from cortex_plane.agents import routes
from cortex_plane.agents.model.agents import Agent, AgentChange, AgentDraft, AgentStatus, AgentVersion
from cortex_plane.agents.model.tools import ConfirmationDraft, PublishedTool, ToolConfirmation, ToolServer, ToolVersion
from cortex_plane.calls import routes as call_routes
from cortex_plane.client.transport import Noun
from cortex_plane.gates import routes as gate_routes
from cortex_plane.gates.model import atlases
from cortex_plane.gates.model.scenarios import ScenarioReport, ScenarioRun
from cortex_plane.policies import routes as policy_routes
from cortex_plane.policies.model import versions as policies


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


class Policies(Noun):
    async def apply(self, file: policies.PolicyFile, *, idempotency_key: str | None = None) -> policies.Applied:
        """The org's rows become those of the file; with ``dry_run`` nothing is changed. Where the org wants a second person to approve it,
        it waits: see ``waits`` of the answer."""
        return await self._plane.call(policy_routes.APPLY_POLICIES, body=file, idempotency_key=idempotency_key)

    async def get(self, version: int | None = None) -> policies.PolicyVersionDetails:
        """One version; without a number, the one that holds now."""
        if version is None:
            return await self._plane.call(policy_routes.GET_POLICIES)
        return await self._plane.call(policy_routes.GET_POLICY_VERSION, version)

    def versions(self, limit: int | None = None) -> AsyncIterator[policies.PolicyVersion]:
        return self._plane.pages(policy_routes.LIST_POLICY_VERSIONS, limit=limit)

    async def explain(self, question: policies.ExplainRequest) -> policies.Explained:
        return await self._plane.call(policy_routes.EXPLAIN_POLICIES, body=question)

    async def denied_tools(self, question: policies.DeniedToolsRequest) -> policies.DeniedTools:
        """Which tools the policies deny whatever the arguments are."""
        return await self._plane.call(policy_routes.LIST_DENIED_TOOLS, body=question)

    async def simulate(self, request: policies.SimulationRequest) -> policies.Simulation:
        """What a file would change about the calls of a time span. Nothing is applied."""
        return await self._plane.call(policy_routes.SIMULATE_POLICIES, body=request)


class Platform(Noun):
    """For platform keys."""

    async def apply_policies(self, file: policies.PolicyFile) -> policies.Applied:
        """The rows that limit every org become those of the file; with ``dry_run`` nothing is changed."""
        return await self._plane.call(policy_routes.APPLY_PLATFORM_POLICIES, body=file)

    async def get_policies(self) -> policies.PlatformPolicies:
        return await self._plane.call(policy_routes.GET_PLATFORM_POLICIES)


class Atlases(Noun):
    async def publish(self, file: atlases.AtlasFile) -> atlases.Published:
        """A new version; the same content again changes nothing. Of somebody else's atlas it waits: see ``waits`` of the answer."""
        return await self._plane.call(gate_routes.PUBLISH_ATLAS, body=file)

    def list(self, limit: int | None = None) -> AsyncIterator[atlases.AtlasSummary]:
        return self._plane.pages(gate_routes.LIST_ATLASES, limit=limit)

    async def get(self, atlas_id: str) -> atlases.AtlasSummary:
        return await self._plane.call(gate_routes.GET_ATLAS, atlas_id)

    def versions(self, atlas_id: str, limit: int | None = None) -> AsyncIterator[atlases.NumberedVersion]:
        """Newest first."""
        return self._plane.pages(gate_routes.LIST_ATLAS_VERSIONS, atlas_id, limit=limit)

    async def get_version(self, atlas_id: str, version: str, *, source: bool = False) -> atlases.AtlasVersionDetails:
        """With ``source`` the file as it was published."""
        query = {"source": "true"} if source else {}
        return await self._plane.call(gate_routes.GET_ATLAS_VERSION, atlas_id, version, query=query)

    async def diff(self, atlas_id: str, before: str, after: str) -> atlases.AtlasDiff:
        return await self._plane.call(gate_routes.DIFF_ATLAS, atlas_id, query={"from": before, "to": after})

    async def test(self, scenarios: ScenarioRun) -> ScenarioReport:
        """Play scenarios under the policies, tools and agents of the org."""
        return await self._plane.call(call_routes.PLAY_SCENARIOS, body=scenarios)

    async def rules(
        self, atlas_id: str, version: str, *, action: str | None = None, capability: str | None = None
    ) -> atlases.AtlasRules:
        """Which gates, capabilities and policies concern an action, or a capability; name one of the two."""
        query = {"action": action} if action is not None else {"capability": capability}
        return await self._plane.call(gate_routes.QUERY_ATLAS, atlas_id, version, query=query)

    async def hand_over(self, atlas_id: str, handover: atlases.AtlasHandover) -> atlases.AtlasSummary:
        """From now on it belongs to another member or team."""
        return await self._plane.call(gate_routes.HAND_OVER_ATLAS, atlas_id, body=handover)

    async def retire(self, atlas_id: str, version: str) -> atlases.Retired:
        """New sessions are not bound to it any more."""
        return await self._plane.call(gate_routes.RETIRE_ATLAS_VERSION, atlas_id, version)
