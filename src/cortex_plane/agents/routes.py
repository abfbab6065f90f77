"""Routes of agents."""

from __future__ import annotations

from types import NoneType

from cortex_plane.agents.model.agents import Agent, AgentChange, AgentDraft, AgentStatus, AgentVersion
from cortex_plane.agents.model.tools import ConfirmationDraft, PublishedTool, ToolConfirmation, ToolServer, ToolVersion
from cortex_plane.kernel.fields import MAX_BODY_BYTES, Slug
from cortex_plane.kernel.routes import ListRoute, Query, Route, filters


class ToolVersionQuery(Query):
    app: Slug
    """The app of the tool."""


CREATE_AGENT = Route(
    "POST /v1/agents", Agent, also_at="", body=AgentDraft, status=201, once=True, max_body=MAX_BODY_BYTES
)
LIST_AGENTS = ListRoute(
    "GET /v1/agents",
    Agent,
    also_at="",
    query=filters(status=AgentStatus),
    columns="id slug name status role config_version",
)
"""Archived agents are listed only when asked for."""
GET_AGENT = Route("GET /v1/agents/{agent}", Agent, also_at="")
UPDATE_AGENT = Route(
    "PATCH /v1/agents/{agent}", Agent, also_at="", body=AgentChange, revision=True, max_body=MAX_BODY_BYTES
)
"""A changed configuration becomes a new version; running jobs keep theirs."""
DELETE_AGENT = Route("DELETE /v1/agents/{agent}", NoneType, also_at="", status=204, revision=True)
"""Only an agent that was never used; otherwise the answer says what uses it."""
LIST_AGENT_VERSIONS = ListRoute(
    "GET /v1/agents/{agent}/versions", AgentVersion, also_at="", columns="version model_config created_by created_at"
)

LIST_TOOLS = ListRoute(
    "GET /v1/tools",
    ToolVersion,
    query=None,
    columns="app name digest risk read_only hints on_uncertain timeout_seconds description",
)
"""The newest version of every tool that a worker has published, by app and name."""
LIST_TOOL_VERSIONS = ListRoute(
    "GET /v1/tools/versions",
    PublishedTool,
    query=ToolVersionQuery,
    columns="name digest published_at newest changed server implementation hints description",
)
"""Every version of an app's tools, newest first, at most 1000: what changed, and when."""
LIST_TOOL_SERVERS = ListRoute(
    "GET /v1/tools/servers", ToolServer, query=None, columns="app name worker state since tools reason"
)
"""The MCP servers of the workers that are there: up or down, since when, and what kind of reason it has.

The names of workers and the whole reasons are for platform keys."""
CONFIRM_TOOL = Route("POST /v1/tools/confirmations", ToolConfirmation, body=ConfirmationDraft, status=201, once=True)
"""Vouch for what a tool of an MCP server is, in place of what was confirmed about it before.

It holds for exactly the version that `digest` names, which must be the newest one."""
LIST_CONFIRMATIONS = ListRoute(
    "GET /v1/tools/confirmations",
    ToolConfirmation,
    query=filters(holding=bool),
    columns="id app tool_name read_only idempotent risk current confirmed_by created_at revoked_at",
)
"""Newest first; `holding` leaves out what was revoked or replaced."""
GET_CONFIRMATION = Route("GET /v1/tools/confirmations/{confirmation_id}", ToolConfirmation)
REVOKE_CONFIRMATION = Route("POST /v1/tools/confirmations/{confirmation_id}/revoke", ToolConfirmation)
"""From now on the tool counts as having side effects again; once more changes nothing."""
