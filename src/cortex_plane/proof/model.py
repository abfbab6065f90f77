"""The audit trail's facts and entries, and the keys that sign roots and receipts."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

GENESIS = bytes(32)
FORMATS = (1, 2)
NO_JOB = bytes(16)
ERASED = "audit_erased"
"""The action of an entry that says which bodies before it in its chain were erased: ``entries``, each with `seq` and `action`."""
RENAMED = "its action differs from its body"
NAMED = 20
"""So many are named where there may be any number; the others are counted."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


SessionEvent = tuple[str, UUID | None, dict[str, Any]]
"""The type of an event of a session, the job that it concerns, and its data."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    chain_id: UUID
    session_id: UUID | None
    """The session whose chain this is; null for the org's own chain."""
    seq: int
    format: int
    action: str
    job_id: UUID | None
    body: bytes | None
    body_hash: bytes
    hash: bytes
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRecord:
    """An entry as surfaces show it."""

    seq: int
    action: str
    body: dict[str, Any] | None
    hash: str
    created_at: datetime
    format: int = 1
    job_id: UUID | None = None


def body_of(entry: AuditEntry) -> dict[str, Any] | None:
    """None where it is gone, or where somebody wrote something that is none: then its chain does not verify."""
    with contextlib.suppress(ValueError):
        body = orjson.loads(entry.body or b"")
        return body if isinstance(body, dict) else None
    return None


def record_of(entry: AuditEntry) -> AuditRecord:
    return AuditRecord(
        seq=entry.seq, format=entry.format, action=entry.action, job_id=entry.job_id, body=body_of(entry),
        hash=entry.hash.hex(), created_at=entry.created_at,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainHead:
    """Where a chain must end; without a seq and a hash where the head is gone."""

    chain_id: UUID
    seq: int | None = None
    hash: bytes | None = None
    is_orphan: bool = False
    """There is neither a session nor an org that the chain could belong to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RootedHead:
    """Where a chain stood when a signed root covered it."""

    root_seq: int
    chain_id: UUID
    seq: int
    hash: bytes


def microseconds(at: datetime) -> int:
    """Since 1970, as the chain counts them."""
    return (at - _EPOCH) // _MICROSECOND


def moment(us: int) -> datetime:
    """The other way round."""
    return _EPOCH + us * _MICROSECOND


def chain_hash(
    previous: bytes, seq: int, created_at: datetime, action: str, job: UUID | None, body_hash: bytes
) -> bytes:
    """Of an entry of format 2."""
    subject_digest = hashlib.sha256(action.encode()).digest() + (job.bytes if job else NO_JOB)
    return hashlib.sha256(previous + b"\x02" + _numbers(seq, created_at) + subject_digest + body_hash).digest()


def chain_hash_1(previous: bytes, seq: int, created_at: datetime, body_hash: bytes) -> bytes:
    """Of an entry of format 1."""
    return hashlib.sha256(previous + _numbers(seq, created_at) + body_hash).digest()


def _numbers(seq: int, created_at: datetime) -> bytes:
    return seq.to_bytes(8, "big") + microseconds(created_at).to_bytes(8, "big", signed=True)


def entry_hash(previous: bytes, entry: AuditEntry) -> bytes:
    """What its hash must be, by its own format."""
    if entry.format == 1:
        return chain_hash_1(previous, entry.seq, entry.created_at, entry.body_hash)
    return chain_hash(previous, entry.seq, entry.created_at, entry.action, entry.job_id, entry.body_hash)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """The first entry of a chain that does not verify, and why."""

    chain_id: UUID
    seq: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Blanked:
    """An entry whose body is gone."""

    chain_id: UUID
    seq: int


@dataclass(slots=True)
class ChainVerifier:
    """Follows one chain entry by entry. Keeps the numbers of bodies that are gone, and else nothing that grows."""

    chain_id: UUID
    seq: int = 0
    hash: bytes = GENESIS
    format: int = 1
    blanked: int = 0
    """How many bodies are gone."""
    _unexplained: dict[int, str] = field(default_factory=dict)
    """The number and the action of each body that is gone and that no entry names."""
    first_blanked: list[Blanked] = field(default_factory=list)
    """The first bodies that are gone, whether an entry names them or not."""

    def follow(self, entry: AuditEntry) -> Fault | None:
        next_seq = self.seq + 1
        if entry.seq != next_seq:
            return self._fault(next_seq, f"entry {next_seq} is missing; the next one is {entry.seq}")
        if entry.format not in FORMATS:
            return self._fault(entry.seq, f"this release does not know its format, {entry.format}")
        if entry.format < self.format:
            return self._fault(entry.seq, f"it has format {entry.format}, after one with format {self.format}")
        if entry.body is not None and hashlib.sha256(entry.body).digest() != entry.body_hash:
            return self._fault(entry.seq, "its body was changed")
        if entry_hash(self.hash, entry) != entry.hash:
            action = (body_of(entry) or {}).get("action")
            is_renamed = entry.format > 1 and action not in (None, entry.action)
            return self._fault(entry.seq, RENAMED if is_renamed else "its hash does not follow from the one before")
        self.seq, self.hash, self.format = entry.seq, entry.hash, entry.format
        return self._read(entry)

    def _read(self, entry: AuditEntry) -> Fault | None:
        if entry.body is None:
            self.blanked += 1
            self._unexplained[entry.seq] = entry.action
            if len(self.first_blanked) < NAMED:
                self.first_blanked.append(Blanked(chain_id=self.chain_id, seq=entry.seq))
            return None
        try:
            body = orjson.loads(entry.body)
            if body["action"] != entry.action:
                return self._fault(entry.seq, RENAMED)
            return self._explain(entry.seq, body["data"]) if entry.action == ERASED else None
        except (ValueError, TypeError, KeyError):
            return self._fault(entry.seq, "its body is not one that the plane writes")

    def _explain(self, seq: int, data: dict[str, Any]) -> Fault | None:
        """The hash of an entry of format 1 does not cover its action: there, what the erase entry says of it counts."""
        for erasure in data["entries"]:
            if self._unexplained.pop(erasure["seq"], erasure["action"]) != erasure["action"]:
                return self._fault(erasure["seq"], f"its action differs from what erase entry {seq} says of it")
        return None

    def rooted(self, head: RootedHead) -> Fault | None:
        """Compare with what a root says of this very place."""
        if self.seq != head.seq:
            return self._fault(head.seq, f"it is missing, and root {head.root_seq} covers it")
        if self.hash != head.hash:
            return self._fault(head.seq, f"root {head.root_seq} holds another hash of it")
        return None

    def finish(self, head: ChainHead) -> Fault | None:
        """Compare with the head, which tells how long the chain must be."""
        if head.seq is None:
            return self._fault(0, "its session is gone" if head.is_orphan else "its head is gone")
        if self.seq != head.seq:
            return self._fault(self.seq + 1, f"the chain ends at {self.seq}, its head says {head.seq}")
        if self.hash != head.hash:
            return self._fault(self.seq, "the head holds another hash")
        if self._unexplained:
            seqs = list(self._unexplained)
            more = f"; so are {_listed(seqs[1:])}" if len(seqs) > 1 else ""
            return self._fault(seqs[0], f"its body is gone, and no erase entry names it{more}")
        return None

    def _fault(self, seq: int, reason: str) -> Fault:
        return Fault(chain_id=self.chain_id, seq=seq, reason=reason)


def _listed(seqs: list[int]) -> str:
    others = f" and {len(seqs) - NAMED} more" if len(seqs) > NAMED else ""
    return ", ".join(map(str, seqs[:NAMED])) + others


@dataclass(frozen=True, kw_only=True, slots=True)
class RootMade:
    """The newest root, and whether it was made just now: where nothing was appended since, there is nothing to cover."""

    made: bool
    root: AuditRoot


@dataclass(frozen=True, kw_only=True, slots=True)
class RootFault:
    """The first root that does not verify, and why."""

    root: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFault:
    """A row that is not what the trail says of it, or that the plane did not write as it stands."""

    subject: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    chains: int
    entries: int
    faults: list[Fault]
    roots: int = 0
    """How many signed roots were followed."""
    root_faults: list[RootFault] = field(default_factory=list)
    fingerprints: list[str] = field(default_factory=list)
    """Of the keys whose signatures were verified. Compare them with those that you know."""
    keys_checked: bool = False
    """Whether each of them was seen to be the plane's own. Only the master key can tell; without it anybody who can write
    to the database may have put a key there."""
    blanked: int = 0
    """How many bodies are gone. A body that is gone without an erase entry is a fault of its chain."""
    blanked_entries: list[Blanked] = field(default_factory=list)
    """The first of them."""
    newer_copies: int = 0
    """How many copies of roots were made after the export, so that it cannot hold these roots."""
    row_faults: list[RowFault] = field(default_factory=list)
    """Rows that are not what the trail says of them, or whose MAC is false: the first of them, and only in the database. Without the
    master key no MAC is checked."""

    @property
    def whole(self) -> bool:
        return not (self.faults or self.root_faults or self.row_faults)


@dataclass(frozen=True, kw_only=True, slots=True)
class SignedReceipt:
    """As it is written with its decision."""

    key_id: UUID
    body: bytes
    signature: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """The receipt of a decision, with the public key that verifies it."""

    approval_id: UUID
    body: str
    """Canonical JSON: the exact bytes that were signed, as UTF-8."""
    signature: str
    """Ed25519 over the body, in base64."""
    public_key: str
    """The 32 raw bytes in base64."""
    key_id: UUID
    fingerprint: str
    """SHA-256 of the raw public key, in hex."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRoot:
    """A root as surfaces show it."""

    seq: int
    previous: str
    hash: str
    covers: int
    """How many chains grew since the one before it."""
    chains: int
    """How many chains it and all before it cover together."""
    body: str
    """Canonical JSON: the exact bytes that were signed, as UTF-8."""
    signature: str
    """Ed25519 over the body, in base64."""
    key_id: UUID
    fingerprint: str
    created_at: datetime


KEY_BYTES = 32
SIGNATURE_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class SigningKey:
    """The public half of a key that an org signs with, or signed with."""

    id: UUID
    fingerprint: str
    """SHA-256 of the raw public key, in hex: what to write down, and to compare."""
    public_key: str
    """The 32 raw bytes in base64."""
    created_at: datetime
    retired_at: datetime | None
    """Since when it signs nothing new; what it signed before stays valid."""


def fingerprint(public_key: bytes) -> str:
    return hashlib.sha256(public_key).hexdigest()


def is_signed(public_key: bytes, signature: bytes, body: bytes) -> bool:
    # Most commands never verify anything, and must not wait for this import.
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, body)
    except (InvalidSignature, ValueError):
        return False
    return True


def to_base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def from_base64(text: str, length: int) -> bytes | None:
    """None where it is no base64, or not of that many bytes, or spelled in a second way."""
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return value if len(value) == length and to_base64(value) == text else None
