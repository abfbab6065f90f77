from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from cortex_plane.approvals.model.approvals import Delegate
from cortex_plane.approvals.verbs import approvals
from cortex_plane.http.exchange import (
    Caller,
    Db,
    Listing,
    ListQuery,
    OnceOnly,
    reply,
    reply_all,
    reply_page,
    route,
)
from cortex_plane.kernel.fields import Name
from cortex_plane.kernel.pages import decode_position
from cortex_plane.tenancy.model.orgs import Absence, AbsenceDraft
from cortex_plane.tenancy.verbs import orgs

router = APIRouter(tags=["absences"])


class AbsenceQuery(ListQuery):
    member_id: UUID | None = None
    only_open: bool = False


class DelegateQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    approval_id: UUID | None = None
    name: Name | None = None


@router.post("/absences", response_model=Absence, status_code=201, **route(orgs.create_absence))
async def create_absence(db: Db, actor: Caller, once: OnceOnly, draft: AbsenceDraft) -> Response:
    """Out of office: what is asked of you in this time goes to your delegate, where their clearance allows it.

    For somebody else (`member_id`) it takes an admin.
    """
    return reply(await orgs.create_absence(db, actor, draft, once), 201)


@router.get("/absences", response_model=Listing[Absence], **route(orgs.list_absences))
async def list_absences(db: Db, actor: Caller, query: Annotated[AbsenceQuery, Query()]) -> Response:
    """Newest first. Staff see everybody's, others their own; `only_open` leaves out what is over or cancelled."""
    page = await orgs.list_absences(
        db,
        actor,
        decode_position("absences", query.cursor),
        query.limit,
        member_id=query.member_id,
        only_open=query.only_open,
    )
    return reply_page("absences", page)


@router.get("/absences/{absence_id}", response_model=Absence, **route(orgs.get_absence))
async def get_absence(db: Db, actor: Caller, absence_id: UUID) -> Response:
    return reply(await orgs.get_absence(db, actor, absence_id))


@router.post("/absences/{absence_id}/cancel", response_model=Absence, **route(orgs.cancel_absence))
async def cancel_absence(db: Db, actor: Caller, absence_id: UUID) -> Response:
    """Back early. Requests that the delegate has already stay with them."""
    return reply(await orgs.cancel_absence(db, actor, absence_id))


@router.get("/delegates", response_model=Listing[Delegate], **route(approvals.list_delegates))
async def list_delegates(db: Db, actor: Caller, query: Annotated[DelegateQuery, Query()]) -> Response:
    """Colleagues to whom you may hand your part, by name, at most 200; `name` is the whole name.

    With `approval_id`, those who could take your part in that request.
    """
    return reply_all(
        await approvals.list_delegates(db, actor, approval_id=query.approval_id, name=query.name)
    )
