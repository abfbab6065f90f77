"""The routes of agents, bound to their verbs."""

from __future__ import annotations

from cortex_plane.agents import routes
from cortex_plane.agents import verbs as agents
from cortex_plane.http.exchange import Binding, answer, ordered, pages, whole
from cortex_plane.jobs.verbs import workers

BINDINGS: tuple[Binding, ...] = (
    answer(routes.CREATE_AGENT, agents.create_agent),
    pages(routes.LIST_AGENTS, agents.list_agents, "agents"),
    answer(routes.GET_AGENT, agents.get_agent),
    answer(routes.UPDATE_AGENT, agents.update_agent),
    answer(routes.DELETE_AGENT, agents.delete_agent),
    ordered(routes.LIST_AGENT_VERSIONS, agents.list_versions, "versions", "below", lambda version: version.version),
    whole(routes.LIST_TOOLS, workers.list_tools),
    whole(routes.LIST_TOOL_VERSIONS, workers.list_versions),
    whole(routes.LIST_TOOL_SERVERS, workers.list_servers),
    answer(routes.CONFIRM_TOOL, agents.confirm_tool),
    pages(routes.LIST_CONFIRMATIONS, agents.list_confirmations, "tool_confirmations"),
    answer(routes.GET_CONFIRMATION, agents.get_confirmation),
    answer(routes.REVOKE_CONFIRMATION, agents.revoke_confirmation),
)
