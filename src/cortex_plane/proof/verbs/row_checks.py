"""What rows say against the trail: policies, atlases, decisions, credentials."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Final
from uuid import UUID

import orjson

from cortex_plane.db.database import Row, Transaction
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.rules.recovery import CheckpointCorrupt, check_seal
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.policies import store as policies_store
from cortex_plane.policies.model.versions import RowsDigest
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import AuditEntry, RowFault, body_of, is_signed
from cortex_plane.proof.rules.receipts import said_by
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.rules import Forged, MacKind

MOST_FAULTS = 100

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

    def take(self, entry: AuditEntry) -> None:
        action = entry.action
        if action not in _ENDS and action != "atlas_retired":
            return
        data = (body_of(entry) or {}).get("data")
        if not isinstance(data, dict):
            return
        if action == "atlas_retired":
            self.retired.add(f"{data.get('atlas_id')} {data.get('version')}")
        for name in _ENDS.get(action, ()):
            ids = data.get(name)
            self.ended.update(id for id in (ids if isinstance(ids, list) else [ids]) if isinstance(id, str))


async def row_faults(tx: Transaction, trail: Trail) -> list[RowFault]:
    """The first of them."""
    faults: list[RowFault] = []
    async for fault in _row_faults(tx, trail):
        faults.append(fault)
        if len(faults) >= MOST_FAULTS:
            break
    return faults


async def _row_faults(tx: Transaction, trail: Trail) -> AsyncIterator[RowFault]:
    for kind in tenancy_store.PEOPLE:
        async for row in tenancy_store.stream_rows(tx, kind):
            id = str(row["id"])
            reason = _row_reason(tx, kind, row, over=id in trail.ended) if row["live"] else None
            if reason is not None:
                yield RowFault(subject=f"{kind} {id}", reason=reason)
    async for row in tenancy_store.stream_rows(tx, MacKind.ATLAS_VERSION):
        id = f"{row['atlas_id']} {row['version']}"
        reason = _row_reason(tx, MacKind.ATLAS_VERSION, row, over=id in trail.retired and not row["retired"])
        if reason is not None:
            yield RowFault(subject=f"{MacKind.ATLAS_VERSION} {id}", reason=reason)
    policy = await _policy_fault(tx)
    if policy is not None:
        yield policy


def _row_reason(tx: Transaction, kind: MacKind, row: Row, *, over: bool) -> str | None:
    if not tx.credential_key.is_true(kind, row, row["mac"]):
        return "its MAC is false: the plane did not write it as it stands"
    return "it ended on the trail, and is there again" if over else None


async def _policy_fault(tx: Transaction) -> RowFault | None:
    try:
        version = await policies_store.policies_in_force(tx)
        if version:
            await policies_store.require_true_rows(tx, version)
    except Forged as forgery:
        reason = "its MAC is false: the plane did not put it in force as it stands"
        return RowFault(subject=f"{forgery.kind} {forgery.id}", reason=reason)
    return None


_IN_SQL = (
    proof_store.policy_faults,
    proof_store.atlas_faults,
    proof_store.decision_faults,
    proof_store.vote_faults,
    proof_store.message_faults,
    proof_store.reply_faults,
)
AT_MOST = 100
"""So many of each kind are named: whoever finds a hundred knows enough."""


async def contradictions(
    tx: Transaction, keys: Mapping[UUID, bytes], strangers: Collection[UUID], vault: Vault | None
) -> list[RowFault]:
    """Every row that is not what the trail says of it, in the snapshot of ``tx``; ``keys`` are the org's public ones."""
    faults: list[RowFault] = []
    for compare in _IN_SQL:
        faults += await compare(tx, AT_MOST)
    for kind in (
        _policy_contradictions(tx),
        _receipt_contradictions(tx, keys, strangers),
        _result_contradictions(tx),
        _checkpoint_contradictions(tx, vault),
    ):
        faults += await _first_contradictions(kind)
    return faults


async def _first_contradictions(faults: AsyncIterator[RowFault]) -> list[RowFault]:
    first: list[RowFault] = []
    async for fault in faults:
        first.append(fault)
        if len(first) == AT_MOST:
            break
    return first


async def _policy_contradictions(tx: Transaction) -> AsyncIterator[RowFault]:
    """The rows of each version, with the teams and people that the names in the file stood for when it was applied."""
    trail_digests = await proof_store.policy_digests(tx)
    digests = {version: RowsDigest() for version in trail_digests}
    unreadable: set[str] = set()
    async for version, row in proof_store.policy_rows(tx):
        if row is None:
            unreadable.add(version)
        elif version in digests:
            digests[version].add(row)
    for version, digest in digests.items():
        if version in unreadable or digest.value() != trail_digests[version]:
            yield RowFault(subject=f"policy version {version}", reason="its rows are not those that the trail applied")


async def _receipt_contradictions(
    tx: Transaction, keys: Mapping[UUID, bytes], strangers: Collection[UUID]
) -> AsyncIterator[RowFault]:
    async for row in proof_store.stream_receipts(tx):
        reason = _why_not(tx.org, row, keys, strangers)
        if reason is not None:
            yield RowFault(subject=f"receipt of approval {row['approval_id']}", reason=reason)


def _why_not(org_id: UUID, row: Row, keys: Mapping[UUID, bytes], strangers: Collection[UUID]) -> str | None:
    key = keys.get(row["key_id"])
    if key is None or row["key_id"] in strangers or not is_signed(key, row["signature"], row["body"]):
        return "it is not signed with a key of the plane"
    says = said_by(row["body"])
    if says is None:
        return "it cannot be read"
    if (says["org"], says["approval"]) != (str(org_id), str(row["approval_id"])):
        return "it is the receipt of another approval"
    if says["decision"] != row["status"]:
        return f"it says {says['decision']}, and the approval is {row['status']}"
    if (says["approval_version"], says["arguments"]["digest"]) != (row["version"], row["input_hash"]):
        return "it says yes or no to another version of the approval"
    return None


async def _result_contradictions(tx: Transaction) -> AsyncIterator[RowFault]:
    async for row in proof_store.stream_results(tx):
        if row["result"] is None:
            reason = f"its result is gone; entry {row['seq']} of chain {row['chain_id']} holds its digest"
        elif _digest(row["result"]) != row["digest"]:
            reason = f"its result is not the one of entry {row['seq']} of chain {row['chain_id']}"
        else:
            continue
        yield RowFault(subject=f"call {row['call']}", reason=reason)


def _digest(result: str) -> str | None:
    """None where the plane cannot have written it."""
    try:
        return hashlib.sha256(canonical(orjson.loads(result))).hexdigest()
    except (ValueError, InvalidInput):
        return None


async def _checkpoint_contradictions(tx: Transaction, vault: Vault | None) -> AsyncIterator[RowFault]:
    key = None if vault is None else vault.checkpoint_key(tx.org)
    async for row in proof_store.stream_checkpoints(tx):
        try:
            check_seal(row["checkpoint"], row["mac"], row["id"], key)
        except CheckpointCorrupt as error:
            yield RowFault(subject=f"checkpoint of job {row['id']}", reason=error.message)
