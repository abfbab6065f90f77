from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
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
from cortex_plane.tenancy.model.access import Me, Permission
from cortex_plane.tenancy.model.credentials import (
    BrowserSession,
    EndedSessions,
    Key,
    LoginLink,
    NewKey,
    OwnKeyDraft,
)
from cortex_plane.tenancy.verbs import keys, logins, orgs

router = APIRouter(tags=["me"])


@router.get("/me", response_model=Me, **route(orgs.get_org))
async def get_me(actor: Caller) -> Response:
    return reply(
        Me(
            org_id=actor.org_id,
            key_id=actor.key_id,
            kind=actor.kind,
            name=actor.name,
            roles=sorted(actor.roles),
            clearance=actor.clearance,
            member_id=actor.user_account_id,
            platform=actor.platform,
            permissions=[permission for permission in Permission if actor.may(permission)],
        )
    )


@router.post(
    "/me/login-links",
    response_model=LoginLink,
    status_code=201,
    **route(logins.issue_own_login_link),
)
async def create_own_login_link(db: Db, actor: Caller) -> Response:
    """A link that logs you in to the dashboard, once and within 15 minutes."""
    return reply(await logins.issue_own_login_link(db, actor), 201)


@router.get("/me/browser-sessions", response_model=Listing[BrowserSession], **route(logins.list_own_sessions))
async def list_own_browser_sessions(db: Db, actor: Caller, query: Annotated[ListQuery, Query()]) -> Response:
    """Where you are logged in."""
    position = decode_position("own_browser_sessions", query.cursor)
    page = await logins.list_own_sessions(db, actor, position, query.limit)
    return reply_page("own_browser_sessions", page)


@router.delete("/me/browser-sessions", response_model=EndedSessions, **route(logins.end_own_sessions))
async def end_own_browser_sessions(db: Db, actor: Caller) -> Response:
    """Log out everywhere. Login links that were not used yet stop working too."""
    return reply(await logins.end_own_sessions(db, actor))


@router.delete("/me/browser-sessions/{browser_session_id}", status_code=204, **route(logins.end_own_session))
async def end_own_browser_session(db: Db, actor: Caller, browser_session_id: UUID) -> Response:
    await logins.end_own_session(db, actor, browser_session_id)
    return nothing()


@router.post("/me/keys", response_model=NewKey, status_code=201, **route(keys.create_own_key))
async def create_own_key(db: Db, actor: Caller, once: OnceOnly, draft: OwnKeyDraft) -> Response:
    """A key of your own. It ends with the key that you make it with; the secret is shown once."""
    return reply(await keys.create_own_key(db, actor, draft, once), 201)


@router.get("/me/keys", response_model=Listing[Key], **route(keys.list_own_keys))
async def list_own_keys(db: Db, actor: Caller, query: Annotated[ListQuery, Query()]) -> Response:
    position = decode_position("own_keys", query.cursor)
    return reply_page("own_keys", await keys.list_own_keys(db, actor, position, query.limit))


@router.post("/me/keys/{key_id}/revoke", response_model=Key, **route(keys.revoke_own_key))
async def revoke_own_key(db: Db, actor: Caller, key_id: UUID) -> Response:
    """At once and for good, with the keys that were made with it and the browser sessions that came from them."""
    return reply(await keys.revoke_own_key(db, actor, key_id))
