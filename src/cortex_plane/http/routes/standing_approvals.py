from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from cortex_plane.approvals.model.approvals import Revocation, StandingApproval
from cortex_plane.approvals.verbs import standing_approvals
from cortex_plane.http.exchange import Caller, Db, Listing, ListQuery, reply, reply_page, route
from cortex_plane.kernel.pages import decode_position

router = APIRouter(tags=["standing approvals"])


class StandingQuery(ListQuery):
    session_id: UUID | None = None
    active: bool = False


@router.get(
    "/standing-approvals", response_model=Listing[StandingApproval], **route(standing_approvals.list_page)
)
async def list_standing_approvals(
    db: Db, actor: Caller, query: Annotated[StandingQuery, Query()]
) -> Response:
    """Newest first. Whoever is not staff sees those of their own sessions, and those that they gave.

    `active` leaves out what is revoked, over or used up.
    """
    page = await standing_approvals.list_page(
        db,
        actor,
        decode_position("standing_approvals", query.cursor),
        query.limit,
        session_id=query.session_id,
        active=query.active,
    )
    return reply_page("standing_approvals", page)


@router.get(
    "/standing-approvals/{standing_id}", response_model=StandingApproval, **route(standing_approvals.get)
)
async def get_standing_approval(db: Db, actor: Caller, standing_id: UUID) -> Response:
    """What it covers, how often it was used, and whether it still covers anything."""
    return reply(await standing_approvals.get(db, actor, standing_id))


@router.post(
    "/standing-approvals/{standing_id}/revoke",
    response_model=StandingApproval,
    **route(standing_approvals.revoke),
)
async def revoke_standing_approval(
    db: Db, actor: Caller, standing_id: UUID, revocation: Revocation
) -> Response:
    """From now on it covers nothing. For whoever gave it, admins and operators; once more changes nothing."""
    return reply(await standing_approvals.revoke(db, actor, standing_id, revocation))
