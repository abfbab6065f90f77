"""Sessions: opened by programs, or by the first message of a person; ended for good."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.domain.access import Actor, Permission
from cortex_plane.domain.agents import Agent, AgentStatus, SkillSettings
from cortex_plane.domain.audit import Fact
from cortex_plane.domain.errors import Conflict, CortexError
from cortex_plane.domain.idempotency import Once, new_id
from cortex_plane.domain.jobs import JobKind, JobStatus
from cortex_plane.domain.pages import Page, Position
from cortex_plane.domain.sessions import (
    Session,
    SessionChange,
    SessionDraft,
    SessionKind,
    SessionStatus,
    Termination,
)
from cortex_plane.operations import atlas_access, gates
from cortex_plane.operations.verbs import found, once_only, require_revision, verb
from cortex_plane.storage import agents, approvals, audit, jobs, sessions
from cortex_plane.storage.database import Database, Transaction


@verb(Permission.SESSION_WRITE)
async def create(db: Database, actor: Actor, draft: SessionDraft, once: Once | None = None) -> Session:
    return await gates.at_hand(db, actor.org_id, lambda: _create(db, actor, draft, once))


async def _create(db: Database, actor: Actor, draft: SessionDraft, once: Once | None) -> Session:
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            agent = await agent_for_new_session(tx, draft.agent)
            id = new_id()
            await sessions.insert(
                tx, id, draft.kind, actor.user_account_id, agent.id, draft.title or None,
                draft.context, actor,
            )  # fmt: skip
            await audit.append_to_session(
                tx, id, [Fact.of(actor, "session_created", session=str(id), agent=str(agent.id))]
            )
            own = SkillSettings.of(agent.skill_config).atlases
            await atlas_access.bind(tx, actor, id, own, draft.atlases)
            await atlas_access.require(tx, actor, id)
            if draft.kind is SessionKind.EXTERNAL:
                await _begin_external(tx, actor, id, agent.id)
                await gates.begin(tx, actor, id)
            return id

        id, _ = await once_only(tx, actor, "sessions.create", once, make)
        return found(await sessions.get(tx, id, None), "session")


async def agent_for_new_session(tx: Transaction, ref: str) -> Agent:
    agent = found(await agents.get(tx, ref), "agent")
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
        return found(await sessions.get(tx, id, actor.sees), "session")


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
        agent_id = found(await agents.get(tx, agent), "agent").id if agent else None
        return await sessions.list_page(tx, position, limit, actor.sees, member_id, status, agent_id)


@verb(Permission.SESSION_WRITE)
async def update(
    db: Database, actor: Actor, id: UUID, change: SessionChange, revision: int | None
) -> Session:
    async with db.transaction(actor.org_id) as tx:
        locked = found(await sessions.lock(tx, id, actor.sees), "session")
        require_revision(locked["revision"], revision)
        if locked["status"] == SessionStatus.TERMINATED:
            raise Conflict("This session has ended.", code="session_terminated", hint="Open a new session.")
        await sessions.update(tx, id, change.title, change.context, actor)
        await audit.append_to_session(
            tx, id,
            [Fact.of(actor, "session_changed", title=change.title, context=change.context is not None)],
        )  # fmt: skip
        return found(await sessions.get(tx, id, None), "session")


@verb(Permission.SESSION_TERMINATE)
async def terminate(db: Database, actor: Actor, id: UUID, termination: Termination) -> Session:
    """End a session and cancel its open jobs, together. Ending an ended one changes nothing."""
    reason = termination.reason or "session terminated"
    # An atlas that cannot be read keeps nobody from ending a session.
    return await gates.recording(db, actor.org_id, lambda unread: _terminate(db, actor, id, reason, unread))


async def _terminate(
    db: Database, actor: Actor, id: UUID, reason: str, unread: CortexError | None
) -> Session:
    async with db.transaction(actor.org_id) as tx:
        locked = found(await sessions.lock(tx, id, actor.sees), "session")
        if locked["status"] != SessionStatus.TERMINATED:
            await sessions.set_status(tx, id, SessionStatus.TERMINATED)
            cancelled = await jobs.cancel_open(tx, id, reason)
            await end_approvals(tx, id, cancelled, actor, reason)
            await gates.end(tx, actor, id, None, unread)
            await audit.append_to_session(
                tx,
                id,
                [
                    Fact.of(
                        actor, "session_terminated", reason=reason, cancelled_jobs=[str(j) for j in cancelled]
                    )
                ],
                [
                    *(("status", job, {"status": "CANCELLED", "reason": reason}) for job in cancelled),
                    ("status", None, {"session": "TERMINATED", "reason": reason}),
                ],
            )
        return found(await sessions.get(tx, id, None), "session")


async def suspended_sessions(db: Database) -> dict[UUID, int]:
    """How many sessions of each org wait for a person now. All orgs: for the platform's eyes only."""
    return await sessions.count_suspended(db)


async def _begin_external(tx: Transaction, actor: Actor, session_id: UUID, agent_id: UUID) -> None:
    """The job of a new session: running from the start, elsewhere, and claimed by nobody."""
    id = new_id()
    await sessions.set_status(tx, session_id, SessionStatus.ACTIVE)
    await jobs.insert(
        tx, id, session_id, agent_id, {}, 0, None, JobKind.EXTERNAL, actor.user_account_id, actor.identity
    )
    await audit.append_to_session(
        tx, session_id, [Fact.of(actor, "job_created", job=str(id), kind=JobKind.EXTERNAL)],
        [("status", id, {"status": JobStatus.RUNNING})],
    )  # fmt: skip


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
