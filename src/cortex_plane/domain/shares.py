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
        self.share = size if share is None else share
        self.reserve = reserve_of(size) if reserve is None else reserve
        self.held: dict[UUID, int] = {}

    def has_room(self, org: UUID) -> bool:
        held = self.held.get(org, 0)
        return held < self.share and self.free > (self.reserve if held else 0)

    def take(self, org: UUID) -> None:
        self.free -= 1
        self.held[org] = self.held.get(org, 0) + 1

    def give_back(self, org: UUID) -> None:
        self.free += 1
        if self.held[org] == 1:
            del self.held[org]
        else:
            self.held[org] -= 1
