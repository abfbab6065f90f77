"""Comparing rows with what the audit trail says of them: policies, atlases, decisions, receipts, votes, messages, results and
checkpoints. A row that somebody changed behind the plane's back leaves its chain whole, and contradicts it."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Collection, Mapping
from uuid import UUID

import orjson

from cortex_plane.db.database import Row, Transaction
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.rules.checkpoint_recovery import CheckpointCorrupt, check_seal
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.policies.model.policy_files import RowsDigest
from cortex_plane.proof.model.audit import RowFault
from cortex_plane.proof.model.signing import is_signed
from cortex_plane.proof.rules.receipts import said_by
from cortex_plane.proof.store import audit_contents

_IN_SQL = (
    audit_contents.policies,
    audit_contents.atlases,
    audit_contents.decisions,
    audit_contents.votes,
    audit_contents.messages,
    audit_contents.replies,
)
AT_MOST = 100
"""So many of each kind are named: whoever finds a hundred knows enough."""


async def contradictions(
    tx: Transaction, keys: Mapping[UUID, bytes], strangers: Collection[UUID], vault: Vault | None
) -> list[RowFault]:
    """Every row that is not what the trail says of it, in the snapshot of ``tx``; ``keys`` are the org's public ones."""
    found: list[RowFault] = []
    for compare in _IN_SQL:
        found += await compare(tx, AT_MOST)
    for kind in (_policies(tx), _receipts(tx, keys, strangers), _results(tx), _checkpoints(tx, vault)):
        found += await _first(kind)
    return found


async def _first(faults: AsyncIterator[RowFault]) -> list[RowFault]:
    found: list[RowFault] = []
    async for fault in faults:
        found.append(fault)
        if len(found) == AT_MOST:
            break
    return found


async def _policies(tx: Transaction) -> AsyncIterator[RowFault]:
    """The rows of each version, with the teams and people that the names in the file stood for when it was applied."""
    expected = await audit_contents.policy_digests(tx)
    digests = {version: RowsDigest() for version in expected}
    unreadable: set[str] = set()
    async for version, row in audit_contents.policy_rows(tx):
        if row is None:
            unreadable.add(version)
        elif version in digests:
            digests[version].add(row)
    for version, digest in digests.items():
        if version in unreadable or digest.value() != expected[version]:
            yield RowFault(
                subject=f"policy version {version}", reason="its rows are not those that the trail applied"
            )


async def _receipts(
    tx: Transaction, keys: Mapping[UUID, bytes], strangers: Collection[UUID]
) -> AsyncIterator[RowFault]:
    async for row in audit_contents.receipts(tx):
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


async def _results(tx: Transaction) -> AsyncIterator[RowFault]:
    async for row in audit_contents.results(tx):
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


async def _checkpoints(tx: Transaction, vault: Vault | None) -> AsyncIterator[RowFault]:
    key = None if vault is None else vault.checkpoint_key(tx.org)
    async for row in audit_contents.checkpoints(tx):
        try:
            check_seal(row["checkpoint"], row["mac"], row["id"], key)
        except CheckpointCorrupt as error:
            yield RowFault(subject=f"checkpoint of job {row['id']}", reason=error.message)
