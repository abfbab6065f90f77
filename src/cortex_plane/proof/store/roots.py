"""Signed roots in SQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.proof.model.audit import RootedHead
from cortex_plane.proof.rules.root_copies import RootCopy
from cortex_plane.proof.rules.roots import GrownHead, KeptRoot

queries = Queries(__file__)


@dataclass(frozen=True, slots=True)
class Grown:
    """Chains that no root covers as far as they go, as one snapshot shows them."""

    heads: list[GrownHead]
    snapshot: str
    now: datetime


async def last(tx: Transaction) -> Row | None:
    return await tx.row(queries.last)


async def grown(tx: Transaction, since: str | None, limit: int) -> Grown | None:
    """Since that snapshot, or of all chains; at most ``limit``, in the order of their ids. None: there are none."""
    rows = await (every(tx, limit) if since is None else tx.rows(queries.grown, since, limit))
    if not rows:
        return None
    heads = [
        GrownHead(chain_id=row["chain_id"], seq=row["seq"], hash=row["hash"], is_new=row["is_new"])
        for row in rows
    ]
    return Grown(heads, rows[0]["snapshot"], rows[0]["now"])


async def every(tx: Transaction, limit: int) -> Sequence[Row]:
    return await tx.rows(queries.every, limit)


async def insert(
    tx: Transaction, root: KeptRoot, previous: bytes, chains: int, snapshot: str | None, at: datetime
) -> bool:
    """False: somebody else made the root of this number."""
    made = await tx.value(
        queries.insert, tx.org, root.seq, previous, root.body, root.hash, root.key_id, root.signature, chains,
        snapshot, at,
    )  # fmt: skip
    return made is not None


async def insert_heads(tx: Transaction, seq: int, heads: Sequence[GrownHead]) -> None:
    await tx.rows(
        queries.insert_heads, tx.org, seq, [head.chain_id for head in heads], [head.seq for head in heads],
        [head.hash for head in heads],
    )  # fmt: skip


async def list_page(tx: Transaction, below: int, limit: int) -> Sequence[Row]:
    return await tx.rows(queries.list_page, below, limit)


async def above(tx: Transaction, seq: int, limit: int) -> list[RootCopy]:
    return [RootCopy(**row) for row in await tx.rows(queries.above, seq, limit)]


async def newest(tx: Transaction) -> list[RootCopy]:
    """The last one; none where there is none."""
    return [RootCopy(**row) for row in await tx.rows(queries.newest)]


async def everything(tx: Transaction) -> AsyncIterator[KeptRoot]:
    async for row in tx.stream(queries.everything):
        yield KeptRoot(**row)


async def heads(tx: Transaction) -> AsyncIterator[RootedHead]:
    async for row in tx.stream(queries.heads):
        yield RootedHead(**row)


async def unrooted(db: Database, seconds: float, after: UUID, limit: int) -> list[UUID]:
    """Orgs whose last root is older than that, and that appended something since."""
    return [row["org_id"] for row in await db.call("find_unrooted", None, seconds, after, limit)]
