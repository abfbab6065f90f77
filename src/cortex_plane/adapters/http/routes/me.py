from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from cortex_plane.adapters.http.exchange import Caller, reply, route
from cortex_plane.domain.access import ActorKind, Permission
from cortex_plane.domain.members import Role
from cortex_plane.operations import orgs

router = APIRouter(tags=["me"])


@dataclass(frozen=True, kw_only=True, slots=True)
class Me:
    """Who the key stands for, and what it may do."""

    org_id: UUID
    key_id: UUID
    kind: ActorKind
    name: str
    roles: list[Role]
    clearance: int
    member_id: UUID | None
    platform: bool
    permissions: list[Permission]


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
