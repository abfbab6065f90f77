"""Answers that take time: server-sent events, downloads, and a request that waits for a decision.

Events are replayed from where the reader stopped, and then followed live without a gap:

    id: 17                     the number to resume after
    event: tool_call           what it is
    data: {…}                  the event as JSON, on one line

Three more kinds belong to the stream and not to the session, so they have no id:

    : ping                     nothing happened, and the stream lives
    event: end                 nothing more comes: do not connect again
    event: dropped             connect again with `Last-Event-ID`: the reader was too slow, or the process ends
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar
from uuid import UUID

import orjson
import structlog
from starlette.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

from cortex_plane.calls.model import ExternalCall, Next
from cortex_plane.kernel.errors import CortexError, Unavailable
from cortex_plane.kernel.fields import to_json
from cortex_plane.sessions.model.events import Event
from cortex_plane.sessions.verbs.event_reader import CheckAccess, EventReader, ReadEvents
from cortex_plane.sessions.verbs.events import EventFeed, EventReplay
from cortex_plane.tenancy.verbs.frame import leave, others_wait

log = structlog.get_logger()

T = TypeVar("T")

MEDIA_TYPE = "text/event-stream"
RETRY_MS = 1000
STALL_SECONDS = 30.0
"""How long one part may wait for a reader that takes nothing."""


class EventStream(StreamingResponse):
    """Gives up a reader that takes nothing, and closes what it sends whatever happens, before it returns."""

    media_type = MEDIA_TYPE

    def __init__(self, content: AsyncGenerator[bytes, None], on_end: Callable[[], None]) -> None:
        # A proxy that collects answers before it passes them on would hold back every event.
        super().__init__(content, headers={"X-Accel-Buffering": "no"})
        self._content = content
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leave(scope["state"])
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()
            await self._content.aclose()

    async def stream_response(self, send: Send) -> None:
        async def in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(STALL_SECONDS):
                    await send(message)
            except TimeoutError:
                raise _Stalled from None

        try:
            await super().stream_response(in_time)
        except _Stalled:
            # It is answered without its end: the server closes the connection.
            log.warning("stream given up", reason="its reader takes nothing")


class _Stalled(Exception):
    """A part was not taken in time."""


async def stream(
    feed: EventFeed,
    read: ReadEvents,
    first: EventReplay,
    after: int,
    check_access: CheckAccess,
    heartbeat: float | None = None,
) -> AsyncGenerator[bytes, None]:
    """From ``after`` until the job ends, access ends, the reader is too slow, or the process stops. ``first`` is what
    ``read(after)`` gave: it was read before the answer began, so that an error could still be one."""
    reader = EventReader(feed, read, check_access, after, heartbeat)
    yield f"retry: {RETRY_MS}\n\n".encode()
    try:
        async with aclosing(reader.batches(first)) as batches:
            async for events in batches:
                yield b"".join(map(encoded, events)) if events else b": ping\n\n"
    except Unavailable:
        yield control("dropped", after=reader.cursor, reason="unavailable")
    except CortexError:
        yield control("end", reason="access_ended")
    else:
        if reader.dropped is not None:
            yield control("dropped", after=reader.cursor, reason=reader.dropped)
        else:
            yield control("end", reason="job_ended", status=reader.over)


_ENCODED: OrderedDict[int, tuple[Event, bytes]] = OrderedDict()
"""The newest by their identity: all readers of a session get the same events."""
MOST_ENCODED, LONGEST_ENCODED = 512, 16_384


def encoded(event: Event) -> bytes:
    before = _ENCODED.get(id(event))
    if before is not None and before[0] is event:
        return before[1]
    text = b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), to_json(event))
    if len(text) <= LONGEST_ENCODED:
        _ENCODED[id(event)] = event, text
        if len(_ENCODED) > MOST_ENCODED:
            _ENCODED.popitem(last=False)
    return text


def control(name: str, **data: object) -> bytes:
    """An event of the stream itself. It has no id, so it does not move the reader's cursor."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), orjson.dumps(data))


CHUNK_SECONDS = 60.0
"""How long one chunk may wait for a reader that takes nothing."""
PAUSE = 4.0
"""Beside other orgs: so many times as long as a chunk took, before the next one."""
LONGEST_SECONDS = 3600.0
"""A snapshot keeps the database from cleaning up, so none is held longer than this for a slow reader."""


class Download(StreamingResponse):
    """Closes what it sends whatever happens, before it returns.

    The framework's own would leave that to the garbage collector when a client goes away, and would cancel the cleanup
    too. If the source fails, the answer ends without its end: the server closes the connection, and the client knows.
    """

    def __init__(self, content: AsyncGenerator[bytes, None], media_type: str, filename: str) -> None:
        super().__init__(
            content, media_type=media_type, headers={"Content-Disposition": f'attachment; filename="{filename}"'}
        )
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        are_others_waiting = others_wait(scope["state"])
        leave(scope["state"])  # how long its reader takes is no work of the plane's
        sending = asyncio.create_task(self._send_all(send, are_others_waiting))
        leaving = asyncio.create_task(_until_gone(receive))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (sending, leaving):
                task.cancel()
            await asyncio.gather(sending, leaving, return_exceptions=True)
            await self._content.aclose()

    async def _send_all(self, send: Send, are_others_waiting: Callable[[], bool]) -> None:
        start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        try:
            async with asyncio.timeout(LONGEST_SECONDS):
                await send(start)
                began = time.monotonic()
                async for chunk in self._content:
                    pause = PAUSE * (time.monotonic() - began) if are_others_waiting() else 0.0
                    async with asyncio.timeout(CHUNK_SECONDS):
                        await send({"type": "http.response.body", "body": chunk, "more_body": True})
                    await asyncio.sleep(pause)
                    began = time.monotonic()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            log.warning("download given up", reason="its reader is too slow")
        except OSError:
            log.info("download given up", reason="its reader is gone")
        except Exception as error:
            log.error("download cut off", exc_info=error)


async def _until_gone(receive: Receive) -> None:
    with contextlib.suppress(Exception):
        while (await receive())["type"] != "http.disconnect":
            pass


POLL_SECONDS = 5.0
"""The longest time between two checks that the caller is still connected."""


async def wait_for_decision(
    feed: EventFeed,
    org_id: UUID,
    read: Callable[[], Awaitable[tuple[ExternalCall, int]]],
    seconds: float,
    is_absent: Callable[[], Awaitable[bool]],
) -> ExternalCall:
    call, latest = await read()
    ends = time.monotonic() + seconds
    if call.next is not Next.WAIT or seconds <= 0:
        return call
    with feed.watch(org_id, call.session_id, latest) as live:
        while True:
            # Read again now that nothing new can be missed.
            call, _ = await read()
            seconds = ends - time.monotonic()
            if call.next is not Next.WAIT or seconds <= 0 or live.closed or live.overflowed or await is_absent():
                return call
            await live.take(min(seconds, POLL_SECONDS, _until_settled(call)))


def _until_settled(call: ExternalCall) -> float:
    """No event says that an attempt cannot be under way any more: the clock decides it."""
    if call.settle_after is None or call.settle_after <= call.now:
        return POLL_SECONDS
    return (call.settle_after - call.now).total_seconds() + 0.01
