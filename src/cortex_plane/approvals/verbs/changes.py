"""Putting a change of rules in force that somebody approves: in the transaction of their decision."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates.files.atlases import Read, read
from cortex_plane.gates.verbs.atlases import publish_proposed
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.shares import reading
from cortex_plane.policies.files import Draft
from cortex_plane.policies.model.policies import ChangeAction, StoredChange
from cortex_plane.policies.verbs.policies import apply_proposed, read_file
from cortex_plane.tenancy.model.access import Actor, Fact
from cortex_plane.tenancy.verbs.frame import require_found


@dataclass(frozen=True, slots=True)
class ChangeFile:
    """The file of a change, read anew by this release."""

    stored: StoredChange
    draft: Read | Draft


async def read_change(db: Database, actor: Actor, approval_id: UUID, action: str) -> ChangeFile:
    """Before any lock is taken: a large file takes seconds to read."""
    async with db.transaction(actor.org_id) as tx:
        change = require_found(await approvals_store.get_change(tx, approval_id), "approval")
    if action == ChangeAction.PUBLISH_ATLAS:
        return ChangeFile(change, await reading.run(read, change.source, name=change.name))
    return ChangeFile(change, await read_file(change.source))


async def put_in_force(tx: Transaction, actor: Actor, approval: Approval, file: ChangeFile) -> list[Fact]:
    """Exactly what the request shows, or nothing. Returns what the trail says of it."""
    if approval.arguments["digest"] != file.stored.digest or _digest(file) != file.stored.digest:
        raise Conflict(
            "What is kept of this change is not what was proposed: its digest is another one.",
            code="change_corrupt",
            hint="Deny it, and let it be proposed again. Look at `cortex audit verify`.",
        )
    if isinstance(file.draft, Read):
        return await publish_proposed(tx, actor, approval.id, file.stored, file.draft)
    return await apply_proposed(tx, actor, approval, file.stored, file.draft)


def _digest(file: ChangeFile) -> str:
    return file.draft.atlas.digest if isinstance(file.draft, Read) else sha256(file.stored.source.encode()).hexdigest()
