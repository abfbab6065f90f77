from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from cortex_plane.http.exchange import Caller, Db, Listing, ListQuery, reply, reply_page, route
from cortex_plane.kernel.pages import decode_position
from cortex_plane.notify.verbs import deliveries
from cortex_plane.tenancy.model.identities import Delivery, DeliveryStatus

router = APIRouter(tags=["deliveries"])


class DeliveryQuery(ListQuery):
    status: DeliveryStatus | None = None
    approval_id: UUID | None = None


@router.get("/deliveries", response_model=Listing[Delivery], **route(deliveries.list_deliveries))
async def list_deliveries(db: Db, actor: Caller, query: Annotated[DeliveryQuery, Query()]) -> Response:
    """What was sent to whom, newest first. `status=dead` lists what was given up."""
    page = await deliveries.list_deliveries(
        db,
        actor,
        decode_position("deliveries", query.cursor),
        query.limit,
        status=query.status,
        approval_id=query.approval_id,
    )
    return reply_page("deliveries", page)


@router.get("/deliveries/{delivery_id}", response_model=Delivery, **route(deliveries.get_delivery))
async def get_delivery(db: Db, actor: Caller, delivery_id: UUID) -> Response:
    return reply(await deliveries.get_delivery(db, actor, delivery_id))


@router.post("/deliveries/{delivery_id}/resend", response_model=Delivery, **route(deliveries.resend_delivery))
async def resend_delivery(db: Db, actor: Caller, delivery_id: UUID) -> Response:
    """What was given up is tried again, at once. An address to which nothing was sent any more is trusted again."""
    return reply(await deliveries.resend_delivery(db, actor, delivery_id))
