"""What gates and policies let an agent do: in a session, and in the sessions that scenarios play."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.calls.model import MAX_ACTIONS, Permissions
from cortex_plane.calls.rules.bench import BenchAgent, BenchSetting, play
from cortex_plane.calls.rules.permissions import (
    Governed,
    ToolDefinition,
    action_names,
    asking,
    declared_tool,
    limits_of_all,
    permissions_of,
    permitted,
)
from cortex_plane.calls.store import queries
from cortex_plane.db.database import Database, many, one
from cortex_plane.gates.model.scenarios import Scenario, ScenarioOutcome, ScenarioReport, ScenarioRun
from cortex_plane.gates.verbs import session_gates
from cortex_plane.gates.verbs.atlas_queries import atlases_in_force, read_run
from cortex_plane.kernel.fields import Risk, split_ref
from cortex_plane.policies.verbs.policy_cache import book, request_rows
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb

SLICE = 10
"""Actions that are looked at together."""


async def let_others_run(number: int) -> None:
    """Before each of very many actions: other requests go on meanwhile."""
    if number % SLICE == SLICE - 1:
        await asyncio.sleep(0)


async def known_risks(db: Database, org_id: UUID, names: Sequence[str]) -> dict[str, Risk]:
    """The risks that any app of the org declares for these actions. They count for agents that run elsewhere too."""
    async with db.transaction(org_id) as tx:
        return await agents_store.known_risks(tx, names)


@verb(Permission.SESSION_READ)
async def get_permissions(db: Database, actor: Actor, session_id: UUID, most: int = MAX_ACTIONS) -> Permissions:
    """Of actions whose arguments are not known yet, and ``most`` of them."""
    async with db.transaction(actor.org_id) as tx:
        session = require_found(one(Governed, await tx.row(queries.list_governed, session_id, actor.sees)), "session")
        definitions = many(ToolDefinition, await tx.rows(queries.list_resolution_tools, session.app))
    tools = {tool.name: tool for tool in definitions}
    gates = await session_gates.of_agent(db, actor.org_id, session.bound, session.now)
    policies = await book.at(db, actor.org_id, session.policies)
    rows, names = request_rows(session.request_policies), action_names(session.skills, gates, tools)
    risks = await known_risks(db, actor.org_id, names[:most]) if session.is_external else {}
    looks = []
    for number, action in enumerate(names[:most]):
        await let_others_run(number)
        looks.append(permitted(session, policies, rows, gates, action, tools.get(action), risks.get(action)))
    answers, more = [answer for answer, _ in looks], len(names) - len(looks)
    if gates is None:
        return replace(permissions_of(None, None), actions=answers, more_actions=more)
    questions, more_questions = asking(gates.atlases, answers)
    return replace(
        permissions_of(gates.atlases, gates.state), actions=answers, more_actions=more, asking=questions,
        more_asking=more_questions, limits=limits_of_all(gates.atlases, gates.state, looks, session.now),
    )  # fmt: skip


@verb(Permission.POLICY_READ, heavy=True)
async def play_scenarios(db: Database, actor: Actor, run: ScenarioRun) -> ScenarioReport:
    """What production decides in these sessions. Nothing is recorded."""
    actor.require(Permission.ATLAS_READ)
    scenarios, atlases = await read_run(run)
    version, policies = await book.current(db, actor.org_id)

    async def setting_of(ref: str) -> BenchSetting:
        """What a session of an agent that a worker runs is judged under; the atlases of the run come before its own."""
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

    settings = {
        ref: await setting_of(ref) for ref in dict.fromkeys(scenario.setting.agent or "" for scenario in scenarios)
    }

    def play_one(scenario: Scenario) -> ScenarioOutcome:
        setting = settings[scenario.setting.agent or ""]
        return play(replace(setting, session_kind=scenario.setting.session_kind), scenario)

    outcomes = await asyncio.to_thread(lambda: [play_one(scenario) for scenario in scenarios])
    return ScenarioReport(policies=version, outcomes=outcomes)
