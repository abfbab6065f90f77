"""Waiting for a decision with one request: answered as soon as there is something to do, or when its time is over.

While it waits it holds no connection to the database: the feed of the process tells when its session moves.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from uuid import UUID

from cortex_plane.calls.model import ExternalCall, Next
from cortex_plane.sessions.verbs.events import EventFeed

LOOK_SECONDS = 5.0
"""How long at most until it looks whether whoever asked is still there."""


async def decided(
    feed: EventFeed,
    org_id: UUID,
    read: Callable[[], Awaitable[tuple[ExternalCall, int]]],
    seconds: float,
    is_gone: Callable[[], Awaitable[bool]],
) -> ExternalCall:
    call, latest = await read()
    ends = time.monotonic() + seconds
    if call.next is not Next.WAIT or seconds <= 0:
        return call
    with feed.watch(org_id, call.session_id, latest) as live:
        while True:
            # Read again now that nothing new can be missed.
            call, _ = await read()
            left = ends - time.monotonic()
            if call.next is not Next.WAIT or left <= 0 or live.closed or live.overflowed or await is_gone():
                return call
            await live.take(min(left, LOOK_SECONDS, _until_settled(call)))


def _until_settled(call: ExternalCall) -> float:
    """Nothing is told when an attempt cannot be under way any more: only the clock knows."""
    if call.settle_after is None or call.settle_after <= call.now:
        return LOOK_SECONDS
    return (call.settle_after - call.now).total_seconds() + 0.01
