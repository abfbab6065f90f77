"""Live updates: a stream that says "something changed" and nothing else. The page then asks for what it shows."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager
from uuid import UUID

from starlette.responses import Response

from cortex_plane.dashboard import pages
from cortex_plane.dashboard.visits import PageRouter, Visit, signed_in
from cortex_plane.kernel.errors import CortexError, NotFound, Unavailable
from cortex_plane.sessions.model.events import EventType
from cortex_plane.sessions.verbs import events
from cortex_plane.sessions.verbs.events import EventFeed, Subscription
from cortex_plane.tenancy.verbs import logins

router = PageRouter()

HEARTBEAT_SECONDS = 15.0
AT_MOST_EVERY = 0.25
"""Seconds between two hints."""
_LAST = 2**62
Stream = Callable[[AsyncGenerator[bytes, None], Callable[[], None]], Response]
"""Makes an answer of lines, and of what says that it ended."""
_CHANGED = b"event: changed\ndata: \n\n"


async def live(visit: Visit) -> Response:
    """Approvals of the org; with ``?job=``, whatever happens in the session of that job."""
    feed: EventFeed | None = getattr(visit.request.app.state, "feed", None)
    if feed is None:
        raise Unavailable("This process streams no events.", hint="The page looks every few seconds instead.")
    watching = await _watched(visit, feed)
    state = visit.request.app.state
    make: Stream = state.hint_stream
    stream = make(_hints(visit, watching), state.streams.open(visit.actor))
    stream.headers.update(pages.HEADERS)
    return stream


async def _watched(visit: Visit, feed: EventFeed) -> AbstractContextManager[Subscription]:
    job = visit.request.query_params.get("job")
    if job is None:
        return feed.approvals(visit.actor.org_id)
    try:
        id = UUID(job)
    except ValueError:
        raise NotFound("There is no such job.", code="job_not_found") from None
    replay = await events.of_job(visit.db, visit.actor, id, _LAST, 1)
    return feed.watch(visit.actor.org_id, replay.session_id, replay.latest)


async def _hints(visit: Visit, watching: AbstractContextManager[Subscription]) -> AsyncGenerator[bytes, None]:
    yield b"retry: 1000\n\n"
    with watching as subscription:
        due = time.monotonic() + HEARTBEAT_SECONDS
        while not subscription.closed and not subscription.overflowed:
            new = await subscription.take(max(0.0, due - time.monotonic()))
            if any(event.type != EventType.TEXT_CHUNK for event in new):  # pages show no unfinished words
                yield _CHANGED
                await asyncio.sleep(AT_MOST_EVERY)
            if time.monotonic() >= due:
                if not await _still_in(visit):
                    yield _CHANGED  # the page asks, and learns that its session is over
                    return
                due = time.monotonic() + HEARTBEAT_SECONDS
                yield b": ping\n\n"


async def _still_in(visit: Visit) -> bool:
    with contextlib.suppress(Unavailable):  # nobody can tell now: the next heartbeat asks again
        try:
            await logins.authenticate_session(visit.db, visit.secret, touch=False)
        except Unavailable:
            raise
        except CortexError:
            return False
    return True


router.add("/live", signed_in(live, by_itself=True), "GET")
