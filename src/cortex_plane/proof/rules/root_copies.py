"""Copies of signed roots outside of the database: one JSON object a line.

Whoever holds the database can take all roots away and let the plane begin again at 1; everything that is left verifies. A copy
that lies elsewhere shows it: the root of its number is missing, or has another hash.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.proof.model.audit import iso
from cortex_plane.proof.model.signing import fingerprint, to_base64
from cortex_plane.proof.rules.roots import FIELDS, root_hash

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
class RootCopy:
    org_id: UUID
    seq: int
    hash: bytes
    body: bytes
    signature: bytes
    key_id: UUID
    public_key: bytes
    created_at: datetime

    def as_line(self) -> bytes:
        copied = {
            "org": str(self.org_id),
            "seq": self.seq,
            "hash": self.hash.hex(),
            "created_at": iso(self.created_at),
            "body": self.body.decode(errors="replace"),
            "signature": to_base64(self.signature),
            "key_id": str(self.key_id),
            "public_key": to_base64(self.public_key),
            "fingerprint": fingerprint(self.public_key),
        }
        return orjson.dumps(copied, option=orjson.OPT_APPEND_NEWLINE)


def read_copy(line: bytes) -> tuple[UUID, RootMark] | None:
    """What a line copies; None where it is no copy of a root."""
    try:
        copied: dict[str, Any] = orjson.loads(line)
        org_id, seq, digest = UUID(copied["org"]), int(copied["seq"]), bytes.fromhex(copied["hash"])
        body = orjson.loads(copied["body"])
        is_its_own = body.keys() == FIELDS and (body["org"], body["seq"]) == (str(org_id), seq)
        if is_its_own and root_hash(bytes.fromhex(body["previous"]), copied["body"].encode()) == digest:
            return org_id, RootMark(seq, digest)
    except (ValueError, TypeError, KeyError, AttributeError):
        pass
    return None


def read_copies(lines: Iterable[bytes]) -> Held:
    """Raises ``InvalidInput`` with the number of the first line that is no copy of a root."""
    held: Held = {}
    for number, line in enumerate(lines, 1):
        copied = read_copy(line)
        if copied is None or copied[1].hash is None:
            raise _no_copy(number, "it is not a copy of a root")
        org_id, root = copied
        if held.setdefault(org_id, {}).setdefault(root.seq, copied[1].hash) != root.hash:
            raise _no_copy(number, f"an earlier line holds another root {root.seq} of this org")
    return held


def read_times(lines: Iterable[bytes]) -> Times:
    """Of lines that `read_copies` has read."""
    return {bytes.fromhex(copied["hash"]): copied["created_at"] for copied in map(orjson.loads, lines)}


def _no_copy(number: int, why: str) -> InvalidInput:
    return InvalidInput(
        f"Line {number} of the roots cannot be used: {why}.",
        code="not_a_root",
        hint="Give the file that the plane wrote (CORTEX_ROOTS_FILE), or a copy of it.",
    )
