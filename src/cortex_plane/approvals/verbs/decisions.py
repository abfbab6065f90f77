"""Deciding an approval: votes, deadlines, and what the end of an approval writes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model import approvals as approval_model
from cortex_plane.approvals.model.approvals import Approval, ApprovalDecision, Cause
from cortex_plane.approvals.rules import authority
from cortex_plane.approvals.rules import decisions as approval_rules
from cortex_plane.approvals.rules.decisions import ApprovalChange, Edit, LockedApproval, decision_change, is_vote
from cortex_plane.approvals.store import person_of, queries
from cortex_plane.approvals.verbs import changes, edits, standing_approvals
from cortex_plane.approvals.verbs.changes import ChangeFile
from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.pool import PoolPurpose
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError, InvalidInput
from cortex_plane.kernel.fields import adapter
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.meters import meters
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import SessionEvent, SignedReceipt
from cortex_plane.proof.verbs import receipts
from cortex_plane.tenancy.model.access import Actor, Fact, Permission
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
    tx: Transaction, id: UUID, actor: Actor, channel: approval_model.Channel, key: str | None = None
) -> LockedApproval:
    """The approval under its locks, for whoever sees it."""
    if channel not in approval_model.OWN_DOORS and not await tx.value(queries.uses_channel, tx.org, channel):
        raise approval_rules.channel_not_used(channel)
    row = await approvals_store.open_approval(tx, id, actor, channel, key)
    return require_found(row if row is not None and row.visible else None, "approval")


def own_key(actor: Actor, key: str) -> str:
    """As it is stored with a decision: each person's keys are their own, and nobody uses up another's."""
    return f"{actor.user_account_id}:{key}"


@verb(Permission.APPROVAL_DECIDE)
async def decide(
    db: Database,
    actor: Actor,
    id: UUID,
    decision: ApprovalDecision,
    channel: approval_model.Channel,
    once: IdempotencyKey | None = None,
) -> approval_model.DecisionReceipt:
    """Raises ``Conflict`` with the code ``approval_conflict`` where somebody decided otherwise before."""
    db = db.own(PoolPurpose.DECISIONS)
    key = own_key(actor, once.key) if once else None
    receipt, change = await retry_on_conflict(lambda: _decide(db, actor, id, decision, channel, key))
    if change is not None and change.status is not approval_model.ApprovalStatus.PENDING:
        db.hints.work()
        approval = receipt.approval
        wait = (approval.resolved_at or approval.requested_at) - approval.requested_at
        meters().decided(actor.org_id, approval.template, decision.decision, channel, wait.total_seconds())
        for _ in change.resumed:
            meters().resumed(actor.org_id, "approval")
    return receipt


async def _decide(
    db: Database, actor: Actor, id: UUID, decision: ApprovalDecision, channel: approval_model.Channel, key: str | None,
    file: ChangeFile | None = None,
) -> tuple[approval_model.DecisionReceipt, ApprovalChange | None]:  # fmt: skip
    """With what it changed; None where it was there before. ``file``: of a change, read before its locks were taken."""
    edit = await edits.prepare_edit(db, actor, id, decision) if decision.arguments is not None else None
    if decision.standing is not None:
        await standing_approvals.prepare(decision.standing)
    async with db.transaction(actor.org_id) as tx:
        row = await open_visible(tx, id, actor, channel, key)
        approval = row.approval
        error = await _refusal(tx, row, actor, decision, edit)
        is_open = row.earlier is None and approval.status is approval_model.ApprovalStatus.PENDING
        # A job whose checkpoint is corrupt fails before anything is decided for it.
        corrupt = approval_rules.corrupt_jobs(row) if error is None and is_open else {}
        if corrupt and approval.session_id is not None:
            await steering.fail_corrupt_jobs(tx, actor, approval.session_id, corrupt)
        change = decision_change(row, actor, decision, edit) if error is None and not corrupt else None
        needs_file = file is None and change is not None and approval_rules.changes_rules(approval, change)
        if change is not None and not needs_file:
            approval = await _write(db, tx, row, change, actor, decision, edit, channel, key, file)
        elif change is None and not corrupt and (error is not None or row.earlier is None):
            await note_refused_decision(tx, row, actor, channel, decision.decision, decision.version, error)
    if needs_file:
        # A large file takes seconds to read, and nobody waits for that with a lock.
        file = await changes.read_change(db, actor, id, approval.tool_name)
        return await _decide(db, actor, id, decision, channel, key, file)
    if corrupt and approval.agent_id is not None:
        steering.log_corruption(actor.org_id, approval.agent_id, corrupt)
    error = error or approval_rules.corruption_refusal(row, corrupt)
    if error is not None:
        raise error
    result = approval_model.RecordResult.DUPLICATE if change is None else approval_model.RecordResult.OK
    return approval_model.DecisionReceipt(result=result, approval=approval_rules.shown_to(approval, actor)), change


async def _refusal(
    tx: Transaction, row: LockedApproval, actor: Actor, decision: ApprovalDecision, edit: Edit | None
) -> CortexError | None:
    approval = row.approval
    if row.earlier is not None:
        digest = edit.input_hash if edit else decision.input_hash
        same_answer = canonical(decision.answer) == canonical(row.earlier.get("answer"))
        if same_answer and (decision.decision, digest) == (row.earlier.get("decision"), row.earlier.get("input_hash")):
            return None
        return Conflict(
            "This Idempotency-Key was used for a different decision.",
            code="idempotency_key_reused",
            hint="Send a new key with a new request; repeat a key only with the same request.",
        )
    error = _decision_refusal(row, actor, decision)
    if error is None and approval.status is not approval_model.ApprovalStatus.PENDING:
        is_same = approval_rules.is_same(approval, decision, edit.input_hash if edit else None)
        return None if is_same else approval_rules.already_decided(approval)
    if error is None and edit is not None:
        return await edits.edit_refusal(tx, row, actor, decision, edit)
    return error


def _decision_refusal(row: LockedApproval, actor: Actor, decision: ApprovalDecision) -> CortexError | None:
    approval = row.approval
    if approval.kind is approval_model.ApprovalKind.CHANGE and decision.arguments is not None:
        return InvalidInput(
            "A change of rules is approved as it is.",
            code="change_not_editable",
            hint="Deny it with what should be otherwise, or propose a file of your own.",
        )
    if approval.kind is approval_model.ApprovalKind.UNCERTAIN_EFFECT:
        return Conflict(
            "This asks whether a call happened; there is nothing to approve.",
            code="not_a_call",
            hint="Answer it with `cortex approval answer`: happened, did_not_happen or fail.",
        )
    if decision.arguments is not None and decision.decision is approval_model.Choice.DENIED:
        return InvalidInput("Arguments are edited to approve them.", hint="Leave `arguments` out to deny.")
    if decision.standing is not None and decision.decision is approval_model.Choice.DENIED:
        return InvalidInput("Only a yes can stand for more calls.", hint="Leave `standing` out to deny.")
    error = approval_rules.refusal(approval, actor, decision.decision)
    if error is not None or approval.status is not approval_model.ApprovalStatus.PENDING:
        return error
    error = approval_rules.staleness_error(approval, decision, row.now)
    error = error or approval_rules.answer_refusal(approval, decision)
    if error is not None or decision.standing is None:
        return error
    return authority.standing_refusal(approval, decision.standing)


async def note_refused_decision(
    tx: Transaction, row: LockedApproval, actor: Actor, channel: approval_model.Channel, choice: str, version: int,
    error: CortexError | None,
) -> None:  # fmt: skip
    """Record a decision or an answer that had no effect. After the tenth of a person it is counted on the card alone."""
    approval = row.approval
    payload = {"decision": choice, "code": error.code if error else None}
    if error is None:
        kind, action = "channel_duplicate", "approval_duplicate"
    else:
        kind = "channel_conflict" if error.code == "approval_conflict" else "refused"
        action = "approval_refused"
    by = actor.user_account_id, actor.name
    earlier: int = await tx.value(
        queries.record_refused_decision, tx.org, approval.id, kind, channel, *by, payload, MOST_REFUSED
    )
    if earlier > MOST_REFUSED:
        return
    further = {"further": "counted on the card"} if earlier == MOST_REFUSED else {}
    fact = Fact.of(actor, action, approval=str(approval.id), channel=channel, version=version, **payload, **further)
    await proof_store.append_to_session(tx, approval.session_id, [fact], job=approval.job_id)


async def _write(
    db: Database, tx: Transaction, row: LockedApproval, change: ApprovalChange, actor: Actor, decision: ApprovalDecision,
    edit: Edit | None, channel: approval_model.Channel, key: str | None, file: ChangeFile | None = None,
) -> Approval:  # fmt: skip
    """A vote, an edit, or the decision that ends a request, with its receipt. Returns the approval as it is now."""
    approval = row.approval
    ends = change.status is not approval_model.ApprovalStatus.PENDING
    counts = ends or is_vote(row, edit)
    version = approval.version + (edit is not None)
    input_hash = edit.input_hash if edit else approval.input_hash
    event = {"decision": decision.decision, "reason": decision.reason, "version": version}
    payload = {**event, "input_hash": input_hash}
    if decision.answer is not None:
        payload["answer"] = decision.answer
    after = approval_rules.approval_after(row, change, actor, decision, edit, channel)
    entries: list[dict[str, Any]] = []
    if counts:
        entries.append({"type": decision.decision if ends else "voted", "keyed": True, "payload": payload})
    if edit is not None:
        edit_entry = {"from": approval.input_hash, "to": edit.input_hash, "version": version}
        entries.insert(
            0, {"type": "edited", "keyed": not counts, "payload": edit_entry if counts else payload | edit_entry}
        )
    calls = [call for call, _, _ in change.calls]
    action = "approval_decision" if ends else "approval_vote" if counts else "approval_edited"
    details = {"calls": [str(call) for call in calls]} if ends else {"needed": approval.quorum.in_words()}
    fact = Fact.of(
        actor, action, approval=str(approval.id), channel=channel, tool=approval.tool_name,
        edited_from=approval.input_hash if edit else None, **payload, **details,
    )  # fmt: skip
    kind = "approval_decided" if ends else "approval_voted"
    facts, receipt, person = [fact], None, actor.user_account_id
    if ends:
        if row.receipt is None or person is None:
            raise AssertionError("`decider_refusal` refuses whoever is no person")
        standing = None
        if decision.standing is not None:
            standing, granted = await standing_approvals.grant(
                tx, actor, person, after, decision.standing, reason=decision.reason, now=row.now
            )
            facts.append(granted)
        if file is not None and change.status is approval_model.ApprovalStatus.APPROVED:
            facts += await changes.put_in_force(tx, actor, after, file)
        statement = approval_rules.receipt_facts(row, row.receipt, change, person, actor.name, decision, edit, channel)
        receipt = await receipts.sign_receipt(db, tx, after, statement, calls, standing)
    columns = await write_change(
        tx, row, change, actor, entries, facts,
        (kind, approval.job_id, {**event, "approval_id": str(approval.id), "by": actor.name}), edit=edit,
        choice=decision.decision if counts else None, reason=decision.reason, channel=channel, key=key,
        receipt=receipt,
    )  # fmt: skip
    if decision.reason and change.status is approval_model.ApprovalStatus.APPROVED:
        await approvals_store.add_words(tx, [job.id for job in change.jobs], after, actor, row)
    if columns is None:
        return after
    causes = adapter(list[Cause]).validate_python(columns["caused"])
    return replace(after, **columns | {"causes": list(map(UUID, columns["causes"])), "caused": causes})


async def write_change(
    tx: Transaction, row: LockedApproval, change: ApprovalChange, actor: Actor, entries: list[dict[str, Any]],
    said: Sequence[Fact], event: SessionEvent, *, edit: Edit | None = None,
    choice: approval_model.Choice | None = None, reason: str | None = None,
    channel: approval_model.Channel | None = None, key: str | None = None, receipt: SignedReceipt | None = None,
) -> dict[str, Any] | None:  # fmt: skip
    """What becomes of an approval, its jobs and their other approvals. ``said`` is what the trail says of the approval itself.
    ``channel``: None where nobody decided."""
    facts, events = approval_rules.job_facts_and_events(row, change, actor)
    for sibling in change.cancelled:
        payload = {"because_of": str(row.approval.id)}
        entries.append({"approval": str(sibling.id), "type": "cancelled", "payload": payload})
    return await approvals_store.change_approval(
        tx, row, change, edit=edit, person=person_of(actor, channel) if channel else None,
        choice=choice, reason=reason, key=key, entries=entries, events=[event, *events],
        facts=[*said[:1], *facts, *said[1:]], receipt=receipt,
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
        if not await tx.value(queries.take_due, id):
            return None  # another scheduler acts on it at this moment
        row = await approvals_store.open_approval(tx, id)
        if row is None or row.approval.status is not approval_model.ApprovalStatus.PENDING:
            return None
        request, level = row.approval, row.approval.escalation_level
        if request.deadline is not None and request.deadline <= row.now:
            await _expire(tx, row, actor)
            return Acted("expired", request.template, level)
        if level < len(row.level_times) and row.level_times[level] <= row.now:
            return Acted("escalated", request.template, await _escalate(tx, row, actor))
        is_due = row.remind_at is not None and row.remind_at <= row.now
        if not is_due or await tx.value(queries.remind_approvers, id) is None:
            return None
        await record_new_deciders(tx, request, actor, "approval_reminded", {}, {})
        return Acted("reminded", request.template, level)


async def record_new_deciders(
    tx: Transaction, approval: Approval, actor: Actor, action: str, data: dict[str, Any], event: dict[str, Any]
) -> None:
    """Record an act after which others may decide. Whoever may decide it now, and can be reached, hears of it."""
    hops = await approvals_store.record_reach(tx, actor, approval.id)
    fact = Fact.of(actor, action, approval=str(approval.id), **data)
    await proof_store.append_to_session(
        tx, approval.session_id, [fact, *hops],
        [(action, approval.job_id, {"approval_id": str(approval.id), **event})], job=approval.job_id,
    )  # fmt: skip


async def _expire(tx: Transaction, row: LockedApproval, actor: Actor) -> None:
    request = row.approval
    deadline = request.deadline.isoformat() if request.deadline else None
    body = {"approval": str(request.id), "tool": request.tool_name, "deadline": deadline}
    change = approval_rules.end_expired(row)
    if change.answer is not None:
        body["answer"] = change.answer
    await write_change(
        tx, row, change, actor, [{"type": "expired"}],
        [Fact.of(actor, "approval_expired", **body)],
        ("approval_expired", request.job_id, {"approval_id": str(request.id)}),
    )  # fmt: skip


async def withdraw_call(tx: Transaction, row: LockedApproval, call_id: UUID, actor: Actor, reason: str) -> None:
    """Its agent took this call back: where no other waits for the same request, nobody is asked any more."""
    request = row.approval
    if (change := approval_rules.end_withdrawn(row, call_id)) is not None:
        await write_change(
            tx, row, change, actor, [{"type": "cancelled", "payload": {"reason": reason}}],
            [Fact.of(actor, "approval_cancelled", approval=str(request.id), reason=reason)],
            ("approval_cancelled", request.job_id, {"approval_id": str(request.id)}), reason=reason,
        )  # fmt: skip


async def _escalate(tx: Transaction, row: LockedApproval, actor: Actor) -> int:
    """One level up: more people may decide. The deadline stays."""
    request = row.approval
    approvers = row.levels[request.escalation_level]
    level = await approvals_store.escalate_approval(tx, request.id, request.approvers.joined(approvers))
    data = {"level": level, "to": approval_rules.describe_approvers(approvers)}
    await record_new_deciders(tx, request, actor, "approval_escalated", data, {"level": level})
    return level
