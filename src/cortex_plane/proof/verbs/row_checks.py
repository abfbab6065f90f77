"""Rows that give somebody power, compared with their MACs and with what the trail says of them.

A MAC proves that the plane wrote a row. It does not prove that the row is still meant to be there: one that was over and was put back
whole has a true MAC. What ended stands on the trail, so it is looked for there.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from cortex_plane.db.database import Row, Transaction
from cortex_plane.policies.store import policies
from cortex_plane.proof.model.audit import AuditEntry, RowFault, body_of
from cortex_plane.tenancy.rules.credential_keys import Forged, Kind
from cortex_plane.tenancy.store import credential_keys

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
    async for fault in _faults(tx, trail):
        faults.append(fault)
        if len(faults) >= MOST_FAULTS:
            break
    return faults


async def _faults(tx: Transaction, trail: Trail) -> AsyncIterator[RowFault]:
    for kind, rows in credential_keys.PEOPLE.items():
        async for row in rows(tx, False, None):
            id = str(row["id"])
            reason = _reason(tx, kind, row, over=id in trail.ended) if row["live"] else None
            if reason is not None:
                yield RowFault(subject=f"{kind} {id}", reason=reason)
    async for row in credential_keys.atlas_versions(tx, False, None):
        id = f"{row['atlas_id']} {row['version']}"
        reason = _reason(tx, Kind.ATLAS_VERSION, row, over=id in trail.retired and not row["retired"])
        if reason is not None:
            yield RowFault(subject=f"{Kind.ATLAS_VERSION} {id}", reason=reason)
    policy = await _policy_fault(tx)
    if policy is not None:
        yield policy


def _reason(tx: Transaction, kind: Kind, row: Row, *, over: bool) -> str | None:
    if not tx.credential_key.is_true(kind, row, row["mac"]):
        return "its MAC is false: the plane did not write it as it stands"
    return "it ended on the trail, and is there again" if over else None


async def _policy_fault(tx: Transaction) -> RowFault | None:
    try:
        version = await policies.in_force(tx)
        if version:
            await policies.true_rows(tx, version)
    except Forged as forged:
        reason = "its MAC is false: the plane did not put it in force as it stands"
        return RowFault(subject=f"{forged.kind} {forged.id}", reason=reason)
    return None
