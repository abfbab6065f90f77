"""The audit trail: reading a chain, and proving that every chain is whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from uuid import UUID

from cortex_plane.domain.access import Actor, Permission
from cortex_plane.domain.audit import AuditEntry, AuditRecord, ChainVerifier, Fault, Verification, shown
from cortex_plane.operations.verbs import found, verb
from cortex_plane.storage import audit, orgs, sessions
from cortex_plane.storage.database import Database, Row

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
    result = _Result()
    async with db.transaction(org_id, snapshot=True) as tx:
        entries = audit.everything(tx)
        entry = await anext(entries, None)
        async for head in audit.heads(tx):
            while entry is not None and entry.chain_id < head["chain_id"]:
                entry = await _follow(result, entries, entry, None)
            if entry is not None and entry.chain_id == head["chain_id"]:
                entry = await _follow(result, entries, entry, head)
            else:
                result.finish(ChainVerifier(head["chain_id"]), head)
        while entry is not None:
            entry = await _follow(result, entries, entry, None)
    return Verification(chains=result.chains, entries=result.entries, faults=result.faults)


@dataclass
class _Result:
    chains: int = 0
    entries: int = 0
    faults: list[Fault] = field(default_factory=list)

    def finish(self, verifier: ChainVerifier, head: Row | None) -> None:
        self.chains += 1
        if head is None or head["seq"] is None:
            self.faults.append(Fault(chain_id=verifier.chain_id, seq=0, reason="its head is gone"))
        else:
            fault = verifier.finish(head["seq"], head["hash"])
            self.faults += [fault] if fault else []


async def _follow(
    result: _Result, entries: AsyncIterator[AuditEntry], first: AuditEntry, head: Row | None
) -> AuditEntry | None:
    """Follow the chain that begins with ``first`` to its end; returns the first entry of the next one."""
    verifier = ChainVerifier(first.chain_id)
    entry: AuditEntry | None = first
    broken = False
    while entry is not None and entry.chain_id == first.chain_id:
        result.entries += 1
        fault = None if broken else verifier.follow(entry)
        if fault:
            result.faults.append(fault)
            broken = True
        entry = await anext(entries, None)
    if broken:
        result.chains += 1
    else:
        result.finish(verifier, head)
    return entry


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
