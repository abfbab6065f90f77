"""The audit trail: reading a chain, and proving that every chain is whole."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.domain.access import Actor, Permission
from cortex_plane.domain.audit import AuditEntry, AuditRecord, ChainVerifier, Fault, Verification, shown
from cortex_plane.operations.verbs import found, verb
from cortex_plane.storage import audit, orgs, sessions
from cortex_plane.storage.database import Database


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
    return await verify_org(db, actor.org_id)


async def verify_org(db: Database, org_id: UUID) -> Verification:
    """Follow every chain of an org in one snapshot and in flat memory; names the first bad entry of each."""
    chains = entries = 0
    faults: list[Fault] = []
    verifier: ChainVerifier | None = None
    head: tuple[int, bytes] | None = None
    broken = False

    def finish() -> None:
        if verifier is None or broken:
            return
        fault = (
            verifier.finish(*head)
            if head
            else Fault(chain_id=verifier.chain_id, seq=0, reason="its head is gone")
        )
        if fault:
            faults.append(fault)

    async with db.transaction(org_id) as tx:
        async for row in audit.everything(tx):
            if verifier is None or verifier.chain_id != row["chain_id"]:
                finish()
                verifier = ChainVerifier(row["chain_id"])
                head = (row["head_seq"], row["head_hash"]) if row["head_seq"] is not None else None
                broken = False
                chains += 1
            if row["seq"] is None or broken:
                continue
            entries += 1
            fault = verifier.follow(
                AuditEntry(
                    chain_id=row["chain_id"], session_id=row["session_id"], seq=row["seq"],
                    action=row["action"], body=row["body"], body_hash=row["body_hash"], hash=row["hash"],
                    created_at=row["created_at"],
                )
            )  # fmt: skip
            if fault:
                faults.append(fault)
                broken = True
        finish()
    return Verification(chains=chains, entries=entries, faults=faults)


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
