"""How fast one process sends over a connection and into a chat, as its channel says a vendor takes it.

A lane is sent by one process at a time, so a chat needs nothing more. All processes send over a connection: each takes an equal share of
its pace.
"""

from __future__ import annotations

from collections import OrderedDict
from uuid import UUID

REMEMBERED = 10_000
"""Connections and chats whose last message is remembered; the oldest are forgotten first."""


class Pacing:
    """Hands out moments to send at. What it decides depends only on the times that it is given."""

    def __init__(self) -> None:
        self._next: OrderedDict[tuple[UUID, str], float] = OrderedDict()
        """When the next message may go over a connection (with an empty address) or into a chat."""
        self._paused: dict[UUID, float] = {}
        self.processes = 1
        """How many share the pace of each connection."""

    def reserve(
        self, connection_id: UUID, address: str, now: float, *, per_second: float, chat_seconds: float
    ) -> float:
        """The seconds until the caller may send; the moment is theirs."""
        at = max(now, self._next.get((connection_id, ""), now))
        if per_second > 0:
            self._note((connection_id, ""), at + self.processes / per_second)
        if chat_seconds:
            # A chat that must wait keeps no other chat of the connection waiting.
            chat = (connection_id, address)
            at = max(at, self._next.get(chat, at))
            self._note(chat, at + chat_seconds)
        return at - now

    def pause(self, connection_id: UUID, until: float) -> None:
        """Nothing more is begun over the connection by this process until then."""
        self._paused[connection_id] = max(until, self._paused.get(connection_id, until))

    def is_paused(self, connection_id: UUID, now: float) -> bool:
        until = self._paused.get(connection_id)
        if until is not None and until <= now:
            del self._paused[connection_id]
        return until is not None and until > now

    def _note(self, place: tuple[UUID, str], until: float) -> None:
        self._next[place] = until
        self._next.move_to_end(place)
        if len(self._next) > REMEMBERED:
            self._next.popitem(last=False)
