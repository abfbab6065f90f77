"""Exports of the audit trail: written and read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.kernel.canonical import iso
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.proof import model
from cortex_plane.proof.rules.roots import Held, KeptRoot, Times, TrailVerifier

FORMAT = "cortex-audit-export"
VERSION = 2
MEDIA_TYPE = "application/x-ndjson"
RULE = (
    "format 2: hash = sha256(previous hash, 32 bytes, zeros before the first entry | format, 1 byte | seq, 8 bytes big-endian"
    " | at_us, 8 bytes big-endian signed | sha256(action as UTF-8) | job, 16 bytes, zeros where it is null | body_hash);"
    " format 1: sha256(previous hash | seq | at_us | body_hash); body_hash = sha256(body as UTF-8)"
)


class ExportWriter:
    """Renders the lines of one export and keeps what its trailer says."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._chains = self._entries = 0

    def header(self, org_id: UUID, slug: str, session_id: UUID | None, at: datetime) -> bytes:
        org, session = {"id": str(org_id), "slug": slug}, _text(session_id)
        return self._line(
            "header", format=FORMAT, version=VERSION, org=org, session=session, exported_at=iso(at), rule=RULE
        )

    def item(self, item: model.AuditEntry | model.RootedHead | model.ChainHead) -> bytes:
        if isinstance(item, model.AuditEntry):
            return self.entry(item)
        return self.rooted(item) if isinstance(item, model.RootedHead) else self.head(item)

    def entry(self, entry: model.AuditEntry) -> bytes:
        self._entries += 1
        return self._line(
            "entry",
            chain=str(entry.chain_id),
            session=_text(entry.session_id),
            seq=entry.seq,
            format=entry.format,
            action=entry.action,
            job=_text(entry.job_id),
            at_us=model.microseconds(entry.created_at),
            created_at=iso(entry.created_at),
            # Bytes that are no text were never written by the plane: what stands for them breaks the body's hash.
            body=None if entry.body is None else entry.body.decode(errors="replace"),
            body_hash=entry.body_hash.hex(),
            hash=entry.hash.hex(),
        )

    def rooted(self, head: model.RootedHead) -> bytes:
        return self._line("rooted", chain=str(head.chain_id), root=head.root_seq, seq=head.seq, hash=head.hash.hex())

    def head(self, head: model.ChainHead) -> bytes:
        self._chains += 1
        digest = None if head.hash is None else head.hash.hex()
        return self._line("head", chain=str(head.chain_id), seq=head.seq, hash=digest)

    def key(self, key: model.SigningKey) -> bytes:
        times = {"created_at": iso(key.created_at), "retired_at": key.retired_at and iso(key.retired_at)}
        return self._line("key", id=str(key.id), public_key=key.public_key, fingerprint=key.fingerprint, **times)

    def root(self, root: KeptRoot) -> bytes:
        body, digest = root.body.decode(errors="replace"), root.hash.hex()
        signature = root.signature.hex()
        return self._line("root", seq=root.seq, body=body, hash=digest, key=str(root.key_id), signature=signature)

    def trailer(self) -> bytes:
        return self._line("trailer", chains=self._chains, entries=self._entries, sha256=self._digest.hexdigest())

    def _line(self, kind: str, **fields: Any) -> bytes:
        line = orjson.dumps({"type": kind, **fields}, option=orjson.OPT_APPEND_NEWLINE)
        self._digest.update(line)
        return line


def _text(id: UUID | None) -> str | None:
    return None if id is None else str(id)


FIELDS = {
    "header": "type format version org session exported_at rule",
    "entry": "type chain session seq format action job at_us created_at body body_hash hash",
    "rooted": "type chain root seq hash",
    "head": "type chain seq hash",
    "key": "type id public_key fingerprint created_at retired_at",
    "root": "type seq body hash key signature",
    "trailer": "type chains entries sha256",
}
ORDER = {"header": 0, "entry": 1, "rooted": 1, "head": 1, "key": 2, "root": 3, "trailer": 4}
ENTRY_OF_VERSION_1 = "type chain session seq action at_us created_at body body_hash hash"
_MALFORMED = (TypeError, ValueError, KeyError, OverflowError, AttributeError)

Line = dict[str, Any]


def verify_export(lines: Iterable[bytes], copies: Held | None = None, times: Times | None = None) -> model.Verification:
    """Raises ``InvalidInput`` where this is no export, or not all of one. ``copies``: copies of roots to compare with, but those
    that by ``times`` are newer than the export."""
    reader = _Reader(copies or {}, times or {})
    for line in lines:
        reader.take(line)
    return reader.result()


class _Reader:
    def __init__(self, copies: Held, times: Times) -> None:
        self._held, self._times = copies, times
        self._newer = self._number = self._named = 0
        self._digest = hashlib.sha256()
        self._place = -1
        self._version = VERSION
        self._org: UUID | None = None
        self._session: str | None = None
        self._keys: dict[UUID, bytes] = {}
        self._last: UUID | None = None
        self._trail = TrailVerifier(UUID(int=0))

    def take(self, line: bytes) -> None:
        self._number += 1
        content = self._read(line)
        kind = content["type"]
        place = ORDER[kind]
        if place < self._place or self._place == ORDER["trailer"] or (place == 0) != (self._number == 1):
            raise _no_export(f"line {self._number} is not where it belongs")
        self._place = place
        if kind not in ("entry", "rooted", "head"):
            self._require_head()
        try:
            getattr(self, f"_{kind}")(content)
        except _MALFORMED:
            raise _no_export(f"line {self._number} is malformed") from None
        if kind != "trailer":
            self._digest.update(line)

    def result(self) -> model.Verification:
        if self._place != ORDER["trailer"]:
            raise _no_export("it was cut off: its trailer is missing")
        return self._trail.result(newer_copies=self._newer)

    def _read(self, line: bytes) -> Line:
        """One meaning, one spelling."""
        try:
            content: Line = orjson.loads(line)
            again = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
            if again == line and " ".join(content) == self._fields(content["type"]):
                return content
        except _MALFORMED:
            pass
        raise _no_export(f"line {self._number} is not a line of an export")

    def _fields(self, kind: str) -> str:
        return ENTRY_OF_VERSION_1 if kind == "entry" and self._version == 1 else FIELDS[kind]

    def _header(self, line: Line) -> None:
        if line["format"] != FORMAT or line["version"] not in (1, VERSION):
            raise _no_export(f"this release knows versions 1 and {VERSION} of {FORMAT}")
        self._version = line["version"]
        self._org, self._session = UUID(line["org"]["id"]), line["session"]
        # An export of one session has no roots.
        org_copies = self._held.get(self._org, {}) if self._session is None else {}
        at = line["exported_at"]
        hashes = {seq: digest for seq, digest in org_copies.items() if self._times.get(digest, "") <= at}
        self._newer = len(org_copies) - len(hashes)
        if self._held and not hashes:
            raise InvalidInput(
                "The copies of roots say nothing about this export.",
                code="no_root_held",
                hint="Give an export of the whole trail, and copies of the roots of its org.",
            )
        self._trail = TrailVerifier(self._org, hashes)

    def _entry(self, line: Line) -> None:
        chain = self._chain_of(line)
        try:
            entry = _entry_of(line)
        except _MALFORMED:
            self._trail.entries += 1
            self._fault(chain, chain.seq + 1, "it is malformed")
            return
        if iso(entry.created_at) != line["created_at"]:
            self._fault(chain, entry.seq, "its two times differ")
        elif entry.chain_id != (entry.session_id or self._org):
            self._fault(chain, entry.seq, "it is of another chain")
        self._trail.take(entry)

    def _rooted(self, line: Line) -> None:
        chain_id, root_seq = self._chain_of(line).chain_id, _number(line["root"])
        seq, digest = _number(line["seq"]), _hex(line["hash"], 32)
        self._trail.take(model.RootedHead(root_seq=root_seq, chain_id=chain_id, seq=seq, hash=digest))

    def _head(self, line: Line) -> None:
        chain_id = self._chain_of(line).chain_id
        self._named += str(chain_id) == (self._session or str(self._org))
        seq, digest = (None, None) if line["seq"] is None else (_number(line["seq"]), _hex(line["hash"], 32))
        self._trail.take(model.ChainHead(chain_id=chain_id, seq=seq, hash=digest))

    def _key(self, line: Line) -> None:
        public_key = model.from_base64(line["public_key"], model.KEY_BYTES)
        if public_key is None or model.fingerprint(public_key) != line["fingerprint"]:
            raise ValueError
        self._keys[UUID(line["id"])] = public_key

    def _root(self, line: Line) -> None:
        root = KeptRoot(
            seq=_number(line["seq"]),
            body=line["body"].encode(),
            hash=_hex(line["hash"], 32),
            key_id=UUID(line["key"]),
            signature=_hex(line["signature"], 64),
        )
        self._trail.follow_root(root, self._keys)

    def _trailer(self, line: Line) -> None:
        totals = (self._trail.chains, self._trail.entries, self._digest.hexdigest())
        if (line["chains"], line["entries"], line["sha256"]) != totals:
            raise _no_export("its trailer does not fit what stands before it")
        if self._named != 1 or (self._session is not None and self._trail.chains != 1):
            raise _no_export("it does not hold the chains that its header names")

    def _chain_of(self, line: Line) -> model.ChainVerifier:
        """The chain that a line belongs to, which goes on or begins here."""
        id = UUID(line["chain"])
        if str(id) != line["chain"]:
            raise ValueError
        if self._trail.chain is not None and self._trail.chain.chain_id != id:
            self._require_head()
        chain = self._trail.chain
        if chain is None:
            chain = self._trail.chain = model.ChainVerifier(id)
            if self._last is not None and id <= self._last:
                self._fault(chain, 1, "it stands in the wrong place")
            self._last = id
        return chain

    def _require_head(self) -> None:
        """The chain that goes on ends here, and its head should have come."""
        if self._trail.chain is not None:
            self._fault(self._trail.chain, 0, "its head is not in the export")
        self._trail.leave_chain()

    def _fault(self, chain: model.ChainVerifier, seq: int, reason: str) -> None:
        self._trail.fault(model.Fault(chain_id=chain.chain_id, seq=seq, reason=reason))


def _entry_of(line: Line) -> model.AuditEntry:
    session = line["session"]
    return model.AuditEntry(
        chain_id=UUID(line["chain"]),
        session_id=None if session is None else UUID(session),
        seq=_number(line["seq"]),
        # Version 1 of an export holds entries of format 1 alone, and does not say so.
        format=_number(line.get("format", 1)),
        action=line["action"],
        job_id=None if line.get("job") is None else UUID(line["job"]),
        body=None if line["body"] is None else line["body"].encode(),
        body_hash=_hex(line["body_hash"], 32),
        hash=_hex(line["hash"], 32),
        created_at=model.moment(_number(line["at_us"])),
    )


def _number(value: Any) -> int:
    """An integer that the chain can count to; true is none."""
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError
    return value


def _hex(text: str, length: int) -> bytes:
    value = bytes.fromhex(text)
    if len(value) != length or value.hex() != text:
        raise ValueError
    return value


def _no_export(why: str) -> InvalidInput:
    return InvalidInput(
        f"This is not a whole export: {why}.", code="not_an_export", hint="Make one with `cortex audit export FILE`."
    )
