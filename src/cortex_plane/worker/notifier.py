"""A notifier: brings messages to people. Any number of them may run; what one has taken no other sends.

Lanes run side by side, and within a lane one message after the other. Each channel has places of its own, of which an org
holds at most a quarter, and the last one is for an org that holds none: whose receivers hang keeps nobody else waiting.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import structlog

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import CortexError, Unavailable
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import meters
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.model.channels import ChannelTraits
from cortex_plane.notify.model.notifications import Outgoing, Sent, TryAgain, Undeliverable
from cortex_plane.notify.rules import LONGEST_WAIT_SECONDS
from cortex_plane.notify.store import Lane
from cortex_plane.notify.verbs import deliveries, outbox, reply_streams
from cortex_plane.notify.verbs.channel_port import ChannelPort
from cortex_plane.notify.verbs.deliveries import Delivered, DeliveryRecord
from cortex_plane.notify.verbs.outbox import Prepared
from cortex_plane.notify.verbs.reply_streams import ReplyStream
from cortex_plane.tenancy.model.access import Actor, scheduler_actor
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.pacing import Pacing

log = structlog.get_logger()

POLL_SECONDS = 0.5
STREAM_POLL_SECONDS = 0.5
BUSY_SECONDS = 0.02
"""Between two looks while messages are sent."""
LOOK_SHARE = 20
"""A rest is at least so many times as long as the look before it."""
CONCURRENCY = 16
"""Lanes at a time on each channel."""
SEND_SECONDS = 30.0
"""Well inside the lease, which is renewed before each send."""
LANE_SECONDS = 5.0
"""After that a lane gives back what is left of it, and takes its turn again."""
RECORD_SECONDS = 20.0
COUNT_SECONDS = 5.0
"""Between two counts of the processes that share the pace of a connection."""
NOTIFIER_LIFE = timedelta(seconds=3 * COUNT_SECONDS)
LEAVING_SECONDS = 5.0
"""Whoever stops lets what is on its way arrive, for so long."""


class Notifier:
    """``run`` until cancelled. Nothing of it is needed again after a crash: what is to be sent is in the database."""

    def __init__(
        self,
        db: Database,
        channels: Sequence[ChannelPort],
        public_url: str,
        *,
        concurrency: int = CONCURRENCY,
        poll_seconds: float = POLL_SECONDS,
        send_seconds: float = SEND_SECONDS,
        name: str | None = None,
    ) -> None:
        self.db = db
        self.id = new_id()
        self.name = name or f"{socket.gethostname()}-{os.getpid()}"
        self._channels = {channel.channel_type: channel for channel in channels}
        self._public_url, self._concurrency = public_url, concurrency
        self._share = max(1, concurrency // 4)
        self._poll, self._send_seconds = poll_seconds, send_seconds
        self._served: dict[str, UUID] = {}
        self._busy: dict[asyncio.Task[None], tuple[str, UUID]] = {}
        """With the channel and the org that hold the place."""
        self._sent: dict[UUID, list[tuple[Delivered, asyncio.Future[DeliveryRecord | None]]]] = {}
        """By org, while it is written down what was sent: what goes with the next commit."""
        self._writing: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None
        self.pacing = Pacing()
        self._count_at = 0.0
        self._leaving = False
        self._look_seconds = 0.0
        """How long the last look took that found nothing."""

    async def run(self) -> None:
        try:
            while True:
                # Cancelled halfway, a look could take messages that this notifier never hears of.
                self._looking = asyncio.create_task(self._look())
                await asyncio.shield(self._looking)
                await self._rest()
        finally:
            await self._leave()

    async def turn(self) -> bool:
        """One look, and everything that it found; returns whether there may be more."""
        is_more = await self._start()
        if self._busy:
            await asyncio.wait(self._busy)
        return is_more

    async def _look(self) -> None:
        try:
            await self.share_pace()
            await self._start()
        except (CortexError, TimeoutError) as error:
            log.warning("notifier cannot look", error=str(error))
        except Exception:
            # Messages that nobody sends would be worse than a loud one.
            log.exception("notifier failed")

    async def share_pace(self) -> None:
        if ticks() >= self._count_at:
            self.pacing.processes = await notify_store.count_notifiers(self.db, self.id, NOTIFIER_LIFE)
            self._count_at = ticks() + COUNT_SECONDS

    async def _rest(self) -> None:
        """Until a place is free; where places are, until it is time to look again. Beside others that are sent it looks more often:
        whoever has none under way does not wait for them."""
        rest = self._poll * random.uniform(0.8, 1.2)  # noqa: S311 -- jitter
        if not self._busy:
            await asyncio.sleep(rest)
            return
        full = len(self._busy) >= self._concurrency * len(self._channels)
        soon = min(rest, max(BUSY_SECONDS, LOOK_SHARE * self._look_seconds))
        await asyncio.wait(self._busy, timeout=None if full else soon, return_when=asyncio.FIRST_COMPLETED)

    async def _start(self) -> bool:
        """Fill the free places: one lane of each org at a time, so that nobody takes them all before others were asked."""
        is_more = False
        start = ticks()
        while not self._leaving and any([await self._fill(channel) for channel in self._channels]):
            is_more, start = True, ticks()
        self._look_seconds = ticks() - start
        return is_more

    async def _fill(self, channel: str) -> bool:
        lanes = await self._claim(channel)
        for lane in lanes:
            self._served[channel] = lane.org_id
            task = asyncio.create_task(self._lane(lane))
            self._busy[task] = (channel, lane.org_id)
            task.add_done_callback(self._ended)
        return bool(lanes)

    async def _claim(self, channel: str) -> list[Lane]:
        places = Counter(org for busy, org in self._busy.values() if busy == channel)
        free = self._concurrency - places.total()
        if free <= 0:
            return []
        share = self._share if free > 1 else 1
        full = [org for org, lanes in places.items() if lanes >= share]
        return await outbox.claim_deliveries(
            self.db, [channel], after=self._served.get(channel), full=full, lanes=max(1, free - 1)
        )

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._busy.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("lane failed", exc_info=error)

    async def _lane(self, lane: Lane) -> None:
        """Its messages in order. What cannot be written down stays taken until the lease has run out."""
        ends = ticks() + LANE_SECONDS
        ids = list(lane.ids)
        actor = scheduler_actor(lane.org_id, self.id, self.name)
        try:
            mine = True
            while ids and mine and not self._leaving and ticks() < ends:
                mine = await self._messages(lane, ids, actor, ends)
            if ids:
                await outbox.release_deliveries(self.db, lane, ids)
        except (CortexError, TimeoutError) as error:
            log.warning("messages are left for later", org=str(lane.org_id), left=len(ids), error=str(error))

    async def _messages(self, lane: Lane, ids: list[UUID], actor: Actor, ends: float) -> bool:
        """Prepare what comes next and send it, one after the other; ``ids`` loses what was dealt with. False where somebody else has
        one of them now, and may have the lane."""
        try:
            messages = await outbox.prepare_deliveries(self.db, self._channels, self._public_url, lane, ids)
        except Undeliverable as error:
            return await self._record_failure(lane, ids, actor, error)
        except Unavailable:
            raise
        except Exception:
            # A defect of ours, or a row that nobody foresaw: loud, and no harm to what is behind it.
            log.exception("message not made", notification=str(ids[0]))
            return await self._record_failure(lane, ids, actor, TryAgain("The message could not be made; see the log."))
        if not messages:
            return False
        for message, behind in zip(messages, [*messages[1:], None], strict=True):
            receipt = None
            if message.outgoing is not None:
                try:
                    receipt = await self._send_parts(lane, self._channels[message.channel_type], message.outgoing)
                except (TryAgain, Undeliverable) as error:
                    return await self._record_failure(lane, ids, actor, error, message)
                if receipt is None:
                    return False
            # Where there is nothing to say nothing is begun: it is written down in its turn.
            following = behind if behind is not None and behind.outgoing is not None else None
            goes_on = behind is not None and not self._leaving and ticks() < ends and not self._is_paused(message)
            delivered = Delivered(lane=lane, message=message, receipt=receipt, following=following if goes_on else None)
            try:
                record = await self._record(actor, delivered)
            except CortexError:
                raise
            except Exception:
                log.exception("message not written down", notification=str(message.id))
                trouble = TryAgain("It was sent, but that could not be written down.")
                return await self._record_failure(lane, ids, actor, trouble, message)
            ids.pop(0)
            if receipt is not None:
                meters().delivered(message.channel_type, "ok")
            if not record.is_ours:
                return False
            if not goes_on or (following is not None and not record.is_next_begun):
                return True
        return False

    async def _record(self, actor: Actor, delivered: Delivered) -> DeliveryRecord:
        """It has arrived: a database that is away for a moment must not make it arrive twice."""
        record = await self._record_with_others(actor, delivered)
        until = ticks() + RECORD_SECONDS
        while record is None:
            try:
                (record,) = await deliveries.record_delivered(self.db, actor, [delivered], wait=True)
            except (CortexError, TimeoutError):
                if ticks() > until:
                    raise
                await asyncio.sleep(self._poll * random.random())  # noqa: S311 -- jitter
        return record

    async def _record_with_others(self, actor: Actor, delivered: Delivered) -> DeliveryRecord | None:
        """What lanes of an org bring while a commit of it is under way goes with the next one. None: it must be written down alone."""
        result: asyncio.Future[DeliveryRecord | None] = asyncio.get_running_loop().create_future()
        if actor.org_id in self._sent:
            self._sent[actor.org_id].append((delivered, result))
        else:
            self._sent[actor.org_id] = [(delivered, result)]
            writing = asyncio.create_task(self._write(actor))
            self._writing.add(writing)
            writing.add_done_callback(self._writing.discard)
        return await result

    async def _write(self, actor: Actor) -> None:
        queue = self._sent[actor.org_id]
        while queue:
            batch, queue[:] = queue[:], []
            records: Sequence[DeliveryRecord | None] = [None] * len(batch)
            try:
                records = await deliveries.record_delivered(self.db, actor, [delivered for delivered, _ in batch])
            except Exception as error:
                log.info("messages are written down one by one", org=str(actor.org_id), error=str(error))
            for (_, result), record in zip(batch, records, strict=True):
                if not result.done():
                    result.set_result(record)
        del self._sent[actor.org_id]

    def _is_paused(self, message: Prepared) -> bool:
        return message.outgoing is not None and self.pacing.is_paused(message.outgoing.target.connection_id, ticks())

    async def _send_parts(self, lane: Lane, channel: ChannelPort, outgoing: Outgoing) -> Sent | None:
        """What takes several messages is sent one by one, and each is stored before the next: whoever goes on after a crash repeats one
        at most. None where somebody else has it now."""
        while (receipt := await self._send(channel, outgoing)).more:
            if not await self._record_part(lane, outgoing.id, receipt):
                return None
            outgoing = replace(outgoing, earlier=receipt.message_ref, shown=receipt.shown)
        return receipt

    async def _record_part(self, lane: Lane, id: UUID, receipt: Sent) -> bool:
        until = ticks() + RECORD_SECONDS
        while True:
            try:
                return await deliveries.record_part(self.db, lane, id, receipt)
            except (CortexError, TimeoutError):
                if ticks() > until:
                    raise
                await asyncio.sleep(self._poll * random.random())  # noqa: S311 -- jitter

    async def _send(self, channel: ChannelPort, outgoing: Outgoing) -> Sent:
        traits: ChannelTraits | None = getattr(channel, "traits", None)
        if traits is not None:
            target = outgoing.target
            pace = {"per_second": traits.per_second, "chat_seconds": traits.chat_seconds}
            await asyncio.sleep(self.pacing.reserve(target.connection_id, target.address, ticks(), **pace))
        try:
            async with asyncio.timeout(self._send_seconds):
                return await channel.send(outgoing)
        except (TryAgain, Undeliverable):
            raise
        except TimeoutError:
            raise TryAgain(f"No answer within {self._send_seconds:g} seconds.") from None
        except Exception as error:
            # A defect of a channel must not look like success, and another try may find it repaired.
            log.exception("channel failed", channel=channel.channel_type, notification=str(outgoing.id))
            raise TryAgain(f"The channel failed: {type(error).__name__}.") from error

    async def _record_failure(
        self,
        lane: Lane,
        ids: list[UUID],
        actor: Actor,
        error: TryAgain | Undeliverable,
        message: Prepared | None = None,
    ) -> bool:
        """Of the first of ``ids``."""
        channel = self._channels[message.channel_type] if message is not None else None
        schedule = outbox.schedule_of(channel)
        if message is not None and message.outgoing is not None:
            self._pause(message.outgoing.target.connection_id, error)
        failure = await deliveries.record_failed(
            self.db, actor, lane, ids[0], error, begun=message, schedule=schedule, has_vendor=hasattr(channel, "traits")
        )
        id = ids.pop(0)
        if failure is None:
            return False
        if channel is not None:
            meters().delivered(channel.channel_type, failure.result)
        log.warning("message not delivered", notification=str(id), became=failure.result, error=error.message)
        if failure.holds_lane:
            return False
        return message is None or not self._is_paused(message)

    def _pause(self, connection_id: UUID, error: TryAgain | Undeliverable) -> None:
        """What the database tells all others, the lanes of this process that are under way must know now."""
        if isinstance(error, TryAgain) and error.after_seconds and not error.only_chat:
            self.pacing.pause(connection_id, ticks() + min(error.after_seconds, LONGEST_WAIT_SECONDS))

    async def _leave(self) -> None:
        """What is on its way may arrive; what was not begun is free for others at once."""
        self._leaving = True
        until = asyncio.get_running_loop().time() + LEAVING_SECONDS
        if self._looking is not None:
            await _let_end([self._looking], until)
        await _let_end(list(self._busy), until)


async def _let_end(tasks: Sequence[asyncio.Task[None]], until: float) -> None:
    """Until that moment of the loop; then they are cancelled."""
    if not tasks:
        return
    _, late = await asyncio.wait(tasks, timeout=max(0.0, until - asyncio.get_running_loop().time()))
    for task in late:
        task.cancel()
    if late:
        await asyncio.wait(late)


class ReplyStreamer:
    """Lets people see answers grow: it looks for answers that models are writing, and makes their messages due at the pace of each channel.
    A notifier sends them. ``run`` until cancelled; any number of them may run."""

    def __init__(
        self, db: Database, channels: Sequence[ChannelPort], *, poll_seconds: float = STREAM_POLL_SECONDS
    ) -> None:
        self._db, self._poll = db, poll_seconds
        traits = {channel.channel_type: getattr(channel, "traits", ChannelTraits()) for channel in channels}
        self._traits: Mapping[str, ChannelTraits] = {
            kind: trait for kind, trait in traits.items() if trait.stream_seconds is not None
        }
        self._next: dict[UUID, float] = {}
        """By session: when there may be something to do again."""
        self._last: ReplyStream | None = None
        """Where the next look goes on, after one that did not reach all."""

    async def run(self) -> None:
        if not self._traits:
            return
        while True:
            try:
                await self.turn()
            except (CortexError, TimeoutError) as error:
                log.warning("answers do not stream now", error=str(error))
            except Exception:
                log.exception("reply streamer failed")
            await asyncio.sleep(self._poll * random.uniform(0.8, 1.2))  # noqa: S311 -- jitter

    async def turn(self) -> int:
        """One look; returns how many messages are due now."""
        paces = {kind: traits.stream_seconds or 0.0 for kind, traits in self._traits.items()}
        streams = await reply_streams.find_streams(self._db, paces, self._last)
        self._last = streams[-1] if len(streams) == reply_streams.MOST_STREAMS else None
        start = ticks()
        self._next = {id: at for id, at in self._next.items() if at > start}
        due = 0
        for stream in streams:
            if stream.session_id not in self._next:
                due += await self._advance(stream)
        return due

    async def _advance(self, stream: ReplyStream) -> bool:
        traits = self._traits.get(stream.channel_type or "", ChannelTraits())
        seconds = stream_pace(traits, stream)
        is_due = await reply_streams.advance_stream(
            self._db, stream, seconds=seconds, most_characters=traits.text_limit
        )
        self._next[stream.session_id] = ticks() + (seconds if is_due else traits.stream_seconds or 0.0)
        return is_due


def stream_pace(traits: ChannelTraits, stream: ReplyStream) -> float:
    """The seconds between two versions of this answer."""
    return max(
        traits.stream_seconds or 0.0,
        stream.connection_streams / traits.streams_per_second,
        stream.chat_streams * traits.stream_chat_seconds(stream.address or ""),
    )
