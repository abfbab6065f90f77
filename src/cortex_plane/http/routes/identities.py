from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from cortex_plane.http.exchange import (
    Caller,
    Db,
    Listing,
    ListQuery,
    OnceOnly,
    nothing,
    reply,
    reply_page,
    route,
)
from cortex_plane.kernel.pages import decode_position
from cortex_plane.tenancy.model.identities import (
    AddressDraft,
    InvitationDraft,
    Invited,
    LinkCode,
    LinkDraft,
    Mapping,
)
from cortex_plane.tenancy.verbs import connections, invitations

router = APIRouter(tags=["identities"])


def _mailing(request: Request) -> bool:
    """Whether this plane can send mail, so that an org may begin to."""
    return bool(getattr(request.app.state, "mailing", False))


@router.post("/members/invite", response_model=Invited, status_code=201, **route(invitations.invite))
async def invite_member(
    request: Request, db: Db, actor: Caller, once: OnceOnly, draft: InvitationDraft
) -> Response:
    """Add a member and mail them a link that proves their address and logs them in. Sent again for somebody who has not
    followed it yet, it only sends the mail again."""
    return reply(await invitations.invite(db, actor, draft, once, mailing=_mailing(request)), 201)


@router.delete(
    "/members/{member_id}/mappings/{mapping_id}", status_code=204, **route(connections.unlink_member)
)
async def unlink_member_mapping(db: Db, actor: Caller, member_id: UUID, mapping_id: UUID) -> Response:
    """A lost phone, an invitation to the wrong address: whoever writes from it is a stranger from now on."""
    await connections.unlink_member(db, actor, member_id, mapping_id)
    return nothing()


@router.get("/me/mappings", response_model=Listing[Mapping], **route(connections.list_own_mappings))
async def list_own_mappings(db: Db, actor: Caller, query: Annotated[ListQuery, Query()]) -> Response:
    """Where you can be reached."""
    position = decode_position("own_mappings", query.cursor)
    return reply_page("own_mappings", await connections.list_own_mappings(db, actor, position, query.limit))


@router.delete("/me/mappings/{mapping_id}", status_code=204, **route(connections.unlink_own))
async def unlink_own_mapping(db: Db, actor: Caller, mapping_id: UUID) -> Response:
    await connections.unlink_own(db, actor, mapping_id)
    return nothing()


@router.post("/me/addresses", response_model=Mapping, status_code=201, **route(invitations.add_address, 429))
async def add_own_address(request: Request, db: Db, actor: Caller, draft: AddressDraft) -> Response:
    """An address of your own. It counts once you have opened the link that is mailed to it, logged in as yourself."""
    return reply(await invitations.add_address(db, actor, draft, mailing=_mailing(request)), 201)


@router.post(
    "/me/link-codes", response_model=LinkCode, status_code=201, **route(connections.issue_link_code, 429)
)
async def create_link_code(db: Db, actor: Caller) -> Response:
    """A code that links another channel to you: type it there within ten minutes."""
    return reply(await connections.issue_link_code(db, actor), 201)


@router.post(
    "/connections/{connection_id}/link",
    response_model=Mapping,
    status_code=201,
    **route(connections.redeem_link_code, 429),
)
async def redeem_link_code(db: Db, actor: Caller, connection_id: UUID, draft: LinkDraft) -> Response:
    """For a channel's program: somebody typed a code. Their sender is the code's member from now on."""
    return reply(await connections.redeem_link_code(db, actor, connection_id, draft), 201)
