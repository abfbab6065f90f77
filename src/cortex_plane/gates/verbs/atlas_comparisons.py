"""Comparing a version that does not hold yet with the one that does, and judging the calls of the last week by both."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import datetime, timedelta

from cortex_plane.db.database import Database
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.files.atlases import Read, difference
from cortex_plane.gates.model import atlases as atlas_model
from cortex_plane.gates.rules.replays import AtlasReplay
from cortex_plane.gates.store import queries
from cortex_plane.gates.verbs.atlas_cache import manifest_of, read_back
from cortex_plane.kernel.shares import reading
from cortex_plane.policies.model.versions import DEFAULT_CALLS, DEFAULT_SECONDS
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs.frame import require_found


async def compare_draft(
    db: Database, actor: Actor, draft: Read
) -> tuple[str | None, atlas_model.AtlasDiff, atlas_model.AtlasEffect]:
    """The version that holds, what a draft has otherwise, and what it would have changed about the calls of the last week. Where none
    holds, it is compared with the last one that did."""
    atlas_id = draft.atlas.atlas_id
    async with db.transaction(actor.org_id, snapshot=True) as tx:
        summary = require_found(await gates_store.get_atlas(tx, atlas_id), "atlas")
        before = summary.holds or summary.newest
        row = require_found(await gates_store.get_atlas_version(tx, atlas_id, before), "atlas_version")
        atlas = await reading.run(
            read_back, await manifest_of(tx, atlas_id, before), row.digest, f"{atlas_id} {before}"
        )
        now: datetime = await tx.value(queries.replay_start)
        since, remaining = now - timedelta(seconds=DEFAULT_SECONDS), DEFAULT_CALLS
        replay = await asyncio.to_thread(AtlasReplay, atlas, draft.atlas, now)
        async with aclosing(gates_store.list_governed_calls(tx, atlas_id, since, now, remaining + 1)) as batches:
            async for calls in batches:
                await asyncio.to_thread(replay.look_at, calls[: max(0, remaining)])
                remaining -= len(calls)
    diff = await reading.run(difference, atlas, draft.atlas)
    return summary.holds, diff, replay.effect(since, stopped=remaining < 0)
