"""Asking for an approval by name, as spec 4's `RequestApproval` does: while the same call waits, its approval is the answer."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.approvals.model.approvals import Approval, ApprovalKind, ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.model import CallDraft, Next
from cortex_plane.calls.verbs import calls
from cortex_plane.calls.verbs.calls import CallDemand
from cortex_plane.db.database import Database
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, Forbidden
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import verb

MOST_OPEN = 200
"""Open approvals of a session among which the same call is looked for."""


@dataclass(frozen=True, slots=True)
class ApprovalInquiry:
    approval: Approval
    call_id: UUID | None
    """The call that was written for it; None where an approval was waiting."""
    deduplicated: bool


@verb(Permission.JOB_SUBMIT)
async def request_approval(
    db: Database, actor: Actor, session_id: UUID, draft: CallDraft, demand: CallDemand
) -> ApprovalInquiry:
    """``demand`` requires approval; where it adds no terms, an approval that waits for the same call is returned."""
    await calls.preview_call(db, actor, session_id, draft, CallDemand(demand.agent_id, demand.team_id))
    if demand.policy is None and (waiting := await _waiting_approval(db, actor, session_id, draft)) is not None:
        return ApprovalInquiry(waiting, None, deduplicated=True)
    call = await calls.authorize_call(db, actor, session_id, draft, demand)
    if call.approval_id is None:
        if call.next is Next.STOP:
            raise Forbidden(
                call.error or call.reason or f"`{draft.tool}` is denied ({call.rule}).",
                code="call_denied",
                hint="Do not send the same call again: go another way.",
            )
        raise Conflict(
            f"`{draft.tool}` needs no approval ({call.rule}).",
            code="approval_not_needed",
            hint="Ask with GovernanceService.Check, and run the call where it says ALLOW.",
        )
    details = await approvals.get_approval(db, actor, call.approval_id)
    return ApprovalInquiry(details.approval, call.id, deduplicated=details.approval.invocations > 1)


async def _waiting_approval(db: Database, actor: Actor, session_id: UUID, draft: CallDraft) -> Approval | None:
    input_hash = hashlib.sha256(canonical(draft.arguments)).hexdigest()
    page = await approvals.list_approvals(
        db, actor, None, MOST_OPEN, status=ApprovalStatus.PENDING, session_id=session_id
    )
    for approval in page.items:
        is_same = approval.kind is ApprovalKind.CALL and approval.tool_name == draft.tool
        if is_same and approval.input_hash == input_hash:
            return approval
    return None
