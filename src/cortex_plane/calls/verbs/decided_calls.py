"""What people decided about calls of agents that run elsewhere, in order, for whoever resumes those agents."""

from __future__ import annotations

from datetime import datetime

from cortex_plane.agents import store as agents_store
from cortex_plane.calls.model import CallDecision
from cortex_plane.calls.store import queries
from cortex_plane.calls.verbs.external import call_sight
from cortex_plane.db.database import Database, after, page
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb


@verb(Permission.JOB_READ)
async def list_decided_calls(
    db: Database,
    actor: Actor,
    position: Position | None,
    limit: int,
    *,
    agent: str | None = None,
    since: datetime | None = None,
) -> Page[CallDecision]:
    """The oldest decision first."""
    async with db.transaction(actor.org_id) as tx:
        agent_id = require_found(await agents_store.get_agent(tx, agent), "agent").id if agent else None
        rows = await tx.rows(
            queries.list_decided_calls, *after(position), limit + 1, call_sight(actor), since, agent_id
        )
    return page(CallDecision, rows, limit)
