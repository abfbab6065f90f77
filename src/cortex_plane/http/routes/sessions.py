"""The routes of sessions, bound to their verbs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from starlette.responses import Response

from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.http.exchange import (
    ORG,
    Binding,
    Exchange,
    answer,
    handle,
    key_holder,
    ordered,
    pages,
    reply,
    reply_ordered,
)
from cortex_plane.http.streams import MEDIA_TYPE, EventStream, OpenStreams, stream
from cortex_plane.jobs import routes as job_routes
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.pages import decode_number
from cortex_plane.sessions import routes
from cortex_plane.sessions.model.sessions import InboundMessage, IngestedMessage, MessageDraft
from cortex_plane.sessions.verbs import events, sessions
from cortex_plane.sessions.verbs.events import EventReplay
from cortex_plane.tenancy.model.access import Actor

_LAST = 2**31 - 1
"""No event has a higher number."""


async def ingest_message(
    exchange: Exchange, connection_id: UUID, inbound: InboundMessage, once: IdempotencyKey | None
) -> Response:
    message = await sessions.ingest_message(exchange.db, exchange.actor, connection_id, inbound, once)
    if not message.replayed:
        exchange.state.metrics.messages.add(1, {"tenant_id": str(exchange.actor.org_id)})
        _count_job(exchange, message)
    return reply(message, 201)


async def post_message(
    exchange: Exchange, session_id: UUID, draft: MessageDraft, once: IdempotencyKey | None
) -> Response:
    message = await sessions.post_message(exchange.db, exchange.actor, session_id, draft, once)
    _count_job(exchange, message)
    return reply(message, 201)


def _count_job(exchange: Exchange, message: IngestedMessage) -> None:
    if "job" in message.created:
        exchange.state.metrics.jobs.add(1, {"tenant_id": str(exchange.actor.org_id)})


async def session_events(exchange: Exchange, session_id: UUID, last: int | None, query: routes.EventQuery) -> Response:
    async def read(actor: Actor, after: int, limit: int) -> EventReplay:
        return await events.of_session(exchange.db, actor, session_id, after, limit)

    return await _send_events(exchange, query, last, read)


async def job_events(exchange: Exchange, job_id: UUID, last: int | None, query: job_routes.JobEventQuery) -> Response:
    verb = events.of_job if query.follow == "job" else events.of_jobs_session

    async def read(actor: Actor, after: int, limit: int) -> EventReplay:
        return await verb(exchange.db, actor, job_id, after, limit)

    return await _send_events(exchange, query, last, read)


async def _send_events(
    exchange: Exchange,
    query: routes.EventQuery | job_routes.JobEventQuery,
    last: int | None,
    read: Callable[[Actor, int, int], Awaitable[EventReplay]],
) -> Response:
    request = exchange.request
    # A browser that connects again repeats its first address, so what it says of its last event goes first.
    after = query.after if last is None else last
    accepts = request.headers.get("accept", "")
    if "application/json" in accepts and MEDIA_TYPE not in accepts:
        after = decode_number("events", query.cursor) or after
        page = await read(exchange.actor, after, query.limit + 1)
        return reply_ordered("events", page.events, query.limit, lambda event: event.seq)
    org = request.headers.get(ORG)

    async def read_page(after: int) -> EventReplay:
        return await read(exchange.actor, after, events.PAGE)

    async def check_access() -> None:
        """The key still works, and its holder still sees what is streamed."""
        await read(await key_holder(request, org), _LAST, 1)

    first = await read_page(after)
    streams: OpenStreams = exchange.state.streams
    content = stream(exchange.state.feed, read_page, first, after, check_access)
    return EventStream(content, streams.open(exchange.actor))


BINDINGS: tuple[Binding, ...] = (
    handle(routes.INGEST_MESSAGE, sessions.ingest_message, ingest_message),
    answer(routes.CREATE_SESSION, session_lifecycle.create),
    pages(routes.LIST_SESSIONS, sessions.list_sessions, "sessions"),
    answer(routes.GET_SESSION, sessions.get_session),
    answer(routes.UPDATE_SESSION, sessions.update_session),
    answer(routes.TERMINATE_SESSION, session_lifecycle.terminate),
    handle(routes.POST_MESSAGE, sessions.post_message, post_message),
    ordered(routes.LIST_MESSAGES, sessions.list_messages, "messages", "above", lambda message: message.seq, start=0),
    ordered(routes.LIST_MEMORIES, sessions.list_memories, "memories", "below", lambda memory: memory.number),
    handle(routes.SESSION_EVENTS, events.of_session, session_events),
    handle(job_routes.JOB_EVENTS, events.of_job, job_events),
)
