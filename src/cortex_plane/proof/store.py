"""The audit trail, signed roots, receipts and signing keys in SQL."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from uuid import UUID

import orjson

from cortex_plane.db.database import Queries, Transaction, many, one
from cortex_plane.policies.model.versions import placed, row_line
from cortex_plane.proof.model import AuditEntry, ChainHead, RootedHead, SessionEvent
from cortex_plane.proof.rules.roots import GrownHead, KeptRoot
from cortex_plane.tenancy.model.access import Fact

queries = Queries("proof")


async def append_to_session(
    tx: Transaction,
    session_id: UUID | None,
    facts: Sequence[Fact],
    events: Sequence[SessionEvent] = (),
    *,
    job: UUID | None = None,
) -> None:
    """The last statement of a verb on a session: its events and its audit entries; ``job`` is of those that name none. None: of a
    request that belongs to no session, whose entries are the org's."""
    if session_id is None:
        await append_to_org(tx, *facts)
        return
    tx.has_events = tx.has_events or bool(events)
    await tx.rows(
        queries.append_to_session,
        tx.org,
        session_id,
        [kind for kind, _, _ in events],
        [job for _, job, _ in events],
        [data for _, _, data in events],
        [fact.action for fact in facts],
        [fact.body for fact in facts],
        [fact.job or job for fact in facts],
    )


async def append_to_org(tx: Transaction, *facts: Fact) -> None:
    """The last statement of a verb on the org: its audit entries."""
    await tx.rows(queries.append_to_org, tx.org, [fact.action for fact in facts], [fact.body for fact in facts])


async def append_to_every_org(tx: Transaction, fact: Fact) -> None:
    """The last statement of a verb of the platform: an audit entry for each org. No query of an org reaches another, so it is a call."""
    await tx.call("append_to_every_org", None, fact.action, fact.body)


async def was_rotated_to(tx: Transaction, fingerprint: bytes) -> bool:
    """Whether the trail says that everything of the org was sealed with this master key."""
    return bool(await tx.value(queries.was_rotated_to, fingerprint.hex()))


async def stream_all_entries(tx: Transaction, session_id: UUID | None = None) -> AsyncIterator[AuditEntry]:
    """Each entry, chain after chain; with ``session_id`` those of its chain."""
    only = () if session_id is None else (session_id,)
    async for row in tx.stream(queries.list_session_entries if only else queries.stream_all_entries, *only):
        yield AuditEntry(**row)


async def stream_heads(tx: Transaction, session_id: UUID | None = None) -> AsyncIterator[ChainHead]:
    """Where each chain must end, in the same order."""
    if session_id is not None:
        head = await head_of_session(tx, session_id)
        if head is not None:
            yield head
        return
    async for row in tx.stream(queries.stream_heads):
        yield ChainHead(**row)


async def head_of_session(tx: Transaction, session_id: UUID) -> ChainHead | None:
    """Where the chain of a session must end; None where there is no such session."""
    return one(ChainHead, await tx.row(queries.head_of_session, session_id))


async def changed_policy_versions(tx: Transaction) -> list[str]:
    """Versions whose rows are not those that the trail applied, with the teams and people that the names in the file stood
    for then."""
    trail_digests = {row["version"]: row["digest"] for row in await tx.rows(queries.policy_digests)}
    digests = {version: hashlib.sha256() for version in trail_digests}
    unreadable: set[str] = set()
    async for row in tx.stream(queries.policy_rows):
        version = str(row["version"])
        try:
            policy = placed(orjson.loads(row["row"]))
        except ValueError:
            unreadable.add(version)
        else:
            if version in digests:
                digests[version].update(row_line(policy))
    return [
        version
        for version, digest in digests.items()
        if version in unreadable or digest.hexdigest() != trail_digests[version]
    ]


async def grown_chains(tx: Transaction, since: str | None, limit: int) -> tuple[list[GrownHead], str, datetime] | None:
    """Chains that no root covers as far as they go, with the snapshot that shows them and its time: since that snapshot,
    or all; at most ``limit``, in the order of their ids. None: there are none."""
    if since is None:
        rows = await tx.rows(queries.list_every_root, limit)
    else:
        rows = await tx.rows(queries.grown_chains, since, limit)
    return (many(GrownHead, rows), rows[0]["snapshot"], rows[0]["now"]) if rows else None


async def stream_roots(tx: Transaction) -> AsyncIterator[KeptRoot]:
    async for row in tx.stream(queries.stream_roots):
        yield KeptRoot(**row)


async def root_heads(tx: Transaction, session_id: UUID | None = None) -> AsyncIterator[RootedHead]:
    """None for one session: roots cover all chains."""
    if session_id is None:
        async for row in tx.stream(queries.root_heads):
            yield RootedHead(**row)
