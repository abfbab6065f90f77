"""Asking for an approval by name, as spec 4's `RequestApproval` does: while the same call waits, its approval is the answer."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, replace
from uuid import UUID

from cortex_plane.approvals.model.approvals import Approval, ApprovalKind, ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.model import CallDraft, Next
from cortex_plane.calls.store import queries
from cortex_plane.calls.verbs import calls
from cortex_plane.calls.verbs.calls import CallDemand
from cortex_plane.db.database import Database
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Forbidden, GateClosed
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import verb

MOST_OPEN = 200
"""Open approvals of a session among which the same call is looked for."""


@dataclass(frozen=True, slots=True)
class ApprovalInquiry:
    approval: Approval
    call_id: UUID | None
    """The call that waits for it; None where one without a key was waiting already."""
    deduplicated: bool


@verb(Permission.JOB_SUBMIT)
async def request_approval(
    db: Database, actor: Actor, session_id: UUID, draft: CallDraft, demand: CallDemand
) -> ApprovalInquiry:
    """``demand`` may add terms. With a key it is one call, which joins the approval of another one by the same terms. Without a key and
    without terms, an approval that waits for the same call is the answer, and no call is written."""
    demand = replace(demand, only_approval=True)
    if draft.key is None and demand.policy is None:
        with contextlib.suppress(GateClosed):  # recorded below, where nothing waits
            await calls.preview_call(db, actor, session_id, draft, demand)
        if (waiting := await _waiting_approval(db, actor, session_id, draft)) is not None:
            return ApprovalInquiry(waiting, None, deduplicated=True)
    call = await calls.authorize_call(db, actor, session_id, draft, demand)
    if call.approval_id is None:
        if call.next is Next.STOP:
            raise Forbidden(
                call.error or call.reason or f"`{draft.tool}` is denied ({call.rule}).",
                code="call_denied",
                hint="Do not send the same call again: go another way.",
            )
        raise calls.approval_not_needed(draft.tool, call.rule)
    details = await approvals.get_approval(db, actor, call.approval_id)
    async with db.transaction(actor.org_id) as tx:
        first = await tx.value(queries.first_call_of, call.approval_id)
    return ApprovalInquiry(details.approval, call.id, deduplicated=first != call.id)


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
