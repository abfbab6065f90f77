"""Decisions about calls of a job by their own id: answers about uncertain ones, and the routes of spec 3."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model import approvals as approval_model
from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.approvals.rules import decisions as approval_rules
from cortex_plane.approvals.rules.decisions import LockedApproval
from cortex_plane.approvals.store import queries
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.db.pool import PoolPurpose
from cortex_plane.gates.verbs import session_gates
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.effects import MAX_REPEATS, Answer, CallStatus, ToolCall, Verdict, repeats_used_up
from cortex_plane.jobs.model.jobs import TERMINAL, Hold, Job, JobKind, JobStatus, Resumption, SteeringResult
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError, Stale
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb


@verb(Permission.JOB_SETTLE)
async def settle(db: Database, actor: Actor, id: UUID, call_id: UUID, answer: Answer) -> SteeringResult:
    """A person's answer about an uncertain call. With the last one that is needed the job goes on, unless something else holds it."""
    db = db.own(PoolPurpose.DECISIONS)

    async def once(unread: CortexError | None) -> tuple[SteeringResult, CortexError | None]:
        async with db.transaction(actor.org_id) as tx:
            error = await settle_call(tx, actor, id, call_id, answer, approval_model.Channel.API, unread)
            return await steering.steering_result(tx, id, error is None), error

    receipt, error = await session_gates.with_gate_record(db, actor.org_id, once)
    if error is not None:
        raise error
    db.hints.work()
    return receipt


@verb(Permission.APPROVAL_DECIDE)
async def answer(
    db: Database, actor: Actor, id: UUID, answer: approval_model.EffectAnswer, channel: approval_model.Channel
) -> approval_model.DecisionReceipt:
    """The answer to an uncertain effect; with the last one that is needed its job goes on."""
    db = db.own(PoolPurpose.DECISIONS)
    verdict = Answer(verdict=answer.verdict, result=answer.result, note=answer.note)

    async def once(unread: CortexError | None) -> tuple[approval_model.Approval, CortexError | None]:
        async with db.transaction(actor.org_id) as tx:
            card = await decisions.open_visible(tx, id, actor, channel)
            approval = card.approval
            error = _no_question(approval)
            if error is None:
                job_id, call_id = card.calls[0].job_id, card.calls[0].id
                error = await settle_call(tx, actor, job_id, call_id, verdict, channel, unread, card=card)
            else:
                await decisions.note_refused_decision(tx, card, actor, channel, answer.verdict, approval.version, error)
            return await approvals_store.read_again(tx, id, actor), error

    approval, error = await session_gates.with_gate_record(db, actor.org_id, once)
    if error is not None:
        raise error
    db.hints.work()
    return approval_model.DecisionReceipt(result=approval_model.RecordResult.OK, approval=approval)


def _no_question(approval: approval_model.Approval) -> CortexError | None:
    """Why there is nothing to answer."""
    if approval.kind is not approval_model.ApprovalKind.UNCERTAIN_EFFECT:
        return Conflict(
            "This is a request to approve a call, not a question about one.",
            code="not_a_question",
            hint="Approve or deny it.",
        )
    return None if approval.status is ApprovalStatus.PENDING else approval_rules.already_decided(approval)


async def settle_call(
    tx: Transaction, actor: Actor, id: UUID, call_id: UUID, answer: Answer, channel: approval_model.Channel,
    unread: CortexError | None = None, *, card: LockedApproval | None = None,
) -> CortexError | None:  # fmt: skip
    """The answer and what follows from it, through whatever door it came; its card ends with the last answer that is needed. Returns
    why it was refused, which is on the trail then. ``unread``: why the gates of its session cannot look on. ``card``: whoever sees
    the card may answer it, also where they do not see the job."""
    job_row = require_found(await jobs_store.lock_job(tx, id, None if card else actor.sees), "job")
    call = require_found(await jobs_store.get_call(tx, id, call_id), "call")
    if call.status is not CallStatus.UNCERTAIN:
        raise Conflict(
            f"This call is {call.status}; there is nothing to settle.",
            code="call_settled",
            hint="Read its step with `cortex job steps`.",
        )
    # A session that runs elsewhere may be over before anybody was asked: the doubt outlives it.
    is_over = job_row["status"] in TERMINAL
    if job_row["kind"] != JobKind.EXTERNAL:
        steering.require_open(job_row)
    card_id = card.approval.id if card else await tx.value(queries.approval_of_uncertain_call, id, call_id)
    if card_id is None and job_row["kind"] == JobKind.EXTERNAL and await approvals_store.is_unasked(tx, id, call_id):
        raise Conflict(
            "Those who let this call be sent are not asked about it yet.",
            code="not_asked_yet",
            hint="Send the answer again.",
        )
    if card_id is not None:
        by = actor.user_account_id, actor.name
        card = card or require_found(await approvals_store.open_approval(tx, card_id, actor, channel), "approval")
        refused = await _refusal(tx, card, actor, call_id, answer)
        if refused is not None:
            version = card.approval.version
            await decisions.note_refused_decision(tx, card, actor, channel, answer.verdict, version, refused)
            return refused
        if answer.verdict is not Verdict.FAIL and not approval_rules.agrees(card, actor, _counted_answer(answer)):
            counted = _counted_answer(answer)
            version = card.approval.version
            await tx.rows(
                queries.vote_answer, tx.org, card_id, version, *by, answer.note, channel, counted, answer.verdict
            )
            vote = {"call": str(call_id), "tool": call.tool_name, "verdict": answer.verdict}
            vote |= {"approval": str(card_id), "answer": counted}
            shown = [("approval_voted", id, {"approval_id": str(card_id), "by": actor.name})]
            await steering.append_fact(tx, job_row["session_id"], id, actor, "approval_vote", vote, shown)
            return None
        ends_as = ApprovalStatus.DENIED if answer.verdict is Verdict.FAIL else ApprovalStatus.APPROVED
        await tx.rows(queries.answer_question, card_id, ends_as, *by, answer.note, channel, answer.verdict)
    status = {
        Verdict.HAPPENED: CallStatus.COMPLETED,
        Verdict.DID_NOT_HAPPEN: CallStatus.CLEARED,
        Verdict.FAIL: CallStatus.FAILED,
    }[answer.verdict]
    if is_over and status is CallStatus.CLEARED:
        # Nothing begins again in a session that is over: whoever comes with its key asks for a new call.
        status, answer = CallStatus.FAILED, replace(answer, note=answer.note or "it did not happen")
        await tx.rows(queries.release_keys, tx.org, call_id)
    result = await jobs_store.answer_call(tx, call_id, status, answer, actor.name)
    digest = None if result is None else hashlib.sha256(canonical(result)).hexdigest()
    settlement = {"call": str(call_id), "tool": call.tool_name, "verdict": answer.verdict, "note": answer.note}
    events = [("effect_settled", id, settlement)]
    record = None
    if await _ends_here(tx, job_row, id, call, status):
        given_up = f"`{call.tool_name}` was given up: {answer.note or 'no reason'}"
        error = given_up if status is CallStatus.FAILED else None
        record = await session_gates.record_ended_call(tx, actor, job_row["session_id"], call.tool_name, error, unread)
        events += [(kind, id, data) for kind, data in record.events]
    proof = {**settlement, "approval": str(card_id) if card_id is not None else None, "result_hash": digest}
    await steering.append_fact(
        tx, job_row["session_id"], id, actor, "effect_settled", proof, events, record.facts if record else ()
    )
    if answer.verdict is Verdict.FAIL and job_row["kind"] != JobKind.EXTERNAL:
        reason = answer.note or "no reason"
        error = f"`{call.tool_name}` of step {call.step_index} was given up by {actor.name}: {reason}"
        await steering.fail_job(tx, actor, job_row["session_id"], id, error)
    elif not is_over and not [c for c in await jobs_store.open_calls(tx, id) if c.status is CallStatus.UNCERTAIN]:
        await steering.lift_holds(tx, id, job_row, (Hold.UNCERTAIN_EFFECT,), actor, answer.note)
    return None


async def _refusal(
    tx: Transaction, card: LockedApproval, actor: Actor, call_id: UUID, answer: Answer
) -> CortexError | None:
    choice = approval_model.Choice.DENIED if answer.verdict is Verdict.FAIL else approval_model.Choice.APPROVED
    error = approval_rules.refusal(card.approval, actor, choice)
    if error is not None or answer.verdict is not Verdict.DID_NOT_HAPPEN:
        return error
    return repeats_used_up() if await approvals_store.count_repeats(tx, call_id) >= MAX_REPEATS else None


def _counted_answer(answer: Answer) -> str:
    """Answers count together where verdict and result are the same."""
    result = hashlib.sha256(canonical(answer.result)).hexdigest() if answer.result is not None else ""
    return f"{answer.verdict}:{result}"


async def _ends_here(tx: Transaction, job_row: Row, id: UUID, call: ToolCall, status: CallStatus) -> bool:
    """Whether gates hear of the end of the call here. What a worker goes on with it tells gates of itself; where its job ends, or code
    only reads in its journal what it came to, that is never. What ran before it in the same response was told before it was sent."""
    if status is CallStatus.COMPLETED and job_row["kind"] != JobKind.EXTERNAL:
        entries = await jobs_store.list_journal(tx, id, call.step_index - 1, 1)
        return any(entry.position == call.step_index for entry in entries)
    return status is not CallStatus.CLEARED


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
        raise await _pending(db, actor, job)
    if job.holds:
        return (await steering.resume(db, actor, id, Resumption())).job
    return job


async def _pending(db: Database, actor: Actor, job: Job) -> Conflict:
    page = await approvals.list_approvals(db, actor, None, MOST_NAMED, status=ApprovalStatus.PENDING, job_id=job.id)
    names = "; ".join(f"`{approval.tool_name}` (approval {approval.id})" for approval in page.items)
    return Conflict(
        f"This request waits for {job.open_approvals} decision{'s' if job.open_approvals > 1 else ''}: {names}.",
        code="approval_pending",
        hint="Decide with `cortex approval approve` or `deny`, or at /v1/approve-tool; it then goes on by itself.",
    )


@verb(Permission.APPROVAL_DECIDE)
async def approve_tool(
    db: Database, actor: Actor, call_id: UUID, decision: approval_model.ToolDecision, once: IdempotencyKey | None = None
) -> approval_model.DecisionReceipt:
    """Decide the approval that a call belongs to, as it stands now. Identical calls that joined it go with it."""
    approval = await approvals.approval_for_call(db, actor, call_id)
    if decision.version is None and approval.version > 1:
        raise Stale(
            f"This call's approval is at version {approval.version} by now.",
            code="approval_changed",
            hint="Look at it with `cortex approval show`, then send its `version` with your decision.",
        )
    choice = approval_model.ApprovalDecision(
        decision=approval_model.Choice.APPROVED if decision.approved else approval_model.Choice.DENIED,
        version=decision.version or approval.version,
        input_hash=approval.input_hash,
        reason=decision.reason,
    )
    return await decisions.decide(db, actor, approval.id, choice, approval_model.Channel.API, once)
