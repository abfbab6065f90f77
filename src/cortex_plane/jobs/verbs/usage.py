"""What models were asked for jobs, what it took, and what it cost: whoever sees a job sees what it used."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from cortex_plane.agents.store import agents
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.budgets import Spent
from cortex_plane.jobs.model.usage import Grouping, UsageRow, UsageTotals
from cortex_plane.jobs.rules.attempts import Assignment
from cortex_plane.jobs.store import jobs, usage
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.verbs import require_found, verb

_SUMS = {
    Grouping.DAY: usage.by_day,
    Grouping.AGENT: usage.by_agent,
    Grouping.JOB: usage.by_job,
    Grouping.MODEL: usage.by_model,
}


@verb(Permission.JOB_READ, heavy=True)
async def list_totals(
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
        agent_id = require_found(await agents.get(tx, agent), "agent").id if agent is not None else None
        chosen = usage.Chosen(
            sees=actor.sees,
            since=since,
            until=until,
            agent_id=agent_id,
            job_id=job_id,
            below=below,
            limit=limit,
        )
        return await _SUMS[by](tx, chosen)


@verb(Permission.JOB_READ)
async def of_job(db: Database, actor: Actor, job_id: UUID) -> UsageTotals:
    async with db.transaction(actor.org_id) as tx:
        require_found(await jobs.get(tx, job_id, actor.sees), "job")
        return await usage.of_job(tx, job_id)


async def spent_by_job(db: Database, given: Assignment) -> Spent:
    """For its worker: what it took so far."""
    async with db.transaction(given.org_id) as tx:
        return await usage.spent_by_job(tx, given.job_id)


async def spent_today(db: Database, given: Assignment) -> tuple[Spent, float]:
    """For a worker: what the job's agent spent since midnight UTC, and the seconds until the next one."""
    async with db.transaction(given.org_id) as tx:
        return await usage.spent_today(tx, given.agent_id)
