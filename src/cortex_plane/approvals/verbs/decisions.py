"""Deciding an approval: votes, deadlines, and what the end of an approval writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar
from uuid import UUID

from cortex_plane.approvals import rules as approval_rules
from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalKind,
    ApprovalStatus,
    Channel,
    Choice,
    Decision,
    DecisionReceipt,
    RecordResult,
)
from cortex_plane.approvals.rules import ApprovalEnd, Edit, LockedApproval, is_vote
from cortex_plane.approvals.store import ClosedApproval, SessionEvent
from cortex_plane.approvals.verbs import edits, standing_approvals
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.pool import PoolPurpose
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import Conflict, CortexError, InvalidInput
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.meters import meters
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.proof.verbs import receipts
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb

T = TypeVar("T")

TRIES = 5
MOST_REFUSED = 10
"""How many decisions without effect of one person on one card have a row and an entry each."""


async def retry_on_conflict(operation: Callable[[], Awaitable[T]]) -> T:
    for _ in range(TRIES - 1):
        try:
            return await operation()
        except Conflict as error:
            if error.code != "retry":
                raise
    return await operation()


async def open_visible(
    tx: Transaction, id: UUID, actor: Actor, channel: Channel, key: str | None = None
) -> LockedApproval:
    """The approval under its locks, for whoever sees it."""
    locked_approval = await approvals_store.open_approval(tx, id, actor, channel, key)
    return require_found(
        locked_approval if locked_approval is not None and locked_approval.visible else None, "approval"
    )


def own_key(actor: Actor, key: str) -> str:
    """As it is stored with a decision: each person's keys are their own, and nobody uses up another's."""
    return f"{actor.user_account_id}:{key}"


@verb(Permission.APPROVAL_DECIDE)
async def decide(
    db: Database, actor: Actor, id: UUID, decision: Decision, channel: Channel, once: IdempotencyKey | None = None
) -> DecisionReceipt:
    """Raises ``Conflict`` with the code ``approval_conflict`` where somebody decided otherwise before."""
    db = db.own(PoolPurpose.DECISIONS)
    key = own_key(actor, once.key) if once else None
    receipt, end = await retry_on_conflict(lambda: _decide(db, actor, id, decision, channel, key))
    if end is not None:
        db.hints.work()
        approval = receipt.approval
        wait = (approval.resolved_at or approval.requested_at) - approval.requested_at
        meters().decided(actor.org_id, approval.template, decision.decision, channel, wait.total_seconds())
        for job in end.jobs:
            if job.status is JobStatus.RUNNING:
                meters().resumed(actor.org_id, "approval")
    return receipt


async def _decide(
    db: Database, actor: Actor, id: UUID, decision: Decision, channel: Channel, key: str | None
) -> tuple[DecisionReceipt, ApprovalEnd | None]:
    """With what it did; None where it was there before."""
    edit = await edits.prepare_edit(db, actor, id, decision) if decision.arguments is not None else None
    if decision.standing is not None:
        await standing_approvals.prepare(decision.standing)
    approval: Approval | None = None
    end: ApprovalEnd | None = None
    async with db.transaction(actor.org_id) as tx:
        locked_approval = await open_visible(tx, id, actor, channel, key)
        pending = locked_approval.approval.status is ApprovalStatus.PENDING
        error: CortexError | None
        if locked_approval.earlier is not None:
            error = _key_reused(locked_approval.earlier, decision, edit)
        else:
            error = _decision_refusal(locked_approval, actor, decision)
            if error is None and pending and edit is not None:
                error = await edits.edit_refusal(tx, locked_approval, actor, edit)
            if error is None and pending and approval_rules.ends_it(locked_approval, actor, decision, edit):
                approval, end = await _close(db, tx, locked_approval, actor, decision, edit, channel, key)
            elif (
                error is None and pending and not (edit is None and approval_rules.adds_nothing(locked_approval, actor))
            ):
                error = await edits.cannot_vote(tx, locked_approval, actor, decision, edit) if edit else None
                if error is None:
                    approval = await _vote(tx, locked_approval, actor, decision, edit, channel, key)
            elif error is None:
                if not pending and not approval_rules.is_same(
                    locked_approval.approval, decision, edit.input_hash if edit else None
                ):
                    error = approval_rules.already_decided(locked_approval.approval)
                else:
                    await note_refused_decision(
                        tx, locked_approval, actor, channel, decision.decision, decision.version, None
                    )
        if error is not None:
            await note_refused_decision(tx, locked_approval, actor, channel, decision.decision, decision.version, error)
    if error is not None:
        raise error
    result = RecordResult.DUPLICATE if approval is None else RecordResult.OK
    approval = approval_rules.shown_to(approval or locked_approval.approval, actor)
    return DecisionReceipt(result=result, approval=approval), end


def _key_reused(earlier: dict[str, Any], decision: Decision, edit: Edit | None) -> CortexError | None:
    """Why the key cannot be used again; None where it was used for this very decision."""
    digest = edit.input_hash if edit else decision.input_hash
    if (decision.decision, digest) == (earlier.get("decision"), earlier.get("input_hash")):
        return None
    return Conflict(
        "This Idempotency-Key was used for a different decision.",
        code="idempotency_key_reused",
        hint="Send a new key with a new request; repeat a key only with the same request.",
    )


def _decision_refusal(locked_approval: LockedApproval, actor: Actor, decision: Decision) -> CortexError | None:
    approval = locked_approval.approval
    if approval.kind is not ApprovalKind.CALL:
        return Conflict(
            "This asks whether a call happened; there is nothing to approve.",
            code="not_a_call",
            hint="Answer it with `cortex approval answer`: happened, did_not_happen or fail.",
        )
    if decision.arguments is not None and decision.decision is Choice.DENIED:
        return InvalidInput("Arguments are edited to approve them.", hint="Leave `arguments` out to deny.")
    if decision.standing is not None and decision.decision is Choice.DENIED:
        return InvalidInput("Only a yes can stand for more calls.", hint="Leave `standing` out to deny.")
    error = approval_rules.refusal(approval, actor, decision.decision)
    if error is not None or approval.status is not ApprovalStatus.PENDING:
        return error
    error = approval_rules.staleness_error(approval, decision, locked_approval.now)
    if error is not None or decision.standing is None:
        return error
    return approval_rules.standing_refusal(approval, decision.standing)


async def note_refused_decision(
    tx: Transaction, locked_approval: LockedApproval, actor: Actor, channel: Channel, choice: str, version: int,
    error: CortexError | None,
) -> None:  # fmt: skip
    """Record a decision or an answer that had no effect. After the tenth of a person it is counted on the card alone."""
    approval = locked_approval.approval
    payload = {"decision": choice, "code": error.code if error else None}
    if error is None:
        kind, action = "channel_duplicate", "approval_duplicate"
    else:
        kind = "channel_conflict" if error.code == "approval_conflict" else "refused"
        action = "approval_refused"
    earlier = await approvals_store.record_refused_decision(
        tx, approval.id, kind, channel, actor, payload, MOST_REFUSED
    )
    if earlier > MOST_REFUSED:
        return
    further = {"further": "counted on the card"} if earlier == MOST_REFUSED else {}
    fact = Fact.of(actor, action, approval=str(approval.id), channel=channel, version=version, **payload, **further)
    await proof_store.append_to_session(tx, approval.session_id, [fact], job=approval.job_id)


async def _vote(
    tx: Transaction, locked_approval: LockedApproval, actor: Actor, decision: Decision, edit: Edit | None, channel: Channel,
    key: str | None,
) -> Approval:  # fmt: skip
    approval = locked_approval.approval
    version = approval.version + (edit is not None)
    input_hash = edit.input_hash if edit else approval.input_hash
    counts = is_vote(locked_approval, edit)
    vote = {
        "decision": decision.decision, "reason": decision.reason, "version": version, "input_hash": input_hash,
    }  # fmt: skip
    entries: list[dict[str, Any]] = [{"type": "voted", "keyed": True, "payload": vote}] if counts else []
    if edit is not None:
        change = {"from": approval.input_hash, "to": edit.input_hash, "version": version}
        first = {"type": "edited", "payload": change if counts else vote | change, "keyed": not counts}
        entries.insert(0, first)
    fact = Fact.of(
        actor, "approval_vote" if counts else "approval_edited",
        edited_from=approval.input_hash if edit else None, needed=approval_rules.describe_quorum(approval),
        approval=str(approval.id), channel=channel, tool=approval.tool_name, **vote,
    )  # fmt: skip
    event = {name: vote[name] for name in ("decision", "reason", "version")}
    return await approvals_store.insert_vote(
        tx, locked_approval, version=version, arguments=edit.arguments if edit else None,
        input_hash=edit.input_hash if edit else None, actor=actor, reason=decision.reason, channel=channel, key=key,
        happened=entries, counts=counts, facts=[fact],
        events=[("approval_voted", approval.job_id, {**event, "approval_id": str(approval.id), "by": actor.name})],
    )  # fmt: skip


async def _close(
    db: Database, tx: Transaction, locked_approval: LockedApproval, actor: Actor, decision: Decision, edit: Edit | None,
    channel: Channel, key: str | None,
) -> tuple[Approval, ApprovalEnd]:  # fmt: skip
    """The decision that ends a request, with its receipt."""
    approval = locked_approval.approval
    if decision.decision is Choice.APPROVED:
        end = approval_rules.end_approved(locked_approval)
    else:
        end = approval_rules.end_denied(locked_approval, actor.name, decision.reason)
    version = approval.version + (edit is not None)
    input_hash = edit.input_hash if edit else approval.input_hash
    calls = [call for call, _, _ in end.calls]
    event = {"decision": decision.decision, "reason": decision.reason, "version": version}
    entries: list[dict[str, Any]] = [
        {"approval": str(approval.id), "type": decision.decision, "keyed": True, "payload": {**event, "input_hash": input_hash}}
    ]  # fmt: skip
    if edit is not None:
        change = {"from": approval.input_hash, "to": edit.input_hash, "version": version}
        entries.insert(0, {"approval": str(approval.id), "type": "edited", "payload": change})
    fact = Fact.of(
        actor, "approval_decision", approval=str(approval.id), **event, channel=channel, tool=approval.tool_name,
        input_hash=input_hash, edited_from=approval.input_hash if edit else None, calls=[str(call) for call in calls],
    )  # fmt: skip
    closed = await write_end(
        tx, locked_approval, end, actor, entries, fact,
        ("approval_decided", approval.job_id, {**event, "approval_id": str(approval.id), "by": actor.name}),
        version=version, arguments=edit.arguments if edit else None,
        input_hash=edit.input_hash if edit else None, choice=decision.decision, reason=decision.reason,
        channel=channel, key=key,
    )  # fmt: skip
    if closed.decided is None:
        raise AssertionError("a decision leaves something to sign")
    standing = None
    if decision.standing is not None:
        standing = await standing_approvals.grant(
            tx, actor, approval=approval, draft=decision.standing, version=version, input_hash=input_hash,
            reason=decision.reason, now=locked_approval.now,
        )  # fmt: skip
    await receipts.write_receipt(
        db, tx, closed.decided, actor=actor, decision=decision.decision, channel=channel, calls=calls,
        standing=standing,
    )  # fmt: skip
    return closed.approval, end


async def write_end(
    tx: Transaction, locked_approval: LockedApproval, end: ApprovalEnd, actor: Actor, entries: list[dict[str, Any]], fact: Fact,
    event: SessionEvent, *, version: int, arguments: bytes | None = None, input_hash: str | None = None,
    choice: Choice | None = None, reason: str | None = None, channel: Channel | None = None, key: str | None = None,
) -> ClosedApproval:  # fmt: skip
    """The end of an approval, with what it does to its jobs and their other approvals."""
    approval = locked_approval.approval
    facts, events = [fact], [event]
    for job in end.jobs:
        if job.status is None:
            continue
        events.append(("status", job.id, {"status": job.status, "error": job.error}))
        if job.status is JobStatus.FAILED:
            facts.append(Fact.of(actor, "job_failed", job=str(job.id), error=job.error))
            events.append(("error", job.id, {"message": job.error}))
        else:
            reason_to_resume = {"approval_id": str(approval.id), "resumed_by_approval": True}
            held = job.status is JobStatus.PAUSED
            facts.append(Fact.of(actor, "session_resumed", job=str(job.id), held=held, **reason_to_resume))
            if not held:
                events.append(("session_resumed", job.id, reason_to_resume))
    for sibling in end.cancelled:
        entries.append({"approval": str(sibling.id), "type": "cancelled", "payload": {"because_of": str(approval.id)}})
        facts.append(Fact.of(actor, "approval_cancelled", approval=str(sibling.id), because_of=str(approval.id)))
        events.append(("approval_cancelled", approval.job_id, {"approval_id": str(sibling.id)}))
    return await approvals_store.close_approval(
        tx, locked_approval, end, version=version, arguments=arguments, input_hash=input_hash,
        actor=actor if choice else None, choice=choice, reason=reason, channel=channel, key=key,
        happened=entries, events=events, facts=facts,
    )  # fmt: skip


def hop_fact(actor: Actor, id: UUID, hop: Row) -> Fact:
    """Somebody was out of office: their part went on by itself."""
    return Fact.of(
        actor, "approval_delegated", approval=str(id), automatic=True, reason=hop["reason"],
        **{"from": str(hop["from_member_id"]), "from_name": hop["from_member"], "to": str(hop["to_member_id"])},
        name=hop["to_member"], to_clearance=hop["to_clearance"],
    )  # fmt: skip


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
    closing = approval_rules.end_expired(locked_approval)
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
    level = await approvals_store.escalate_approval(
        tx, request.id, approval_rules.join_approvers(request.approvers, approvers)
    )
    hops = await approvals_store.record_reach(tx, request.id)
    facts = [
        Fact.of(
            actor,
            "approval_escalated",
            approval=str(request.id),
            level=level,
            to=approval_rules.describe_approvers(approvers),
        ),
        *(hop_fact(actor, request.id, hop) for hop in hops),
    ]
    body = {"approval_id": str(request.id), "level": level}
    await proof_store.append_to_session(
        tx, request.session_id, facts, [("approval_escalated", request.job_id, body)], job=request.job_id
    )
    return level
