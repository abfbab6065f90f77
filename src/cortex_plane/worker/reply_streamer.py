"""Lets people see answers grow: looks for answers that models are writing, and makes their messages due at the pace of each channel.

It sends nothing itself; the notifier does. Any number of these may run.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

import structlog

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import CortexError
from cortex_plane.notify.model.channels import ChannelTraits
from cortex_plane.notify.verbs import reply_streams
from cortex_plane.notify.verbs.channel_port import ChannelPort
from cortex_plane.notify.verbs.reply_streams import ReplyStream
from cortex_plane.worker.limits import ticks

log = structlog.get_logger()

POLL_SECONDS = 0.5


class ReplyStreamer:
    """``run`` until cancelled."""

    def __init__(self, db: Database, channels: Sequence[ChannelPort], *, poll_seconds: float = POLL_SECONDS) -> None:
        self._db, self._poll = db, poll_seconds
        traits = {channel.channel_type: getattr(channel, "traits", ChannelTraits()) for channel in channels}
        self._traits: Mapping[str, ChannelTraits] = {
            kind: trait for kind, trait in traits.items() if trait.stream_seconds is not None
        }
        self._next: dict[UUID, float] = {}
        """By session: when there may be something to do again."""

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
        streams = await reply_streams.find_streams(self._db, list(self._traits))
        counts = Counter(stream.connection_id for stream in streams)
        self._next = {
            stream.session_id: self._next[stream.session_id] for stream in streams if stream.session_id in self._next
        }
        due = 0
        for stream in streams:
            if self._next.get(stream.session_id, 0.0) <= ticks():
                due += await self._advance(stream, counts[stream.connection_id])
        return due

    async def _advance(self, stream: ReplyStream, count: int) -> bool:
        """``count``: of the answers that stream over its connection."""
        traits = self._traits.get(stream.channel_type or "", ChannelTraits())
        seconds = max(traits.stream_seconds or 0.0, count / traits.streams_per_second)
        is_due = await reply_streams.advance_stream(
            self._db, stream, seconds=seconds, most_characters=traits.text_limit
        )
        if is_due:
            self._next[stream.session_id] = ticks() + seconds
        return is_due
