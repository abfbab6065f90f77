"""Signed roots over all heads, copies of them outside the database, and the verifier of a whole trail."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.kernel.canonical import canonical, iso
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.proof import model

FORMAT = "cortex-root"
VERSION = 1
FIELDS = frozenset({"format", "version", "org", "seq", "previous", "created_at", "heads", "chains"})


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptRoot:
    """A root as it is kept, and exported."""

    seq: int
    body: bytes
    hash: bytes
    key_id: UUID
    signature: bytes


@dataclass(frozen=True, kw_only=True, slots=True)
class GrownHead:
    """A chain with entries that no root covers yet."""

    chain_id: UUID
    seq: int
    hash: bytes
    is_new: bool
    """No root covers anything of it."""


def head_bytes(head: GrownHead | model.RootedHead) -> bytes:
    return head.chain_id.bytes + head.seq.to_bytes(8, "big") + head.hash


def root_body(org_id: UUID, seq: int, previous: bytes, at: datetime, heads: Sequence[GrownHead], chains: int) -> bytes:
    """``heads`` in the order of their chains."""
    digest = hashlib.sha256(b"".join(head_bytes(head) for head in heads))
    return canonical(
        {
            "format": FORMAT,
            "version": VERSION,
            "org": str(org_id),
            "seq": seq,
            "previous": previous.hex(),
            "created_at": iso(at),
            "heads": {"count": len(heads), "sha256": digest.hexdigest()},
            "chains": chains,
        }
    )


def root_hash(previous: bytes, body: bytes) -> bytes:
    return hashlib.sha256(previous + body).digest()


@dataclass(slots=True)
class _Covered:
    """What was seen of the heads of one root."""

    digest: Any = field(default_factory=hashlib.sha256)
    count: int = 0
    new: int = 0


class RootsVerifier:
    """Compares roots with the heads that the chains were seen to have. Keeps one digest for each root, and no head."""

    def __init__(self, org_id: UUID, copies: Mapping[int, bytes] | None = None) -> None:
        """``copies``: hashes of roots by their numbers, as somebody keeps them elsewhere."""
        self._org = str(org_id)
        self._held = dict(copies or {})
        self._replaced: int | None = None
        self._covered: dict[int, _Covered] = {}
        self._chain: UUID | None = None
        self._hash = model.GENESIS
        self._total = self.seq = 0
        self._fault: model.RootFault | None = None
        self.fingerprints: dict[str, None] = {}
        """Of the keys whose signatures were verified, in the order in which they were used."""

    def saw(self, head: model.RootedHead) -> None:
        """A head that a root covers; chain by chain, in the order of their ids."""
        cover = self._covered.setdefault(head.root_seq, _Covered())
        cover.digest.update(head_bytes(head))
        cover.count += 1
        cover.new += head.chain_id != self._chain
        self._chain = head.chain_id

    def follow(self, root: KeptRoot, keys: Mapping[UUID, bytes], strangers: Collection[UUID]) -> None:
        """The roots in order, after all heads; the first fault is the last thing that is looked at. ``strangers``:
        those of ``keys`` that are known not to be the plane's."""
        if self._held.pop(root.seq, root.hash) != root.hash and self._replaced is None:
            self._replaced = root.seq
        if self._fault is not None:
            return
        reason = self._wrong(root, keys, strangers)
        if reason is not None:
            self._fault = model.RootFault(root=self.seq + 1, reason=reason)
        else:
            self.seq, self._hash = root.seq, root.hash

    def finish(self) -> list[model.RootFault]:
        """The first fault of a root, whether all heads that were seen belong to a root that was there, and whether the roots are those
        that are held elsewhere."""
        faults = [self._fault] if self._fault is not None else []
        if self._covered and self._fault is None:
            missing = min(self._covered)
            faults.append(model.RootFault(root=missing, reason="it is missing, and heads that it covers are here"))
        if self._replaced is not None:
            reason = "the copy that is held outside has another hash: roots were started anew, or replaced"
            faults.append(model.RootFault(root=self._replaced, reason=reason))
        if self._held:
            reason = "a copy of it is held outside, and it is missing: roots were taken away, or started anew"
            faults.append(model.RootFault(root=min(self._held), reason=reason))
        return faults

    def _wrong(self, root: KeptRoot, keys: Mapping[UUID, bytes], strangers: Collection[UUID]) -> str | None:
        if root.seq != self.seq + 1:
            return f"it is missing; the next one is {root.seq}"
        if root_hash(self._hash, root.body) != root.hash:
            return "its hash does not follow from its body and the one before"
        public_key = keys.get(root.key_id)
        if public_key is None:
            return "the key that signed it is not among the org's"
        if root.key_id in strangers:
            stranger = f"it is signed with {model.fingerprint(public_key)}, which is no key of the plane"
            return f"{stranger}: its private half does not open with the master key"
        if not model.is_signed(public_key, root.signature, root.body):
            return "its signature is false"
        self.fingerprints[model.fingerprint(public_key)] = None
        body = _read(root.body)
        if body is None or (body["org"], body["seq"], body["previous"]) != (self._org, root.seq, self._hash.hex()):
            return "what was signed is not this root"
        return self._wrong_heads(root.seq, body)

    def _wrong_heads(self, seq: int, body: dict[str, Any]) -> str | None:
        cover = self._covered.pop(seq, None) or _Covered()
        self._total += cover.new
        heads = body["heads"]
        if heads["count"] != cover.count:
            return f"it covers {heads['count']} chains, and {cover.count} of them are here"
        if heads["sha256"] != cover.digest.hexdigest():
            return "the heads that it covers are not those that are here"
        if body["chains"] != self._total:
            return f"it says that there are {body['chains']} chains, and {self._total} are here"
        return None


def _read(body: bytes) -> dict[str, Any] | None:
    try:
        root = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(root, dict) or root.keys() != FIELDS or not isinstance(root["heads"], dict):
        return None
    is_known = (root["format"], root["version"]) == (FORMAT, VERSION)
    return root if is_known and root["heads"].keys() == {"count", "sha256"} else None


class TrailVerifier:
    """Follows the chains of an org one after the other, then its roots. Keeps the first fault of each chain."""

    def __init__(self, org_id: UUID, copies: Mapping[int, bytes] | None = None) -> None:
        self.chains = self.entries = self.roots = self._blanked = 0
        self.chain: model.ChainVerifier | None = None
        self._broken = False
        self._faults: list[model.Fault] = []
        self._blanked_entries: list[model.Blanked] = []
        self._verifier = RootsVerifier(org_id, copies)

    def take(self, item: model.AuditEntry | model.RootedHead | model.ChainHead) -> None:
        """The entries of a chain in their order, what roots say of each, and at last its head."""
        chain = self.chain = self.chain or model.ChainVerifier(item.chain_id)
        if isinstance(item, model.AuditEntry):
            self.entries += 1
            self.fault(None if self._broken else chain.follow(item))
        elif isinstance(item, model.RootedHead):
            self._verifier.saw(item)
            self.fault(None if self._broken else chain.rooted(item))
        else:
            self.chains += 1
            self.fault(None if self._broken else chain.finish(item))
            self._blanked += chain.blanked
            self._blanked_entries += chain.first_blanked[: model.NAMED - len(self._blanked_entries)]
            self.leave_chain()

    def fault(self, fault: model.Fault | None) -> None:
        if fault is not None and not self._broken:
            self._faults.append(fault)
            self._broken = True

    def leave_chain(self) -> None:
        self.chain, self._broken = None, False

    def follow_root(self, root: KeptRoot, keys: Mapping[UUID, bytes], strangers: Collection[UUID] = ()) -> None:
        self.roots += 1
        self._verifier.follow(root, keys, strangers)

    def result(
        self, row_faults: Sequence[model.RowFault] = (), *, keys_checked: bool = False, newer_copies: int = 0
    ) -> model.Verification:
        return model.Verification(
            chains=self.chains,
            entries=self.entries,
            faults=self._faults,
            roots=self.roots,
            root_faults=self._verifier.finish(),
            fingerprints=list(self._verifier.fingerprints),
            keys_checked=keys_checked,
            blanked=self._blanked,
            blanked_entries=self._blanked_entries,
            newer_copies=newer_copies,
            row_faults=list(row_faults),
        )


Held = dict[UUID, dict[int, bytes]]
"""The hashes of the roots of each org, by their numbers."""


Times = dict[bytes, str]
"""When the roots with these hashes were made, as `iso` writes it."""


@dataclass(frozen=True, slots=True)
class RootMark:
    """The last root that a place has of an org; without a hash where it only knows where to go on."""

    seq: int
    hash: bytes | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RootCopy(KeptRoot):
    """A root as it is copied elsewhere, with its org and the key that verifies it."""

    org_id: UUID
    public_key: bytes
    created_at: datetime

    def as_line(self) -> bytes:
        copy = {
            "org": str(self.org_id),
            "seq": self.seq,
            "hash": self.hash.hex(),
            "created_at": iso(self.created_at),
            "body": self.body.decode(errors="replace"),
            "signature": model.to_base64(self.signature),
            "key_id": str(self.key_id),
            "public_key": model.to_base64(self.public_key),
            "fingerprint": model.fingerprint(self.public_key),
        }
        return orjson.dumps(copy, option=orjson.OPT_APPEND_NEWLINE)


def read_copy(line: bytes) -> tuple[UUID, RootMark] | None:
    """What a line copies; None where it is no copy of a root."""
    try:
        copy: dict[str, Any] = orjson.loads(line)
        org_id, seq, digest = UUID(copy["org"]), int(copy["seq"]), bytes.fromhex(copy["hash"])
        body = orjson.loads(copy["body"])
        is_its_own = body.keys() == FIELDS and (body["org"], body["seq"]) == (str(org_id), seq)
        if is_its_own and root_hash(bytes.fromhex(body["previous"]), copy["body"].encode()) == digest:
            return org_id, RootMark(seq, digest)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    return None


def read_copies(lines: Iterable[bytes]) -> Held:
    """Raises ``InvalidInput`` with the number of the first line that is no copy of a root."""
    copies: Held = {}
    for number, line in enumerate(lines, 1):
        copy = read_copy(line)
        if copy is None or copy[1].hash is None:
            raise _no_copy(number, "it is not a copy of a root")
        org_id, root = copy
        if copies.setdefault(org_id, {}).setdefault(root.seq, copy[1].hash) != root.hash:
            raise _no_copy(number, f"an earlier line holds another root {root.seq} of this org")
    return copies


def read_times(lines: Iterable[bytes]) -> Times:
    """Of lines that `read_copies` has read."""
    return {bytes.fromhex(copy["hash"]): copy["created_at"] for copy in map(orjson.loads, lines)}


def _no_copy(number: int, why: str) -> InvalidInput:
    return InvalidInput(
        f"Line {number} of the roots cannot be used: {why}.",
        code="not_a_root",
        hint="Give the file that the plane wrote (CORTEX_ROOTS_FILE), or a copy of it.",
    )
