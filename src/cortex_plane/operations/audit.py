"""The audit trail: reading a chain, and proving that every chain is whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Generic, TypeVar
from uuid import UUID

from cortex_plane.domain.access import Actor, Permission
from cortex_plane.domain.audit import (
    AuditEntry,
    AuditRecord,
    ChainHead,
    ChainVerifier,
    Fault,
    RootedHead,
    RootFault,
    Verification,
    shown,
)
from cortex_plane.domain.roots import KeptRoot, RootsVerifier
from cortex_plane.operations import signing
from cortex_plane.operations.verbs import found, verb
from cortex_plane.storage import audit, orgs, roots, sessions
from cortex_plane.storage.database import Database, Transaction
from cortex_plane.storage.vault import Vault

T = TypeVar("T", bound=AuditEntry | ChainHead | RootedHead)

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


@verb(Permission.AUDIT_READ, heavy=True)
async def verify(db: Database, actor: Actor) -> Verification:
    """One at a time in a process: it may take long, and must leave the connections to others."""
    async with _one_at_a_time:
        return await verify_org(db, actor.org_id)


async def verify_org(db: Database, org_id: UUID) -> Verification:
    """Follow every chain and every signed root of an org in one snapshot and in flat memory; names the first bad entry of
    each chain, and the first bad root."""
    async with db.transaction(org_id, snapshot=True) as tx:
        return await _verified(tx, db.vault_at_hand)


async def _verified(tx: Transaction, vault: Vault | None) -> Verification:
    """Whoever can write to the database can put a key there; only one that the plane sealed is believed."""
    followed = _Followed(tx.org)
    async for item in chain_by_chain(tx):
        followed.take(item)
    keys, strangers = await signing.verifying(tx, vault)
    async for root in roots.everything(tx):
        followed.root(root, keys, strangers)
    return followed.result(keys_checked=vault is not None)


class _Followed:
    """What was found so far."""

    def __init__(self, org_id: UUID) -> None:
        self._chains = self._entries = self._roots = 0
        self._faults: list[Fault] = []
        self._root_faults: list[RootFault] = []
        self._chain: ChainVerifier | None = None
        self._broken = False
        self._verifier = RootsVerifier(org_id)

    def take(self, item: AuditEntry | RootedHead | ChainHead) -> None:
        chain = self._chain = self._chain or ChainVerifier(item.chain_id)
        fault: Fault | None = None
        if isinstance(item, AuditEntry):
            self._entries += 1
            fault = None if self._broken else chain.follow(item)
        elif isinstance(item, RootedHead):
            self._verifier.saw(item)
            fault = None if self._broken else chain.rooted(item)
        else:
            self._chains += 1
            fault = None if self._broken else chain.finish(item)
        if fault is not None:
            self._faults.append(fault)
            self._broken = True
        if isinstance(item, ChainHead):
            self._chain, self._broken = None, False

    def root(self, root: KeptRoot, keys: Mapping[UUID, bytes], strangers: Collection[UUID]) -> None:
        self._roots += 1
        fault = self._verifier.follow(root, keys, strangers)
        self._root_faults += [fault] if fault else []

    def result(self, *, keys_checked: bool) -> Verification:
        fault = self._verifier.finish()
        return Verification(
            chains=self._chains,
            entries=self._entries,
            faults=self._faults,
            roots=self._roots,
            root_faults=[*self._root_faults, *([fault] if fault else [])],
            fingerprints=list(self._verifier.fingerprints),
            keys_checked=keys_checked,
        )


class _Stream(Generic[T]):
    """A stream of what belongs to chains, of which the next item can be looked at."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self.next: T | None = None

    @classmethod
    async def of(cls, items: AsyncIterator[T]) -> _Stream[T]:
        stream = cls(items)
        stream.next = await anext(items, None)
        return stream

    async def take(self) -> T:
        taken = self.next
        if taken is None:
            raise AssertionError("it was looked at before it is taken")
        self.next = await anext(self._items, None)
        return taken


async def chain_by_chain(
    tx: Transaction, session_id: UUID | None = None
) -> AsyncIterator[AuditEntry | RootedHead | ChainHead]:
    """The entries of each chain, and after them its head; one without a hash where there is none. Where a root covers a
    chain as far as an entry, its word follows that entry. One session alone comes without roots: they cover all chains."""
    entries = await _Stream.of(audit.everything(tx, session_id))
    heads = await _Stream.of(audit.heads(tx, session_id))
    rooted = await _Stream.of(roots.heads(tx) if session_id is None else _nothing())
    while True:
        waiting = [item.chain_id for item in (entries.next, heads.next, rooted.next) if item is not None]
        if not waiting:
            return
        chain = min(waiting)
        while (entry := entries.next) is not None and entry.chain_id == chain:
            yield await entries.take()
            while (root := rooted.next) is not None and root.chain_id == chain and root.seq <= entry.seq:
                yield await rooted.take()
        while (root := rooted.next) is not None and root.chain_id == chain:
            yield await rooted.take()
        head = heads.next
        yield await heads.take() if head is not None and head.chain_id == chain else ChainHead(chain_id=chain)


async def _nothing() -> AsyncIterator[RootedHead]:
    nothing: tuple[RootedHead, ...] = ()
    for head in nothing:
        yield head


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
