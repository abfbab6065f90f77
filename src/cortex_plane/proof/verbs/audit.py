"""Reads, verifies and exports the audit trail, compares rows with it, and makes and copies its signed roots."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Final, Generic, Protocol, TypeVar
from uuid import UUID

import orjson
import structlog

from cortex_plane.db.database import NOBODY, Database, Row, Transaction, many
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.model.checkpoints import CheckpointCorrupt, check_seal
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError, InvalidInput, Unavailable
from cortex_plane.kernel.fields import parse
from cortex_plane.policies import store as policies_store
from cortex_plane.proof import model
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import GENESIS, AuditRoot, RootMade, fingerprint, to_base64
from cortex_plane.proof.rules.exports import ExportWriter
from cortex_plane.proof.rules.receipts import parse_receipt
from cortex_plane.proof.rules.roots import Held, RootCopy, RootMark, TrailVerifier, root_body, root_hash
from cortex_plane.proof.store import queries
from cortex_plane.proof.verbs import receipts
from cortex_plane.proof.verbs.receipts import public_keys
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, Forged, MacKind, Permission
from cortex_plane.tenancy.verbs.frame import every_org, require_found, transaction_verb, verb

T = TypeVar("T", bound=model.AuditEntry | model.ChainHead | model.RootedHead)

_one_at_a_time = asyncio.Semaphore(1)


@transaction_verb(Permission.AUDIT_READ)
async def list_entries(
    tx: Transaction, _: Actor, session_id: UUID | None, above: int, limit: int
) -> list[model.AuditRecord]:
    """The chain of a session, or the org's own."""
    if session_id is not None:
        require_found(await proof_store.head_of_session(tx, session_id), "session")
    rows = await tx.rows(queries.stream_entries, session_id or tx.org, above, limit)
    return [model.record_of(entry) for entry in many(model.AuditEntry, rows)]


@verb(Permission.AUDIT_READ, heavy=True)
async def verify(db: Database, actor: Actor) -> model.Verification:
    """One at a time in a process: it may take long, and must leave the connections to others."""
    async with _one_at_a_time:
        return await verify_org(db, actor.org_id)


async def verify_org(db: Database, org_id: UUID, copies: Mapping[int, bytes] | None = None) -> model.Verification:
    """Follow every chain and every signed root of an org in one snapshot and in flat memory; names the first bad entry of
    each chain, the first bad root, and rows that are not what the trail says of them. ``copies``: hashes of roots, by their
    numbers, as somebody keeps them outside of the database."""
    async with db.transaction(org_id, snapshot=True) as tx:
        return await verify_snapshot(tx, db.vault_at_hand, copies, rows_checked=db.credential_key_at_hand is not None)


async def verify_snapshot(
    tx: Transaction, vault: Vault | None, copies: Mapping[int, bytes] | None = None, *, rows_checked: bool = False
) -> model.Verification:
    verifier, trail = TrailVerifier(tx.org, copies), Trail()
    async for item in chain_by_chain(tx):
        verifier.take(item)
        if isinstance(item, model.AuditEntry) and item.session_id is None:
            trail.take(item)
    # Whoever can write to the database can put a key there; only one that the plane sealed is believed.
    keys, strangers = await receipts.verifying(tx, vault)
    async for root in proof_store.stream_roots(tx):
        verifier.follow_root(root, keys, strangers)
    faults = await contradictions(tx, keys, strangers, vault)
    if rows_checked:
        faults += await _first(_credential_faults(tx, trail))
    return verifier.result(faults, keys_checked=vault is not None)


class _Stream(Generic[T]):
    """A stream of what belongs to chains, of which the next item can be looked at."""

    def __init__(self, items: AsyncIterator[T]) -> None:
        self._items = items
        self.next: T | None = None

    async def advance(self) -> None:
        self.next = await anext(self._items, None)


async def chain_by_chain(
    tx: Transaction, session_id: UUID | None = None
) -> AsyncIterator[model.AuditEntry | model.RootedHead | model.ChainHead]:
    """The entries of each chain, and after them its head; one without a hash where there is none. Where a root covers a
    chain as far as an entry, its word follows that entry. One session alone comes without roots: they cover all chains."""
    entries = _Stream(proof_store.stream_all_entries(tx, session_id))
    heads = _Stream(proof_store.stream_heads(tx, session_id))
    roots = _Stream(proof_store.root_heads(tx, session_id))
    await entries.advance()
    await heads.advance()
    await roots.advance()
    while waiting := [item.chain_id for item in (entries.next, heads.next, roots.next) if item is not None]:
        chain = min(waiting)
        while (entry := entries.next) is not None and entry.chain_id == chain:
            yield entry
            await entries.advance()
            while (root := roots.next) is not None and root.chain_id == chain and root.seq <= entry.seq:
                yield root
                await roots.advance()
        while (root := roots.next) is not None and root.chain_id == chain:
            yield root
            await roots.advance()
        if (head := heads.next) is not None and head.chain_id == chain:
            yield head
            await heads.advance()
        else:
            yield model.ChainHead(chain_id=chain, is_orphan=True)


async def verify_all(db: Database, root_copies: Held | None = None) -> dict[str, model.Verification]:
    """Every org, by slug: for whoever holds the database. ``root_copies``: to compare with."""
    results: dict[str, model.Verification] = {}
    copies = dict(root_copies or {})
    async for org in every_org(db):
        results[org.slug] = await verify_org(db, org.id, copies.pop(org.id, None))
    for id, roots in copies.items():
        fault = model.RootFault(root=min(roots), reason="a copy of it is held outside, and its org is gone")
        results[str(id)] = model.Verification(chains=0, entries=0, faults=[], root_faults=[fault])
    return results


CHUNK_BYTES = 64 * 1024

_exports_under_way: set[UUID] = set()


@verb(Permission.AUDIT_READ)
async def export_trail(db: Database, actor: Actor, session_id: UUID | None) -> AsyncGenerator[bytes, None]:
    """Every chain of the org, or that of one session, in one snapshot. Whoever reads it closes it, which frees its
    connection. If the database fails it raises before the trailer."""
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
                require_found(await proof_store.head_of_session(tx, session_id), "session")
            writer = ExportWriter()
            buffer = bytearray(writer.header(org.id, org.slug, session_id, await tx.value(queries.database_time)))
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


MOST_FAULTS = 100
"""So many of each kind are named: whoever finds a hundred knows enough."""

_ENDS: Final[dict[str, tuple[str, ...]]] = {
    "key_revoked": ("key_id", "also", "credentials_ended"),
    "enrolled": ("code", "keys_ended", "credentials_ended"),
    "enrolment_code_created": ("credentials_ended",),
    "member_changed": ("keys_ended", "credentials_ended"),
    "logged_in": ("link", "enrolment", "keys_ended", "credentials_ended"),
    "logged_out": ("session",),
    "browser_session_ended": ("session",),
    "browser_sessions_ended": ("credentials_ended",),
    "identity_verified": ("link", "instead_of"),
    "identity_linked": ("code", "instead_of"),
    "identity_unlinked": ("mapping",),
    "mapping_vouched": ("instead_of",),
}
"""Where an entry names what it ends or uses up."""


class Trail:
    """What the org's own chain says of rows that give power."""

    def __init__(self) -> None:
        self.ended: set[str] = set()
        self.retired: set[str] = set()

    def take(self, entry: model.AuditEntry) -> None:
        action = entry.action
        if action not in _ENDS and action != "atlas_retired":
            return
        data = (model.body_of(entry) or {}).get("data")
        if not isinstance(data, dict):
            return
        if action == "atlas_retired":
            self.retired.add(f"{data.get('atlas_id')} {data.get('version')}")
        for name in _ENDS.get(action, ()):
            ids = data.get(name)
            self.ended.update(id for id in (ids if isinstance(ids, list) else [ids]) if isinstance(id, str))


async def _credential_faults(tx: Transaction, trail: Trail) -> AsyncIterator[model.RowFault]:
    """Rows that give power and that the plane did not write so, or that ended on the trail."""
    for kind in tenancy_store.PEOPLE:
        async for row in tenancy_store.stream_rows(tx, kind):
            id = str(row["id"])
            reason = _row_reason(tx, kind, row, over=id in trail.ended) if row["live"] else None
            if reason is not None:
                yield model.RowFault(subject=f"{kind} {id}", reason=reason)
    async for row in tenancy_store.stream_rows(tx, MacKind.ATLAS_VERSION):
        id = f"{row['atlas_id']} {row['version']}"
        reason = _row_reason(tx, MacKind.ATLAS_VERSION, row, over=id in trail.retired and not row["retired"])
        if reason is not None:
            yield model.RowFault(subject=f"{MacKind.ATLAS_VERSION} {id}", reason=reason)
    try:
        version = await policies_store.policies_in_force(tx)
        if version:
            await policies_store.require_true_rows(tx, version)
    except Forged as forgery:
        reason = "its MAC is false: the plane did not put it in force as it stands"
        yield model.RowFault(subject=f"{forgery.kind} {forgery.id}", reason=reason)


def _row_reason(tx: Transaction, kind: MacKind, row: Row, *, over: bool) -> str | None:
    if not tx.credential_key.is_true(kind, row, row["mac"]):
        return "its MAC is false: the plane did not write it as it stands"
    return "it ended on the trail, and is there again" if over else None


_ROW_FAULTS = (
    queries.policy_faults, queries.atlas_faults, queries.decision_faults, queries.vote_faults, queries.message_faults,
    queries.reply_faults,
)  # fmt: skip


async def contradictions(
    tx: Transaction, keys: Mapping[UUID, bytes], strangers: Collection[UUID], vault: Vault | None
) -> list[model.RowFault]:
    """Every row that is not what the trail says of it, in the snapshot of ``tx``; ``keys`` are the org's public ones."""
    faults = [model.RowFault(**row) for query in _ROW_FAULTS for row in await tx.rows(query, MOST_FAULTS)]
    for version in (await proof_store.changed_policy_versions(tx))[:MOST_FAULTS]:
        reason = "its rows are not those that the trail applied"
        faults.append(model.RowFault(subject=f"policy version {version}", reason=reason))
    faults += await _first(_receipt_contradictions(tx, keys, strangers))
    faults += await _first(_result_contradictions(tx))
    return faults + await _first(_checkpoint_contradictions(tx, vault))


async def _first(faults: AsyncIterator[model.RowFault]) -> list[model.RowFault]:
    first: list[model.RowFault] = []
    async for fault in faults:
        first.append(fault)
        if len(first) == MOST_FAULTS:
            break
    return first


async def _receipt_contradictions(
    tx: Transaction, keys: Mapping[UUID, bytes], strangers: Collection[UUID]
) -> AsyncIterator[model.RowFault]:
    async for row in tx.stream(queries.stream_receipts):
        reason = _why_not(tx.org, row, keys, strangers)
        if reason is not None:
            yield model.RowFault(subject=f"receipt of approval {row['approval_id']}", reason=reason)


def _why_not(org_id: UUID, row: Row, keys: Mapping[UUID, bytes], strangers: Collection[UUID]) -> str | None:
    key = keys.get(row["key_id"])
    if key is None or row["key_id"] in strangers or not model.is_signed(key, row["signature"], row["body"]):
        return "it is not signed with a key of the plane"
    says = parse_receipt(row["body"])
    if says is None:
        return "it cannot be read"
    if (says["org"], says["approval"]) != (str(org_id), str(row["approval_id"])):
        return "it is the receipt of another approval"
    if says["decision"] != row["status"]:
        return f"it says {says['decision']}, and the approval is {row['status']}"
    if (says["approval_version"], says["arguments"]["digest"]) != (row["version"], row["input_hash"]):
        return "it says yes or no to another version of the approval"
    return None


async def _result_contradictions(tx: Transaction) -> AsyncIterator[model.RowFault]:
    async for row in tx.stream(queries.stream_results):
        if row["result"] is None:
            reason = f"its result is gone; entry {row['seq']} of chain {row['chain_id']} holds its digest"
        elif _digest(row["result"]) != row["digest"]:
            reason = f"its result is not the one of entry {row['seq']} of chain {row['chain_id']}"
        else:
            continue
        yield model.RowFault(subject=f"call {row['call']}", reason=reason)


def _digest(result: str) -> str | None:
    """None where the plane cannot have written it."""
    try:
        return hashlib.sha256(canonical(orjson.loads(result))).hexdigest()
    except (ValueError, InvalidInput):
        return None


async def _checkpoint_contradictions(tx: Transaction, vault: Vault | None) -> AsyncIterator[model.RowFault]:
    key = None if vault is None else vault.checkpoint_key(tx.org)
    async for row in tx.stream(queries.stream_checkpoints):
        try:
            check_seal(row["checkpoint"], row["mac"], row["id"], key)
        except CheckpointCorrupt as error:
            yield model.RowFault(subject=f"checkpoint of job {row['id']}", reason=error.message)


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

ROOTS_AT_ONCE = 100
"""Roots of an org that one run copies to a place; the next run copies the rest."""

_root_places: Sequence[RootPlace] = ()


@contextlib.contextmanager
def copied_to(places: Sequence[RootPlace]) -> Iterator[None]:
    """Copy roots to these places for as long as the block runs."""
    global _root_places
    before, _root_places = _root_places, places
    try:
        yield
    finally:
        _root_places = before


async def copy_roots(db: Database, org_id: UUID) -> None:
    """Everything that a place does not have yet. A place that fails is logged: the root itself is made."""
    for place in _root_places:
        try:
            await _copy_to(place, db, org_id)
        except Exception as error:
            log.warning("root not copied", place=place.name, org_id=str(org_id), error=str(error) or repr(error))


async def copy_all_roots(db: Database) -> None:
    """The roots of every org, where a process ended between its commit and the copy."""
    if not _root_places:
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
            rows = await tx.rows(queries.roots_above, (last.seq - has_hash) if last else 0, ROOTS_AT_ONCE + has_hash)
    roots = [RootCopy(**row) for row in rows]
    if last is not None and last.hash is not None:
        # The place keeps what it has: whoever verifies compares it with the roots that are here now.
        if not roots or (roots[0].seq, roots[0].hash) != (last.seq, last.hash):
            log.error("roots do not go on from their copy", place=place.name, org_id=str(org_id), root=last.seq)
            return
        roots = roots[1:]
    if roots:
        await place.add(roots)


SECONDS_BETWEEN_ROOTS = 3600.0
ORGS_AT_ONCE = 200
CHAINS_AT_ONCE = 10_000
"""A root covers no more than that; what is left over is the next one's, which follows at once."""
NEWEST_ROOT = 2**62

_compared_orgs: set[UUID] = set()
"""Orgs of which this process has compared every chain once. A database that was restored elsewhere counts its transactions
anew; whoever restores one starts its processes anew too."""


async def keep_roots(db: Database) -> None:
    """Make the roots that are due. Any number of schedulers may do this at once, as often as they like."""
    after = NOBODY
    while rows := await db.call("find_unrooted", None, SECONDS_BETWEEN_ROOTS, after, ORGS_AT_ONCE):
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
        (newest,) = await tx.rows(queries.list_roots, NEWEST_ROOT, 1)
    return RootMade(made=count > 0, root=_audit_root(newest))


@transaction_verb(Permission.AUDIT_READ)
async def list_roots(tx: Transaction, _: Actor, below: int | None, limit: int) -> list[AuditRoot]:
    """Newest first."""
    return [
        _audit_root(row) for row in await tx.rows(queries.list_roots, NEWEST_ROOT if below is None else below, limit)
    ]


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
