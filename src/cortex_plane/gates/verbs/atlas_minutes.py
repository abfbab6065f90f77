"""What stewards let run in a minute, over all sessions of the org: counted by the write that sends calls."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from cortex_plane.db.database import Database
from cortex_plane.gates.rules.gate_index import CompiledAtlases
from cortex_plane.gates.store import atlases

KEPT = timedelta(hours=1)
FORGOTTEN_AT_ONCE = 10_000


def minutes(governing: CompiledAtlases, calls: int = 1) -> dict[str, Any]:
    """For the write that sends so many calls: `more.gates.minutes`. Empty where no steward limits them.

    Over a limit the whole write is refused with `atlas_rate_limited`, whose hint says when to try again.
    """
    return {
        atlas.atlas_id: {"limit": atlas.steward.requests_per_minute, "calls": calls}
        for atlas in governing.atlases
        if atlas.steward.requests_per_minute is not None
    }


async def forget(db: Database) -> None:
    """Minutes that no limit counts any more."""
    while await atlases.forget_minutes(db, KEPT, FORGOTTEN_AT_ONCE) >= FORGOTTEN_AT_ONCE:
        pass
