"""Opening and ending sessions, with what their gates do then."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.agents import verbs as agents
from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates.verbs import session_gates
from cortex_plane.jobs import store as jobs_store
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact, SessionEvent
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import Session, SessionDraft, SessionKind, SessionStatus, Termination
from cortex_plane.sessions.verbs.sessions import agent_for_new_session, end_approvals
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import once_only, require_found, verb


@verb(Permission.SESSION_WRITE)
async def create(db: Database, actor: Actor, draft: SessionDraft, once: IdempotencyKey | None = None) -> Session:
    return await session_gates.with_loaded_atlases(db, actor.org_id, lambda: _create(db, actor, draft, once))


async def _create(db: Database, actor: Actor, draft: SessionDraft, once: IdempotencyKey | None) -> Session:
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            agent = await agent_for_new_session(tx, draft.agent)
            id = new_id()
            await sessions_store.insert_session(
                tx, id, draft.kind, actor.user_account_id, agent.id, draft.title or None,
                draft.context, actor,
            )  # fmt: skip
            await proof_store.append_to_session(
                tx, id, [Fact.of(actor, "session_created", session=str(id), agent=str(agent.id))]
            )
            await agents.bind_atlases(tx, actor, id, agent, draft.atlases)
            await agents.require_atlas_access(tx, actor, id)
            if draft.kind is SessionKind.EXTERNAL:
                job_id = await _begin_external(tx, actor, id, agent.id)
                await session_gates.begin(tx, actor, id, job_id)
            return id

        id, _ = await once_only(tx, actor, "sessions.create", once, make)
        return require_found(await sessions_store.get_session(tx, id, None), "session")


@verb(Permission.SESSION_TERMINATE)
async def terminate(db: Database, actor: Actor, id: UUID, termination: Termination) -> Session:
    """End a session and cancel its open jobs, together. Ending an ended one changes nothing."""
    reason = termination.reason or "session terminated"
    # An atlas that cannot be read keeps nobody from ending a session.
    return await session_gates.with_gate_record(
        db, actor.org_id, lambda unread: _terminate(db, actor, id, reason, unread)
    )


async def _terminate(db: Database, actor: Actor, id: UUID, reason: str, unread: CortexError | None) -> Session:
    async with db.transaction(actor.org_id) as tx:
        row = require_found(await sessions_store.lock_session(tx, id, actor.sees), "session")
        if row["status"] != SessionStatus.TERMINATED:
            await sessions_store.set_session_status(tx, id, SessionStatus.TERMINATED)
            job_ids = await jobs_store.cancel_open_jobs(tx, id, reason)
            await end_approvals(tx, id, job_ids, actor, reason)
            await session_gates.end(tx, actor, id, None, unread)
            fact = Fact.of(actor, "session_terminated", reason=reason, cancelled_jobs=[str(job) for job in job_ids])
            events: list[SessionEvent] = [("status", job, {"status": "CANCELLED", "reason": reason}) for job in job_ids]
            events.append(("status", None, {"session": "TERMINATED", "reason": reason}))
            await proof_store.append_to_session(tx, id, [fact], events)
        return require_found(await sessions_store.get_session(tx, id, None), "session")


async def _begin_external(tx: Transaction, actor: Actor, session_id: UUID, agent_id: UUID) -> UUID:
    """The job of a new session, which runs elsewhere."""
    id = new_id()
    await sessions_store.set_session_status(tx, session_id, SessionStatus.ACTIVE)
    await jobs_store.insert_external_job(tx, id, session_id, agent_id, actor)
    await proof_store.append_to_session(
        tx, session_id, [Fact.of(actor, "job_created", job=str(id), kind=SessionKind.EXTERNAL)],
        [("status", id, {"status": "RUNNING"})],
    )  # fmt: skip
    return id
