from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from cortex_plane.http.exchange import (
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
from cortex_plane.http.metrics import Metrics
from cortex_plane.http.shortcut import IngestRoute
from cortex_plane.kernel.fields import MAX_BODY_BYTES
from cortex_plane.kernel.pages import decode_position
from cortex_plane.notify.model.webhooks import Ping
from cortex_plane.notify.verbs import webhooks
from cortex_plane.sessions.model.sessions import InboundMessage, IngestedMessage
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.identities import (
    Connection,
    ConnectionChange,
    ConnectionDraft,
    Mapping,
    MappingDraft,
    NewConnection,
    NewSecret,
)
from cortex_plane.tenancy.verbs import connections

router = APIRouter(tags=["connections"])


async def webhook_tests(request: Request) -> webhooks.Webhooks:
    found: webhooks.Webhooks = request.app.state.webhooks
    return found


Webhooks = Annotated[webhooks.Webhooks, Depends(webhook_tests)]


@router.post(
    "/connections", response_model=NewConnection, status_code=201, **route(connections.create_connection)
)
async def create_connection(
    db: Db, actor: Caller, once: OnceOnly, channel: Webhooks, draft: ConnectionDraft
) -> Response:
    """A webhook has a `url`; the answer holds the secret that signs its messages, which is shown once."""
    return reply(await connections.create_connection(db, actor, draft, once, allowed=channel.allowed), 201)


@router.get("/connections", response_model=Listing[Connection], **route(connections.list_connections))
async def list_connections(db: Db, actor: Caller, query: Annotated[ListQuery, Query()]) -> Response:
    position = decode_position("connections", query.cursor)
    return reply_page("connections", await connections.list_connections(db, actor, position, query.limit))


@router.get("/connections/{connection_id}", response_model=Connection, **route(connections.get_connection))
async def get_connection(db: Db, actor: Caller, connection_id: UUID) -> Response:
    return reply(await connections.get_connection(db, actor, connection_id))


@router.patch(
    "/connections/{connection_id}", response_model=Connection, **route(connections.update_connection)
)
async def update_connection(
    db: Db,
    actor: Caller,
    connection_id: UUID,
    channel: Webhooks,
    change: ConnectionChange,
    revision: Revision,
) -> Response:
    """Enabling a connection that the plane disabled by itself lets it be tried anew."""
    changed = await connections.update_connection(
        db, actor, connection_id, change, revision, allowed=channel.allowed
    )
    return reply(changed)


@router.post(
    "/connections/{connection_id}/rotate-secret", response_model=NewSecret, **route(connections.rotate_secret)
)
async def rotate_connection_secret(db: Db, actor: Caller, connection_id: UUID) -> Response:
    """A new secret for a webhook, shown once. The one before it counts for 24 hours more."""
    return reply(await connections.rotate_secret(db, actor, connection_id))


@router.post("/connections/{connection_id}/test", response_model=Ping, **route(webhooks.try_out))
async def test_connection(db: Db, actor: Caller, connection_id: UUID, channel: Webhooks) -> Response:
    """Send a signed `ping` to a webhook now, and say what came back."""
    return reply(await webhooks.try_out(db, actor, connection_id, channel))


@router.post(
    "/connections/{connection_id}/mappings",
    response_model=Mapping,
    status_code=201,
    **route(connections.map_member),
)
async def map_connection_member(db: Db, actor: Caller, connection_id: UUID, draft: MappingDraft) -> Response:
    """Say whose a name in the system behind a webhook is: from then on that member is told there, and decides there."""
    return reply(await connections.map_member(db, actor, connection_id, draft), 201)


async def ingest_message(
    request: Request, actor: Caller, connection_id: UUID, once: OnceOnly, inbound: InboundMessage
) -> Response:
    """Take in a person's message: makes account, session and job where they do not exist."""
    delivery = await sessions.ingest_message(request.app.state.db, actor, connection_id, inbound, once)
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
    response_model=IngestedMessage,
    status_code=201,
    route_class_override=IngestRoute,
    **route(sessions.ingest_message, body=MAX_BODY_BYTES),
)
