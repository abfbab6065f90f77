"""How often a channel shows that an agent works: it costs the vendor's limits, and messages matter more."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from uuid import UUID

MOST_CHATS = 10_000
WINDOW_SECONDS = 1.0
PAUSE_SECONDS = 30.0
"""After an error that does not say how long to wait."""


class ActivityPace:
    """For all connections of a channel, in one process. Once in a chat within ``chat_seconds``, which is how long the vendor shows it; over
    one connection so often a second as ``per_second`` says; not at all while a vendor wants a pause."""

    def __init__(self, *, chat_seconds: float, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._chat_seconds, self._per_second, self._clock = chat_seconds, per_second, clock
        self._shown: OrderedDict[tuple[UUID, str], float] = OrderedDict()
        self._windows: dict[UUID, tuple[float, int]] = {}
        self._paused: dict[UUID, float] = {}

    def take(self, connection_id: UUID, chat: str) -> bool:
        """Whether to show it now; if so, that counts."""
        now, key = self._clock(), (connection_id, chat)
        begin, count = self._windows.get(connection_id, (now, 0))
        if now - begin >= WINDOW_SECONDS:
            begin, count = now, 0
        is_shown = key in self._shown and now - self._shown[key] < self._chat_seconds
        if is_shown or count >= self._per_second or now < self._paused.get(connection_id, now):
            return False
        self._windows[connection_id] = (begin, count + 1)
        self._shown[key] = now
        self._shown.move_to_end(key)
        if len(self._shown) > MOST_CHATS:
            self._shown.popitem(last=False)
        return True

    def pause(self, connection_id: UUID, seconds: float | None) -> None:
        self._paused[connection_id] = self._clock() + (PAUSE_SECONDS if seconds is None else seconds)
