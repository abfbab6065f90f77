"""Where other systems send events. Their signature says who they are, so there is no key, and nothing is read before it."""

from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from cortex_plane.http.exchange import Db, reply
from cortex_plane.kernel.fields import BODY_LIMIT
from cortex_plane.notify.model.webhooks import MAX_INBOUND_BYTES
from cortex_plane.notify.verbs import webhooks

router = APIRouter(tags=["webhooks"])


# Not in the document: what a made-up request would be answered there is always the same, and docs/guides/webhooks.md says the rest.
@router.post(
    "/webhooks/{connection_id}", include_in_schema=False, openapi_extra={BODY_LIMIT: MAX_INBOUND_BYTES}
)
async def receive_event(request: Request, db: Db, connection_id: UUID) -> Response:
    return reply(await webhooks.receive(db, connection_id, request.headers, await request.body()))
