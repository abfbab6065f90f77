from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from cortex_plane.agents.model.agents import Agent, AgentChange, AgentDraft, AgentStatus, AgentVersion
from cortex_plane.agents.verbs import agents
from cortex_plane.http.exchange import (
    Caller,
    Db,
    Listing,
    ListQuery,
    OnceOnly,
    RefPath,
    Revision,
    nothing,
    reply,
    reply_numbered,
    reply_page,
    route,
)
from cortex_plane.kernel.fields import MAX_BODY_BYTES
from cortex_plane.kernel.pages import decode_number, decode_position

router = APIRouter(tags=["agents"])


class AgentQuery(ListQuery):
    status: AgentStatus | None = None


@router.post(
    "/agents", response_model=Agent, status_code=201, **route(agents.create_agent, body=MAX_BODY_BYTES)
)
async def create_agent(db: Db, actor: Caller, once: OnceOnly, draft: AgentDraft) -> Response:
    return reply(await agents.create_agent(db, actor, draft, once), 201)


@router.get("/agents", response_model=Listing[Agent], **route(agents.list_agents))
async def list_agents(db: Db, actor: Caller, query: Annotated[AgentQuery, Query()]) -> Response:
    """Archived agents are listed only when asked for."""
    position = decode_position("agents", query.cursor)
    return reply_page("agents", await agents.list_agents(db, actor, position, query.limit, query.status))


@router.get("/agents/{agent}", response_model=Agent, **route(agents.get_agent))
async def get_agent(db: Db, actor: Caller, agent: RefPath) -> Response:
    return reply(await agents.get_agent(db, actor, agent))


@router.patch("/agents/{agent}", response_model=Agent, **route(agents.update_agent, body=MAX_BODY_BYTES))
async def update_agent(
    db: Db, actor: Caller, agent: RefPath, change: AgentChange, revision: Revision
) -> Response:
    """A changed configuration becomes a new version; running jobs keep theirs."""
    return reply(await agents.update_agent(db, actor, agent, change, revision))


@router.delete("/agents/{agent}", status_code=204, **route(agents.delete_agent))
async def delete_agent(db: Db, actor: Caller, agent: RefPath, revision: Revision) -> Response:
    """Only an agent that was never used; otherwise the answer says what uses it."""
    await agents.delete_agent(db, actor, agent, revision)
    return nothing()


@router.get("/agents/{agent}/versions", response_model=Listing[AgentVersion], **route(agents.list_versions))
async def list_agent_versions(
    db: Db, actor: Caller, agent: RefPath, query: Annotated[ListQuery, Query()]
) -> Response:
    below = decode_number("versions", query.cursor)
    versions = await agents.list_versions(db, actor, agent, below, query.limit + 1)
    return reply_numbered("versions", versions, query.limit, lambda version: version.version)
