"""Approvals as people see and decide them: lists, one approval, decisions, answers, delegation, and the routes of spec 3."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import (
    AT_MOST,
    Approval,
    ApprovalDetails,
    ApprovalKind,
    ApprovalStatus,
    Channel,
    Choice,
    Decision,
    DecisionReceipt,
    Delegate,
    DelegationDraft,
    EffectAnswer,
    Mark,
    RecordResult,
    ToolDecision,
    Waiting,
)
from cortex_plane.approvals.rules import deciders
from cortex_plane.approvals.rules.deciders import (
    ApprovalEnd,
    LockedApproval,
    cannot_delegate,
    nobody_to_take_it,
)
from cortex_plane.approvals.verbs import decisions, settlements, standing_approvals
from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.pool import PoolPurpose
from cortex_plane.gates.verbs import session_gates
from cortex_plane.jobs.model.effects import Answer
from cortex_plane.jobs.model.jobs import TERMINAL, Job, JobStatus, Resumption
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import Conflict, CortexError, Stale
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.meters import meters
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.notify import store as notify_store
from cortex_plane.policies.model.policies import Approvers
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.store import orgs as orgs_store
from cortex_plane.tenancy.verbs.frame import require_found, verb

SHOWN_DECIDERS = 20


@verb(Permission.APPROVAL_READ)
async def list_approvals(
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
        page = await approvals_store.list_approvals(
            tx, position, limit, actor.sees, status, job_id, session_id
        )
        return Page(items=await _shown_to(tx, page.items, actor), next=page.next)


async def _shown_to(tx: Transaction, listed: Sequence[Approval], actor: Actor) -> list[Approval]:
    """With whether whoever looks could approve each of them, and if not, why."""
    shown = [deciders.shown_to(each, actor) for each in listed]
    able = [each.id for each in shown if each.may_decide and not each.self_approval]
    if not able or actor.user_account_id is None:
        return shown
    tied = await approvals_store.tied_causes(tx, able, actor.user_account_id)
    return [deciders.shown_to(each, actor, tied.get(each.id)) for each in shown] if tied else shown


@verb(Permission.APPROVAL_READ)
async def list_inbox(
    db: Database, actor: Actor, limit: int, *, skip: int = 0, shown_at: datetime | None = None
) -> Waiting:
    """What waits, the most urgent first: what the actor could decide, and what else they see, each up to ``limit``."""
    async with db.transaction(actor.org_id) as tx:
        found = await approvals_store.list_inbox(tx, actor, actor.sees, shown_at, skip, limit)
        return replace(
            found,
            mine=await _shown_to(tx, found.mine, actor),
            others=[deciders.shown_to(each, actor) for each in found.others],
        )


@verb(Permission.APPROVAL_READ)
async def list_settled(db: Database, actor: Actor, limit: int) -> list[Approval]:
    """What ended lately, the last first."""
    async with db.transaction(actor.org_id) as tx:
        return await approvals_store.list_settled(tx, actor.sees, limit)


@verb(Permission.APPROVAL_READ)
async def get_approval(db: Database, actor: Actor, id: UUID) -> ApprovalDetails:
    async with db.transaction(actor.org_id) as tx:
        approval, now = require_found(await approvals_store.get_approval(tx, id, actor.sees), "approval")
        barred = [*approval.delegated, *([] if approval.self_approval else approval.causes)]
        able = await approvals_store.list_deciders(
            tx, approval.approvers, approval.required_clearance, approval.owner_id, barred, SHOWN_DECIDERS
        )
        names = [each.name for each in able]
        (shown,) = await _shown_to(tx, [approval], actor)
        return ApprovalDetails(
            approval=replace(shown, deciders=names),
            votes=deciders.explained(approval, await approvals_store.list_votes(tx, id)),
            events=await approvals_store.list_approval_events(tx, id),
            delegations=await approvals_store.list_delegations(tx, id),
            deliveries=await notify_store.deliveries_of_approval(tx, id) if actor.sees is None else [],
            similar=await approvals_store.list_similar(tx, id, approval.tool_name)
            if actor.sees is None
            else [],
            now=now,
        )


@verb(Permission.APPROVAL_READ)
async def approval_for_call(db: Database, actor: Actor, call_id: UUID) -> Approval:
    """The request that a call belongs to."""
    async with db.transaction(actor.org_id) as tx:
        id = require_found(await approvals_store.approval_of_call(tx, call_id), "approval")
        approval, _ = require_found(await approvals_store.get_approval(tx, id, actor.sees), "approval")
        (shown,) = await _shown_to(tx, [approval], actor)
    return shown


def own_key(actor: Actor, key: str) -> str:
    """As it is kept with a decision: each person's keys are their own, and nobody uses up another's."""
    return f"{actor.user_account_id}:{key}"


@verb(Permission.APPROVAL_DECIDE)
async def decide(
    db: Database,
    actor: Actor,
    id: UUID,
    decision: Decision,
    channel: Channel,
    once: IdempotencyKey | None = None,
) -> DecisionReceipt:
    """Raises ``Conflict`` with the code ``approval_conflict`` where somebody decided otherwise before."""
    db = db.own(PoolPurpose.DECISIONS)
    key = own_key(actor, once.key) if once else None
    receipt, closing = await decisions.retry_on_conflict(
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


async def _decide(
    db: Database, actor: Actor, id: UUID, decision: Decision, channel: Channel, key: str | None
) -> tuple[DecisionReceipt, ApprovalEnd | None]:
    """With what it did; None where it was there before."""
    edit = await decisions.prepare_edit(db, actor, id, decision)
    await standing_approvals.prepare(decision.standing)
    closing: ApprovalEnd | None = None
    refused: CortexError | None
    async with db.transaction(actor.org_id) as tx:
        opened = require_found(await approvals_store.open_approval(tx, id, actor, channel), "approval")
        require_found(await approvals_store.get_approval(tx, id, actor.sees), "approval")
        is_same = deciders.is_same(opened.approval, decision, edit.input_hash if edit else None)
        earlier = await approvals_store.find_by_key(tx, id, key) if key else None
        voted = False
        if earlier is not None:
            said = (decision.decision, edit.input_hash if edit else decision.input_hash)
            recorded = (earlier["payload"].get("decision"), earlier["payload"].get("input_hash"))
            refused = None if said == recorded else decisions.key_reused()
        else:
            refused = decisions.decision_refusal(opened, actor, decision, edit)
            if refused is None and opened.approval.status is ApprovalStatus.PENDING:
                quorum = decisions.quorum_of(opened, edit)
                if decisions.ends_it(opened, actor, decision, edit, quorum):
                    closing = await decisions.close_approval(
                        db, tx, opened, actor, decision, edit, channel, key
                    )
                elif edit is None and deciders.adds_nothing(opened, actor):
                    await decisions.note_refused_decision(
                        tx, opened, actor, channel, decision.decision, decision.version, None
                    )
                else:
                    refused = await decisions.cannot_vote(tx, opened, actor, decision, edit)
                    if refused is None:
                        await decisions.record_vote(tx, opened, actor, decision, edit, channel, key)
                        voted = True
            elif refused is None and not is_same:
                refused = deciders.already(opened.approval)
            elif refused is None:
                await decisions.note_refused_decision(
                    tx, opened, actor, channel, decision.decision, decision.version, None
                )
        if refused is not None:
            await decisions.note_refused_decision(
                tx, opened, actor, channel, decision.decision, decision.version, refused
            )
        approval, _ = require_found(await approvals_store.get_approval(tx, id, None), "approval")
    if refused is not None:
        raise refused
    result = RecordResult.OK if closing is not None or voted else RecordResult.DUPLICATE
    return DecisionReceipt(result=result, approval=deciders.shown_to(approval, actor)), closing


# Uncertain effects ------------------------------------------------------------------------------------------------


@verb(Permission.APPROVAL_DECIDE)
async def answer(
    db: Database, actor: Actor, id: UUID, answer: EffectAnswer, channel: Channel
) -> DecisionReceipt:
    """The answer to an uncertain effect; with the last one that is needed its job goes on."""
    db = db.own(PoolPurpose.DECISIONS)
    given = Answer(verdict=answer.verdict, result=answer.result, note=answer.note)

    async def once(unread: CortexError | None) -> tuple[Approval, CortexError | None]:
        async with db.transaction(actor.org_id) as tx:
            opened = require_found(await approvals_store.open_approval(tx, id), "approval")
            request = opened.approval
            require_found(await approvals_store.get_approval(tx, id, actor.sees), "approval")
            refused = _no_question(opened)
            if refused is None:
                refused = await settlements.settled(
                    tx, actor, request.job_id, opened.calls[0].id, given, channel, unread, by_card=True
                )
            else:
                await decisions.note_refused_decision(
                    tx, opened, actor, channel, answer.verdict, request.version, refused
                )
            return require_found(await approvals_store.get_approval(tx, id, None), "approval")[0], refused

    approval, refused = await session_gates.with_gate_record(db, actor.org_id, once)
    if refused is not None:
        raise refused
    db.hints.work()
    return DecisionReceipt(result=RecordResult.OK, approval=approval)


def _no_question(opened: LockedApproval) -> CortexError | None:
    """Why there is nothing to answer."""
    request = opened.approval
    if request.kind is not ApprovalKind.UNCERTAIN_EFFECT:
        return Conflict(
            "This is a request to approve a call, not a question about one.",
            code="not_a_question",
            hint="Approve or deny it.",
        )
    return None if request.status is ApprovalStatus.PENDING else deciders.already(request)


# Delegation -------------------------------------------------------------------------------------------------------


@verb(Permission.APPROVAL_DECIDE)
async def delegate(db: Database, actor: Actor, id: UUID, draft: DelegationDraft) -> Approval:
    """Whoever could approve it hands their part to somebody else with the clearance, and decides no more."""
    db = db.own(PoolPurpose.DECISIONS)
    approval = await decisions.retry_on_conflict(lambda: _delegate(db, actor, id, draft))
    meters().delegated(actor.org_id)
    return approval


async def _delegate(db: Database, actor: Actor, id: UUID, draft: DelegationDraft) -> Approval:
    async with db.transaction(actor.org_id) as tx:
        opened = require_found(await approvals_store.open_approval(tx, id, actor, Channel.API), "approval")
        require_found(await approvals_store.get_approval(tx, id, actor.sees), "approval")
        request = opened.approval
        to = await orgs_store.get_member(tx, draft.to)
        if to is None:
            raise nobody_to_take_it()
        barred = [*request.delegated, *([] if request.self_approval else request.causes)]
        able = await approvals_store.list_deciders(
            tx, request.approvers, request.required_clearance, request.owner_id, barred
        )
        others = {each.id: each.roles for each in able if each.id != actor.user_account_id}
        tied = await approvals_store.tied_causes(tx, [id], to.id)
        refused = cannot_delegate(opened, actor, to, others, tied.get(id))
        if refused is not None:
            await decisions.note_refused_decision(
                tx, opened, actor, Channel.API, "delegated", request.version, refused
            )
        else:
            await approvals_store.insert_delegation(
                tx, id, actor, to.id, to.display_name, to.clearance, draft.reason
            )
            hops = await approvals_store.record_reach(tx, id)
            said = {
                "to": str(to.id),
                "name": to.display_name,
                "reason": draft.reason,
                "to_clearance": to.clearance,
            }
            await proof_store.append_to_session(
                tx, request.session_id,
                [
                    Fact.of(actor, "approval_delegated", approval=str(id), automatic=False, **said),
                    *(decisions.hop_fact(actor, id, hop) for hop in hops),
                ],
                [("approval_delegated", request.job_id, {"approval_id": str(id), "by": actor.name, "to": to.display_name})],
                job=request.job_id,
            )  # fmt: skip
        approval, _ = require_found(await approvals_store.get_approval(tx, id, None), "approval")
    if refused is not None:
        raise refused
    return deciders.shown_to(approval, actor)


@verb(Permission.ABSENCE_WRITE)
async def list_delegates(
    db: Database, actor: Actor, *, approval_id: UUID | None = None, name: str | None = None
) -> list[Delegate]:
    """Colleagues by name, at most ``AT_MOST``; with an approval, those who could take the caller's part in it."""
    async with db.transaction(actor.org_id) as tx:
        if approval_id is None:
            return await approvals_store.list_delegates(tx, actor.user_account_id, name, AT_MOST)
        require_found(await approvals_store.get_approval(tx, approval_id, actor.sees), "approval")
        besides = actor.user_account_id or actor.key_id
        return await approvals_store.delegates_of_approval(tx, approval_id, besides, name, AT_MOST)


@verb(Permission.APPROVAL_READ)
async def marks_of_approvals(db: Database, actor: Actor, seen: Sequence[Approval]) -> dict[UUID, Mark]:
    """Of requests that the actor was shown."""
    if not seen:
        return {}
    async with db.transaction(actor.org_id) as tx:
        return await approvals_store.marks_of_approvals(
            tx, [each.id for each in seen], actor.user_account_id, actor.sees is None
        )


@verb(Permission.APPROVAL_READ)
async def next_level(db: Database, actor: Actor, approval_id: UUID) -> Approvers | None:
    """Who is asked besides when a request goes up next."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await approvals_store.get_approval(tx, approval_id, actor.sees), "approval")
        return await approvals_store.next_level(tx, approval_id)


MOST_NAMED = 20


@verb(Permission.JOB_STEER)
async def execute(db: Database, actor: Actor, id: UUID) -> Job:
    """The job, which the plane runs; a paused one is resumed. What waits for a decision goes on with that alone."""
    job = await jobs.get(db, actor, id)
    if job.status in TERMINAL:
        raise Conflict(
            f"This request is {job.status} already.",
            code="job_finished",
            hint="Submit it again with `cortex job resubmit`.",
        )
    if job.status is JobStatus.WAITING_FOR_APPROVAL:
        raise await _waits(db, actor, job)
    if job.holds:
        return (await steering.resume(db, actor, id, Resumption())).job
    return job


async def _waits(db: Database, actor: Actor, job: Job) -> Conflict:
    open_ones = await list_approvals(
        db, actor, None, MOST_NAMED, status=ApprovalStatus.PENDING, job_id=job.id
    )
    named = "; ".join(f"`{each.tool_name}` (approval {each.id})" for each in open_ones.items)
    return Conflict(
        f"This request waits for {job.open_approvals} decision{'s' if job.open_approvals > 1 else ''}: {named}.",
        code="approval_pending",
        hint="Decide with `cortex approval approve` or `deny`, or at /v1/approve-tool; it then goes on by itself.",
    )


@verb(Permission.APPROVAL_DECIDE)
async def approve_tool(
    db: Database, actor: Actor, call_id: UUID, decision: ToolDecision, once: IdempotencyKey | None = None
) -> DecisionReceipt:
    """Decide the approval that a call belongs to, as it stands now. Identical calls that joined it go with it."""
    approval = await approval_for_call(db, actor, call_id)
    if decision.version is None and approval.version > 1:
        raise Stale(
            f"This call's approval is at version {approval.version} by now.",
            code="approval_changed",
            hint="Look at it with `cortex approval show`, then send its `version` with your decision.",
        )
    seen = Decision(
        decision=Choice.APPROVED if decision.approved else Choice.DENIED,
        version=decision.version or approval.version,
        input_hash=approval.input_hash,
        reason=decision.reason,
    )
    return await decide(db, actor, approval.id, seen, Channel.API, once)
