"""Reads versions of atlases: what one says about an action, how a draft differs from it, and which ones scenarios run under."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime, timedelta

from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.files import atlases as atlas_files
from cortex_plane.gates.files import scenarios as scenario_files
from cortex_plane.gates.files.atlases import Read, difference
from cortex_plane.gates.model import atlases as atlas_model
from cortex_plane.gates.model.atlases import AtlasFile
from cortex_plane.gates.model.scenarios import Scenario, ScenarioRun
from cortex_plane.gates.rules.index import CompiledAtlases, rules_of
from cortex_plane.gates.rules.replays import AtlasEffect, AtlasReplay
from cortex_plane.gates.store import queries
from cortex_plane.gates.verbs.atlas_cache import book, manifest_of, read_back
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.kernel.shares import loading, reading
from cortex_plane.policies.model.versions import DEFAULT_CALLS, DEFAULT_SECONDS
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb


@verb(Permission.ATLAS_READ)
async def query_atlas(
    db: Database, actor: Actor, atlas_id: str, version: str, *, action: str | None = None, capability: str | None = None
) -> atlas_model.AtlasRules:
    """Which gates, capabilities and policies of a version concern an action, or a capability."""
    atlas = await atlas_contents(db, actor, atlas_id, version)
    return await loading.run(rules_of, atlas, action, capability)


@verb(Permission.ATLAS_READ)
async def atlas_contents(db: Database, actor: Actor, atlas_id: str, version: str) -> atlas_model.Atlas:
    """Its gates, questions, contexts, capabilities, policies and actions, as sessions are held to them."""
    async with db.transaction(actor.org_id) as tx:
        row = require_found(await gates_store.get_atlas_version(tx, atlas_id, version), "atlas_version")
        manifest = await manifest_of(tx, row.atlas_id, row.version)
    # Whoever reads old versions does not push out of the book what sessions are held to now.
    return await loading.run(read_back, manifest, row.digest, f"{row.atlas_id} {row.version}")


async def compare_draft(
    db: Database, actor: Actor, draft: Read
) -> tuple[str | None, atlas_model.AtlasDiff, AtlasEffect]:
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


MAX_PLAYED = 2_000
"""Events and calls of all scenarios of one run."""


async def read_run(run: ScenarioRun) -> tuple[list[Scenario], CompiledAtlases | None]:
    """In a thread. The atlases are None where the run brings none."""
    scenarios = await reading.run(scenario_files.read, run.scenarios, name=run.name)
    for scenario in scenarios:
        if scenario.setting.agent is None:
            raise InvalidInput(
                f"{run.name}:{scenario.line}: this scenario names no `agent`.",
                code="invalid_scenarios",
                hint="Name the agent at the top of the file: its team, tools and atlases are used.",
            )
    total = sum(len(scenario.events) + 1 for scenario in scenarios)
    if total > MAX_PLAYED:
        raise InvalidInput(
            f"The scenarios have {total} events; a plane plays {MAX_PLAYED} at once.",
            code="invalid_scenarios",
            hint="Split the file.",
        )
    return scenarios, await reading.run(_compile, run.atlases) if run.atlases else None


def _compile(files: Sequence[AtlasFile]) -> CompiledAtlases:
    atlases = CompiledAtlases([atlas_files.read(file.manifest, name=file.name).atlas for file in files])
    atlases.prepare()
    return atlases


async def atlases_in_force(db: Database, actor: Actor, atlas_ids: Sequence[str]) -> CompiledAtlases | None:
    """As a session is bound to them that opens now; None where there are none."""
    if not atlas_ids:
        return None
    async with db.transaction(actor.org_id) as tx:
        pins = [await _pin(tx, atlas_id) for atlas_id in atlas_ids]
    return await book.at(db, actor.org_id, pins)


async def _pin(tx: Transaction, atlas_id: str) -> dict[str, str]:
    atlas = await gates_store.get_atlas(tx, atlas_id)
    if atlas is None or atlas.holds is None:
        raise Conflict(
            f"No version of the atlas {atlas_id} holds.",
            code="atlas_missing",
            hint="Publish one: `cortex atlas publish`.",
        )
    version = require_found(await gates_store.get_atlas_version(tx, atlas_id, atlas.holds), "atlas_version")
    return {"atlas_id": atlas_id, "version": version.version, "digest": version.digest}
