"""The inbox: what waits for a decision, what was decided lately, and the stream of hints that keeps pages current."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from starlette.responses import Response

from cortex_plane.approvals.model.approvals import Approval, Mark, Waiting
from cortex_plane.approvals.verbs import approvals
from cortex_plane.dashboard import pages
from cortex_plane.dashboard.pages import fingerprint
from cortex_plane.dashboard.visits import Visit, parse_id, signed_in, view
from cortex_plane.kernel.errors import CortexError, Unavailable
from cortex_plane.kernel.routes import PageRoutes
from cortex_plane.sessions.model.events import EventType
from cortex_plane.sessions.verbs import events
from cortex_plane.sessions.verbs.events import EventFeed, Subscription
from cortex_plane.tenancy.verbs import logins

router = PageRoutes()

ROWS = 100
"""Rows of each list; more are a page further."""
LATELY = 8
ENDED = 60
"""How many of the last ends are looked at, for those that stay in their place."""
_FIRST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Inbox:
    queue: Waiting
    """With those that ended since the list was shown, in their place. A banner announces those that arrived since: a list must not
    move under a finger."""
    settled: list[Approval]
    page: int
    shown_at: datetime | None
    after: UUID | None
    """The request after which this look began; None: with the most urgent one."""

    @property
    def rows(self) -> list[Approval]:
        return [*self.queue.mine, *self.queue.others]

    @property
    def more(self) -> bool:
        return max(self.queue.mine_total, self.queue.others_total) > (self.page + 1) * ROWS


def arrange(
    waiting: Waiting, settled: Sequence[Approval], shown_at: datetime | None, page: int, after: UUID | None
) -> Inbox:
    """``shown_at`` is the time of the visitor's list: later requests are counted, requests that ended later stay in their place."""
    recent = ended_since(settled, shown_at) if page == 0 and after is None else []
    in_place = {a.id for a in recent}
    times = [waiting.latest, *(a.resolved_at for a in settled)]  # by the database's clock
    mine = sorted([*waiting.mine, *recent], key=lambda a: (a.deadline or _FIRST, a.requested_at, a.id))
    return Inbox(
        queue=replace(waiting, mine=mine),
        settled=[a for a in settled if a.id not in in_place][:LATELY],
        page=page,
        shown_at=shown_at or max((at for at in times if at is not None), default=None),
        after=after,
    )


def ended_since(settled: Sequence[Approval], shown_at: datetime | None) -> list[Approval]:
    if shown_at is None:
        return []
    return [a for a in settled if a.requested_at <= shown_at < (a.resolved_at or a.requested_at)]


async def _inbox_context(visit: Visit, shown_at: datetime | None = None) -> dict[str, Any]:
    query = visit.request.query_params
    text, after = query.get("page", ""), parse_id(query["after"], "approval") if query.get("after") else None
    page = int(text) if text.isascii() and text.isdigit() and len(text) < 5 else 0
    settled = await approvals.list_settled(visit.db, visit.actor, ENDED)
    list_inbox = functools.partial(approvals.list_inbox, visit.db, visit.actor, ROWS, skip=page * ROWS, after=after)
    waiting = await list_inbox(shown_at=shown_at)
    is_empty = waiting.mine_total + waiting.others_total == 0
    if shown_at is not None and is_empty and not ended_since(settled, shown_at):
        shown_at = None  # an empty list cannot move: show everything
        waiting = await list_inbox()
    inbox = arrange(waiting, settled, shown_at, page, after)
    return look(inbox, await approvals.marks_of_approvals(visit.db, visit.actor, inbox.rows))


def look(inbox: Inbox, marks: Mapping[UUID, Mark]) -> dict[str, Any]:
    """What the templates show."""
    seen = fingerprint(
        [
            (a.id, a.version, a.status, a.may_decide, a.votes_for, a.escalation_level, marks.get(a.id))
            for a in inbox.rows
        ],
        (inbox.queue.arrived, inbox.queue.mine_total, inbox.queue.others_total, inbox.page, inbox.queue.further),
        [(a.id, a.status) for a in inbox.settled],
    )
    return {"inbox": inbox, "seen": seen, "waiting": inbox.queue.mine_total, "at_most": ROWS, "marks": marks}


async def _context_again(visit: Visit) -> dict[str, Any]:
    return await _inbox_context(visit, _time(visit.request.query_params.get("shown_at")))


def _time(text: str | None) -> datetime | None:
    try:
        at = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return at if at and at.tzinfo else None


router.add("/", view("inbox.html", _inbox_context), "GET")
router.add("/inbox/live", view("inbox_list.html", _context_again, polled=True), "GET")


HEARTBEAT_SECONDS = 15.0
AT_MOST_EVERY = 0.25
"""Seconds between two hints."""
_LAST = 2**62
Stream = Callable[[AsyncGenerator[bytes, None], Callable[[], None]], Response]
"""Makes an answer of lines; the second argument is called when it ends."""
_CHANGED = b"event: changed\ndata: \n\n"


async def stream_hints(visit: Visit) -> Response:
    """Hints about approvals of the org; with ``?job=``, about the session of that job."""
    feed: EventFeed | None = getattr(visit.request.app.state, "feed", None)
    if feed is None:
        raise Unavailable("This process streams no events.", hint="The page looks every few seconds instead.")
    job = visit.request.query_params.get("job")
    if job is None:
        watching = feed.approvals(visit.actor.org_id)
    else:
        replay = await events.of_job(visit.db, visit.actor, parse_id(job, "job"), _LAST, 1)
        watching = feed.watch(visit.actor.org_id, replay.session_id, replay.latest)
    state = visit.request.app.state
    make: Stream = state.hint_stream
    stream = make(_hints(visit, watching), state.streams.open(visit.actor.identity, visit.actor.org_id))
    stream.headers.update(pages.HEADERS)
    return stream


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
                if not await is_signed_in(visit):
                    yield _CHANGED  # the page asks, and learns that its session is over
                    return
                due = time.monotonic() + HEARTBEAT_SECONDS
                yield b": ping\n\n"


async def is_signed_in(visit: Visit) -> bool:
    try:
        await logins.authenticate_session(visit.db, visit.secret, touch=False)
    except Unavailable:
        return True  # unknown now: the next heartbeat asks again
    except CortexError:
        return False
    return True


router.add("/live", signed_in(stream_hints, by_itself=True), "GET")
