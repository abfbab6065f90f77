"""Rows of an org in every table, and ways to look at them from inside and from behind row-level security."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import asyncpg

from cortex_plane.domain.approvals import Channel, Choice, Decision
from cortex_plane.domain.attempts import Write
from cortex_plane.domain.idempotency import Once
from cortex_plane.domain.jobs import Cancellation, JobDraft, JobStatus
from cortex_plane.operations import approvals, browser_sessions, jobs, steering
from cortex_plane.operations.verbs import new_id
from cortex_plane.storage import events
from tests.people import World
from tests.storage.leases import Held, call, ledger, make_worker, step

# Tables that belong to no org, each with its reason. A test proves that nothing in them could name one.
NOT_A_TENANTS = {
    "schema_migration": "what was applied to this database",
    "worker": "processes of the platform, which run jobs of every org",
    "tool_version": "the code that workers loaded",
    "plane_key": "the fingerprint of the key that the whole plane signs with",
    "platform_policy": "rows that limit every org, written by whoever migrates",
    "platform_policy_version": "how often those rows have changed",
}


async def populate(world: World) -> None:
    """At least one row in every table of the org. The job that was claimed for it is handed back."""
    await world.say("Hello")
    once = Once(key=f"{world.org_id}", fingerprint=bytes(32))
    await jobs.submit(world.db, world.admin.actor, JobDraft(agent=world.agent.slug), once)
    held = await Held.claim_of(world.db, await make_worker(world.db), world.org_id)
    large = (new_id(), b"large")
    refused = call(position=1, status="rejected", verdict=None, authorization_id=None)
    await world.db.call(
        "append_chunks", world.org_id, held.given.job_id, held.worker, held.given.epoch, 0, ["hm"]
    )
    await held.write(Write(step=step(), **ledger(call(), refused), dispatches=True, stored=(large,)))
    assert await events.append_chunks(
        world.db, world.org_id, held.given.job_id, held.worker, held.given.epoch, 1, ["I "]
    )
    await held.write(Write(status=JobStatus.RUNNING))
    await _approve_one(world)
    for _ in range(2):
        link = await browser_sessions.issue_own_login_link(world.db, world.admin.actor)
        await browser_sessions.log_in(world.db, link.url_path.rpartition("/")[2])


async def _approve_one(world: World) -> None:
    """A request with its vote and its grant. Its job is over afterwards."""
    job = await jobs.submit(world.db, world.admin.actor, JobDraft(agent=world.agent.slug))
    worker = await make_worker(world.db)
    while (held := await Held.claim_of(world.db, worker, world.org_id)).given.job_id != job.id:
        await held.write(Write(status=JobStatus.PAUSED, hold="code_changed"))
    (id,) = await held.ask(call())
    decision = Decision(decision=Choice.APPROVED, version=1, input_hash=call()["input_hash"])
    await approvals.decide(world.db, world.admin.actor, id, decision, Channel.API)
    await steering.cancel(world.db, world.admin.actor, job.id, Cancellation())


async def tables(admin: asyncpg.Connection, *, partitions: bool = False) -> list[str]:
    """The tenants' tables; partitions are left out, because their parents show the same rows."""
    rows = await admin.fetch(
        """
        select relname::text from pg_class
        where relnamespace = 'public'::regnamespace and relkind in ('r', 'p') and relname <> all ($1::text[])
          and ($2 or not relispartition)
        order by relname
        """,
        list(NOT_A_TENANTS),
        partitions,
    )
    return [row["relname"] for row in rows]


def org_column(table: str) -> str:
    return "id" if table == "org" else "org_id"


async def digest(admin: asyncpg.Connection, names: list[str], org: UUID | None = None) -> dict[str, str]:
    """One text per table that changes with every write to a row of the org (of any org without one)."""
    parts = [
        f"""
        select '{name}' as name, coalesce(md5(string_agg(t.xmin::text || t::text, ',' order by t::text)), 'empty')
        from {name} t where $1::uuid is null or {org_column(name)} = $1
        """
        for name in names
    ]
    return dict(await admin.fetch(" union all ".join(parts), org))


@asynccontextmanager
async def inside(connection: asyncpg.Connection, org: UUID) -> AsyncIterator[asyncpg.Connection]:
    """A transaction of the org, as the plane opens them."""
    async with connection.transaction():
        await connection.execute("select set_config('app.org_id', $1, true)", str(org))
        yield connection
