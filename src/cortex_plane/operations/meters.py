"""The meters of this process. ``meters().requested(org_id, template)`` counts wherever something happens.

They are the process's and not a caller's, so they are not handed from function to function: bootstrap puts them in place,
and until it does nothing is counted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from uuid import UUID

from cortex_plane.operations.ports import Meters, PauseSource
from cortex_plane.storage import sessions
from cortex_plane.storage.database import Database


class Unread:
    """Where nobody reads the meters."""

    def paused(self, org_id: UUID, source: PauseSource) -> None: ...

    def suspended(self, org_id: UUID, seconds: float) -> None: ...

    def resumed(self, org_id: UUID, by: PauseSource) -> None: ...

    def woken(self, org_id: UUID, seconds: float) -> None: ...

    def requested(self, org_id: UUID, template: str) -> None: ...

    def joined(self, org_id: UUID) -> None: ...

    def decided(self, org_id: UUID, template: str, decision: str, channel: str, seconds: float) -> None: ...

    def expired(self, org_id: UUID, template: str) -> None: ...

    def ticked(self, seconds: float) -> None: ...

    def escalated(self, org_id: UUID, template: str, to_level: int) -> None: ...

    def delegated(self, org_id: UUID) -> None: ...

    def called_back(self, channel: str, result: str) -> None: ...

    def forged(self, kind: str) -> None: ...

    def delivered(self, channel: str, result: str) -> None: ...


_in_use: Meters = Unread()


def meters() -> Meters:
    return _in_use


@contextlib.contextmanager
def metered(by: Meters) -> Iterator[None]:
    """Count with these for as long as the block runs."""
    global _in_use
    before, _in_use = _in_use, by
    try:
        yield
    finally:
        _in_use = before


async def suspended_sessions(db: Database) -> dict[UUID, int]:
    """How many sessions of each org wait for a person now. All orgs: for the platform's eyes only."""
    return await sessions.count_suspended(db)
