"""Approvals: listed, shown, decided. One operation decides, whatever door a decision comes through.

A decision is one transaction: lock and read, decide (pure), write. Whoever is refused is refused on the audit trail.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from cortex_plane.domain import deciding
from cortex_plane.domain.access import Actor, Permission
from cortex_plane.domain.approvals import (
    Approval,
    ApprovalDetails,
    ApprovalKind,
    ApprovalStatus,
    Channel,
    Choice,
    Decision,
    DecisionReceipt,
    EffectAnswer,
    RecordResult,
    Waiting,
)
from cortex_plane.domain.audit import Fact
from cortex_plane.domain.deciding import Closing, Opened
from cortex_plane.domain.effects import Answer
from cortex_plane.domain.errors import Conflict, CortexError, InvalidInput
from cortex_plane.domain.idempotency import Once
from cortex_plane.domain.jobs import JobStatus
from cortex_plane.domain.pages import Page, Position
from cortex_plane.operations import edits, steering
from cortex_plane.operations.meters import meters
from cortex_plane.operations.verbs import found, verb
from cortex_plane.storage import approvals, audit
from cortex_plane.storage.approvals import SessionEvent
from cortex_plane.storage.database import Database, Transaction

T = TypeVar("T")

TRIES = 5


@verb(Permission.APPROVAL_READ)
async def list_page(
    db: Database,
    actor: Actor,
    position: Position | None,
    limit: int,
    *,
    status: ApprovalStatus | None = None,
    job_id: UUID | None = None,
    session_id: UUID | None = None,
) -> Page[Approval]:
    """Newest first. Whoever is not staff sees those of their own sessions, and those that they may decide."""
    async with db.transaction(actor.org_id) as tx:
        page = await approvals.list_page(tx, position, limit, actor.sees, status, job_id, session_id)
    return Page(items=[deciding.shown_to(item, actor) for item in page.items], next=page.next)


@verb(Permission.APPROVAL_READ)
async def inbox(
    db: Database, actor: Actor, limit: int, *, skip: int = 0, shown_at: datetime | None = None
) -> Waiting:
    """What waits, the most urgent first: what the actor could decide, and what else they see, each up to ``limit``."""
    async with db.transaction(actor.org_id) as tx:
        found = await approvals.inbox(tx, actor, actor.sees, shown_at, skip, limit)
    return replace(
        found,
        mine=[deciding.shown_to(each, actor) for each in found.mine],
        others=[deciding.shown_to(each, actor) for each in found.others],
    )


@verb(Permission.APPROVAL_READ)
async def settled(db: Database, actor: Actor, limit: int) -> list[Approval]:
    """What ended lately, the last first."""
    async with db.transaction(actor.org_id) as tx:
        return await approvals.settled(tx, actor.sees, limit)


@verb(Permission.APPROVAL_READ)
async def get(db: Database, actor: Actor, id: UUID) -> ApprovalDetails:
    async with db.transaction(actor.org_id) as tx:
        approval, now = found(await approvals.get(tx, id, actor.sees), "approval")
        barred = [] if approval.self_approval else approval.causes
        names = await approvals.deciders(
            tx, approval.approvers, approval.required_clearance, approval.owner_id, barred
        )
        return ApprovalDetails(
            approval=replace(deciding.shown_to(approval, actor), deciders=names),
            votes=await approvals.votes(tx, id),
            events=await approvals.events(tx, id),
            similar=await approvals.similar(tx, id, approval.tool_name) if actor.sees is None else [],
            now=now,
        )


@verb(Permission.APPROVAL_READ)
async def for_call(db: Database, actor: Actor, call_id: UUID) -> Approval:
    """The request that a call belongs to."""
    async with db.transaction(actor.org_id) as tx:
        id = found(await approvals.of_call(tx, call_id), "approval")
        approval, _ = found(await approvals.get(tx, id, actor.sees), "approval")
    return deciding.shown_to(approval, actor)


@verb(Permission.APPROVAL_DECIDE)
async def decide(
    db: Database, actor: Actor, id: UUID, decision: Decision, channel: Channel, once: Once | None = None
) -> DecisionReceipt:
    """Raises ``Conflict`` with the code ``approval_conflict`` where somebody decided otherwise before."""
    key = once.key if once else None
    receipt, closing = await _again_where_others_were_first(
        lambda: _decide(db, actor, id, decision, channel, key)
    )
    if closing is not None:
        db.hints.work()
        approval = receipt.approval
        waited = (approval.resolved_at or approval.requested_at) - approval.requested_at
        meters().decided(actor.org_id, approval.template, decision.decision, channel, waited.total_seconds())
        for job in closing.jobs:
            if job.status is JobStatus.RUNNING:
                meters().resumed(actor.org_id, "approval")
    return receipt


async def _again_where_others_were_first(act: Callable[[], Awaitable[T]]) -> T:
    for _ in range(TRIES - 1):
        try:
            return await act()
        except Conflict as error:
            if error.code != "retry":
                raise
    return await act()


async def _decide(
    db: Database, actor: Actor, id: UUID, decision: Decision, channel: Channel, key: str | None
) -> tuple[DecisionReceipt, Closing | None]:
    """With what it did; None where it was there before."""
    edit = await edits.prepared(db, actor, id, decision)
    closing: Closing | None = None
    refused: CortexError | None
    async with db.transaction(actor.org_id) as tx:
        opened = found(await approvals.open_one(tx, id), "approval")
        found(await approvals.get(tx, id, actor.sees), "approval")
        is_same = deciding.is_same(opened.approval, decision, edit.input_hash if edit else None)
        earlier = await approvals.with_key(tx, id, key) if key else None
        if earlier is not None:
            # One vote decides, so whatever was recorded under a key is what the approval says.
            same_person = earlier["actor_member_id"] == actor.user_account_id
            refused = None if is_same and same_person else _key_reused()
        else:
            refused = _refusal(opened, actor, decision, edit)
            if refused is None and opened.approval.status is ApprovalStatus.PENDING:
                closing = await _close(tx, opened, actor, decision, edit, channel, key)
            elif refused is None and not is_same:
                refused = deciding.already(opened.approval)
            elif refused is None:
                await _note(tx, opened, actor, channel, decision.decision, decision.version, None)
        if refused is not None:
            await _note(tx, opened, actor, channel, decision.decision, decision.version, refused)
        approval, _ = found(await approvals.get(tx, id, None), "approval")
    if refused is not None:
        raise refused
    result = RecordResult.OK if closing is not None else RecordResult.DUPLICATE
    return DecisionReceipt(result=result, approval=deciding.shown_to(approval, actor)), closing


def _key_reused() -> Conflict:
    return Conflict(
        "This Idempotency-Key was used for a different decision.",
        code="idempotency_key_reused",
        hint="Send a new key with a new request; repeat a key only with the same request.",
    )


def _refusal(opened: Opened, actor: Actor, decision: Decision, edit: edits.Edit | None) -> CortexError | None:
    request = opened.approval
    if request.kind is not ApprovalKind.CALL:
        return Conflict(
            "This asks whether a call happened; there is nothing to approve.",
            code="not_a_call",
            hint="Answer it with `cortex approval answer`: happened, did_not_happen or fail.",
        )
    if decision.arguments is not None and decision.decision is Choice.DENIED:
        return InvalidInput("Arguments are edited to approve them.", hint="Leave `arguments` out to deny.")
    authority = deciding.may_decide(request, actor, decision.decision)
    if authority is not None or request.status is not ApprovalStatus.PENDING:
        return authority
    stale = deciding.outdated(request, decision, opened.now)
    if stale is not None or edit is None:
        return stale
    if edit.policies != opened.policies:
        # Policies changed between the look at them and this lock: look again.
        raise Conflict("The policies changed meanwhile.", code="retry")
    return edit.refused or edits.authority(edit, request, actor)


async def _note(
    tx: Transaction, opened: Opened, actor: Actor, channel: Channel, said: str, version: int,
    error: CortexError | None,
) -> None:  # fmt: skip
    """A decision or an answer that decided nothing is on the trail all the same."""
    request = opened.approval
    told = {"decision": said, "code": error.code if error else None}
    if error is None:
        kind, action = "channel_duplicate", "approval_duplicate"
    else:
        kind = "channel_conflict" if error.code == "approval_conflict" else "refused"
        action = "approval_refused"
    await approvals.record_event(tx, request.id, kind, channel, actor, told)
    fact = Fact.of(actor, action, approval=str(request.id), channel=channel, version=version, **told)
    await audit.append_to_session(tx, request.session_id, [fact])


async def _close(
    tx: Transaction, opened: Opened, actor: Actor, decision: Decision, edit: edits.Edit | None,
    channel: Channel, key: str | None,
) -> Closing:  # fmt: skip
    request = opened.approval
    if decision.decision is Choice.APPROVED:
        closing = deciding.approved(opened)
    else:
        closing = deciding.denied(opened, actor.name, decision.reason)
    version = request.version + (edit is not None)
    said = {
        "approval": str(request.id),
        "decision": decision.decision,
        "reason": decision.reason,
        "channel": channel,
        "tool": request.tool_name,
        "version": version,
        "input_hash": edit.input_hash if edit else request.input_hash,
        "edited_from": request.input_hash if edit else None,
        "calls": [str(call) for call, _, _ in closing.calls],
    }
    told = {k: said[k] for k in ("decision", "reason", "version")}
    happened = [{"approval": str(request.id), "type": decision.decision, "keyed": True, "payload": told}]
    if edit is not None:
        edited = {"from": request.input_hash, "to": edit.input_hash, "version": version}
        happened.insert(0, {"approval": str(request.id), "type": "edited", "payload": edited})
    await _write(
        tx, opened, closing, actor, happened, Fact.of(actor, "approval_decision", **said),
        ("approval_decided", request.job_id, {**told, "approval_id": str(request.id), "by": actor.name}),
        version=version, arguments=edit.arguments if edit else None,
        input_hash=edit.input_hash if edit else None, choice=decision.decision, reason=decision.reason,
        channel=channel, key=key,
    )  # fmt: skip
    return closing


async def _write(
    tx: Transaction, opened: Opened, closing: Closing, actor: Actor, happened: list[dict[str, Any]], fact: Fact,
    event: SessionEvent, *, version: int, arguments: bytes | None = None, input_hash: str | None = None,
    choice: Choice | None = None, reason: str | None = None, channel: Channel | None = None, key: str | None = None,
) -> None:  # fmt: skip
    """The end of an approval, with what it does to its jobs and their other approvals."""
    request = opened.approval
    facts, events = [fact], [event]
    for job in closing.jobs:
        if job.status is None:
            continue
        events.append(("status", job.id, {"status": job.status, "error": job.error}))
        if job.status is JobStatus.FAILED:
            facts.append(Fact.of(actor, "job_failed", job=str(job.id), error=job.error))
            events.append(("error", job.id, {"message": job.error}))
        else:
            resumed = {"approval_id": str(request.id), "resumed_by_approval": True}
            facts.append(
                Fact.of(
                    actor, "session_resumed", job=str(job.id), held=job.status is JobStatus.PAUSED, **resumed
                )
            )
            if job.status is JobStatus.RUNNING:
                events.append(("session_resumed", job.id, resumed))
    for sibling in closing.cancelled:
        happened.append(
            {"approval": str(sibling.id), "type": "cancelled", "payload": {"because_of": str(request.id)}}
        )
        facts.append(
            Fact.of(actor, "approval_cancelled", approval=str(sibling.id), because_of=str(request.id))
        )
        events.append(("approval_cancelled", request.job_id, {"approval_id": str(sibling.id)}))
    await approvals.close_one(
        tx, opened, closing, version=version, arguments=arguments, input_hash=input_hash,
        actor=actor if choice else None, choice=choice, reason=reason, channel=channel, key=key,
        happened=happened, events=events, facts=facts,
    )  # fmt: skip


# Uncertain effects ------------------------------------------------------------------------------------------------


@verb(Permission.JOB_SETTLE)
async def answer(
    db: Database, actor: Actor, id: UUID, answer: EffectAnswer, channel: Channel
) -> DecisionReceipt:
    """The answer to an uncertain effect; with the last one its job goes on."""
    given = Answer(verdict=answer.verdict, result=answer.result, note=answer.note)
    async with db.transaction(actor.org_id) as tx:
        opened = found(await approvals.open_one(tx, id), "approval")
        request = opened.approval
        refused = _no_question(opened)
        if refused is None:
            await steering.settled(tx, actor, request.job_id, opened.calls[0].id, given, channel)
        else:
            await _note(tx, opened, actor, channel, answer.verdict, request.version, refused)
        approval, _ = found(await approvals.get(tx, id, None), "approval")
    if refused is not None:
        raise refused
    db.hints.work()
    return DecisionReceipt(result=RecordResult.OK, approval=approval)


def _no_question(opened: Opened) -> CortexError | None:
    """Why there is nothing to answer."""
    request = opened.approval
    if request.kind is not ApprovalKind.UNCERTAIN_EFFECT:
        return Conflict(
            "This is a request to approve a call, not a question about one.",
            code="not_a_question",
            hint="Approve or deny it.",
        )
    return None if request.status is ApprovalStatus.PENDING else deciding.already(request)


# Deadlines --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acted:
    """What a scheduler did to an approval."""

    what: str
    template: str


async def act_when_due(db: Database, actor: Actor, id: UUID) -> Acted | None:
    """Remind or expire, whichever is due; None where somebody else was faster."""
    acted = await _again_where_others_were_first(lambda: _act_when_due(db, actor, id))
    if acted is not None and acted.what == "expired":
        db.hints.work()
        meters().expired(actor.org_id, acted.template)
    return acted


async def _act_when_due(db: Database, actor: Actor, id: UUID) -> Acted | None:
    async with db.transaction(actor.org_id) as tx:
        if not await approvals.take(tx, id):
            return None
        opened = await approvals.open_one(tx, id)
        if opened is None or opened.approval.status is not ApprovalStatus.PENDING:
            return None
        request = opened.approval
        if request.deadline is not None and request.deadline <= opened.now:
            closing = deciding.expired(opened)
            told = {"approval": str(id), "tool": request.tool_name, "deadline": request.deadline.isoformat()}
            await _write(
                tx, opened, closing, actor, [{"approval": str(id), "type": "expired"}],
                Fact.of(actor, "approval_expired", **told),
                ("approval_expired", request.job_id, {"approval_id": str(id)}), version=request.version,
            )  # fmt: skip
            return Acted("expired", request.template)
        if request.remind_at is None or request.remind_at > opened.now or not await approvals.remind(tx, id):
            return None
        await audit.append_to_session(
            tx, request.session_id, [Fact.of(actor, "approval_reminded", approval=str(id))],
            [("approval_reminded", request.job_id, {"approval_id": str(id)})],
        )  # fmt: skip
        return Acted("reminded", request.template)
