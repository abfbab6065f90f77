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
from cortex_plane.kernel.cursors import decode_position
from cortex_plane.kernel.errors import Unauthenticated
from cortex_plane.kernel.throttle import Throttle
from cortex_plane.tenancy.model.access import Permission
from cortex_plane.tenancy.model.browser_sessions import BrowserSession, EndedSessions
from cortex_plane.tenancy.model.connections import Mapping
from cortex_plane.tenancy.model.enrolments import EnrolmentCode, Redemption
from cortex_plane.tenancy.model.keys import NewKey
from cortex_plane.tenancy.model.members import Member, MemberChange, MemberDraft, Role
from cortex_plane.tenancy.verbs import browser_sessions, enrolments, members

router = APIRouter(tags=["members"])


class MemberQuery(ListQuery):
    role: Role | None = None


@router.post("/members", response_model=Member, status_code=201, **route(members.create))
async def create_member(db: Db, actor: Caller, once: OnceOnly, draft: MemberDraft) -> Response:
    return reply(await members.create(db, actor, draft, once), 201)


@router.get("/members", response_model=Listing[Member], **route(members.list_page))
async def list_members(db: Db, actor: Caller, query: Annotated[MemberQuery, Query()]) -> Response:
    position = decode_position("members", query.cursor)
    return reply_page("members", await members.list_page(db, actor, position, query.limit, query.role))


@router.get("/members/{member_id}", response_model=Member, **route(members.get))
async def get_member(db: Db, actor: Caller, member_id: UUID) -> Response:
    return reply(await members.get(db, actor, member_id))


@router.patch("/members/{member_id}", response_model=Member, **route(members.update))
async def update_member(
    db: Db, actor: Caller, member_id: UUID, change: MemberChange, revision: Revision
) -> Response:
    """`active: false` deactivates a person: their keys and sessions end for good, their messages are refused, their
    history stays."""
    return reply(await members.update(db, actor, member_id, change, revision))


@router.get("/members/{member_id}/mappings", response_model=Listing[Mapping], **route(members.mappings))
async def list_mappings(
    db: Db, actor: Caller, member_id: UUID, query: Annotated[ListQuery, Query()]
) -> Response:
    """Where this person can be reached."""
    position = decode_position("mappings", query.cursor)
    return reply_page("mappings", await members.mappings(db, actor, member_id, position, query.limit))


@router.post(
    "/members/{member_id}/enrolment-codes",
    response_model=EnrolmentCode,
    status_code=201,
    **route(enrolments.issue),
)
async def create_enrolment_code(db: Db, actor: Caller, member_id: UUID) -> Response:
    """A code for somebody who has no mail here: they redeem it, once and within 24 hours, for a session or a key of their own.
    It is shown this once."""
    return reply(await enrolments.issue(db, actor, member_id), 201)


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
        return reply(await enrolments.redeem_for_key(db, redemption), 201)
    except Unauthenticated:
        throttle.failed(request.client.host if request.client else "")
        raise


@router.get(
    "/members/{member_id}/browser-sessions",
    response_model=Listing[BrowserSession],
    **route(browser_sessions.list_of_member),
)
async def list_member_browser_sessions(
    db: Db, actor: Caller, member_id: UUID, query: Annotated[ListQuery, Query()]
) -> Response:
    """Where this member is logged in."""
    position = decode_position("browser_sessions", query.cursor)
    page = await browser_sessions.list_of_member(db, actor, member_id, position, query.limit)
    return reply_page("browser_sessions", page)


@router.delete(
    "/members/{member_id}/browser-sessions",
    response_model=EndedSessions,
    **route(browser_sessions.end_all_of_member),
)
async def end_member_browser_sessions(db: Db, actor: Caller, member_id: UUID) -> Response:
    """Log this member out everywhere. Their keys stay; login links that were not used yet stop working."""
    return reply(await browser_sessions.end_all_of_member(db, actor, member_id))


@router.delete(
    "/members/{member_id}/browser-sessions/{browser_session_id}",
    status_code=204,
    **route(browser_sessions.end_of_member),
)
async def end_member_browser_session(
    db: Db, actor: Caller, member_id: UUID, browser_session_id: UUID
) -> Response:
    await browser_sessions.end_of_member(db, actor, member_id, browser_session_id)
    return nothing()
