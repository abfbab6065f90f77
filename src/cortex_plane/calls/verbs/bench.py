"""Plays scenarios under the policies, tools and agents of an org."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from cortex_plane.calls.rules.bench import BenchAgent, BenchSetting, play
from cortex_plane.calls.rules.permissions import ToolDefinition, declared_tool
from cortex_plane.calls.store import queries
from cortex_plane.db.database import Database, many, one
from cortex_plane.gates.model.scenarios import Scenario, ScenarioOutcome, ScenarioReport, ScenarioRun
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.verbs.scenarios import atlases_in_force, read_run
from cortex_plane.kernel.fields import split_ref
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.verbs.policy_cache import book
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb


@verb(Permission.POLICY_READ, heavy=True)
async def play_scenarios(db: Database, actor: Actor, run: ScenarioRun) -> ScenarioReport:
    """What production decides in these sessions. Nothing is recorded."""
    actor.require(Permission.ATLAS_READ)
    scenarios, atlases = await read_run(run)
    version, policies = await book.current(db, actor.org_id)
    settings: dict[str, BenchSetting] = {}
    for scenario in scenarios:
        ref = scenario.setting.agent or ""
        if ref not in settings:
            settings[ref] = await _setting_of(db, actor, ref, policies, atlases)

    def play_one(scenario: Scenario) -> ScenarioOutcome:
        setting = settings[scenario.setting.agent or ""]
        return play(replace(setting, session_kind=scenario.setting.session_kind), scenario)

    outcomes = await asyncio.to_thread(lambda: [play_one(scenario) for scenario in scenarios])
    return ScenarioReport(policies=version, outcomes=outcomes)


async def _setting_of(
    db: Database, actor: Actor, ref: str, policies: CompiledPolicies, atlases: CompiledAtlases | None
) -> BenchSetting:
    """What a session of an agent that a worker runs is judged under. ``atlases``: instead of those that it names."""
    async with db.transaction(actor.org_id) as tx:
        agent = require_found(one(BenchAgent, await tx.row(queries.get_bench_agent, *split_ref(ref))), "agent")
        skills = agent.skills
        definitions = many(ToolDefinition, await tx.rows(queries.list_resolution_tools, skills.app))
    tools = {tool.name: declared_tool(tool, policies, skills, skills.app) for tool in definitions}
    return BenchSetting(
        atlases=atlases if atlases is not None else await atlases_in_force(db, actor, skills.atlases),
        policies=policies, agent=agent.slug, teams=agent.teams, session_kind="", tools=tools,
        only=frozenset(tools) & (frozenset(tools) if skills.tools is None else skills.tools),
    )  # fmt: skip
