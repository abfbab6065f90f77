"""Every parked job of a plane, for whoever holds the machine: no verb of a tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import JobKind
from cortex_plane.jobs.model.journal import Entry
from cortex_plane.jobs.model.preflight import PARKED, Parked
from cortex_plane.jobs.store import journal, preflight, steps
from cortex_plane.kernel.pages import Position
from cortex_plane.tenancy.model.orgs import Org
from cortex_plane.tenancy.store import orgs

PAGE = 50
"""A checkpoint may have a mebibyte: so many are held at once."""
RECENT = 50


async def every_parked(db: Database, page: int = PAGE) -> AsyncIterator[tuple[Org, Parked]]:
    """Org by org and status by status, in pages of a short read-only transaction each, so that a long look holds nothing up.

    A job that moves while it lasts may be met twice or not at all.
    """
    position: Position | None = None
    while True:
        found = await orgs.list_all(db, position, 100)
        for org in found.items:
            async for job in _parked_in(db, org, page):
                yield org, job
        if found.next is None:
            return
        position = found.next


async def _parked_in(db: Database, org: Org, limit: int) -> AsyncIterator[Parked]:
    for status in PARKED:
        position: Position | None = None
        while True:
            async with db.transaction(org.id, snapshot=True) as tx:
                page = await preflight.parked(tx, status, position, limit)
            for job in page.items:
                yield job
            if page.next is None:
                break
            position = page.next


async def recorded(db: Database, org_id: UUID, job: Parked) -> list[Entry]:
    """What the code of a job did so far."""
    entries, _ = await journal.past(db, org_id, job.id)
    return entries


async def stored_result(db: Database, org_id: UUID, job: Parked, result_id: UUID) -> bytes | None:
    async with db.transaction(org_id, snapshot=True) as tx:
        return await steps.stored_result(tx, job.id, result_id)


async def last_message(db: Database, org_id: UUID, job: Parked, read_to: int) -> str:
    """What the person said last, of what a conversation had read."""
    if job.kind is not JobKind.CONVERSATION:
        return ""
    async with db.transaction(org_id, snapshot=True) as tx:
        said = await steps.said(tx, job.session_id, max(0, read_to - RECENT), read_to)
    return next((each.text for each in reversed(said) if each.role == "user"), "")
