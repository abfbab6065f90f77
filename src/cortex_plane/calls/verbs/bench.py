"""Plays scenarios under the policies, tools and agents of an org."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import SkillSettings
from cortex_plane.calls.rules.bench import BenchSetting, play
from cortex_plane.calls.rules.permissions import ToolDefinition, declared_tool
from cortex_plane.calls.store import queries
from cortex_plane.db.database import Database, Transaction, many
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.files import atlases as atlas_files
from cortex_plane.gates.files import scenarios as scenario_files
from cortex_plane.gates.model.atlases import AtlasFile
from cortex_plane.gates.model.scenarios import Scenario, ScenarioOutcome, ScenarioReport, ScenarioRun
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.verbs.atlas_cache import book as atlas_book
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.kernel.shares import reading
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.verbs.policy_cache import book
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb

MAX_PLAYED = 2_000
"""Events and calls of all scenarios of one run."""


@verb(Permission.POLICY_READ, heavy=True)
async def play_scenarios(db: Database, actor: Actor, run: ScenarioRun) -> ScenarioReport:
    """What production decides in these sessions. Nothing is recorded."""
    actor.require(Permission.ATLAS_READ)
    scenarios = await reading.run(scenario_files.read, run.scenarios, name=run.name)
    _check(scenarios, run.name)
    atlases = await reading.run(_compile, run.atlases) if run.atlases else None
    version, policies = await book.current(db, actor.org_id)
    settings: dict[str, BenchSetting] = {}
    for scenario in scenarios:
        slug = scenario.setting.agent or ""
        if slug not in settings:
            settings[slug] = await _setting_of(db, actor, slug, policies, atlases)

    def play_one(scenario: Scenario) -> ScenarioOutcome:
        setting = settings[scenario.setting.agent or ""]
        return play(replace(setting, session_kind=scenario.setting.session_kind), scenario)

    outcomes = await asyncio.to_thread(lambda: [play_one(scenario) for scenario in scenarios])
    return ScenarioReport(policies=version, outcomes=outcomes)


def _check(scenarios: Sequence[Scenario], name: str) -> None:
    for scenario in scenarios:
        if scenario.setting.agent is None:
            raise InvalidInput(
                f"{name}:{scenario.line}: this scenario names no `agent`.",
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


def _compile(files: Sequence[AtlasFile]) -> CompiledAtlases:
    atlases = CompiledAtlases([atlas_files.read(file.manifest, name=file.name).atlas for file in files])
    atlases.prepare()
    return atlases


async def _setting_of(
    db: Database, actor: Actor, slug: str, policies: CompiledPolicies, atlases: CompiledAtlases | None
) -> BenchSetting:
    """What a session of an agent that a worker runs is judged under. ``atlases``: instead of those that it names."""
    async with db.transaction(actor.org_id) as tx:
        agent = require_found(await agents_store.get_agent(tx, slug), "agent")
        team = require_found(await tenancy_store.get_team(tx, str(agent.team_id)), "team")
        skills = SkillSettings.of(agent.skill_config)
        tools = many(ToolDefinition, await tx.rows(queries.list_resolution_tools, skills.app))
        pins = [await _pin(tx, atlas_id) for atlas_id in skills.atlases] if atlases is None else []
    if pins:
        atlases = await atlas_book.at(db, actor.org_id, pins)
    return BenchSetting(
        atlases=atlases, policies=policies, agent=agent.slug, only=skills.tools, session_kind="",
        teams=[id for id in (team.id, team.parent_id) if id is not None],
        tools={tool.name: declared_tool(tool, policies, skills, skills.app) for tool in tools},
    )  # fmt: skip


async def _pin(tx: Transaction, atlas_id: str) -> dict[str, str]:
    """As a session that opens now is bound to it."""
    atlas = await gates_store.get_atlas(tx, atlas_id)
    if atlas is None or atlas.holds is None:
        raise Conflict(
            f"No version of the atlas {atlas_id} holds.",
            code="atlas_missing",
            hint="Publish one: `cortex atlas publish`.",
        )
    version = require_found(await gates_store.get_atlas_version(tx, atlas_id, atlas.holds), "atlas_version")
    return {"atlas_id": atlas_id, "version": version.version, "digest": version.digest}
