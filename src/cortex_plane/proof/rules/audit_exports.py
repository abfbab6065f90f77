"""An audit trail as a file: one JSON object a line, so that whoever has the file needs no plane to verify it.

A header, then chain after chain each entry by its number and the chain's head, then the keys and the signed roots, then a
trailer with the SHA-256 of every byte before it: a file that was cut off lacks it. Where a root covers a chain, a line right
after the entry says so. docs/audit.md describes the format for those who read it; `export_reading` reads it again.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.proof.model.audit import AuditEntry, ChainHead, RootedHead, iso, microseconds
from cortex_plane.proof.model.signing import SigningKey
from cortex_plane.proof.rules.roots import KeptRoot

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
        self._chains = 0
        self._entries = 0

    def header(self, org_id: UUID, slug: str, session_id: UUID | None, at: datetime) -> bytes:
        return self._line(
            {
                "type": "header",
                "format": FORMAT,
                "version": VERSION,
                "org": {"id": str(org_id), "slug": slug},
                "session": _text(session_id),
                "exported_at": iso(at),
                "rule": RULE,
            }
        )

    def item(self, item: AuditEntry | RootedHead | ChainHead) -> bytes:
        if isinstance(item, AuditEntry):
            return self.entry(item)
        return self.rooted(item) if isinstance(item, RootedHead) else self.head(item)

    def entry(self, entry: AuditEntry) -> bytes:
        self._entries += 1
        return self._line(
            {
                "type": "entry",
                "chain": str(entry.chain_id),
                "session": _text(entry.session_id),
                "seq": entry.seq,
                "format": entry.format,
                "action": entry.action,
                "job": _text(entry.job_id),
                "at_us": microseconds(entry.created_at),
                "created_at": iso(entry.created_at),
                # Bytes that are no text were never written by the plane: what stands for them breaks the body's hash.
                "body": None if entry.body is None else entry.body.decode(errors="replace"),
                "body_hash": entry.body_hash.hex(),
                "hash": entry.hash.hex(),
            }
        )

    def rooted(self, head: RootedHead) -> bytes:
        return self._line(
            {
                "type": "rooted",
                "chain": str(head.chain_id),
                "root": head.root_seq,
                "seq": head.seq,
                "hash": head.hash.hex(),
            }
        )

    def head(self, head: ChainHead) -> bytes:
        self._chains += 1
        digest = None if head.hash is None else head.hash.hex()
        return self._line({"type": "head", "chain": str(head.chain_id), "seq": head.seq, "hash": digest})

    def key(self, key: SigningKey) -> bytes:
        return self._line(
            {
                "type": "key",
                "id": str(key.id),
                "public_key": key.public_key,
                "fingerprint": key.fingerprint,
                "created_at": iso(key.created_at),
                "retired_at": None if key.retired_at is None else iso(key.retired_at),
            }
        )

    def root(self, root: KeptRoot) -> bytes:
        return self._line(
            {
                "type": "root",
                "seq": root.seq,
                "body": root.body.decode(errors="replace"),
                "hash": root.hash.hex(),
                "key": str(root.key_id),
                "signature": root.signature.hex(),
            }
        )

    def trailer(self) -> bytes:
        digest = self._digest.hexdigest()
        return self._line(
            {"type": "trailer", "chains": self._chains, "entries": self._entries, "sha256": digest}
        )

    def _line(self, value: dict[str, Any]) -> bytes:
        line = orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE)
        self._digest.update(line)
        return line


def _text(id: UUID | None) -> str | None:
    return None if id is None else str(id)
