"""The journal of code agents: read by whoever may see the job, and by the worker that goes on with it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.jobs.model.journal import Entry
from cortex_plane.jobs.rules.attempts import Assignment
from cortex_plane.jobs.store import jobs, journal, steps
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.verbs import require_found, verb


@verb(Permission.JOB_READ)
async def list_page(db: Database, actor: Actor, id: UUID, above: int, limit: int) -> list[Entry]:
    """What the code of a job did so far, in the order in which it was begun."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await jobs.get(tx, id, actor.sees), "job")
        return await journal.list_page(tx, id, above, limit)


async def past(db: Database, given: Assignment) -> tuple[list[Entry], dict[str, Any]]:
    """What a job goes on from; one that has not begun has nothing."""
    if given.checkpoint is None:
        return [], {}
    return await journal.past(db, given.org_id, given.job_id)


async def stored_result(db: Database, given: Assignment, result_id: UUID) -> bytes | None:
    async with db.transaction(given.org_id) as tx:
        return await steps.stored_result(tx, given.job_id, result_id)
