"""The calls of a time span judged by the policies of now and by rows that are not in force."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from datetime import datetime, timedelta

from cortex_plane.db.database import Transaction
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.policies import store as policies_store
from cortex_plane.policies.model import versions
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.rules.simulations import PolicyReplay
from cortex_plane.policies.store import queries
from cortex_plane.policies.verbs.policy_cache import current_policies

BATCH = 100


async def simulate_rows(
    tx: Transaction, rows: list[versions.PlacedRow], warnings: list[str], since: datetime | None, until: datetime | None, limit: int, *,
    within_seconds: int | None = None,
) -> versions.Simulation:  # fmt: skip
    """In a snapshot: calls, people and policies are those of one moment. The last week, where no span is named."""
    since, until = await _span(tx, since, until, within_seconds)
    before = await current_policies(tx)
    replay = PolicyReplay(before, await _proposed(tx, before.version, rows))
    is_cut = await _look(tx, replay, since, until, limit)
    groups = await asyncio.to_thread(replay.groups)
    return versions.Simulation(
        version=before.version,
        rows=len(rows),
        warnings=warnings,
        since=since,
        until=until,
        stopped=is_cut,
        oldest=replay.oldest,
        totals=replay.totals,
        groups=groups,
        total_groups=replay.total_groups,
        left_out=replay.left_out,
    )


async def _span(
    tx: Transaction, since: datetime | None, until: datetime | None, within_seconds: int | None
) -> tuple[datetime, datetime]:
    until = until or await tx.value(queries.simulation_start)
    since = since or until - timedelta(seconds=within_seconds or versions.DEFAULT_SECONDS)
    if since >= until:
        raise InvalidInput(
            f"The time span is empty: it begins at {since.isoformat()} and ends at {until.isoformat()}.",
            hint="Let `since` be earlier than `until`; without `until` it ends now.",
        )
    return since, until


async def _proposed(tx: Transaction, version: str, rows: list[versions.PlacedRow]) -> CompiledPolicies:
    """As they would hold with the platform's rows of now."""
    org_version, _, platform_version = version.partition(".")
    name = f"{int(org_version) + 1}.{platform_version}"
    platform = await policies_store.platform_rows(tx)
    return await asyncio.to_thread(lambda: CompiledPolicies(versions.policy_set(name, rows, platform)))


async def _look(tx: Transaction, replay: PolicyReplay, since: datetime, until: datetime, limit: int) -> bool:
    """Whether there are more calls than may be looked at. Conditions take time: they run beside everything else."""
    remaining = limit
    async with aclosing(policies_store.list_past_calls(tx, since, until, limit + 1, BATCH)) as batches:
        async for calls in batches:
            await asyncio.to_thread(replay.look_at, calls[: max(0, remaining)])
            remaining -= len(calls)
    return remaining < 0
