"""The routes of agents, bound to their verbs."""

from __future__ import annotations

from cortex_plane.agents import routes
from cortex_plane.agents.verbs import agents, tools
from cortex_plane.http.exchange import Binding, answer, ordered, pages, whole
from cortex_plane.jobs.verbs import workers

BINDINGS: tuple[Binding, ...] = (
    answer(routes.CREATE_AGENT, agents.create),
    pages(routes.LIST_AGENTS, agents.list_page, "agents"),
    answer(routes.GET_AGENT, agents.get),
    answer(routes.UPDATE_AGENT, agents.update),
    answer(routes.DELETE_AGENT, agents.delete),
    ordered(
        routes.LIST_AGENT_VERSIONS, agents.versions, "versions", "below", lambda version: version.version
    ),
    whole(routes.LIST_TOOLS, workers.list_tools),
    whole(routes.LIST_TOOL_VERSIONS, workers.list_versions),
    whole(routes.LIST_TOOL_SERVERS, workers.list_servers),
    answer(routes.CONFIRM_TOOL, tools.confirm),
    pages(routes.LIST_CONFIRMATIONS, tools.list_page, "tool_confirmations"),
    answer(routes.GET_CONFIRMATION, tools.get),
    answer(routes.REVOKE_CONFIRMATION, tools.revoke),
)
