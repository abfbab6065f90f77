"""Compiled policies, kept by org and version, so that a verdict asks the database nothing."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from cortex_plane.domain.errors import InvalidInput, NotFound
from cortex_plane.domain.policies import PolicyRow, PolicySet
from cortex_plane.domain.policy_engine import CompiledPolicies
from cortex_plane.domain.policy_files import policy_set
from cortex_plane.domain.values import parse
from cortex_plane.storage import policies, tool_confirmations
from cortex_plane.storage.database import Database, Transaction

Key = tuple[UUID, str]


class PolicyBook:
    """The policies of the orgs that were asked for last, up to so many versions and about so many bytes of memory."""

    def __init__(self, *, max_entries: int = 1000, max_bytes: int = 512 * 1024 * 1024) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: OrderedDict[Key, CompiledPolicies] = OrderedDict()
        self._loading: dict[Key, asyncio.Task[CompiledPolicies]] = {}

    def known(self, org_id: UUID, version: str) -> CompiledPolicies | None:
        """What is here already."""
        found = self._known.get((org_id, version))
        if found is not None:
            self._known.move_to_end((org_id, version))
        return found

    async def at(self, db: Database, org_id: UUID, version: str) -> CompiledPolicies:
        """The rows of one version, as `policies_version` names it. Several who ask at once load them once."""
        found = self.known(org_id, version)
        if found is not None:
            return found
        key = (org_id, version)
        task = self._loading.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = self._loading[key] = asyncio.create_task(self._load(db, key))
            task.add_done_callback(lambda done: self._loaded(key, done))
        # Whoever stops waiting does not take it away from the others.
        return await asyncio.shield(task)

    async def current(self, db: Database, org_id: UUID) -> tuple[str, CompiledPolicies]:
        async with db.transaction(org_id) as tx:
            version = await _version(tx)
        return version, await self.at(db, org_id, version)

    async def _load(self, db: Database, key: Key) -> CompiledPolicies:
        async with db.transaction(key[0], snapshot=True) as tx:
            found = await load(tx, key[1])
        return await compiled(found)

    def _loaded(self, key: Key, done: asyncio.Task[CompiledPolicies]) -> None:
        if self._loading.get(key) is done:
            del self._loading[key]
        if done.cancelled() or done.exception() is not None:
            return
        made = done.result()
        # The platform's rows are those of now: where they changed meanwhile, the name that was asked for is gone.
        self._keep((key[0], made.version), made)

    def _keep(self, key: Key, made: CompiledPolicies) -> None:
        if key in self._known:
            return
        self._known[key] = made
        self._bytes += made.weight
        while len(self._known) > 1 and (
            len(self._known) > self._max_entries or self._bytes > self._max_bytes
        ):
            _, dropped = self._known.popitem(last=False)
            self._bytes -= dropped.weight


async def load(tx: Transaction, version: str) -> PolicySet:
    """The org's rows of this version, with the platform's and the stewards' confirmations of now."""
    org_version = int(version.partition(".")[0])
    platform_version = (await _version(tx)).partition(".")[2]
    rows = await policies.rows(tx, org_version) if org_version else []
    confirmed = await tool_confirmations.holding(tx)
    return policy_set(f"{org_version}.{platform_version}", rows, await policies.platform_rows(tx), confirmed)


async def compiled(found: PolicySet) -> CompiledPolicies:
    """In a thread: a condition takes milliseconds to compile, and there may be thousands."""
    return await asyncio.to_thread(CompiledPolicies, found)


async def _version(tx: Transaction) -> str:
    version = await policies.version(tx)
    if version is None:
        raise NotFound("There is no such org.", code="org_not_found")
    return version


book = PolicyBook()
"""What this process has compiled."""


def request_rows(stored: Sequence[dict[str, Any]] | None) -> list[PolicyRow]:
    """The rows that a job brought along, as they are kept with it."""
    return [parse(PolicyRow, row) for row in stored or ()]


async def require_members(tx: Transaction, rows: Sequence[PolicyRow]) -> None:
    """Whom a request names must be there: better said when it is made than when it asks."""
    named = {id for row in rows for id in row.named or ()}
    if not named:
        return
    unknown = named - await policies.deciding_members(tx, list(named))
    if unknown:
        raise InvalidInput(
            f"There is no active member with the id {min(unknown)}, who is named as an approver.",
            hint="Name members by the ids that `cortex member list` shows; guests decide nothing.",
        )
