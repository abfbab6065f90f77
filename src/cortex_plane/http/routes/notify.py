"""The routes of notify, bound to their verbs."""

from __future__ import annotations

from uuid import UUID

from starlette.responses import Response

from cortex_plane.http.exchange import Binding, Exchange, answer, handle, pages, reply
from cortex_plane.notify import routes
from cortex_plane.notify.verbs import deliveries, webhooks


async def test_connection(exchange: Exchange, connection_id: UUID) -> Response:
    return reply(await webhooks.try_out(exchange.db, exchange.actor, connection_id, exchange.state.webhooks))


async def receive_event(exchange: Exchange, connection_id: UUID) -> Response:
    """The signature says who sends it, so there is no key, and nothing of the body is read before it."""
    request = exchange.request
    return reply(await webhooks.receive(exchange.db, connection_id, request.headers, await request.body()))


BINDINGS: tuple[Binding, ...] = (
    handle(routes.TEST_CONNECTION, webhooks.try_out, test_connection),
    handle(routes.RECEIVE_EVENT, None, receive_event),
    pages(routes.LIST_DELIVERIES, deliveries.list_deliveries, "deliveries"),
    answer(routes.GET_DELIVERY, deliveries.get_delivery),
    answer(routes.RESEND_DELIVERY, deliveries.resend_delivery),
)
