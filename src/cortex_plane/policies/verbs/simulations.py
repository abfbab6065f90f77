"""What policies would say of calls: of one that nobody made, and of those of the past by a file that is not applied."""

from __future__ import annotations

import asyncio

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import SkillSettings
from cortex_plane.agents.model.tools import Confirmed, ToolVersion
from cortex_plane.db.database import Database
from cortex_plane.kernel.fields import Risk, highest_risk
from cortex_plane.policies.model import versions
from cortex_plane.policies.model.policies import CallFacts
from cortex_plane.policies.verbs.policies import examine, read_file, simulate_rows
from cortex_plane.policies.verbs.policy_cache import book
from cortex_plane.sessions.model.sessions import SessionKind
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb


@verb(Permission.POLICY_READ)
async def explain_policies(db: Database, actor: Actor, question: versions.ExplainRequest) -> versions.Explained:
    """What would be said about a call that nobody made, and why."""
    async with db.transaction(actor.org_id) as tx:
        agent = require_found(await agents_store.get_agent(tx, question.agent), "agent")
        team = require_found(await tenancy_store.get_team(tx, str(agent.team_id)), "team")
        app = SkillSettings.of(agent.skill_config).app
        version = await agents_store.newest_tools(tx, app, question.tool)
        # Whoever runs elsewhere declares the risk: there, what any app says of the tool counts too.
        external = question.session_kind == SessionKind.EXTERNAL
        known_risk = (await agents_store.known_risks(tx, [question.tool])).get(question.tool) if external else None
    _, policies = await book.current(db, actor.org_id)
    confirmation = policies.confirmed.get((app, question.tool, version.digest)) if version is not None else None
    read_only, risk = _declared(version, confirmation, question)
    risk = highest_risk(risk, known_risk)
    facts = CallFacts(
        target=question.tool,
        arguments=question.arguments,
        read_only=read_only,
        risk=risk,
        agent=agent.slug,
        teams=tuple(id for id in (team.id, team.parent_id) if id is not None),
        session_kind=question.session_kind,
    )
    request = [policy.as_row() for policy in question.policies]
    return versions.Explained(
        agent=agent.slug,
        tool=question.tool,
        read_only=read_only,
        risk=risk,
        published=version is not None,
        explanation=policies.explain(facts, request),
    )


@verb(Permission.SESSION_WRITE)
async def list_denied_tools(db: Database, actor: Actor, question: versions.DeniedToolsRequest) -> versions.DeniedTools:
    """Of tools that an agent elsewhere could be offered: those of which every call is denied. It says no more than calling them would."""
    async with db.transaction(actor.org_id) as tx:
        agent = require_found(await agents_store.get_agent(tx, question.agent), "agent")
        team = require_found(await tenancy_store.get_team(tx, str(agent.team_id)), "team")
        known = await agents_store.known_risks(tx, [tool.tool for tool in question.tools])
    _, policies = await book.current(db, actor.org_id)
    denied = []
    for tool in question.tools:
        facts = CallFacts(
            target=tool.tool,
            arguments={},
            read_only=tool.read_only,
            risk=highest_risk(tool.risk or Risk.MEDIUM, known.get(tool.tool)),
            agent=agent.slug,
            teams=tuple(id for id in (team.id, team.parent_id) if id is not None),
            session_kind=SessionKind.EXTERNAL,
        )
        if policies.denies_outright(facts):
            denied.append(tool.tool)
        # Each may match thousands of rows: other requests go on in between.
        await asyncio.sleep(0)
    return versions.DeniedTools(denied=denied)


def _declared(
    version: ToolVersion | None, confirmation: Confirmed | None, question: versions.ExplainRequest
) -> tuple[bool, Risk]:
    """As the tool was last published, and what a steward confirmed about that, unless the question says otherwise; the
    cautious answer where it never was."""
    read_only, risk = (version.read_only, version.risk) if version is not None else (False, Risk.MEDIUM)
    if confirmation is not None:
        read_only, risk = confirmation.read_only, confirmation.risk or risk
    return (
        read_only if question.read_only is None else question.read_only,
        risk if question.risk is None else question.risk,
    )


@verb(Permission.POLICY_WRITE, heavy=True)
async def simulate_policies(db: Database, actor: Actor, request: versions.SimulationRequest) -> versions.Simulation:
    """Nothing is written: calls, people and policies are those of one moment."""
    draft = await read_file(request.text)
    async with db.transaction(actor.org_id, snapshot=True) as tx:
        rows, warnings = await examine(tx, draft)
        return await simulate_rows(
            tx, rows, warnings, request.since, request.until, request.limit, within_seconds=request.within_seconds
        )
