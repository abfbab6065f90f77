"""The audit trail: what an entry says, how entries are chained, and how a chain is verified.

``hash = sha256(previous hash ‖ seq ‖ time ‖ sha256(body))``, the first previous hash being 32 zero bytes; seq and
time (microseconds since 1970) are 8 bytes, big-endian. The body is canonical JSON, so it can be erased later
while its hash keeps the chain whole. The database chains (`session_append`, `org_append`); this module says the
same in Python, so that a chain is verified by other code than the one that wrote it.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.domain.access import Actor
from cortex_plane.domain.canonical import canonical

GENESIS = bytes(32)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """Something that happened, before it has a place in a chain."""

    action: str
    body: bytes

    @classmethod
    def of(cls, actor: Actor, action: str, **data: Any) -> Fact:
        """Canonical JSON, put together from parts: the actor's is the same for all that a request does."""
        # Kept and hashed as bytes, so it need not survive JSONB: sorted keys are enough.
        told = orjson.dumps(data, option=orjson.OPT_SORT_KEYS)
        body = b'{"action":%b,"actor":%b,"data":%b}' % (orjson.dumps(action), _said_of(actor), told)
        return cls(action=action, body=body)


@functools.lru_cache(maxsize=1024)
def _said_of(actor: Actor) -> bytes:
    return canonical(actor.as_audit())


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditEntry:
    chain_id: UUID
    session_id: UUID | None
    """The session whose chain this is; null for the org's own chain."""
    seq: int
    action: str
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


def shown(entry: AuditEntry) -> AuditRecord:
    body = orjson.loads(entry.body) if entry.body is not None else None
    return AuditRecord(
        seq=entry.seq, action=entry.action, body=body, hash=entry.hash.hex(), created_at=entry.created_at
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainHead:
    """Where a chain must end; without a seq and a hash where the head is gone."""

    chain_id: UUID
    seq: int | None = None
    hash: bytes | None = None


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


def iso(at: datetime) -> str:
    """Always with six digits and a Z, so that it is one string for one moment."""
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def chain_hash(previous: bytes, seq: int, created_at: datetime, body_hash: bytes) -> bytes:
    at = microseconds(created_at).to_bytes(8, "big", signed=True)
    return hashlib.sha256(previous + seq.to_bytes(8, "big") + at + body_hash).digest()


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """The first entry of a chain that does not verify, and why."""

    chain_id: UUID
    seq: int
    reason: str


@dataclass(slots=True)
class ChainVerifier:
    """Follows one chain entry by entry in constant memory."""

    chain_id: UUID
    seq: int = 0
    hash: bytes = GENESIS

    def follow(self, entry: AuditEntry) -> Fault | None:
        expected = self.seq + 1
        if entry.seq != expected:
            return self._fault(expected, f"entry {expected} is missing; the next one is {entry.seq}")
        if entry.body is not None and hashlib.sha256(entry.body).digest() != entry.body_hash:
            return self._fault(entry.seq, "its body was changed")
        if chain_hash(self.hash, entry.seq, entry.created_at, entry.body_hash) != entry.hash:
            return self._fault(entry.seq, "its hash does not follow from the one before")
        # Only now is the body what was written, and so a JSON object.
        if entry.body is not None and orjson.loads(entry.body).get("action") != entry.action:
            return self._fault(entry.seq, "its action differs from its body")
        self.seq, self.hash = entry.seq, entry.hash
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
            return self._fault(0, "its head is gone")
        if self.seq != head.seq:
            return self._fault(self.seq + 1, f"the chain ends at {self.seq}, its head says {head.seq}")
        if self.hash != head.hash:
            return self._fault(self.seq, "the head holds another hash")
        return None

    def _fault(self, seq: int, reason: str) -> Fault:
        return Fault(chain_id=self.chain_id, seq=seq, reason=reason)


@dataclass(frozen=True, kw_only=True, slots=True)
class RootFault:
    """The first root that does not verify, and why."""

    root: int
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RowFault:
    """A row that gives somebody power and that the plane did not write as it stands, or that was over and is back."""

    kind: str
    id: str
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
    row_faults: list[RowFault] = field(default_factory=list)
    """Credentials, channels, policies and atlases with a false MAC, or in force again after they ended on the trail: the first
    hundred. Only the master key can tell."""
