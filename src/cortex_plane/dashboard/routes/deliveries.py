"""Deliveries: what could not be sent, what waits to be sent, and sending it again."""

from __future__ import annotations

from uuid import UUID

from starlette.responses import RedirectResponse, Response

from cortex_plane.dashboard import pages
from cortex_plane.dashboard.visits import PageRouter, Visit, signed_in
from cortex_plane.kernel.errors import InvalidInput, NotFound
from cortex_plane.kernel.pages import decode_position, encode_position
from cortex_plane.notify.verbs import outbox
from cortex_plane.tenancy.model.access import Permission
from cortex_plane.tenancy.model.identities import DeliveryStatus

router = PageRouter()

PAGE = 50
FILTERS = {
    "dead": DeliveryStatus.DEAD,
    "pending": DeliveryStatus.PENDING,
    "delivered": DeliveryStatus.DELIVERED,
}


async def list_deliveries(visit: Visit) -> Response:
    query = visit.request.query_params
    chosen = query.get("status") or "dead"
    if chosen not in FILTERS:
        raise InvalidInput("There is no such filter.", hint=f"Choose one of: {', '.join(FILTERS)}.")
    position = decode_position("deliveries", query.get("cursor") or None)
    found = await outbox.list_deliveries(visit.db, visit.actor, position, PAGE, status=FILTERS[chosen])
    return visit.page(
        "deliveries.html",
        items=found.items,
        chosen=chosen,
        may_resend=visit.actor.may(Permission.DELIVERY_WRITE),
        next_cursor=encode_position("deliveries", found.next),
    )


async def resend(visit: Visit) -> Response:
    id = _id(visit.request.path_params["delivery_id"], "delivery")
    await outbox.resend_delivery(visit.db, visit.actor, id)
    card = visit.form.get("approval")
    back = f"/approvals/{_id(card, 'approval')}" if card else "/deliveries"
    return RedirectResponse(back, 303, pages.HEADERS)


def _id(text: str, noun: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"There is no such {noun}.", code=f"{noun}_not_found") from None


router.add("/deliveries", signed_in(list_deliveries), "GET")
router.add("/deliveries/{delivery_id}/resend", signed_in(resend), "POST")
