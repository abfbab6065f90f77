"""Exporting the audit trail: a stream that any number of entries pass through in flat memory."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Conflict
from cortex_plane.proof.rules.audit_exports import ExportWriter
from cortex_plane.proof.store import audit, roots
from cortex_plane.proof.verbs.audit import chain_by_chain
from cortex_plane.proof.verbs.signing import public_keys
from cortex_plane.sessions.store import sessions
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.store import orgs
from cortex_plane.tenancy.verbs.verbs import require_found, verb

CHUNK_BYTES = 64 * 1024

_under_way: set[UUID] = set()


@verb(Permission.AUDIT_READ)
async def export(db: Database, actor: Actor, session_id: UUID | None) -> AsyncGenerator[bytes, None]:
    """Every chain of the org, or that of one session, in one snapshot.

    Whoever reads it closes it, which frees its connection. If the database fails it raises before the trailer.
    """
    chunks = _chunks(db, actor.org_id, session_id)
    # What could refuse it does so now, and from here on closing it runs its cleanup.
    await anext(chunks)
    return chunks


export.heavy = True  # It takes its place itself, and gives it back with the last chunk.


async def _chunks(db: Database, org_id: UUID, session_id: UUID | None) -> AsyncGenerator[bytes, None]:
    with _turn(org_id), db.heavy_read(org_id):
        async with db.transaction(org_id, snapshot=True) as tx:
            org = require_found(await orgs.get(tx), "org")
            if session_id is not None:
                require_found(await sessions.get(tx, session_id, None), "session")
            writer = ExportWriter()
            buffer = bytearray(writer.header(org.id, org.slug, session_id, await audit.now(tx)))
            yield b""
            async for line in _lines(tx, writer, session_id):
                buffer += line
                if len(buffer) >= CHUNK_BYTES:
                    yield bytes(buffer)
                    buffer.clear()
        # After the snapshot has ended as it should: a trailer says that nothing is missing.
        buffer += writer.trailer()
        yield bytes(buffer)


async def _lines(tx: Transaction, writer: ExportWriter, session_id: UUID | None) -> AsyncIterator[bytes]:
    async for item in chain_by_chain(tx, session_id):
        yield writer.item(item)
    if session_id is not None:
        return
    for key in await public_keys(tx):
        yield writer.key(key)
    async for root in roots.everything(tx):
        yield writer.root(root)


@contextlib.contextmanager
def _turn(org_id: UUID) -> Iterator[None]:
    """One at a time for each org: it holds a connection and a snapshot for as long as its reader takes."""
    if org_id in _under_way:
        raise Conflict(
            "An export of this org is under way.",
            code="export_under_way",
            hint="Wait until it is done, or end it.",
        )
    _under_way.add(org_id)
    try:
        yield
    finally:
        _under_way.discard(org_id)
