"""Workers, the tools they publish, and what their jobs used."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.tools import PublishedTool, ToolServer, ToolVersion
from cortex_plane.db.database import NOBODY, Database
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import Worker
from cortex_plane.jobs.model.usage import Grouping, Spent, UsageRow, UsageTotals
from cortex_plane.jobs.rules.attempts import Assignment
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb

MAX_VERSIONS = 1000


async def register_worker(
    db: Database,
    id: UUID,
    name: str,
    host: str,
    pid: int,
    apps: list[str],
    concurrency: int,
    lease: timedelta,
) -> None:
    await jobs_store.register_worker(db, id, name, host, pid, apps, concurrency, lease)


async def beat_worker(db: Database, id: UUID, lease: timedelta) -> tuple[datetime, list[UUID]] | None:
    return await jobs_store.beat_worker(db, id, lease)


async def stop_worker(db: Database, id: UUID) -> None:
    await jobs_store.stop_worker(db, id)


async def forget_workers(db: Database) -> None:
    await jobs_store.forget_workers(db)


async def publish_tools(db: Database, versions: Sequence[ToolVersion]) -> list[ToolVersion]:
    """Make known what this worker's tools are; a version that is known already stays as it is.

    Returns those that take the place of another one: whatever was approved or confirmed about that is asked again.
    """
    return await agents_store.publish_tools(db, versions)


async def known_tools(db: Database, app: str, server: str) -> list[ToolVersion]:
    """What an MCP server offered when a worker last heard of it."""
    return await agents_store.list_server_tools(db, app, server)


async def tell_server(
    db: Database, worker: UUID, app: str, name: str, state: str, reason: str | None, tools: int
) -> None:
    """How one of this worker's MCP servers is."""
    await agents_store.record_tool_server(db, app, name, worker, state, reason, tools)


async def forget_servers(db: Database, worker: UUID) -> None:
    await agents_store.forget_tool_servers(db, worker)


@verb(Permission.WORKER_READ)
async def list_workers(db: Database, _: Actor) -> list[Worker]:
    async with db.transaction(NOBODY) as tx:
        return await jobs_store.list_workers(tx)


@verb(Permission.TOOL_READ)
async def list_versions(db: Database, _: Actor, app: str) -> list[PublishedTool]:
    """Every version of an app's tools, newest first: what changed, and when."""
    return await agents_store.list_tool_versions(db, app, MAX_VERSIONS)


@verb(Permission.TOOL_READ)
async def list_servers(db: Database, actor: Actor) -> list[ToolServer]:
    """The MCP servers of the workers that are there. Whose machines those are is for the platform to see."""
    found = await agents_store.list_tool_servers(db)
    return found if actor.may(Permission.WORKER_READ) else [each.for_tenants for each in found]


@verb(Permission.TOOL_READ)
async def list_tools(db: Database, _: Actor) -> list[ToolVersion]:
    return await agents_store.list_tools(db)


_SUMS = {
    Grouping.DAY: jobs_store.usage_by_day,
    Grouping.AGENT: jobs_store.usage_by_agent,
    Grouping.JOB: jobs_store.usage_by_job,
    Grouping.MODEL: jobs_store.usage_by_model,
}


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
        agent_id = (
            require_found(await agents_store.get_agent(tx, agent), "agent").id if agent is not None else None
        )
        chosen = jobs_store.UsageFilter(
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
async def list_job_usage(db: Database, actor: Actor, job_id: UUID) -> UsageTotals:
    async with db.transaction(actor.org_id) as tx:
        require_found(await jobs_store.get_job(tx, job_id, actor.sees), "job")
        return await jobs_store.list_job_usage(tx, job_id)


async def spent_by_job(db: Database, given: Assignment) -> Spent:
    """For its worker: what it took so far."""
    async with db.transaction(given.org_id) as tx:
        return await jobs_store.spent_by_job(tx, given.job_id)


async def spent_today(db: Database, given: Assignment) -> tuple[Spent, float]:
    """For a worker: what the job's agent spent since midnight UTC, and the seconds until the next one."""
    async with db.transaction(given.org_id) as tx:
        return await jobs_store.spent_today(tx, given.agent_id)
