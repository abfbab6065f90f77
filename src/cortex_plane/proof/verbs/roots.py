"""Signed roots: made, listed, and copied outside the database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Protocol
from uuid import UUID

import orjson
import structlog

from cortex_plane.db.database import NOBODY, Database, Row, Transaction
from cortex_plane.kernel.errors import CortexError, Unavailable
from cortex_plane.kernel.fields import parse
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import GENESIS, AuditRoot, RootMade, fingerprint, to_base64
from cortex_plane.proof.rules.roots import RootCopy, RootMark, root_body, root_hash
from cortex_plane.proof.store import queries
from cortex_plane.proof.verbs import receipts
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import every_org, transaction_verb, verb


class RootPlace(Protocol):
    """Somewhere outside of the database that keeps copies of signed roots."""

    name: str
    begins_with_the_newest: bool
    """Of an org that it does not know it wants the newest root alone, and not all there are."""

    async def last(self, org_id: UUID) -> RootMark | None:
        """How far it got with this org."""

    async def add(self, copies: Sequence[RootCopy]) -> None:
        """Roots of one org in their order. What is there already stays as it is."""


log = structlog.get_logger()

AT_ONCE = 100
"""Roots of one org in one look: what is left over comes with the next one."""

_places: Sequence[RootPlace] = ()


@contextlib.contextmanager
def copied_to(places: Sequence[RootPlace]) -> Iterator[None]:
    """Copy roots to these places for as long as the block runs."""
    global _places
    before, _places = _places, places
    try:
        yield
    finally:
        _places = before


async def copy_roots(db: Database, org_id: UUID) -> None:
    """Everything that a place does not have yet. A place that fails is logged: the root itself is made."""
    for place in _places:
        try:
            await _copy_to(place, db, org_id)
        except Exception as error:
            log.warning("root not copied", place=place.name, org_id=str(org_id), error=str(error) or repr(error))


async def copy_all_roots(db: Database) -> None:
    """The roots of every org, where a process ended between its commit and the copy."""
    if not _places:
        return
    async for org in every_org(db):
        await copy_roots(db, org.id)


async def _copy_to(place: RootPlace, db: Database, org_id: UUID) -> None:
    last = await place.last(org_id)
    async with db.transaction(org_id, snapshot=True) as tx:
        if last is None and place.begins_with_the_newest:
            rows = await tx.rows(queries.newest_root)
        else:
            has_hash = last is not None and last.hash is not None
            rows = await tx.rows(queries.roots_above, (last.seq - has_hash) if last else 0, AT_ONCE + has_hash)
    roots = [RootCopy(**row) for row in rows]
    if last is not None and last.hash is not None:
        # The place keeps what it has: whoever verifies compares it with the roots that are here now.
        if not roots or (roots[0].seq, roots[0].hash) != (last.seq, last.hash):
            log.error("roots do not go on from their copy", place=place.name, org_id=str(org_id), root=last.seq)
            return
        roots = roots[1:]
    if roots:
        await place.add(roots)


EVERY_SECONDS = 3600.0
ORGS_AT_ONCE = 200
CHAINS_AT_ONCE = 10_000
"""A root covers no more than that; what is left over is the next one's, which follows at once."""
NEWEST = 2**62

_compared_orgs: set[UUID] = set()
"""Orgs of which this process has compared every chain once. A database that was restored elsewhere counts its transactions
anew; whoever restores one starts its processes anew too."""


async def keep_roots(db: Database) -> None:
    """Make the roots that are due. Any number of schedulers may do this at once, as often as they like."""
    after = NOBODY
    while rows := await db.call("find_unrooted", None, EVERY_SECONDS, after, ORGS_AT_ONCE):
        for org_id in (row["org_id"] for row in rows):
            try:
                await make_root(db, org_id)
            except Unavailable:
                raise
            except CortexError as error:
                # One org's trouble must not keep the others from their proof.
                log.warning("root not made", org_id=str(org_id), error=str(error))
            except Exception:
                log.exception("root not made", org_id=str(org_id))
        after = rows[-1]["org_id"]


async def make_root(db: Database, org_id: UUID) -> int:
    """Roots over everything that was appended so far; returns how many this call made."""
    count, more = 0, True
    while more:
        async with db.transaction(org_id) as tx:
            one_more = await _make_org_root(db, tx)
        count += one_more is not None
        more = bool(one_more)
    if count:
        await copy_roots(db, org_id)
    return count


async def _make_org_root(db: Database, tx: Transaction) -> bool | None:
    """Whether chains are left over; None where there was nothing to cover, or somebody else covers it."""
    last = await tx.row(queries.last_root)
    whole = last is None or last["foreign_snapshot"] or tx.org not in _compared_orgs
    since = None if last is None or whole else last["snapshot"]
    grown = await proof_store.grown_chains(tx, since, CHAINS_AT_ONCE + 1)
    if grown is None:
        _compared_orgs.add(tx.org)
        return None
    all_heads, snapshot, now = grown
    heads, more = all_heads[:CHAINS_AT_ONCE], len(all_heads) > CHAINS_AT_ONCE
    previous, seq, chains = (last["hash"], last["seq"] + 1, last["chains"]) if last else (GENESIS, 1, 0)
    chains += sum(head.is_new for head in heads)
    key = await receipts.get_signer(db, tx)
    body = root_body(tx.org, seq, previous, now, heads, chains)
    # As long as something is left over, the next one starts where this one did.
    values = (seq, previous, body, root_hash(previous, body), key.id, key.sign(body), chains)
    if await tx.value(queries.insert_root, tx.org, *values, since if more else snapshot, now) is None:
        return None  # somebody else made the root of this number
    chain_ids, seqs, hashes = zip(*((head.chain_id, head.seq, head.hash) for head in heads), strict=True)
    await tx.rows(queries.insert_root_heads, tx.org, seq, chain_ids, seqs, hashes)
    if not more:
        _compared_orgs.add(tx.org)
    return more


@verb(Permission.AUDIT_READ)
async def make_root_now(db: Database, actor: Actor) -> RootMade:
    """A root over everything so far. It adds proof and changes nothing, so whoever reads the trail may."""
    count = await make_root(db, actor.org_id)
    async with db.transaction(actor.org_id) as tx:
        # An org has a chain from its first moment on, so there is one.
        (newest,) = await tx.rows(queries.list_roots, NEWEST, 1)
    return RootMade(made=count > 0, root=_audit_root(newest))


@transaction_verb(Permission.AUDIT_READ)
async def list_roots(tx: Transaction, _: Actor, below: int | None, limit: int) -> list[AuditRoot]:
    """Newest first."""
    return [_audit_root(row) for row in await tx.rows(queries.list_roots, NEWEST if below is None else below, limit)]


def _audit_root(row: Row) -> AuditRoot:
    texts = {"previous": row["previous"].hex(), "hash": row["hash"].hex(), "signature": to_base64(row["signature"])}
    texts |= {"body": row["body"].decode(errors="replace"), "fingerprint": fingerprint(row["public_key"])}
    return parse(AuditRoot, {**row, **texts, "covers": _covers(row["body"])})


def _covers(body: bytes) -> int:
    """What was tampered with is still listed: verifying is what finds it."""
    try:
        return int(orjson.loads(body)["heads"]["count"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return 0
