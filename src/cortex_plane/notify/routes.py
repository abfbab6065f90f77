"""Routes of notify."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.kernel.routes import ListRoute, Route, filters
from cortex_plane.notify.model.channels import MAX_EVENT_BYTES
from cortex_plane.notify.model.notifications import MAX_INBOUND_BYTES, EventAnswer, Ping
from cortex_plane.tenancy.model.identities import Delivery, DeliveryStatus

TEST_CONNECTION = Route("POST /v1/connections/{connection_id}/test", Ping)
"""Send a signed `ping` to a webhook now, and say what came back."""

LIST_DELIVERIES = ListRoute(
    "GET /v1/deliveries",
    Delivery,
    query=filters(status=DeliveryStatus, approval_id=UUID),
    columns="id status channel_type member address approval_id attempts sent_at last_error",
)
"""What was sent to whom, newest first. `status=dead` lists what was given up."""
GET_DELIVERY = Route("GET /v1/deliveries/{delivery_id}", Delivery)
RESEND_DELIVERY = Route("POST /v1/deliveries/{delivery_id}/resend", Delivery)
"""What was given up is tried again, at once. An address to which nothing was sent any more is trusted again."""

RECEIVE_EVENT = Route(
    "POST /v1/webhooks/{connection_id}",
    EventAnswer,
    max_body=MAX_INBOUND_BYTES,
    needs_key=False,
    # A document would only say that made-up requests are refused; docs/guides/webhooks.md describes the route.
    in_document=False,
)

RECEIVE_CHANNEL_EVENT = Route(
    "POST /v1/connections/{connection_id}/inbound",
    bytes,
    max_body=MAX_EVENT_BYTES,
    needs_key=False,
    # What it takes and answers is the vendor's own protocol.
    in_document=False,
)
CHECK_CHANNEL_ADDRESS = Route("GET /v1/connections/{connection_id}/inbound", bytes, needs_key=False, in_document=False)
"""Some vendors ask for an echo before they send anything to an address."""
