"""Signed roots: one an hour for each org that appended anything, by whichever scheduler comes first; or at once, on demand."""

from __future__ import annotations

from uuid import UUID

import orjson
import structlog

from cortex_plane.db.database import NOBODY, Database, Row, Transaction
from cortex_plane.kernel.errors import CortexError, Unavailable
from cortex_plane.proof.model.audit import GENESIS, AuditRoot, RootMade
from cortex_plane.proof.model.signing import fingerprint, to_base64
from cortex_plane.proof.rules.roots import KeptRoot, root_body, root_hash
from cortex_plane.proof.store import roots
from cortex_plane.proof.verbs import root_copies, signing
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.verbs import verb

log = structlog.get_logger()

EVERY_SECONDS = 3600.0
ORGS_AT_ONCE = 200
CHAINS_AT_ONCE = 10_000
"""A root covers no more than that; what is left over is the next one's, which follows at once."""
NEWEST = 2**62

_compared: set[UUID] = set()
"""Orgs of which this process has compared every chain once. A database that was restored elsewhere counts its transactions
anew; whoever restores one starts its processes anew too."""


async def keep(db: Database) -> None:
    """Make the roots that are due. Any number of schedulers may do this at once, as often as they like."""
    after = NOBODY
    while found := await roots.unrooted(db, EVERY_SECONDS, after, ORGS_AT_ONCE):
        for org_id in found:
            try:
                await make(db, org_id)
            except Unavailable:
                raise
            except CortexError as error:
                # One org's trouble must not keep the others from their proof.
                log.warning("root not made", org_id=str(org_id), error=str(error))
            except Exception:
                log.exception("root not made", org_id=str(org_id))
        after = found[-1]


async def make(db: Database, org_id: UUID) -> int:
    """Roots over everything that was appended so far; returns how many this call made."""
    made, more = 0, True
    while more:
        async with db.transaction(org_id) as tx:
            one_more = await _make_one(db, tx)
        made += one_more is not None
        more = bool(one_more)
    if made:
        await root_copies.copy(db, org_id)
    return made


async def _make_one(db: Database, tx: Transaction) -> bool | None:
    """Whether chains are left over; None where there was nothing to cover, or somebody else covers it."""
    last = await roots.last(tx)
    whole = last is None or last["foreign_snapshot"] or tx.org not in _compared
    since = None if last is None or whole else last["snapshot"]
    grown = await roots.grown(tx, since, CHAINS_AT_ONCE + 1)
    if grown is None:
        _compared.add(tx.org)
        return None
    heads, more = grown.heads[:CHAINS_AT_ONCE], len(grown.heads) > CHAINS_AT_ONCE
    previous = last["hash"] if last else GENESIS
    seq = (last["seq"] if last else 0) + 1
    chains = (last["chains"] if last else 0) + sum(head.is_new for head in heads)
    key = await signing.signer(db, tx)
    body = root_body(tx.org, seq, previous, grown.now, heads, chains)
    root = KeptRoot(
        seq=seq, body=body, hash=root_hash(previous, body), key_id=key.id, signature=key.sign(body)
    )
    # As long as something is left over, the next one starts where this one did.
    covered = since if more else grown.snapshot
    if not await roots.insert(tx, root, previous, chains, covered, grown.now):
        return None
    await roots.insert_heads(tx, seq, heads)
    if not more:
        _compared.add(tx.org)
    return more


@verb(Permission.AUDIT_READ)
async def make_now(db: Database, actor: Actor) -> RootMade:
    """A root over everything so far. It adds proof and changes nothing, so whoever reads the trail may."""
    made = await make(db, actor.org_id)
    async with db.transaction(actor.org_id) as tx:
        # An org has a chain from its first moment on, so there is one.
        (newest,) = await roots.list_page(tx, NEWEST, 1)
    return RootMade(made=made > 0, root=_shown(newest))


@verb(Permission.AUDIT_READ)
async def list_page(db: Database, actor: Actor, below: int | None, limit: int) -> list[AuditRoot]:
    """Newest first."""
    async with db.transaction(actor.org_id) as tx:
        rows = await roots.list_page(tx, NEWEST if below is None else below, limit)
    return [_shown(row) for row in rows]


def _shown(row: Row) -> AuditRoot:
    body = row["body"].decode(errors="replace")
    return AuditRoot(
        seq=row["seq"],
        previous=row["previous"].hex(),
        hash=row["hash"].hex(),
        covers=_covers(row["body"]),
        chains=row["chains"],
        body=body,
        signature=to_base64(row["signature"]),
        key_id=row["key_id"],
        fingerprint=fingerprint(row["public_key"]),
        created_at=row["created_at"],
    )


def _covers(body: bytes) -> int:
    """What was tampered with is still listed: verifying is what finds it."""
    try:
        return int(orjson.loads(body)["heads"]["count"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return 0
