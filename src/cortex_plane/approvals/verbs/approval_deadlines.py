"""What happens to an approval when time passes: a reminder, an escalation, its end."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.approvals.rules import deciders
from cortex_plane.approvals.rules.deciders import LockedApproval
from cortex_plane.approvals.verbs.decisions import hop_fact, retry_on_conflict, write_end
from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.meters import meters
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor


@dataclass(frozen=True, slots=True)
class Acted:
    """What a scheduler did to an approval."""

    what: str
    template: str
    level: int


async def act_when_due(db: Database, actor: Actor, id: UUID) -> Acted | None:
    """Remind, escalate or expire, whichever is due; None where somebody else was faster."""
    act = await retry_on_conflict(lambda: _act_when_due(db, actor, id))
    if act is not None and act.what == "expired":
        db.hints.work()
        meters().expired(actor.org_id, act.template)
    if act is not None and act.what == "escalated":
        meters().escalated(actor.org_id, act.template, act.level)
    return act


async def _act_when_due(db: Database, actor: Actor, id: UUID) -> Acted | None:
    async with db.transaction(actor.org_id) as tx:
        if not await approvals_store.take_due(tx, id):
            return None
        locked_approval = await approvals_store.open_approval(tx, id)
        if locked_approval is None or locked_approval.approval.status is not ApprovalStatus.PENDING:
            return None
        request, level = locked_approval.approval, locked_approval.approval.escalation_level
        if request.deadline is not None and request.deadline <= locked_approval.now:
            await _expire(tx, locked_approval, actor)
            return Acted("expired", request.template, level)
        if level < len(locked_approval.level_times) and locked_approval.level_times[level] <= locked_approval.now:
            return Acted("escalated", request.template, await _escalate(tx, locked_approval, actor))
        if (
            locked_approval.remind_at is None
            or locked_approval.remind_at > locked_approval.now
            or not await approvals_store.remind_approvers(tx, id)
        ):
            return None
        await _reminded(tx, locked_approval, actor)
        return Acted("reminded", request.template, level)


async def _reminded(tx: Transaction, locked_approval: LockedApproval, actor: Actor) -> None:
    """Whoever became somebody who may decide, or can be reached, since the request was made hears of it now."""
    request = locked_approval.approval
    hops = await approvals_store.record_reach(tx, request.id)
    facts = [
        Fact.of(actor, "approval_reminded", approval=str(request.id)),
        *(hop_fact(actor, request.id, hop) for hop in hops),
    ]
    body = {"approval_id": str(request.id)}
    await proof_store.append_to_session(
        tx, request.session_id, facts, [("approval_reminded", request.job_id, body)], job=request.job_id
    )


async def _expire(tx: Transaction, locked_approval: LockedApproval, actor: Actor) -> None:
    request = locked_approval.approval
    closing = deciders.expired(locked_approval)
    deadline = request.deadline.isoformat() if request.deadline else None
    body = {"approval": str(request.id), "tool": request.tool_name, "deadline": deadline}
    await write_end(
        tx, locked_approval, closing, actor, [{"approval": str(request.id), "type": "expired"}],
        Fact.of(actor, "approval_expired", **body),
        ("approval_expired", request.job_id, {"approval_id": str(request.id)}), version=request.version,
    )  # fmt: skip


async def _escalate(tx: Transaction, locked_approval: LockedApproval, actor: Actor) -> int:
    """One level up: more people may decide. The deadline stays."""
    request = locked_approval.approval
    approvers = locked_approval.levels[request.escalation_level]
    level = await approvals_store.escalate_approval(tx, request.id, deciders.joined(request.approvers, approvers))
    hops = await approvals_store.record_reach(tx, request.id)
    facts = [
        Fact.of(
            actor,
            "approval_escalated",
            approval=str(request.id),
            level=level,
            to=deciders.describe_approvers(approvers),
        ),
        *(hop_fact(actor, request.id, hop) for hop in hops),
    ]
    body = {"approval_id": str(request.id), "level": level}
    await proof_store.append_to_session(
        tx, request.session_id, facts, [("approval_escalated", request.job_id, body)], job=request.job_id
    )
    return level
