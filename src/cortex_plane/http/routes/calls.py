"""The routes of calls, bound to their verbs."""

from __future__ import annotations

from uuid import UUID

from starlette.responses import Response

from cortex_plane.calls import routes
from cortex_plane.calls.model import ExternalCall
from cortex_plane.calls.verbs import calls, external, gate_answers, outcomes, permissions, resolutions
from cortex_plane.http.exchange import Binding, Exchange, answer, handle, pages, reply
from cortex_plane.http.in_flight import leave
from cortex_plane.http.streams import wait_for_decision


async def get_call(exchange: Exchange, call_id: UUID, query: routes.WaitQuery) -> Response:
    if not query.wait:
        return reply(await calls.get_call(exchange.db, exchange.actor, call_id))

    async def read() -> tuple[ExternalCall, int]:
        return await calls.watch_call(exchange.db, exchange.actor, call_id)

    request, streams = exchange.request, exchange.state.streams
    end = streams.open(exchange.actor)
    leave(request.scope)
    try:
        return reply(
            await wait_for_decision(
                exchange.state.feed, exchange.actor.org_id, read, query.wait, request.is_disconnected
            )
        )
    finally:
        end()


BINDINGS: tuple[Binding, ...] = (
    answer(routes.AUTHORIZE_CALL, calls.authorize_call),
    pages(routes.LIST_CALLS, calls.list_calls, "calls"),
    handle(routes.GET_CALL, calls.get_call, get_call),
    answer(routes.INTEND_CALL, calls.begin_call),
    answer(routes.SETTLE_CALL, outcomes.settle_call),
    answer(routes.COMPLETE_SESSION, external.complete),
    answer(routes.FAIL_SESSION, external.fail),
    answer(routes.RESOLVE_REQUEST, resolutions.resolve),
    answer(routes.GET_RESOLUTION, resolutions.get_resolution),
    answer(routes.EXECUTE_RESOLUTION, resolutions.execute_resolution),
    answer(routes.REPORT_RESOLUTION, resolutions.report_resolution),
    answer(routes.ANSWER_GATE, gate_answers.give_answers),
    answer(routes.GET_PERMISSIONS, permissions.get_permissions),
)
