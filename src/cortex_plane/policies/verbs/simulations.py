"""Simulations: what a policy file would change about the calls of the last days, before it is applied."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import datetime, timedelta

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.manifest_threads import reading_policies
from cortex_plane.policies.files.policies import read
from cortex_plane.policies.model.policy_files import (
    DEFAULT_SECONDS,
    PlacedRow,
    Simulation,
    SimulationRequest,
    policy_set,
)
from cortex_plane.policies.rules.policy_engine import CompiledPolicies
from cortex_plane.policies.rules.simulations import Replay
from cortex_plane.policies.store import policies, simulations
from cortex_plane.policies.verbs.policies import examined
from cortex_plane.policies.verbs.policy_cache import book, compiled, load, policy_corrupt, require_in_force
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.rules import Forged
from cortex_plane.tenancy.verbs.frame import require_found, verb

BATCH = 100


@verb(Permission.POLICY_WRITE, heavy=True)
async def simulate(db: Database, actor: Actor, asked: SimulationRequest) -> Simulation:
    """Nothing is written: calls, people and policies are those of one moment."""
    draft = await reading_policies.run(read, asked.text)
    async with db.transaction(actor.org_id, snapshot=True) as tx:
        since, until = await _span(tx, asked)
        rows, warnings = await examined(tx, draft)
        before = await _current(tx)
        replay = Replay(before, await _proposed(tx, before.version, rows))
        stopped = await _look(tx, replay, since, until, asked.limit)
    groups = await asyncio.to_thread(replay.groups)
    return Simulation(
        version=before.version,
        rows=len(rows),
        warnings=warnings,
        since=since,
        until=until,
        stopped=stopped,
        oldest=replay.oldest,
        totals=replay.totals,
        groups=groups,
        total_groups=replay.total_groups,
    )


async def _span(tx: Transaction, asked: SimulationRequest) -> tuple[datetime, datetime]:
    until = asked.until or await simulations.now(tx)
    since = asked.since or until - timedelta(seconds=asked.within_seconds or DEFAULT_SECONDS)
    if since >= until:
        raise InvalidInput(
            f"The time span is empty: it begins at {since.isoformat()} and ends at {until.isoformat()}.",
            hint="Let `since` be earlier than `until`; without `until` it ends now.",
        )
    return since, until


async def _current(tx: Transaction) -> CompiledPolicies:
    version = require_found(await policies.version(tx), "org")
    known = book.known(tx.org, version)
    if known is not None:
        return known
    try:
        await require_in_force(tx, version)
        return await compiled(await load(tx, version))
    except Forged as forged:
        raise policy_corrupt(forged) from None


async def _proposed(tx: Transaction, version: str, rows: list[PlacedRow]) -> CompiledPolicies:
    """As they would hold with the platform's rows of now."""
    org_version, _, platform_version = version.partition(".")
    name = f"{int(org_version) + 1}.{platform_version}"
    platform = await policies.platform_rows(tx)
    return await asyncio.to_thread(lambda: CompiledPolicies(policy_set(name, rows, platform)))


async def _look(tx: Transaction, replay: Replay, since: datetime, until: datetime, limit: int) -> bool:
    """Whether there are more calls than may be looked at. Conditions take time: they run beside everything else."""
    left = limit
    async with aclosing(simulations.calls(tx, since, until, limit + 1, BATCH)) as batches:
        async for calls in batches:
            await asyncio.to_thread(replay.look_at, calls[: max(0, left)])
            left -= len(calls)
    return left < 0
