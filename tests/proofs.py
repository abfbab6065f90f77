"""Keys, receipts and signed trails to test with, and to tamper with."""

from __future__ import annotations

import hashlib
import io
import runpy
from collections.abc import Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cortex_plane.approvals.model.approvals import ApprovalKind, Channel, Choice
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import ERASED as ERASES
from cortex_plane.proof.model import (
    GENESIS,
    AuditEntry,
    ChainHead,
    RootedHead,
    SigningKey,
    Verification,
    chain_hash,
    fingerprint,
    to_base64,
)
from cortex_plane.proof.rules.exports import ExportWriter, verify_export
from cortex_plane.proof.rules.receipts import CastVote, CheckpointMark, Decided, Hop
from cortex_plane.proof.rules.roots import GrownHead, KeptRoot, root_body, root_hash
from cortex_plane.proof.verbs import receipts
from tests.exports import SCRIPT
from tests.people import World

ORG = UUID(int=5)
SESSIONS = [UUID(int=7), UUID(int=8), UUID(int=9)]
KEY_ID = UUID(int=100)
START = datetime(2026, 1, 1, 12, tzinfo=UTC)


class Hand:
    """Somebody who can sign."""

    def __init__(self, seed: int = 1, id: UUID = KEY_ID) -> None:
        self.private = Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)
        self.public = self.private.public_key().public_bytes_raw()
        self.id = id

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.public)

    @property
    def key(self) -> SigningKey:
        return SigningKey(
            id=self.id, fingerprint=self.fingerprint, public_key=to_base64(self.public), created_at=START,
            retired_at=None,
        )  # fmt: skip

    def root(
        self, seq: int, previous: bytes, heads: Sequence[GrownHead], chains: int, org: UUID = ORG
    ) -> KeptRoot:
        body = root_body(org, seq, previous, START + timedelta(hours=seq), heads, chains)
        return KeptRoot(
            seq=seq,
            body=body,
            hash=root_hash(previous, body),
            key_id=self.id,
            signature=self.private.sign(body),
        )


ADA, MALLORY = Hand(1), Hand(2)

# Where each chain stood when each of three roots was made.
COVERED: Mapping[int, Mapping[UUID, int]] = {
    1: {ORG: 2, SESSIONS[0]: 1},
    2: {SESSIONS[0]: 3, SESSIONS[1]: 2, SESSIONS[2]: 4},
    3: {ORG: 4},
}
ENTRIES = 4
JOB = UUID(int=31)
ERASED = 3


def rooted_export(hand: Hand = ADA, covered: Mapping[int, Mapping[UUID, int]] = COVERED) -> bytes:
    """Four chains of four entries each, the third of each erased under the fourth, and three roots over them."""
    writer = ExportWriter()
    chains = {chain: _entries(chain) for chain in (ORG, *SESSIONS)}
    export = writer.header(ORG, "acme", None, START)
    for chain, entries in chains.items():
        for entry in entries:
            export += writer.entry(entry)
            for root, heads in covered.items():
                if heads.get(chain) == entry.seq:
                    export += writer.rooted(
                        RootedHead(root_seq=root, chain_id=chain, seq=entry.seq, hash=entry.hash)
                    )
        export += writer.head(ChainHead(chain_id=chain, seq=ENTRIES, hash=entries[-1].hash))
    export += writer.key(hand.key)
    for signed in signed_roots(hand, covered):
        export += writer.root(signed)
    return export + writer.trailer()


def signed_roots(hand: Hand, covered: Mapping[int, Mapping[UUID, int]] = COVERED) -> Iterable[KeptRoot]:
    previous, known = GENESIS, set[UUID]()
    for seq, heads in covered.items():
        grown = [
            GrownHead(chain_id=id, seq=at, hash=_entries(id)[at - 1].hash, is_new=id not in known)
            for id, at in sorted(heads.items())
        ]
        known |= set(heads)
        root = hand.root(seq, previous, grown, len(known))
        previous = root.hash
        yield root


def _entries(chain: UUID) -> list[AuditEntry]:
    made: list[AuditEntry] = []
    previous = GENESIS
    for seq in range(1, ENTRIES + 1):
        action = ERASES if seq == ENTRIES else f"act_{seq}"
        entries = [{"seq": ERASED, "action": f"act_{ERASED}"}] if seq == ENTRIES else []
        body = canonical({"action": action, "data": {"entries": entries, "said": "é 日本"}})
        at = START + timedelta(microseconds=seq)
        body_hash = hashlib.sha256(body).digest()
        job = JOB if seq == 2 else None
        previous = chain_hash(previous, seq, at, action, job, body_hash)
        made.append(
            AuditEntry(
                chain_id=chain, session_id=None if chain == ORG else chain, seq=seq, format=2, action=action,
                job_id=job, body=None if seq == ERASED else body, body_hash=body_hash, hash=previous, created_at=at,
            )
        )  # fmt: skip
    return made


_script = runpy.run_path(str(SCRIPT))


def by_the_script(export: bytes, *keys: str) -> tuple[int, list[str]]:
    """Exit code and lines of the stand-alone script, in this process; 2 where it is no export."""
    said = io.StringIO()
    try:
        with redirect_stdout(said):
            whole = _script["verify"](io.BytesIO(export), None, keys)
    except (_script["NotAnExport"], *_script["MALFORMED"]):
        return 2, []
    return (0 if whole else 1), said.getvalue().splitlines()


def by_the_plane(export: bytes) -> Verification | None:
    """None where it is no export."""
    try:
        return verify_export(export.splitlines(keepends=True))
    except InvalidInput as error:
        if error.code != "not_an_export" or not error.hint:
            raise
        return None


def decided(**changes: Any) -> Decided:
    """An approval that was decided, with everything that a receipt can say."""
    given: dict[str, Any] = {
        "id": UUID(int=21), "kind": ApprovalKind.CALL, "version": 3, "session_id": SESSIONS[0], "job_id": UUID(int=31),
        "agent_id": UUID(int=41), "tool_name": "ship", "tool_digest": "a" * 64, "target": "ship",
        "arguments": {"version": "2.0"}, "input_hash": "b" * 64, "original_hash": "c" * 64, "invocations": 2,
        "risk": "high", "action_summary": "shipper wants to call ship", "action": "Ship it", "details": {"n": 1},
        "agent_says": "I ship.", "asked_for": "go", "question": None, "rule": "org:ask", "policy_version": "4.1",
        "policy_digest": "d" * 64, "required_clearance": 2, "self_approval": False, "requested_at": START,
        "decided_at": START + timedelta(minutes=5), "expires_at": START + timedelta(hours=1),
        "votes": [CastVote(member_id=UUID(int=51), member="Ada", decision=Choice.APPROVED, channel=Channel.API, at=START)],
        "delegations": [
            Hop(from_member_id=UUID(int=52), from_member="Bo", to_member_id=UUID(int=51), to_member="Ada",
                automatic=True, at=START)
        ],
        "checkpoints": [CheckpointMark(job=UUID(int=31), step_index=0, crc32=7, mac="e" * 64)],
        "now": START + timedelta(minutes=5), "active_key": KEY_ID,
    }  # fmt: skip
    return Decided(**given | changes)


async def receipted(world: World, approval_id: UUID) -> UUID:
    """With a receipt that is only a row: nobody decided anything."""
    async with world.db.transaction(world.org_id) as tx:
        key = await receipts.get_signer(world.db, tx)
        await proof_store.insert_receipt(tx, approval_id, key.id, b"{}", key.sign(b"{}"), START)
    return approval_id
