"""Reading, verifying and exporting the audit trail."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping
from typing import Generic, TypeVar
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.errors import Conflict
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import (
    NAMED,
    AuditEntry,
    AuditRecord,
    Blanked,
    ChainHead,
    ChainVerifier,
    Fault,
    RootedHead,
    RootFault,
    RowFault,
    Verification,
    shown,
)
from cortex_plane.proof.rules.exports import ExportWriter
from cortex_plane.proof.rules.roots import Held, KeptRoot, RootsVerifier
from cortex_plane.proof.verbs import receipts, row_checks
from cortex_plane.proof.verbs.receipts import public_keys
from cortex_plane.proof.verbs.row_checks import Trail, row_faults
from cortex_plane.sessions import store as sessions_store
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import every_org, require_found, verb

T = TypeVar("T", bound=AuditEntry | ChainHead | RootedHead)

_one_at_a_time = asyncio.Semaphore(1)


@verb(Permission.AUDIT_READ)
async def list_entries(
    db: Database, actor: Actor, session_id: UUID | None, above: int, limit: int
) -> list[AuditRecord]:
    """The chain of a session, or the org's own."""
    async with db.transaction(actor.org_id) as tx:
        if session_id is not None:
            require_found(await sessions_store.get_session(tx, session_id, None), "session")
        entries = await proof_store.stream_entries(tx, session_id or actor.org_id, above, limit)
    return [shown(entry) for entry in entries]


@verb(Permission.AUDIT_READ, heavy=True)
async def verify(db: Database, actor: Actor) -> Verification:
    """One at a time in a process: it may take long, and must leave the connections to others."""
    async with _one_at_a_time:
        return await verify_org(db, actor.org_id)


async def verify_org(db: Database, org_id: UUID, copies: Mapping[int, bytes] | None = None) -> Verification:
    """Follow every chain and every signed root of an org in one snapshot and in flat memory; names the first bad entry of
    each chain, the first bad root, and rows that are not what the trail says of them. ``copies``: hashes of roots, by their
    numbers, as somebody keeps them outside of the database."""
    async with db.transaction(org_id, snapshot=True) as tx:
        rows_checked = db.credential_key_at_hand is not None
        return await _verified(tx, db.vault_at_hand, copies, rows_checked=rows_checked)


async def _verified(
    tx: Transaction, vault: Vault | None, copies: Mapping[int, bytes] | None = None, *, rows_checked: bool = False
) -> Verification:
    """Whoever can write to the database can put a key there; only one that the plane sealed is believed."""
    chains, trail = _Followed(tx.org, copies), Trail()
    async for item in chain_by_chain(tx):
        chains.take(item)
        if isinstance(item, AuditEntry) and item.session_id is None:
            trail.take(item)
    keys, strangers = await receipts.verifying(tx, vault)
    async for root in proof_store.stream_roots(tx):
        chains.root(root, keys, strangers)
    rows = await row_checks.contradictions(tx, keys, strangers, vault)
    if rows_checked:
        rows += await row_faults(tx, trail)
    return chains.result(rows, keys_checked=vault is not None)


class _Followed:
    """What was found so far."""

    def __init__(self, org_id: UUID, copies: Mapping[int, bytes] | None) -> None:
        self._chains = self._entries = self._roots = 0
        self._faults: list[Fault] = []
        self._root_faults: list[RootFault] = []
        self._blanked = 0
        self._blanked_entries: list[Blanked] = []
        self._chain: ChainVerifier | None = None
        self._broken = False
        self._verifier = RootsVerifier(org_id, copies)

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
            self._blanked += chain.blanked
            self._blanked_entries += chain.first_blanked()[: NAMED - len(self._blanked_entries)]
            self._chain, self._broken = None, False

    def root(self, root: KeptRoot, keys: Mapping[UUID, bytes], strangers: Collection[UUID]) -> None:
        self._roots += 1
        fault = self._verifier.follow(root, keys, strangers)
        self._root_faults += [fault] if fault else []

    def result(self, contents: list[RowFault], *, keys_checked: bool) -> Verification:
        return Verification(
            chains=self._chains,
            entries=self._entries,
            faults=self._faults,
            roots=self._roots,
            root_faults=[*self._root_faults, *self._verifier.finish()],
            fingerprints=list(self._verifier.fingerprints),
            keys_checked=keys_checked,
            blanked=self._blanked,
            blanked_entries=self._blanked_entries,
            row_faults=contents,
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
        item = self.next
        if item is None:
            raise AssertionError("it was looked at before it is taken")
        self.next = await anext(self._items, None)
        return item


async def chain_by_chain(
    tx: Transaction, session_id: UUID | None = None
) -> AsyncIterator[AuditEntry | RootedHead | ChainHead]:
    """The entries of each chain, and after them its head; one without a hash where there is none. Where a root covers a
    chain as far as an entry, its word follows that entry. One session alone comes without roots: they cover all chains."""
    entries = await _Stream.of(proof_store.stream_all_entries(tx, session_id))
    heads = await _Stream.of(proof_store.stream_heads(tx, session_id))
    roots = await _Stream.of(proof_store.root_heads(tx) if session_id is None else _nothing())
    while True:
        waiting = [item.chain_id for item in (entries.next, heads.next, roots.next) if item is not None]
        if not waiting:
            return
        chain = min(waiting)
        while (entry := entries.next) is not None and entry.chain_id == chain:
            yield await entries.take()
            while (root := roots.next) is not None and root.chain_id == chain and root.seq <= entry.seq:
                yield await roots.take()
        while (root := roots.next) is not None and root.chain_id == chain:
            yield await roots.take()
        head = heads.next
        has_head = head is not None and head.chain_id == chain
        yield await heads.take() if has_head else ChainHead(chain_id=chain, is_orphan=True)


async def _nothing() -> AsyncIterator[RootedHead]:
    nothing: tuple[RootedHead, ...] = ()
    for head in nothing:
        yield head


async def verify_all(db: Database, root_copies: Held | None = None) -> dict[str, Verification]:
    """Every org, by slug: for whoever holds the database. ``root_copies``: to compare with."""
    results: dict[str, Verification] = {}
    copies = dict(root_copies or {})
    async for org in every_org(db):
        results[org.slug] = await verify_org(db, org.id, copies.pop(org.id, None))
    return results | {str(id): _gone(roots) for id, roots in copies.items()}


def _gone(copies: Mapping[int, bytes]) -> Verification:
    fault = RootFault(root=min(copies), reason="a copy of it is held outside, and its org is gone")
    return Verification(chains=0, entries=0, faults=[], root_faults=[fault])


CHUNK_BYTES = 64 * 1024

_exports_under_way: set[UUID] = set()


@verb(Permission.AUDIT_READ)
async def export_trail(db: Database, actor: Actor, session_id: UUID | None) -> AsyncGenerator[bytes, None]:
    """Every chain of the org, or that of one session, in one snapshot.

    Whoever reads it closes it, which frees its connection. If the database fails it raises before the trailer.
    """
    chunks = _export_chunks(db, actor.org_id, session_id)
    # What could refuse it does so now, and from here on closing it runs its cleanup.
    await anext(chunks)
    return chunks


export_trail.heavy = True  # It takes its place itself, and gives it back with the last chunk.


async def _export_chunks(db: Database, org_id: UUID, session_id: UUID | None) -> AsyncGenerator[bytes, None]:
    with _export_turn(org_id), db.heavy_read(org_id):
        async with db.transaction(org_id, snapshot=True) as tx:
            org = require_found(await tenancy_store.get_org(tx), "org")
            if session_id is not None:
                require_found(await sessions_store.get_session(tx, session_id, None), "session")
            writer = ExportWriter()
            buffer = bytearray(writer.header(org.id, org.slug, session_id, await proof_store.database_time(tx)))
            yield b""
            async for line in _export_lines(tx, writer, session_id):
                buffer += line
                if len(buffer) >= CHUNK_BYTES:
                    yield bytes(buffer)
                    buffer.clear()
        # After the snapshot has ended as it should: a trailer says that nothing is missing.
        buffer += writer.trailer()
        yield bytes(buffer)


async def _export_lines(tx: Transaction, writer: ExportWriter, session_id: UUID | None) -> AsyncIterator[bytes]:
    async for item in chain_by_chain(tx, session_id):
        yield writer.item(item)
    if session_id is not None:
        return
    for key in await public_keys(tx):
        yield writer.key(key)
    async for root in proof_store.stream_roots(tx):
        yield writer.root(root)


@contextlib.contextmanager
def _export_turn(org_id: UUID) -> Iterator[None]:
    """One at a time for each org: it holds a connection and a snapshot for as long as its reader takes."""
    if org_id in _exports_under_way:
        raise Conflict(
            "An export of this org is under way.", code="export_under_way", hint="Wait until it is done, or end it."
        )
    _exports_under_way.add(org_id)
    try:
        yield
    finally:
        _exports_under_way.discard(org_id)
