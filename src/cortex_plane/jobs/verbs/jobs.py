"""Jobs: submitted, watched, submitted again. Steering them is in `steering`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Concatenate, ParamSpec, TypeVar
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents import verbs as agents
from cortex_plane.db.database import Database, Transaction, after, page
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import RESUBMITTABLE, Job, JobDraft, JobKind, JobStatus
from cortex_plane.jobs.store import NewJob, queries
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import After, Page
from cortex_plane.policies.verbs.policy_cache import require_members
from cortex_plane.proof import store as proof_store
from cortex_plane.sessions.verbs.sessions import open_programmatic_session, require_api, require_open_session
from cortex_plane.tenancy.model.access import Actor, Fact, Permission
from cortex_plane.tenancy.verbs.frame import Verb, once_only, require_found, transaction_verb, verb

P = ParamSpec("P")
T = TypeVar("T")


@verb(Permission.JOB_SUBMIT)
async def submit(db: Database, actor: Actor, draft: JobDraft, once: IdempotencyKey | None = None) -> Job:
    jobs: list[Job] = []
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            facts: list[Fact] = []
            if draft.session_id is None:
                agent, session_id, fact = await open_programmatic_session(tx, actor, draft.agent)
                facts.append(fact)
            else:
                agent = require_found(await agents_store.get_agent(tx, draft.agent), "agent")
                require_api(agent)
                session_id = draft.session_id
                await require_open_session(tx, actor, session_id, agent.id)
            await agents.bind_atlases(tx, actor, session_id, agent, draft.atlases)
            policies = [policy.as_row() for policy in draft.policies]
            await require_members(tx, policies)
            job = NewJob(
                session_id=session_id, agent_id=agent.id, payload=draft.payload, max_retries=draft.max_retries,
                kind=JobKind.TASK, caused_by=actor.user_account_id, policies=policies,
            )  # fmt: skip
            jobs.append(await _insert_job(tx, actor, job, facts))
            return jobs[0].id

        id, _ = await once_only(tx, actor, "jobs.submit", once, make)
        job = jobs[0] if jobs else require_found(await jobs_store.get_job(tx, id, None), "job")
    db.hints.work()
    return job


async def _insert_job(tx: Transaction, actor: Actor, job: NewJob, facts: Sequence[Fact] = ()) -> Job:
    """``facts`` go before its own."""
    new_job = await jobs_store.insert_job(tx, new_id(), job, actor.identity)
    await agents.require_atlas_access(tx, actor, job.session_id)
    origin = str(job.resubmitted_from) if job.resubmitted_from else None
    fact = Fact.of(actor, "job_created", job=str(new_job.id), resubmitted_from=origin)
    events = [("status", new_job.id, {"status": JobStatus.PENDING})]
    await proof_store.append_to_session(tx, job.session_id, [*facts, fact], events)
    return new_job


@transaction_verb(Permission.JOB_READ)
async def list_page(
    tx: Transaction,
    actor: Actor,
    position: After,
    limit: int,
    *,
    status: JobStatus | None = None,
    session_id: UUID | None = None,
    agent: str | None = None,
) -> Page[Job]:
    agent_id = require_found(await agents_store.get_agent(tx, agent), "agent").id if agent else None
    filters = (actor.sees, status, session_id, agent_id)
    return page(Job, await tx.rows(queries.list_jobs, *after(position), limit + 1, *filters), limit)


def job_reader(
    read: Callable[Concatenate[Transaction, UUID, P], Awaitable[T]],
) -> Verb[Concatenate[Database, Actor, UUID, P], T]:
    """A verb that returns what one function of a store reads about a job that the actor sees."""

    @transaction_verb(Permission.JOB_READ)
    async def operation(tx: Transaction, actor: Actor, id: UUID, /, *args: P.args, **kwargs: P.kwargs) -> T:
        require_found(await jobs_store.get_job(tx, id, actor.sees), "job")
        return await read(tx, id, *args, **kwargs)

    return operation


history = job_reader(jobs_store.list_job_history)


@transaction_verb(Permission.JOB_READ)
async def get(tx: Transaction, actor: Actor, id: UUID) -> Job:
    return require_found(await jobs_store.get_job(tx, id, actor.sees), "job")


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
            await require_open_session(tx, actor, old.session_id, old.agent_id)
            if old.kind is JobKind.TASK:  # a conversation's message came over its own channel
                require_api(require_found(await agents_store.get_agent(tx, str(old.agent_id)), "agent"))
            if old.kind is JobKind.CONVERSATION and await tx.value(queries.open_conversation, old.session_id):
                raise Conflict(
                    "Another job answers this session already.",
                    code="conversation_busy",
                    hint="Wait for it to end, or cancel it first.",
                )
            job = NewJob(
                session_id=old.session_id, agent_id=old.agent_id, payload=old.payload, max_retries=old.max_retries,
                kind=old.kind, caused_by=old.caused_by or actor.user_account_id, resubmitted_from=old.id,
                policies=old.policies or (),
            )  # fmt: skip
            return (await _insert_job(tx, actor, job)).id

        new, _ = await once_only(tx, actor, "jobs.resubmit", once, make)
        job = require_found(await jobs_store.get_job(tx, new, None), "job")
    db.hints.work()
    return job
