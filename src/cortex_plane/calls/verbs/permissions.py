"""What an agent may do in a session: gates and policies, and the stricter of the two."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.calls.model import MAX_ACTIONS, Permissions
from cortex_plane.calls.rules.permissions import (
    Governed,
    ToolDefinition,
    action_names,
    asking,
    limits_of_all,
    permissions_of,
    permitted,
)
from cortex_plane.calls.store import queries
from cortex_plane.db.database import Database, many, one
from cortex_plane.gates.verbs import session_gates
from cortex_plane.policies.verbs.policy_cache import book, request_rows
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb

SLICE = 10
"""Actions that are looked at together."""


async def let_others_run(number: int) -> None:
    """Before each of very many actions: other requests go on meanwhile."""
    if number % SLICE == SLICE - 1:
        await asyncio.sleep(0)


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
    risks = {}
    if session.is_external:
        async with db.transaction(actor.org_id) as tx:
            risks = await agents_store.known_risks(tx, names[:most])
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
