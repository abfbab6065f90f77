"""The audit trail: reading a chain, and proving that every chain is whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

from cortex_plane.domain.access import Actor, Permission
from cortex_plane.domain.audit import (
    AuditEntry,
    AuditRecord,
    ChainHead,
    ChainVerifier,
    Fault,
    Verification,
    shown,
)
from cortex_plane.operations.verbs import found, verb
from cortex_plane.storage import audit, orgs, sessions
from cortex_plane.storage.database import Database, Transaction

_one_at_a_time = asyncio.Semaphore(1)


@verb(Permission.AUDIT_READ)
async def list_page(
    db: Database, actor: Actor, session_id: UUID | None, above: int, limit: int
) -> list[AuditRecord]:
    """The chain of a session, or the org's own."""
    async with db.transaction(actor.org_id) as tx:
        if session_id is not None:
            found(await sessions.get(tx, session_id, None), "session")
        entries = await audit.entries(tx, session_id or actor.org_id, above, limit)
    return [shown(entry) for entry in entries]


@verb(Permission.AUDIT_READ)
async def verify(db: Database, actor: Actor) -> Verification:
    """One at a time in a process: it may take long, and must leave the connections to others."""
    async with _one_at_a_time:
        return await verify_org(db, actor.org_id)


async def verify_org(db: Database, org_id: UUID) -> Verification:
    """Follow every chain of an org in one snapshot and in flat memory; names the first bad entry of each."""
    chains = entries = 0
    faults: list[Fault] = []
    verifier: ChainVerifier | None = None
    broken = False
    async with db.transaction(org_id, snapshot=True) as tx:
        async for item in chain_by_chain(tx):
            verifier = verifier or ChainVerifier(item.chain_id)
            if isinstance(item, AuditEntry):
                entries += 1
                fault = None if broken else verifier.follow(item)
            else:
                chains += 1
                fault = None if broken else verifier.finish(item)
            if fault:
                faults.append(fault)
                broken = True
            if isinstance(item, ChainHead):
                verifier, broken = None, False
    return Verification(chains=chains, entries=entries, faults=faults)


async def chain_by_chain(
    tx: Transaction, session_id: UUID | None = None
) -> AsyncIterator[AuditEntry | ChainHead]:
    """The entries of each chain, and after them its head; one without a hash where there is none."""
    entries = audit.everything(tx, session_id)
    entry = await anext(entries, None)
    async for head in audit.heads(tx, session_id):
        while entry is not None and entry.chain_id <= head.chain_id:
            chain = entry.chain_id
            while entry is not None and entry.chain_id == chain:
                yield entry
                entry = await anext(entries, None)
            if chain != head.chain_id:
                yield ChainHead(chain_id=chain)
        yield head
    while entry is not None:
        chain = entry.chain_id
        while entry is not None and entry.chain_id == chain:
            yield entry
            entry = await anext(entries, None)
        yield ChainHead(chain_id=chain)


async def verify_all(db: Database) -> dict[str, Verification]:
    """Every org, by slug: for whoever holds the database."""
    results: dict[str, Verification] = {}
    position = None
    while True:
        page = await orgs.list_all(db, position, 100)
        for org in page.items:
            results[org.slug] = await verify_org(db, org.id)
        if page.next is None:
            return results
        position = page.next
