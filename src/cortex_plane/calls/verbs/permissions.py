"""What an agent may do in a session: gates and policies, and the stricter of the two."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import SkillSettings
from cortex_plane.agents.model.tools import Risk, highest_risk
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import APP, MAX_ACTIONS, ActionAnswer, Permissions
from cortex_plane.calls.rules import answered, asked_first, asking, limits_of_all, permissions_of
from cortex_plane.calls.store import Governed, ToolDefinition
from cortex_plane.db.database import Database
from cortex_plane.gates.model.gates import OF_THE_PLANE, GatedCall, GateInput, Ruling
from cortex_plane.gates.rules.authorization import authorize
from cortex_plane.gates.rules.evaluation import judge
from cortex_plane.gates.rules.session import GateSession
from cortex_plane.gates.verbs import session_gates
from cortex_plane.policies.model.policies import CallFacts, PolicyDecision, PolicyVerdict
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.verbs.policy_cache import book as policy_book
from cortex_plane.policies.verbs.policy_cache import request_rows
from cortex_plane.sessions.model.sessions import SessionKind
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb

SLICE = 10
"""Actions that are looked at together."""


@verb(Permission.SESSION_READ)
async def get_permissions(db: Database, actor: Actor, session_id: UUID, most: int = MAX_ACTIONS) -> Permissions:
    """Gates and policies, and the stricter of the two; of actions whose arguments are not known yet, and ``most`` of them."""
    async with db.transaction(actor.org_id) as tx:
        session = require_found(await calls_store.list_governed(tx, session_id, actor.sees), "session")
        skills = SkillSettings.of(session.skill_config)
        app = APP if session.kind == SessionKind.EXTERNAL else skills.app
        tools = {tool.name: tool for tool in await calls_store.list_resolution_tools(tx, app)}
    gates = await session_gates.of_session(db, actor.org_id, session.bound, session.now)
    if gates is not None:
        gates.boundary(GateInput(now=session.now))
    policies = await policy_book.at(db, actor.org_id, session.policies)
    names = _names(skills, gates, tools)
    risks: dict[str, Risk] = {}
    if session.kind == SessionKind.EXTERNAL:
        async with db.transaction(actor.org_id) as tx:
            risks = await agents_store.known_risks(tx, names[:most])
    pairs = []
    for number, action in enumerate(names[:most]):
        if number % SLICE == SLICE - 1:
            # Whoever lists very many lets others go on meanwhile.
            await asyncio.sleep(0)
        pairs.append(_answer(session, skills, app, policies, gates, action, tools.get(action), risks.get(action)))
    answers, more = [answer for answer, _ in pairs], len(names) - len(pairs)
    if gates is None:
        return replace(permissions_of(None, None), actions=answers, more_actions=more)
    rulings = [(answer, ruling) for answer, ruling in pairs if ruling is not None]
    questions, more_questions = asking(gates.atlases, answers)
    return replace(
        permissions_of(gates.atlases, gates.state), actions=answers, more_actions=more, asking=questions,
        more_asking=more_questions,
        limits=limits_of_all(gates.atlases, gates.state, rulings, session.now),
    )  # fmt: skip


def _names(skills: SkillSettings, gates: GateSession | None, tools: dict[str, ToolDefinition]) -> list[str]:
    """What atlases name, what the agent's settings name, and what workers published for its app."""
    names = dict.fromkeys(gates.atlases.known_actions if gates is not None else ())
    own = set(tools) if skills.tools is None else set(skills.tools)
    names.update(dict.fromkeys(sorted(own | skills.side_effect_tools)))
    return list(names)


def _answer(
    session: Governed, skills: SkillSettings, app: str, policies: CompiledPolicies, gates: GateSession | None, action: str,
    tool: ToolDefinition | None, risks: Risk | None,
) -> tuple[ActionAnswer, Ruling | None]:  # fmt: skip
    own = highest_risk(tool.risk if tool is not None else Risk.MEDIUM, risks)
    reads = tool is not None and tool.read_only
    if tool is not None and tool.server is not None:
        # What a server says of its tools counts where a steward confirmed it.
        confirmation = policies.confirmed.get((app, tool.name, tool.digest))
        reads = confirmation is not None and confirmation.read_only
        own = (confirmation.risk if confirmation is not None else None) or own
    reads = reads and action not in skills.side_effect_tools
    ruling, asks = _ruled(session, gates, GatedCall(action=action, arguments={}, input_hash="", risk=own))
    facts = CallFacts(
        target=action, arguments={}, read_only=reads, risk=own, agent=session.agent, teams=tuple(session.teams),
        session_kind=session.kind,
    )  # fmt: skip
    rows = request_rows(session.request_policies)
    decision = authorize(policies, facts, rows, ruling=ruling)
    if ruling is not None and asks:
        after = authorize(policies, facts, rows, ruling=unasked(ruling))
        decision = denied_anyway(after, decision)
    if skills.tools is not None and action not in skills.tools:
        decision = PolicyDecision(verdict=PolicyVerdict.DENY, rule="not one of its agent's tools")
    return answered(action, decision, ruling, ruling.risk if ruling is not None else own, asks), ruling


def _ruled(session: Governed, gates: GateSession | None, call: GatedCall) -> tuple[Ruling | None, tuple[str, ...]]:
    """What gates say, and which of them ask the agent first."""
    external = session.kind == SessionKind.EXTERNAL
    if gates is None or (call.action in OF_THE_PLANE and not external):
        return None, ()
    ruling = gates.unloaded(call) if external else None
    if ruling is not None:
        return ruling, ()
    ruling = judge(gates.atlases, gates.state, call, session.now, looking=True)
    return ruling, asked_first(gates.atlases, gates.state, call, ruling, session.now)


def unasked(ruling: Ruling) -> Ruling:
    """As if its questions were answered: for what policies say then."""
    return replace(ruling, verdict=PolicyVerdict.ALLOW, asks=())


def denied_anyway(after: PolicyDecision, now: PolicyDecision) -> PolicyDecision:
    """Of what gates ask about first: the policy that denies it whatever is answered, where there is one."""
    return after if after.verdict is PolicyVerdict.DENY else now
