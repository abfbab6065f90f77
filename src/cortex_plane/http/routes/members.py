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
    Revision,
    nothing,
    reply,
    reply_page,
    route,
)
from cortex_plane.http.problems import documented
from cortex_plane.kernel.errors import Unauthenticated
from cortex_plane.kernel.pages import decode_position
from cortex_plane.kernel.shares import Throttle
from cortex_plane.tenancy.model.access import Permission
from cortex_plane.tenancy.model.credentials import (
    BrowserSession,
    EndedSessions,
    EnrolmentCode,
    NewKey,
    Redemption,
)
from cortex_plane.tenancy.model.identities import Mapping
from cortex_plane.tenancy.model.orgs import Member, MemberChange, MemberDraft, Role
from cortex_plane.tenancy.verbs import logins, orgs

router = APIRouter(tags=["members"])


class MemberQuery(ListQuery):
    role: Role | None = None


@router.post("/members", response_model=Member, status_code=201, **route(orgs.create_member))
async def create_member(db: Db, actor: Caller, once: OnceOnly, draft: MemberDraft) -> Response:
    return reply(await orgs.create_member(db, actor, draft, once), 201)


@router.get("/members", response_model=Listing[Member], **route(orgs.list_members))
async def list_members(db: Db, actor: Caller, query: Annotated[MemberQuery, Query()]) -> Response:
    position = decode_position("members", query.cursor)
    return reply_page("members", await orgs.list_members(db, actor, position, query.limit, query.role))


@router.get("/members/{member_id}", response_model=Member, **route(orgs.get_member))
async def get_member(db: Db, actor: Caller, member_id: UUID) -> Response:
    return reply(await orgs.get_member(db, actor, member_id))


@router.patch("/members/{member_id}", response_model=Member, **route(orgs.update_member))
async def update_member(
    db: Db, actor: Caller, member_id: UUID, change: MemberChange, revision: Revision
) -> Response:
    """`active: false` deactivates a person: their keys and sessions end for good, their messages are refused, their
    history stays."""
    return reply(await orgs.update_member(db, actor, member_id, change, revision))


@router.get(
    "/members/{member_id}/mappings", response_model=Listing[Mapping], **route(orgs.list_member_mappings)
)
async def list_mappings(
    db: Db, actor: Caller, member_id: UUID, query: Annotated[ListQuery, Query()]
) -> Response:
    """Where this person can be reached."""
    position = decode_position("mappings", query.cursor)
    return reply_page(
        "mappings", await orgs.list_member_mappings(db, actor, member_id, position, query.limit)
    )


@router.post(
    "/members/{member_id}/enrolment-codes",
    response_model=EnrolmentCode,
    status_code=201,
    **route(logins.issue_enrolment_code),
)
async def create_enrolment_code(db: Db, actor: Caller, member_id: UUID) -> Response:
    """A code for somebody who has no mail here: they redeem it, once and within 24 hours, for a session or a key of their own.
    It is shown this once."""
    return reply(await logins.issue_enrolment_code(db, actor, member_id), 201)


@router.post(
    "/enrolments",
    response_model=NewKey,
    status_code=201,
    openapi_extra={"x-permission": Permission.LOGIN.value, "security": []},
    responses=documented(400, 401, 413, 422, 429, 503),
)
async def redeem_enrolment_code(request: Request, db: Db, redemption: Redemption) -> Response:
    """Redeem an enrolment code for a key. Needs no key. Earlier keys and sessions of the person end."""
    throttle: Throttle = request.app.state.throttle
    try:
        return reply(await logins.redeem_for_key(db, redemption), 201)
    except Unauthenticated:
        throttle.failed(request.client.host if request.client else "")
        raise


@router.get(
    "/members/{member_id}/browser-sessions",
    response_model=Listing[BrowserSession],
    **route(logins.list_member_sessions),
)
async def list_member_browser_sessions(
    db: Db, actor: Caller, member_id: UUID, query: Annotated[ListQuery, Query()]
) -> Response:
    """Where this member is logged in."""
    position = decode_position("browser_sessions", query.cursor)
    page = await logins.list_member_sessions(db, actor, member_id, position, query.limit)
    return reply_page("browser_sessions", page)


@router.delete(
    "/members/{member_id}/browser-sessions",
    response_model=EndedSessions,
    **route(logins.end_member_sessions),
)
async def end_member_browser_sessions(db: Db, actor: Caller, member_id: UUID) -> Response:
    """Log this member out everywhere. Their keys stay; login links that were not used yet stop working."""
    return reply(await logins.end_member_sessions(db, actor, member_id))


@router.delete(
    "/members/{member_id}/browser-sessions/{browser_session_id}",
    status_code=204,
    **route(logins.end_member_session),
)
async def end_member_browser_session(
    db: Db, actor: Caller, member_id: UUID, browser_session_id: UUID
) -> Response:
    await logins.end_member_session(db, actor, member_id, browser_session_id)
    return nothing()
