"""Sessions: opened by programs, or by the first message of a person; ended for good."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.agents.model.agents import Agent, AgentStatus
from cortex_plane.agents.store import agents
from cortex_plane.approvals.store import approvals
from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.sessions.model.sessions import Session, SessionChange, SessionStatus
from cortex_plane.sessions.store import sessions
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.verbs import require_found, require_revision, verb


async def agent_for_new_session(tx: Transaction, ref: str) -> Agent:
    agent = require_found(await agents.get(tx, ref), "agent")
    if agent.status is not AgentStatus.ACTIVE:
        raise Conflict(
            f"This agent is {agent.status} and takes no new sessions.",
            code="agent_not_active",
            hint="Activate it with `cortex agent update --status ACTIVE`, or choose another agent.",
        )
    return agent


@verb(Permission.SESSION_READ)
async def get(db: Database, actor: Actor, id: UUID) -> Session:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await sessions.get(tx, id, actor.sees), "session")


@verb(Permission.SESSION_READ)
async def list_page(
    db: Database,
    actor: Actor,
    position: Position | None,
    limit: int,
    *,
    status: SessionStatus | None = None,
    agent: str | None = None,
    member_id: UUID | None = None,
) -> Page[Session]:
    async with db.transaction(actor.org_id) as tx:
        agent_id = require_found(await agents.get(tx, agent), "agent").id if agent else None
        return await sessions.list_page(tx, position, limit, actor.sees, member_id, status, agent_id)


@verb(Permission.SESSION_WRITE)
async def update(
    db: Database, actor: Actor, id: UUID, change: SessionChange, revision: int | None
) -> Session:
    async with db.transaction(actor.org_id) as tx:
        locked = require_found(await sessions.lock(tx, id, actor.sees), "session")
        require_revision(locked["revision"], revision)
        if locked["status"] == SessionStatus.TERMINATED:
            raise Conflict("This session has ended.", code="session_terminated", hint="Open a new session.")
        await sessions.update(tx, id, change.title, change.context, actor)
        await audit.append_to_session(
            tx, id,
            [Fact.of(actor, "session_changed", title=change.title, context=change.context is not None)],
        )  # fmt: skip
        return require_found(await sessions.get(tx, id, None), "session")


async def suspended_sessions(db: Database) -> dict[UUID, int]:
    """How many sessions of each org wait for a person now. All orgs: for the platform's eyes only."""
    return await sessions.count_suspended(db)


async def end_approvals(
    tx: Transaction, session_id: UUID, job_ids: Sequence[UUID], actor: Actor, reason: str
) -> None:
    """Nobody is asked any more about jobs that ended."""
    ended = await approvals.cancel(tx, job_ids, reason)
    if ended:
        await audit.append_to_session(
            tx,
            session_id,
            [
                Fact.of(actor, "approval_cancelled", approval=str(e["id"]), reason=reason).concerning(
                    e["job_id"]
                )
                for e in ended
            ],
            [("approval_cancelled", e["job_id"], {"approval_id": str(e["id"])}) for e in ended],
        )
