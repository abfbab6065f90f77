"""Handles what people do on channels: events that a door or a listener stored. Any number of these may run.

Chats run side by side, and within a chat one event after the other. An org that holds half of the places gets no more, and the last one is
for an org that holds none: whose vendor hangs keeps nobody else waiting. It is woken when this process stores an event, and looks by itself for what
another process left.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Mapping
from uuid import UUID

import structlog

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict, CortexError, Unavailable
from cortex_plane.notify.model.notifications import TryAgain
from cortex_plane.notify.verbs import channel_events, inbound
from cortex_plane.notify.verbs.channel_events import EventLane, StoredEvent
from cortex_plane.notify.verbs.channel_port import InteractiveChannel

log = structlog.get_logger()

POLL_SECONDS = 1.0
CONCURRENCY = 16
"""Chats at a time."""
HANDLE_SECONDS = 40.0
"""Well inside the lease, which is renewed before each event."""
LEAVING_SECONDS = 5.0


class ChannelInbox:
    """``run`` until cancelled. Nothing of it is needed again after a crash: what is to be done is in the database."""

    def __init__(
        self,
        db: Database,
        channels: Mapping[str, InteractiveChannel],
        public_url: str,
        *,
        concurrency: int = CONCURRENCY,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self._db, self._channels, self._public_url = db, channels, public_url
        self._concurrency, self._poll = concurrency, poll_seconds
        self._stored = asyncio.Event()
        self._share = max(1, concurrency // 2)
        self._busy: dict[asyncio.Task[None], UUID] = {}
        """With the org that holds the place."""
        self._served: UUID | None = None
        """The org that had the last turn."""
        self._looking: asyncio.Task[bool] | None = None
        self._leaving = False

    def wake(self) -> None:
        """Something was stored by this process."""
        self._stored.set()

    async def run(self) -> None:
        try:
            while True:
                self._stored.clear()
                # Cancelled halfway, a look could take events that this process never hears of.
                self._looking = asyncio.create_task(self._look())
                is_more = await asyncio.shield(self._looking)
                if not is_more or len(self._busy) >= self._concurrency:
                    await self._rest()
        finally:
            self._leaving = True
            if self._looking is not None:
                await asyncio.wait([self._looking])
            if self._busy:
                _, late = await asyncio.wait(self._busy, timeout=LEAVING_SECONDS)
                for task in late:
                    task.cancel()

    async def turn(self) -> bool:
        """One look, and everything that it found; returns whether there was anything."""
        is_more = await self._start()
        if self._busy:
            await asyncio.wait(self._busy)
        return is_more

    async def _look(self) -> bool:
        try:
            return await self._start()
        except (CortexError, TimeoutError) as error:
            log.warning("inbox cannot look", error=str(error))
        except Exception:
            # Presses that nobody handles would be worse than a loud one.
            log.exception("inbox failed")
        return False

    async def _rest(self) -> None:
        """Until something is stored, a place is free, or it is time to look again."""
        rest = self._poll * random.uniform(0.8, 1.2)  # noqa: S311 -- jitter
        waits = {
            asyncio.create_task(self._stored.wait()),
            *(self._busy if len(self._busy) >= self._concurrency else ()),
        }
        _, pending = await asyncio.wait(waits, timeout=rest, return_when=asyncio.FIRST_COMPLETED)
        for task in pending - self._busy.keys():
            task.cancel()

    async def _start(self) -> bool:
        free = self._concurrency - len(self._busy)
        if free <= 0 or not self._channels:
            return False
        share = self._share if free > 1 else 1
        full = [org for org, places in Counter(self._busy.values()).items() if places >= share]
        lanes = await channel_events.claim_events(
            self._db, list(self._channels), max(1, free - 1), after=self._served, full=full
        )
        for lane in lanes:
            self._served = lane.org_id
            task = asyncio.create_task(self._lane(lane))
            self._busy[task] = lane.org_id
            task.add_done_callback(self._ended)
        return bool(lanes)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._busy.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("chat failed", exc_info=error)
        self._stored.set()  # there may be more in this chat

    async def _lane(self, lane: EventLane) -> None:
        seqs = list(lane.seqs)
        try:
            while seqs and not self._leaving and await self._next(lane, seqs[0]):
                seqs.pop(0)
        except Exception:
            # What could not even begin, such as over a connection whose secrets do not open, waits until its lease has run out.
            seqs = []
            raise
        finally:
            if seqs:
                with contextlib.suppress(CortexError):
                    await channel_events.release_events(self._db, lane, seqs)

    async def _next(self, lane: EventLane, seq: int) -> bool:
        """False where what comes after it in the chat has to wait."""
        event = await channel_events.begin_event(self._db, self._channels, self._public_url, lane, seq)
        if event is None:
            return False
        if event.attempts > len(channel_events.WAITS) + 1:
            return await self._later(lane, event, "Whoever handled it died each time.", None)
        try:
            async with asyncio.timeout(HANDLE_SECONDS):
                await inbound.handle(self._db, event)
        except TryAgain as error:
            return await self._later(lane, event, error.message, error.after_seconds)
        except (Unavailable, Conflict) as error:
            return await self._later(lane, event, error.message, None)
        except TimeoutError:
            return await self._later(lane, event, f"It took longer than {HANDLE_SECONDS:g} seconds.", None)
        except Exception as error:
            # A defect of ours, or of a channel: loud, and tried again in case it was neither.
            log.exception("event not handled", channel=event.channel.channel_type, event_id=event.event_id)
            return await self._later(lane, event, f"The event could not be handled: {type(error).__name__}.", None)
        await channel_events.settle_event(self._db, lane, seq)
        return True

    async def _later(self, lane: EventLane, event: StoredEvent, error: str, least: float | None) -> bool:
        """True where it was given up: then what comes after it may go on."""
        is_waiting = await channel_events.postpone_event(self._db, lane, event, error, least)
        log.warning("event not handled yet" if is_waiting else "event given up", event_id=event.event_id, error=error)
        return not is_waiting
