from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from cortex_plane.adapters.http.exchange import Caller, Db, reply, route
from cortex_plane.domain.access import Me, Permission
from cortex_plane.domain.browser_sessions import LoginLink
from cortex_plane.operations import browser_sessions, orgs

router = APIRouter(tags=["me"])


@router.get("/me", response_model=Me, **route(orgs.get))
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
    **route(browser_sessions.issue_own_login_link),
)
async def create_own_login_link(db: Db, actor: Caller) -> Response:
    """A link that logs you in to the dashboard, once and within 15 minutes."""
    return reply(await browser_sessions.issue_own_login_link(db, actor), 201)
