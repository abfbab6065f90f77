from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Header, Query, Request
from pydantic import Field
from starlette.responses import Response

from cortex_plane.http.exchange import Caller, Db, Listing, ListQuery, holder, reply_numbered, route
from cortex_plane.http.streams import MEDIA_TYPE, EventStream, OpenStreams, stream
from cortex_plane.kernel.pages import decode_number
from cortex_plane.sessions.model.events import Event
from cortex_plane.sessions.verbs import events
from cortex_plane.sessions.verbs.events import EventReplay
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs.frame import Verb

router = APIRouter(tags=["events"])

_MOST = 2**31 - 1

LastEventId = Annotated[
    int | None,
    Header(
        alias="Last-Event-ID",
        description="The number of the last event that you have: what came after it is sent first.",
        ge=0,
        le=_MOST,
    ),
]


class EventQuery(ListQuery):
    after: Annotated[int, Field(ge=0, le=_MOST, description="Only events after this number.")] = 0


class JobEventQuery(EventQuery):
    follow: Annotated[
        Literal["job", "session"],
        Field(description="`session`: everything in the job's session, also after the job's end."),
    ] = "job"


def _streams(operation: Verb[..., Any]) -> dict[str, Any]:
    """The document's entry: one route, as a stream or as a page."""
    described = route(operation, 429)
    described["responses"] = {
        200: {
            "description": "A stream of events; with `Accept: application/json` one page of them.",
            "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
        },
        **described["responses"],
    }
    return described


@router.get("/sessions/{session_id}/events", response_model=Listing[Event], **_streams(events.of_session))
async def session_events(
    request: Request,
    db: Db,
    actor: Caller,
    session_id: UUID,
    query: Annotated[EventQuery, Query()],
    last: LastEventId = None,
) -> Response:
    """What happens in a session, as server-sent events: what you missed first, then live."""

    async def read(actor: Actor, after: int, limit: int) -> EventReplay:
        return await events.of_session(db, actor, session_id, after, limit)

    return await _answer(request, actor, query, last, read)


@router.get("/jobs/{job_id}/events", response_model=Listing[Event], **_streams(events.of_job))
async def job_events(
    request: Request,
    db: Db,
    actor: Caller,
    job_id: UUID,
    query: Annotated[JobEventQuery, Query()],
    last: LastEventId = None,
) -> Response:
    """What a job does, as server-sent events: what you missed first, then live, until the job ends."""
    of_what = events.of_job if query.follow == "job" else events.of_jobs_session

    async def read(actor: Actor, after: int, limit: int) -> EventReplay:
        return await of_what(db, actor, job_id, after, limit)

    return await _answer(request, actor, query, last, read)


async def _answer(
    request: Request,
    actor: Actor,
    query: EventQuery,
    last: int | None,
    read: Callable[[Actor, int, int], Awaitable[EventReplay]],
) -> Response:
    # A browser that connects again repeats its first address, so what it says of its last event goes first.
    after = query.after if last is None else last
    if _wants_a_page(request):
        after = decode_number("events", query.cursor) or after
        page = await read(actor, after, query.limit + 1)
        return reply_numbered("events", page.events, query.limit, lambda event: event.seq)
    org = request.headers.get("cortex-org")

    async def reading(after: int) -> EventReplay:
        return await read(actor, after, events.PAGE)

    async def allowed() -> None:
        """The key still works, and whoever holds it still sees what is streamed."""
        await read(await holder(request, org), _MOST, 1)

    first = await reading(after)
    streams: OpenStreams = request.app.state.streams
    return EventStream(stream(request.app.state.feed, reading, first, after, allowed), streams.opened(actor))


def _wants_a_page(request: Request) -> bool:
    accepts = request.headers.get("accept", "")
    return "application/json" in accepts and MEDIA_TYPE not in accepts
