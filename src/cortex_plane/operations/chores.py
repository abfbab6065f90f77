"""What the plane does for itself now and then. Any number of processes may do it at once: who comes second finds it done."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cortex_plane.operations import (
    atlas_minutes,
    credentials,
    events,
    resolutions,
    roots,
    signals,
    webhooks,
)
from cortex_plane.storage.database import Database
from cortex_plane.storage.migrate import EVENT_MONTHS_AHEAD

MINUTE, HOUR = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Chore:
    name: str
    every_seconds: float
    do: Callable[[Database], Awaitable[None]]


async def _partitions(db: Database) -> None:
    """The event table has its months ahead, however long the plane runs."""
    await db.call("prepare_event_partitions", None, EVENT_MONTHS_AHEAD)


async def _chunks(db: Database) -> None:
    """Text that an attempt left behind when it died."""
    await events.forget_chunks(db)


CHORES = (
    Chore("event partitions", HOUR, _partitions),
    Chore("forgotten chunks", HOUR, _chunks),
    Chore("callback secrets", HOUR, credentials.keep),
    Chore("failing webhooks", HOUR, webhooks.keep),
    Chore("old signals", HOUR, signals.forget),
    Chore("old resolutions", HOUR, resolutions.forget),
    Chore("old minutes of atlases", HOUR, atlas_minutes.forget),
    Chore("untold signals", MINUTE, signals.tell_the_rest),
    Chore("signed roots", MINUTE, roots.keep),
)
