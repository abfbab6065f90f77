"""Delegates: to whom somebody may hand their part."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.approvals.model.delegates import AT_MOST, Delegate
from cortex_plane.approvals.store import approvals, delegates
from cortex_plane.db.database import Database
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb


@verb(Permission.ABSENCE_WRITE)
async def list_some(
    db: Database, actor: Actor, *, approval_id: UUID | None = None, name: str | None = None
) -> list[Delegate]:
    """Colleagues by name, at most ``AT_MOST``; with an approval, those who could take the caller's part in it."""
    async with db.transaction(actor.org_id) as tx:
        if approval_id is None:
            return await delegates.list_some(tx, actor.user_account_id, name, AT_MOST)
        require_found(await approvals.get(tx, approval_id, actor.sees), "approval")
        besides = actor.user_account_id or actor.key_id
        return await delegates.of_approval(tx, approval_id, besides, name, AT_MOST)
