"""A shortcut for the busiest route.

The framework solves dependencies anew for every request, which costs more than taking a message in. A request that is
well-formed in every respect goes straight to the operation; any other takes the ordinary way, where each fault gets the
answer that the document promises. Both ways end in the same function.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any
from uuid import UUID

from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from cortex_plane.http.exchange import authenticated, is_idempotency_key, once_of
from cortex_plane.kernel.fields import adapter
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.sessions.model.sessions import InboundMessage
from cortex_plane.tenancy.model.access import Actor

Ingest = Callable[[Request, Actor, UUID, IdempotencyKey | None, InboundMessage], Awaitable[Response]]


class IngestRoute(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        ordinary = super().get_route_handler()
        ingest: Ingest = self.endpoint

        async def handle(request: Request) -> Response:
            read = await _well_formed(request)
            if read is None:
                return await ordinary(request)
            connection_id, once, inbound = read
            return await ingest(request, await authenticated(request, None), connection_id, once, inbound)

        return handle


async def _well_formed(request: Request) -> tuple[UUID, IdempotencyKey | None, InboundMessage] | None:
    headers = request.headers
    key = headers.get("idempotency-key")
    if (
        headers.get("content-type") != "application/json"
        or "cortex-org" in headers
        or (key is not None and not is_idempotency_key(key))
    ):
        return None
    try:
        connection_id = UUID(request.path_params["connection_id"])
        inbound: InboundMessage = adapter(InboundMessage).validate_json(await request.body())
    except (ValueError, ValidationError):
        return None
    return connection_id, await once_of(request, key), inbound
