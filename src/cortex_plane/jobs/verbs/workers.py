"""Workers: their lives and tools, the jobs that they claim and adopt, what an attempt resumes from, and what jobs used."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.tools import PublishedTool, ToolServer, ToolVersion
from cortex_plane.db.database import NOBODY, Database, after, many, page
from cortex_plane.gates import store as gates_store
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import PARKED, JobKind, Parked, Worker
from cortex_plane.jobs.model.journal import JournalEntry
from cortex_plane.jobs.model.usage import Grouping, UsageRow
from cortex_plane.jobs.rules import HAND_BACK_REMEDY, Assignment, HandBack, Leased, Orphan, adoption, hand_back
from cortex_plane.jobs.store import PastSteps, queries
from cortex_plane.kernel.pages import After
from cortex_plane.sessions.rules import SessionMessage
from cortex_plane.tenancy.model.access import Actor, Fact, Permission, worker_actor
from cortex_plane.tenancy.model.orgs import Org
from cortex_plane.tenancy.verbs.frame import every_org, require_found, verb

MAX_VERSIONS = 1000


@verb(Permission.WORKER_READ)
async def list_workers(db: Database, _: Actor) -> list[Worker]:
    async with db.transaction(NOBODY) as tx:
        return await jobs_store.list_workers(tx)


@verb(Permission.TOOL_READ)
async def list_versions(db: Database, actor: Actor, app: str) -> list[PublishedTool]:
    """Every version of an app's tools, newest first: what changed, and when."""
    return await agents_store.list_tool_versions(db, actor.org_id, app, MAX_VERSIONS)


@verb(Permission.TOOL_READ)
async def list_servers(db: Database, actor: Actor) -> list[ToolServer]:
    """The MCP servers of the workers that are there. Whose machines those are is for the platform to see."""
    servers = await agents_store.list_tool_servers(db)
    return servers if actor.may(Permission.WORKER_READ) else [each.for_tenants for each in servers]


@verb(Permission.TOOL_READ)
async def list_tools(db: Database, actor: Actor) -> list[ToolVersion]:
    return await agents_store.list_tools(db, actor.org_id)


@verb(Permission.JOB_READ, heavy=True)
async def list_usage(
    db: Database,
    actor: Actor,
    by: Grouping,
    limit: int,
    *,
    below: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    agent: str | None = None,
    job_id: UUID | None = None,
) -> list[UsageRow]:
    """The highest key first; ``below`` goes on after one."""
    async with db.transaction(actor.org_id) as tx:
        agent_id = require_found(await agents_store.get_agent(tx, agent), "agent").id if agent is not None else None
        filters = (actor.sees, since, until, agent_id, job_id, below)
        return many(UsageRow, await tx.rows(queries.sum_usage, *filters, limit, by))


ORPHANS_AT_ONCE = 100


async def adopt_jobs(db: Database, worker_id: UUID, worker_name: str, poison_deaths: int) -> list[Orphan]:
    """Take dead workers' jobs from them, so that whoever is free can claim them."""
    orphans = []
    for orphan in await jobs_store.find_orphans(db, ORPHANS_AT_ONCE):
        if orphan.worker_id == worker_id:
            continue  # our own lease ran out: the next beat renews it
        decision = adoption(orphan, poison_deaths)
        actor = worker_actor(orphan.org_id, worker_id, worker_name)
        details = {"lost_worker": orphan.worker, "epoch": orphan.epoch, "reason": decision.error}
        fact = Fact.of(actor, decision.action, job=str(orphan.id), **details)
        if await jobs_store.adopt_job(db, orphan, decision, fact):
            orphans.append(orphan)
    return orphans


async def list_past_steps(
    db: Database, assignment: Assignment, read_to: int, window_step: int = 0, window_seq: int = 0
) -> PastSteps:
    """Everything a resume needs, in one round trip; a task that has not begun needs nothing."""
    if assignment.checkpoint is None and assignment.kind is JobKind.TASK:
        return PastSteps()
    is_conversation = assignment.kind is JobKind.CONVERSATION
    last_read = read_to if is_conversation or read_to else None
    past = await jobs_store.list_past_steps(db, assignment, last_read, window_step, window_seq)
    return past if is_conversation else replace(past, messages=words_for(assignment, past.messages), asked=None)


def words_for(assignment: Assignment, messages: Sequence[SessionMessage]) -> list[SessionMessage]:
    """What a task reads of its session: words of operators to it alone."""
    return [message for message in messages if message.role == "system" and message.job_id == assignment.job_id]


async def messages_between(db: Database, assignment: Assignment, above: int, up_to: int) -> list[SessionMessage]:
    async with db.transaction(assignment.org_id) as tx:
        return await jobs_store.list_step_messages(tx, assignment.session_id, above, up_to)


async def bound_atlases(db: Database, assignment: Assignment) -> dict[str, Any] | None:
    """The atlases of its session and what their gates remember, read again."""
    async with db.transaction(assignment.org_id) as tx:
        return (await gates_store.bound_atlases(tx, assignment.session_id))[0]


async def release_job(
    db: Database, job: Leased, worker_id: UUID, worker_name: str, *, is_late: bool = False, counted: bool = True
) -> bool:
    """Hand back a job that its worker does not run; False where it is somebody else's by now. ``is_late``: it was claimed
    ahead. ``counted``: it counts as a hand-back without progress. That of a worker that stops does not."""
    reason = "It was claimed ahead and found no free slot." if is_late else "Its attempt ended without a write."
    uncounted = HandBack(count=job.hand_backs, delay_seconds=0.0)
    handback = hand_back(job.hand_backs, reason) if counted else uncounted
    actor = worker_actor(job.org_id, worker_id, worker_name)
    fact = Fact.of(actor, "job_handed_back", job=str(job.id), reason=reason)
    if handback.error is not None:
        error = f"Job {job.id}: {handback.error} {HAND_BACK_REMEDY}"
        handback, fact = (replace(handback, error=error), Fact.of(actor, "job_failed", job=str(job.id), error=error))
    return await jobs_store.release_job(db, job.org_id, job.id, worker_id, job.epoch, fact, handback)


async def list_past_entries(db: Database, assignment: Assignment) -> tuple[list[JournalEntry], dict[str, Any]]:
    """What a job goes on from; one that has not begun has nothing."""
    if assignment.checkpoint is None:
        return [], {}
    return await jobs_store.list_past_entries(db, assignment.org_id, assignment.job_id)


async def stored_result(db: Database, assignment: Assignment, result_id: UUID) -> bytes | None:
    async with db.transaction(assignment.org_id) as tx:
        return await jobs_store.stored_result(tx, assignment.job_id, result_id)


PAGE = 50
"""A checkpoint may have a mebibyte: so many are held at once."""
RECENT = 50


async def list_every_parked(db: Database, size: int = PAGE) -> AsyncIterator[tuple[Org, Parked]]:
    """Org by org and status by status, in pages of a short read-only transaction each, so that a long look holds
    nothing up. A job that moves while it lasts may be met twice or not at all."""
    async for org in every_org(db):
        for status in PARKED:
            position: After = None
            while True:
                async with db.transaction(org.id, snapshot=True) as tx:
                    rows = await tx.rows(queries.list_parked_jobs, *after(position), size + 1, status)
                jobs = page(Parked, rows, size)
                for job in jobs.items:
                    yield org, job
                position = jobs.next
                if position is None:
                    break


async def parked_result(db: Database, org_id: UUID, job: Parked, result_id: UUID) -> bytes | None:
    async with db.transaction(org_id, snapshot=True) as tx:
        return await jobs_store.stored_result(tx, job.id, result_id)


async def last_message(db: Database, org_id: UUID, job: Parked, read_to: int) -> str:
    """What the person said last, of what a conversation had read."""
    async with db.transaction(org_id, snapshot=True) as tx:
        messages = await jobs_store.list_step_messages(tx, job.session_id, max(0, read_to - RECENT), read_to)
    return next((each.text for each in reversed(messages) if each.role == "user"), "")
