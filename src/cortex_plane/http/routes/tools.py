from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from cortex_plane.agents.model.tools import (
    ConfirmationDraft,
    PublishedTool,
    ToolConfirmation,
    ToolServer,
    ToolVersion,
)
from cortex_plane.agents.verbs import agents
from cortex_plane.http.exchange import (
    Caller,
    Db,
    Listing,
    ListQuery,
    OnceOnly,
    reply,
    reply_all,
    reply_page,
    route,
)
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.fields import Slug
from cortex_plane.kernel.pages import decode_position

router = APIRouter(tags=["tools"])


class VersionQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    app: Slug


class ConfirmationQuery(ListQuery):
    holding: bool = False


@router.get("/tools", response_model=Listing[ToolVersion], **route(workers.list_tools))
async def list_tools(db: Db, actor: Caller) -> Response:
    """The newest version of every tool that a worker has published, by app and name."""
    return reply_all(await workers.list_tools(db, actor))


@router.get("/tools/versions", response_model=Listing[PublishedTool], **route(workers.list_versions))
async def list_tool_versions(db: Db, actor: Caller, query: Annotated[VersionQuery, Query()]) -> Response:
    """Every version of an app's tools, newest first, at most 1000: what changed, and when."""
    return reply_all(await workers.list_versions(db, actor, query.app))


@router.get("/tools/servers", response_model=Listing[ToolServer], **route(workers.list_servers))
async def list_tool_servers(db: Db, actor: Caller) -> Response:
    """The MCP servers of the workers that are there: up or down, since when, and what kind of reason it has.

    The names of workers and the whole reasons are for platform keys.
    """
    return reply_all(await workers.list_servers(db, actor))


@router.post(
    "/tools/confirmations",
    response_model=ToolConfirmation,
    status_code=201,
    **route(agents.confirm_tool),
)
async def confirm_tool(db: Db, actor: Caller, once: OnceOnly, draft: ConfirmationDraft) -> Response:
    """Vouch for what a tool of an MCP server is, in place of what was confirmed about it before.

    It holds for exactly the version that `digest` names, which must be the newest one.
    """
    return reply(await agents.confirm_tool(db, actor, draft, once), 201)


@router.get(
    "/tools/confirmations", response_model=Listing[ToolConfirmation], **route(agents.list_confirmations)
)
async def list_confirmations(db: Db, actor: Caller, query: Annotated[ConfirmationQuery, Query()]) -> Response:
    """Newest first; `holding` leaves out what was revoked or replaced."""
    page = await agents.list_confirmations(
        db, actor, decode_position("tool_confirmations", query.cursor), query.limit, holding=query.holding
    )
    return reply_page("tool_confirmations", page)


@router.get(
    "/tools/confirmations/{confirmation_id}",
    response_model=ToolConfirmation,
    **route(agents.get_confirmation),
)
async def get_confirmation(db: Db, actor: Caller, confirmation_id: UUID) -> Response:
    return reply(await agents.get_confirmation(db, actor, confirmation_id))


@router.post(
    "/tools/confirmations/{confirmation_id}/revoke",
    response_model=ToolConfirmation,
    **route(agents.revoke_confirmation),
)
async def revoke_confirmation(db: Db, actor: Caller, confirmation_id: UUID) -> Response:
    """From now on the tool counts as having side effects again; once more changes nothing."""
    return reply(await agents.revoke_confirmation(db, actor, confirmation_id))
