from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from cortex_plane.adapters.http.cursors import decode_position
from cortex_plane.adapters.http.exchange import (
    Caller,
    Db,
    Listing,
    ListQuery,
    OnceOnly,
    Revision,
    reply,
    reply_page,
    route,
)
from cortex_plane.adapters.http.shortcut import IngestRoute
from cortex_plane.adapters.telemetry.metrics import Metrics
from cortex_plane.domain.connections import Connection, ConnectionChange, ConnectionDraft
from cortex_plane.domain.messages import Delivery, InboundMessage
from cortex_plane.operations import connections, messages

router = APIRouter(tags=["connections"])


@router.post("/connections", response_model=Connection, status_code=201, **route(connections.create))
async def create_connection(db: Db, actor: Caller, once: OnceOnly, draft: ConnectionDraft) -> Response:
    return reply(await connections.create(db, actor, draft, once), 201)


@router.get("/connections", response_model=Listing[Connection], **route(connections.list_page))
async def list_connections(db: Db, actor: Caller, query: Annotated[ListQuery, Query()]) -> Response:
    position = decode_position("connections", query.cursor)
    return reply_page("connections", await connections.list_page(db, actor, position, query.limit))


@router.get("/connections/{connection_id}", response_model=Connection, **route(connections.get))
async def get_connection(db: Db, actor: Caller, connection_id: UUID) -> Response:
    return reply(await connections.get(db, actor, connection_id))


@router.patch("/connections/{connection_id}", response_model=Connection, **route(connections.update))
async def update_connection(
    db: Db, actor: Caller, connection_id: UUID, change: ConnectionChange, revision: Revision
) -> Response:
    return reply(await connections.update(db, actor, connection_id, change, revision))


async def ingest_message(
    request: Request, actor: Caller, connection_id: UUID, once: OnceOnly, inbound: InboundMessage
) -> Response:
    """Take in a person's message: makes account, session and job where they do not exist."""
    delivery = await messages.ingest(request.app.state.db, actor, connection_id, inbound, once)
    if not delivery.replayed:
        counted: Metrics = request.app.state.metrics
        tenant = {"tenant_id": str(actor.org_id)}
        counted.messages.add(1, tenant)
        if "job" in delivery.created:
            counted.jobs.add(1, tenant)
    return reply(delivery, 201)


router.add_api_route(
    "/connections/{connection_id}/messages",
    ingest_message,
    methods=["POST"],
    response_model=Delivery,
    status_code=201,
    route_class_override=IngestRoute,
    **route(messages.ingest),
)
