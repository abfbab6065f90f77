"""Opening, pausing and ending sessions, with what their gates do then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

from cortex_plane.agents import verbs as agents
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.gates.verbs import session_gates
from cortex_plane.jobs import store as jobs_store
from cortex_plane.kernel.errors import AlreadyExists, Conflict, CortexError
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.meters import meters
from cortex_plane.kernel.text import in_words
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import SessionEvent
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import Session, SessionDraft, SessionKind, SessionStatus, Termination
from cortex_plane.sessions.verbs.sessions import (
    agent_for_new_session,
    end_approvals,
    find_last_outside_session,
    find_outside_session,
)
from cortex_plane.tenancy.model.access import Actor, Fact, Permission, scheduler_actor
from cortex_plane.tenancy.verbs.access import find_person, require_served_person
from cortex_plane.tenancy.verbs.frame import every_org, once_only, require_found, verb


@verb(Permission.SESSION_WRITE)
async def create(db: Database, actor: Actor, draft: SessionDraft, once: IdempotencyKey | None = None) -> Session:
    """Open a session. With an outside id the caller's open session of that name is found, and only if there is none a new one opens."""
    person = actor.user_account_id
    if draft.on_behalf_of is not None:
        actor.require(Permission.SESSION_ON_BEHALF)
        person = await find_person(db, actor, draft.on_behalf_of)
    for _ in range(TRIES):
        try:
            return await session_gates.with_loaded_atlases(
                db, actor.org_id, lambda: _create(db, actor, draft, person, once)
            )
        except AlreadyExists:
            # Somebody opened it at the same moment: now it is there.
            if draft.outside_id is None:
                raise
    raise Conflict(
        "A session with this outside id is opened and ended all the time.", code="retry", hint="Send it again."
    )


async def _create(
    db: Database, actor: Actor, draft: SessionDraft, person: UUID | None, once: IdempotencyKey | None
) -> Session:
    on_behalf = draft.on_behalf_of is not None
    async with db.transaction(actor.org_id) as tx:
        if on_behalf and person is not None:
            await require_served_person(tx, person)

        async def make() -> UUID:
            if draft.outside_id is not None and (
                known := await _find_outside(tx, actor, draft.agent, draft.outside_id, person)
            ):
                return known
            agent = await agent_for_new_session(tx, draft.agent)
            id = new_id()
            await sessions_store.insert_session(
                tx, id, draft.kind, person, agent.id, draft.title or None,
                draft.context, actor, outside_id=draft.outside_id, on_behalf=on_behalf,
            )  # fmt: skip
            named = {} if draft.outside_id is None else {"outside_id": draft.outside_id}
            named |= {"on_behalf_of": str(person)} if on_behalf else {}
            await proof_store.append_to_session(
                tx, id, [Fact.of(actor, "session_created", session=str(id), agent=str(agent.id), **named)]
            )
            await agents.bind_atlases(tx, actor, id, agent, draft.atlases)
            await agents.require_atlas_access(tx, actor, id)
            if draft.kind is SessionKind.EXTERNAL:
                job_id = await _begin_external(tx, actor, id, agent.id)
                await session_gates.begin(tx, actor, id, job_id)
            return id

        id, _ = await once_only(tx, actor, "sessions.create", once, make)
        return require_found(await sessions_store.get_session(tx, id, None), "session")


async def open_outside_session(db: Database, actor: Actor, agent: str, outside_id: str) -> UUID:
    """The open session of this agent and identity that the agent's own world names; it is opened where there is none. Refused where
    somebody ended the last one: its agent would go on as if nobody had."""
    async with db.transaction(actor.org_id) as tx:
        last = await find_last_outside_session(tx, actor, agent, outside_id)
    if last is not None and last["is_cancelled"]:
        raise Conflict(
            "Somebody ended this session.",
            code="external_over",
            hint="Do nothing more in it. A person may start a new session of the agent.",
        )
    if last is not None and not last["is_over"]:
        id: UUID = last["id"]
        return id
    draft = SessionDraft(agent=agent, kind=SessionKind.EXTERNAL, outside_id=outside_id)
    return (await create(db, actor, draft)).id


async def _find_outside(
    tx: Transaction, actor: Actor, agent_ref: str, outside_id: str, person: UUID | None
) -> UUID | None:
    """The actor's open session with this outside id. One whose job is over ends here: a new one takes its place."""
    row = await find_outside_session(tx, actor, agent_ref, outside_id, person)
    if row is None:
        return None
    id: UUID = row["id"]
    if not row["is_over"]:
        await agents.require_atlas_access(tx, actor, id)
        return id
    locked = await sessions_store.lock_session(tx, id, None)
    if locked is not None and locked["status"] != SessionStatus.TERMINATED:
        await _end(tx, actor, id, "its job is over", None)
    return None


@verb(Permission.SESSION_TERMINATE)
async def terminate(db: Database, actor: Actor, id: UUID, termination: Termination) -> Session:
    """End a session and cancel its open jobs, together. Ending an ended one changes nothing."""
    reason = termination.reason or "session terminated"
    # An atlas that cannot be read keeps nobody from ending a session.
    return await session_gates.with_gate_record(
        db, actor.org_id, lambda unread: _terminate(db, actor, id, reason, unread)
    )


async def end_by_agent(db: Database, actor: Actor, id: UUID) -> str | None:
    """A session whose agent ended it: once none of its jobs is open. For schedulers."""

    async def reason(tx: Transaction, row: Row) -> str | None:
        if row["end_reason"] is None:
            return None
        if await jobs_store.lock_open_job(tx, id):
            await tx.rows(sessions_store.queries.look_again, id)
            return None
        return f"its agent ended it: {row['end_reason']}"

    return await _end_where(db, actor, id, reason)


async def end_or_pause(db: Database, actor: Actor, id: UUID) -> str | None:
    """For schedulers: end a session whose agent ended it, or pause an idle conversation until its next message."""
    if await end_by_agent(db, actor, id) is not None:
        return "ended"
    async with db.transaction(actor.org_id) as tx:
        row = await sessions_store.lock_session(tx, id, None)
        if row is None or row["end_reason"] is not None:
            return None
        went_at = await sessions_store.went_idle(tx, id)
        if went_at is None:
            return None
        await sessions_store.set_session_status(tx, id, SessionStatus.PAUSED)
        await proof_store.append_to_session(
            tx, id, [Fact.of(actor, "session_paused", reason="idle")],
            [("session_paused", None, {"reason": "idle", "pause_source": "idle", "paused_at": went_at.isoformat()})],
        )  # fmt: skip
    meters().paused(actor.org_id, "idle")
    return "idle"


async def end_long_paused(db: Database) -> None:
    """Sessions that are paused for longer than their org lets them."""
    async for org in every_org(db):
        limit = org.settings.get("end_paused_after_seconds")
        if not limit:
            continue

        async def reason(_: Transaction, row: Row, limit: int = limit) -> str | None:
            is_due = row["status"] == SessionStatus.PAUSED and (row["paused_seconds"] or 0) >= limit
            return f"it was paused for longer than {in_words(limit)}" if is_due else None

        async with db.transaction(org.id) as tx:
            rows = await tx.rows(sessions_store.queries.list_long_paused, float(limit), AT_ONCE)
        for row in rows:
            await _end_where(db, scheduler_actor(org.id, new_id(), "scheduler"), row["id"], reason)


AT_ONCE = 500
TRIES = 5
Reason = Callable[[Transaction, Row], Awaitable[str | None]]
"""Why a session ends now, under its lock; None where it does not."""


async def _end_where(db: Database, actor: Actor, id: UUID, reason: Reason) -> str | None:
    async def end(unread: CortexError | None) -> str | None:
        async with db.transaction(actor.org_id) as tx:
            row = await sessions_store.lock_session(tx, id, None)
            if row is None or row["status"] == SessionStatus.TERMINATED or (why := await reason(tx, row)) is None:
                return None
            await _end(tx, actor, id, why, unread)
            return why

    return await session_gates.with_gate_record(db, actor.org_id, end)


async def _terminate(db: Database, actor: Actor, id: UUID, reason: str, unread: CortexError | None) -> Session:
    async with db.transaction(actor.org_id) as tx:
        row = require_found(await sessions_store.lock_session(tx, id, actor.sees), "session")
        if row["status"] != SessionStatus.TERMINATED:
            await _end(tx, actor, id, reason, unread)
        return require_found(await sessions_store.get_session(tx, id, None), "session")


async def _end(tx: Transaction, actor: Actor, id: UUID, reason: str, unread: CortexError | None) -> None:
    await sessions_store.set_session_status(tx, id, SessionStatus.TERMINATED)
    job_ids = await jobs_store.cancel_open_jobs(tx, id, reason)
    await end_approvals(tx, id, job_ids, actor, reason)
    await session_gates.end(tx, actor, id, None, unread)
    fact = Fact.of(actor, "session_terminated", reason=reason, cancelled_jobs=[str(job) for job in job_ids])
    events: list[SessionEvent] = [("status", job, {"status": "CANCELLED", "reason": reason}) for job in job_ids]
    events.append(("status", None, {"session": "TERMINATED", "reason": reason}))
    await proof_store.append_to_session(tx, id, [fact], events)


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
