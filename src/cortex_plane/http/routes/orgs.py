from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from cortex_plane.http.exchange import Caller, Db, Listing, ListQuery, Revision, reply, reply_page, route
from cortex_plane.kernel.fields import MAX_BODY_BYTES
from cortex_plane.kernel.pages import decode_position
from cortex_plane.tenancy.model.credentials import NewOrg
from cortex_plane.tenancy.model.orgs import Org, OrgChange, OrgDraft
from cortex_plane.tenancy.verbs import orgs

router = APIRouter(tags=["orgs"])


@router.post("/orgs", response_model=NewOrg, status_code=201, **route(orgs.create_org))
async def create_org(db: Db, actor: Caller, draft: OrgDraft) -> Response:
    """Create an org with a first team, and an admin with a key that is shown once."""
    return reply(await orgs.create_org(db, actor, draft), 201)


@router.get("/orgs", response_model=Listing[Org], **route(orgs.list_orgs))
async def list_orgs(db: Db, actor: Caller, query: Annotated[ListQuery, Query()]) -> Response:
    position = decode_position("orgs", query.cursor)
    return reply_page("orgs", await orgs.list_orgs(db, actor, position, query.limit))


@router.get("/org", response_model=Org, **route(orgs.get_org))
async def get_org(db: Db, actor: Caller) -> Response:
    """The org of the key."""
    return reply(await orgs.get_org(db, actor))


@router.patch("/org", response_model=Org, **route(orgs.update_org, body=MAX_BODY_BYTES))
async def update_org(db: Db, actor: Caller, change: OrgChange, revision: Revision) -> Response:
    return reply(await orgs.update_org(db, actor, change, revision))
