"""Reads what a run of scenarios plays: its scenarios, and the atlases that it brings or that an agent's sessions are bound to."""

from __future__ import annotations

from collections.abc import Sequence

from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.files import atlases as atlas_files
from cortex_plane.gates.files import scenarios as scenario_files
from cortex_plane.gates.model.atlases import AtlasFile
from cortex_plane.gates.model.scenarios import Scenario, ScenarioRun
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.verbs.atlas_cache import book
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.kernel.shares import reading
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs.frame import require_found

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
