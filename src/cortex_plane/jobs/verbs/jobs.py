"""Jobs: submitted, watched, submitted again. Steering them is in `steering`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import Agent
from cortex_plane.agents.verbs import agents
from cortex_plane.db.database import Database, Transaction
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import RESUBMITTABLE, Job, JobChange, JobDraft, JobKind, JobStatus
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.policies.model.policies import PolicyRow
from cortex_plane.policies.verbs.policy_cache import require_members
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import SessionKind, SessionStatus
from cortex_plane.sessions.verbs.sessions import agent_for_new_session
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import once_only, require_found, verb


@verb(Permission.JOB_SUBMIT)
async def submit(db: Database, actor: Actor, draft: JobDraft, once: IdempotencyKey | None = None) -> Job:
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            if draft.session_id is None:
                agent, session_id = await _open_session(tx, actor, draft.agent)
            else:
                agent = require_found(await agents_store.get_agent(tx, draft.agent), "agent")
                session_id = draft.session_id
                await _require_open_session(tx, actor, session_id, agent.id)
            await agents.bind_atlases(tx, actor, session_id, agent, draft.atlases)
            demands = [policy.as_row() for policy in draft.policies]
            await require_members(tx, demands)
            return await _create(
                tx,
                actor,
                session_id,
                agent.id,
                draft.payload,
                draft.max_retries,
                None,
                JobKind.TASK,
                actor.user_account_id,
                demands,
            )

        id, _ = await once_only(tx, actor, "jobs.submit", once, make)
        job = require_found(await jobs_store.get_job(tx, id, None), "job")
    db.hints.work()
    return job


async def _open_session(tx: Transaction, actor: Actor, agent_ref: str) -> tuple[Agent, UUID]:
    agent = await agent_for_new_session(tx, agent_ref)
    id = new_id()
    await sessions_store.insert_session(
        tx, id, SessionKind.PROGRAMMATIC, actor.user_account_id, agent.id, None, {}, actor
    )
    await sessions_store.set_session_status(tx, id, SessionStatus.ACTIVE)
    await proof_store.append_to_session(
        tx, id, [Fact.of(actor, "session_created", session=str(id), agent=str(agent.id))]
    )
    return agent, id


async def _require_open_session(tx: Transaction, actor: Actor, session_id: UUID, agent_id: UUID) -> None:
    """Hold the session still, so that it cannot end while a job is added to it."""
    session = require_found(await sessions_store.lock_session(tx, session_id, actor.sees), "session")
    if session["agent_id"] != agent_id:
        raise Conflict(
            "This session belongs to another agent.",
            code="wrong_agent",
            hint="Name the agent of the session, or leave out `session_id` to open a new one.",
        )
    if session["kind"] == SessionKind.EXTERNAL:
        raise Conflict(
            "The agent of this session runs elsewhere: no worker takes its jobs.",
            code="external_session",
            hint="Open a new session where the agent is to go on, or submit the job without a session.",
        )
    status = session["status"]
    if status == SessionStatus.CREATED:
        await sessions_store.set_session_status(tx, session_id, SessionStatus.ACTIVE)
        await proof_store.append_to_session(tx, session_id, [Fact.of(actor, "session_activated")])
    elif status != SessionStatus.ACTIVE:
        raise Conflict(
            f"This session is {status} and takes no new jobs.",
            code="session_not_active",
            hint="A message from its user makes a paused session active again; an ended one needs a new session.",
        )


async def _create(
    tx: Transaction,
    actor: Actor,
    session_id: UUID,
    agent_id: UUID,
    payload: dict[str, Any],
    max_retries: int,
    resubmitted_from: UUID | None,
    kind: JobKind,
    caused_by: UUID | None,
    policies: Sequence[PolicyRow],
) -> UUID:
    id = new_id()
    await jobs_store.insert_job(
        tx,
        id,
        session_id,
        agent_id,
        payload,
        max_retries,
        resubmitted_from,
        kind,
        caused_by,
        actor.identity,
        policies,
    )
    await agents.require_atlas_access(tx, actor, session_id)
    origin = str(resubmitted_from) if resubmitted_from else None
    await proof_store.append_to_session(
        tx,
        session_id,
        [Fact.of(actor, "job_created", job=str(id), resubmitted_from=origin)],
        [("status", id, {"status": JobStatus.PENDING})],
    )
    return id


@verb(Permission.JOB_READ)
async def get(db: Database, actor: Actor, id: UUID) -> Job:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await jobs_store.get_job(tx, id, actor.sees), "job")


@verb(Permission.JOB_READ)
async def list_page(
    db: Database,
    actor: Actor,
    position: Position | None,
    limit: int,
    *,
    status: JobStatus | None = None,
    session_id: UUID | None = None,
    agent: str | None = None,
) -> Page[Job]:
    async with db.transaction(actor.org_id) as tx:
        agent_id = require_found(await agents_store.get_agent(tx, agent), "agent").id if agent else None
        return await jobs_store.list_jobs(tx, position, limit, actor.sees, status, session_id, agent_id)


@verb(Permission.JOB_READ)
async def history(db: Database, actor: Actor, id: UUID) -> list[JobChange]:
    async with db.transaction(actor.org_id) as tx:
        require_found(await jobs_store.get_job(tx, id, actor.sees), "job")
        return await jobs_store.list_job_history(tx, id)


@verb(Permission.JOB_STEER)
async def resubmit(db: Database, actor: Actor, id: UUID, once: IdempotencyKey | None = None) -> Job:
    """A failed or cancelled job once more: a new job with the same payload, linked to the old one."""
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            old = require_found(await jobs_store.get_job(tx, id, actor.sees), "job")
            if old.status not in RESUBMITTABLE:
                raise Conflict(
                    f"This job is {old.status}; only a failed or cancelled one can be submitted again.",
                    code="not_resubmittable",
                    hint="Submit a new job instead.",
                )
            await _require_open_session(tx, actor, old.session_id, old.agent_id)
            if old.kind is JobKind.CONVERSATION and await jobs_store.open_conversation(tx, old.session_id):
                raise Conflict(
                    "Another job answers this session already.",
                    code="conversation_busy",
                    hint="Wait for it to end, or cancel it first.",
                )
            return await _create(
                tx,
                actor,
                old.session_id,
                old.agent_id,
                old.payload,
                old.max_retries,
                old.id,
                old.kind,
                old.caused_by or actor.user_account_id,
                old.policies or (),
            )

        new, _ = await once_only(tx, actor, "jobs.resubmit", once, make)
        job = require_found(await jobs_store.get_job(tx, new, None), "job")
    db.hints.work()
    return job
