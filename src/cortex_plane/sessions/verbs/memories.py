"""Memories: what is kept of conversations that outgrew the model's window. Workers write them; people read them."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.jobs.store import jobs
from cortex_plane.sessions.model.memories import Memory, SessionMemory
from cortex_plane.sessions.store import memories, sessions
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.verbs import require_found, verb


@verb(Permission.SESSION_READ)
async def list_page(
    db: Database, actor: Actor, session_id: UUID, below: int | None, limit: int
) -> list[SessionMemory]:
    """The newest first, which is the one that the next job begins with; then those that it was made from."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await sessions.get(tx, session_id, actor.sees), "session")
        return await memories.list_page(tx, session_id, below, limit)


@verb(Permission.JOB_READ)
async def of_job(db: Database, actor: Actor, job_id: UUID) -> Memory:
    """What a job itself remembers of what it no longer tells its model; empty where it tells everything."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await jobs.get(tx, job_id, actor.sees), "job")
        return await memories.of_job(tx, job_id)
