"""Agents, policies and atlases: routes and their verbs."""

from __future__ import annotations

from starlette.responses import Response

from cortex_plane.agents import routes
from cortex_plane.agents import verbs as agents
from cortex_plane.gates import routes as gate_routes
from cortex_plane.gates.model.atlases import AtlasFile
from cortex_plane.gates.verbs import atlas_queries, atlases
from cortex_plane.http.exchange import Binding, Exchange, answer, handle, reply
from cortex_plane.http.lists import ordered, pages, whole
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.policies import routes as policy_routes
from cortex_plane.policies.model.versions import PolicyFile
from cortex_plane.policies.verbs import policies, simulations


async def publish_atlas(exchange: Exchange, file: AtlasFile) -> Response:
    version = await atlases.publish_atlas(exchange.db, exchange.actor, file)
    return reply(version, 201 if version.created else 202 if version.waits is not None else 200)


async def apply_policies(exchange: Exchange, file: PolicyFile, once: IdempotencyKey | None = None) -> Response:
    result = await policies.apply_policies(exchange.db, exchange.actor, file, once)
    return reply(result, 200 if result.waits is None else 202)


DECLARATIONS = (routes, policy_routes, gate_routes)
BINDINGS: tuple[Binding, ...] = (
    answer(routes.CREATE_AGENT, agents.create_agent),
    pages(routes.LIST_AGENTS, agents.list_agents, "agents"),
    answer(routes.GET_AGENT, agents.get_agent),
    answer(routes.UPDATE_AGENT, agents.update_agent),
    answer(routes.DELETE_AGENT, agents.delete_agent),
    ordered(routes.LIST_AGENT_VERSIONS, agents.list_versions, "versions", "below", lambda row: row.version),
    whole(routes.LIST_TOOLS, workers.list_tools),
    whole(routes.LIST_TOOL_VERSIONS, workers.list_versions),
    whole(routes.LIST_TOOL_SERVERS, workers.list_servers),
    answer(routes.CONFIRM_TOOL, agents.confirm_tool),
    pages(routes.LIST_CONFIRMATIONS, agents.list_confirmations, "tool_confirmations"),
    answer(routes.GET_CONFIRMATION, agents.get_confirmation),
    answer(routes.REVOKE_CONFIRMATION, agents.revoke_confirmation),
    handle(policy_routes.APPLY_POLICIES, policies.apply_policies, apply_policies),
    answer(policy_routes.APPLY_PLATFORM_POLICIES, policies.apply_platform_policies),
    answer(policy_routes.GET_PLATFORM_POLICIES, policies.get_platform_policies),
    answer(policy_routes.GET_POLICIES, policies.get_policies),
    ordered(
        policy_routes.LIST_POLICY_VERSIONS, policies.list_policy_versions, "policies", "below", lambda row: row.version
    ),
    answer(policy_routes.GET_POLICY_VERSION, policies.get_policies),
    answer(policy_routes.EXPLAIN_POLICIES, simulations.explain_policies),
    answer(policy_routes.LIST_DENIED_TOOLS, simulations.list_denied_tools),
    answer(policy_routes.SIMULATE_POLICIES, simulations.simulate_policies),
    handle(gate_routes.PUBLISH_ATLAS, atlases.publish_atlas, publish_atlas),
    ordered(gate_routes.LIST_ATLASES, atlases.list_atlases, "atlases", "above", lambda row: row.atlas_id, is_text=True),
    answer(gate_routes.GET_ATLAS, atlases.get_atlas),
    ordered(
        gate_routes.LIST_ATLAS_VERSIONS, atlases.list_atlas_versions, "atlas versions", "below", lambda row: row.number
    ),
    answer(gate_routes.GET_ATLAS_VERSION, atlases.get_atlas_version),
    answer(gate_routes.DIFF_ATLAS, atlases.diff_atlases),
    answer(gate_routes.QUERY_ATLAS, atlas_queries.query_atlas),
    answer(gate_routes.HAND_OVER_ATLAS, atlases.hand_over_atlas),
    answer(gate_routes.RETIRE_ATLAS_VERSION, atlases.retire_atlas),
)
