"""Marks: what the inbox and the card say of requests besides the requests themselves."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.approvals.model.marks import Mark
from cortex_plane.approvals.store import approvals, marks
from cortex_plane.db.database import Database
from cortex_plane.policies.model.policies import Approvers
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb


@verb(Permission.APPROVAL_READ)
async def of_approvals(db: Database, actor: Actor, seen: Sequence[Approval]) -> dict[UUID, Mark]:
    """Of requests that the actor was shown."""
    if not seen:
        return {}
    async with db.transaction(actor.org_id) as tx:
        return await marks.of_approvals(
            tx, [each.id for each in seen], actor.user_account_id, actor.sees is None
        )


@verb(Permission.APPROVAL_READ)
async def next_level(db: Database, actor: Actor, approval_id: UUID) -> Approvers | None:
    """Who is asked besides when a request goes up next."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await approvals.get(tx, approval_id, actor.sees), "approval")
        return await marks.next_level(tx, approval_id)
