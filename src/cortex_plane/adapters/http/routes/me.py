from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from cortex_plane.adapters.http.exchange import Caller, reply, route
from cortex_plane.domain.access import Me, Permission
from cortex_plane.operations import orgs

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
