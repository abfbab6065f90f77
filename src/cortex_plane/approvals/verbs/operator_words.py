"""The reason of a yes, as the models of its jobs read it."""

from __future__ import annotations

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.approvals.rules import ApprovalChange, LockedApproval
from cortex_plane.db.database import Transaction
from cortex_plane.kernel.canonical import canonical
from cortex_plane.sessions import store as sessions_store
from cortex_plane.tenancy.model.access import Actor


async def add_reason(
    tx: Transaction, row: LockedApproval, change: ApprovalChange, approval: Approval, actor: Actor
) -> None:
    words = _words_of_approval(approval, actor, row)
    for job in change.jobs:
        await sessions_store.add_operator_words(tx, job.id, words, actor)


def _words_of_approval(approval: Approval, actor: Actor, row: LockedApproval) -> str:
    """What the model of a job is told of a yes with a reason."""
    hops = row.receipt.delegations if row.receipt is not None else ()
    words = {
        "approval_id": str(approval.id), "decision": approval.status, "tool": approval.tool_name,
        "operator": actor.name, "operator_id": str(actor.user_account_id), "reason": approval.resolution_reason,
        **({"delegated_from": hops[-1].from_member} if hops and hops[-1].to_member_id == actor.user_account_id else {}),
    }  # fmt: skip
    return canonical(words).decode()
