from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

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
    reply_page,
    route,
)
from cortex_plane.kernel.pages import decode_position
from cortex_plane.tenancy.model.orgs import Team, TeamChange, TeamDraft
from cortex_plane.tenancy.verbs import orgs

router = APIRouter(tags=["teams"])


@router.post("/teams", response_model=Team, status_code=201, **route(orgs.create_team))
async def create_team(db: Db, actor: Caller, once: OnceOnly, draft: TeamDraft) -> Response:
    return reply(await orgs.create_team(db, actor, draft, once), 201)


@router.get("/teams", response_model=Listing[Team], **route(orgs.list_teams))
async def list_teams(db: Db, actor: Caller, query: Annotated[ListQuery, Query()]) -> Response:
    position = decode_position("teams", query.cursor)
    return reply_page("teams", await orgs.list_teams(db, actor, position, query.limit))


@router.get("/teams/{team}", response_model=Team, **route(orgs.get_team))
async def get_team(db: Db, actor: Caller, team: RefPath) -> Response:
    return reply(await orgs.get_team(db, actor, team))


@router.patch("/teams/{team}", response_model=Team, **route(orgs.update_team))
async def update_team(
    db: Db, actor: Caller, team: RefPath, change: TeamChange, revision: Revision
) -> Response:
    return reply(await orgs.update_team(db, actor, team, change, revision))


@router.delete("/teams/{team}", status_code=204, **route(orgs.delete_team))
async def delete_team(db: Db, actor: Caller, team: RefPath) -> Response:
    """Refused while agents or other teams use it; the answer counts them."""
    await orgs.delete_team(db, actor, team)
    return nothing()
