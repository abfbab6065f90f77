"""Places that orgs share: slots, connections, requests in flight, streams.

One org has at most its share of them, and the last few are a reserve for orgs that have none. So whoever takes all that is
idle still leaves something to others.
"""

from __future__ import annotations

from uuid import UUID

FEW = 4
"""Fewer places have no reserve."""


def reserve_of(size: int) -> int:
    """A tenth of the places, and at least one."""
    return 0 if size < FEW else max(1, size // 10)


class Shares:
    """How many places each org has. It only counts; whoever takes a place gives it back."""

    def __init__(self, size: int, share: int | None = None, reserve: int | None = None) -> None:
        self.free = size
        self._share = size if share is None else share
        self._reserve = reserve_of(size) if reserve is None else reserve
        # By the number of an org's id: the hash of a UUID is a function of Python's, and this is counted for every request.
        self._held: dict[int, int] = {}

    def held_by(self, org: UUID) -> int:
        return self._held.get(org.int, 0)

    def has_room(self, org: UUID) -> bool:
        held = self._held.get(org.int, 0)
        return held < self._share and self.free > (self._reserve if held else 0)

    def take(self, org: UUID) -> bool:
        """False where there is no room for this org."""
        held = self._held.get(org.int, 0)
        if held >= self._share or self.free <= (self._reserve if held else 0):
            return False
        self.free -= 1
        self._held[org.int] = held + 1
        return True

    def give_back(self, org: UUID) -> None:
        self.free += 1
        held = self._held[org.int]
        if held == 1:
            del self._held[org.int]
        else:
            self._held[org.int] = held - 1
