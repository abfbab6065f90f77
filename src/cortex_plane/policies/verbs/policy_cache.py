"""Compiled policies, kept by org and version, so that a verdict asks the database nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.db.database import Database, Transaction, ids
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.shares import LruCache, SharedLoads
from cortex_plane.policies import store as policies_store
from cortex_plane.policies.model.policies import PolicyRow, PolicySet
from cortex_plane.policies.model.versions import policy_set
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.tenancy.model.access import Forged, MacKind
from cortex_plane.tenancy.verbs.frame import report_forgery, require_found

Key = tuple[UUID, str]


class PolicyCache:
    """The policies of the orgs that were used last, up to a number of versions and of rows."""

    def __init__(self, *, max_entries: int = 1000, max_rows: int = 200_000) -> None:
        self._versions = LruCache[Key, CompiledPolicies](max_size=max_rows, max_entries=max_entries)
        self._in_force: dict[UUID, str] = {}
        """The version of each org that was in force last. Any other is checked again before it counts."""
        self._loads = SharedLoads[Key, CompiledPolicies]()

    def known(self, org_id: UUID, version: str) -> CompiledPolicies | None:
        """What is here already, and in force."""
        return self._versions.get((org_id, version)) if self._in_force.get(org_id) == version else None

    async def at(self, db: Database, org_id: UUID, version: str) -> CompiledPolicies:
        """The rows of one version, as `policies_version` names it. Several callers at once load them once. Raises
        ``Conflict`` (`policy_corrupt`) where they are not those that were applied, or others are in force."""
        policies = self.known(org_id, version)
        if policies is not None:
            return policies
        key = (org_id, version)
        # The platform's rows are those of now: where they changed meanwhile, the version that comes back is another one.
        return await self._loads.run(
            key,
            lambda: self._load(db, key),
            lambda policies: self._versions.put((org_id, policies.version), policies, policies.rows),
        )

    async def current(self, db: Database, org_id: UUID) -> tuple[str, CompiledPolicies]:
        async with db.transaction(org_id) as tx:
            version = await _version(tx)
        return version, await self.at(db, org_id, version)

    async def _load(self, db: Database, key: Key) -> CompiledPolicies:
        org_id, version = key
        policies = self._versions.get(key)
        try:
            async with db.transaction(org_id, snapshot=True) as tx:
                in_force = await require_in_force(tx, version)
                rows = await load(tx, version) if policies is None else None
        except Forged as forgery:
            await report_forgery(db, forgery)
            raise policy_corrupt(forgery) from None
        if rows is not None:
            policies = await compiled(rows)
        if policies is None:
            raise AssertionError("it is kept, or was loaded")
        if in_force:
            self._in_force[org_id] = policies.version
        return policies


async def require_in_force(tx: Transaction, version: str) -> bool:
    """Whether this version is in force now, and not only a moment ago. Raises ``Forged`` where the plane put neither in force."""
    org_version = int(version.partition(".")[0])
    now = require_found(await policies_store.policies_in_force(tx), "org")
    if org_version > now:
        raise Forged(MacKind.POLICY_IN_FORCE, tx.org, str(org_version))
    return org_version == now


def policy_corrupt(forgery: Forged) -> Conflict:
    return Conflict(
        f"The policies of the org were not put in force by the plane: the MAC of version {forgery.id} is false.",
        code="policy_corrupt",
        hint="Nothing is allowed meanwhile. Look at `cortex audit verify`, then apply your policies again: `cortex policy apply`.",
    )


async def load(tx: Transaction, version: str) -> PolicySet:
    """The org's rows of this version, with the platform's and the stewards' confirmations of now. Raises ``Forged`` where they
    are not those that were applied."""
    org_version = int(version.partition(".")[0])
    platform_version = (await _version(tx)).partition(".")[2]
    rows = await policies_store.require_true_rows(tx, org_version) if org_version else []
    confirmations = await agents_store.active_confirmations(tx)
    return policy_set(f"{org_version}.{platform_version}", rows, await policies_store.platform_rows(tx), confirmations)


async def compiled(policies: PolicySet) -> CompiledPolicies:
    """In a thread: a condition takes milliseconds to compile, and there may be thousands."""
    return await asyncio.to_thread(CompiledPolicies, policies)


async def _version(tx: Transaction) -> str:
    return require_found(await policies_store.current_version(tx), "org")


book = PolicyCache()
"""What this process has compiled."""


async def current_policies(tx: Transaction) -> CompiledPolicies:
    """Those that are in force in this transaction, which may not wait for a load of the cache."""
    version = await _version(tx)
    if (policies := book.known(tx.org, version)) is not None:
        return policies
    try:
        await require_in_force(tx, version)
        return await compiled(await load(tx, version))
    except Forged as forgery:
        raise policy_corrupt(forgery) from None


def request_rows(rows: Sequence[dict[str, Any]] | None) -> list[PolicyRow]:
    """The rows that a job brought along, as they are kept with it."""
    return [parse(PolicyRow, row) for row in rows or ()]


async def require_members(tx: Transaction, rows: Sequence[PolicyRow]) -> None:
    """Whom a request names must be there: better said when it is made than when it asks."""
    member_ids = {id for row in rows for id in row.named or ()}
    if not member_ids:
        return
    if unknown := member_ids - {*ids(await tx.rows(policies_store.queries.list_deciding_members, list(member_ids)))}:
        raise InvalidInput(
            f"There is no active member with the id {min(unknown)}, who is named as an approver.",
            hint="Name members by the ids that `cortex member list` shows; guests decide nothing.",
        )
