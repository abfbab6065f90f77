"""Deciding an approval: votes, edits of arguments, and what the end of an approval writes."""

from __future__ import annotations

import asyncio
import functools
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from uuid import UUID

import orjson

from cortex_plane.agents.model.tools import Risk
from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import ApprovalKind, ApprovalStatus, Channel, Choice, Decision
from cortex_plane.approvals.rules import deciders
from cortex_plane.approvals.rules.deciders import ApprovalEnd, LockedApproval, Request, may_approve, refusal
from cortex_plane.approvals.store import SessionEvent
from cortex_plane.approvals.verbs import standing_approvals
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput
from cortex_plane.kernel.schemas import Unusable, compiled, faults
from cortex_plane.policies.model.policies import (
    CallFacts,
    PolicyDecision,
    PolicyVerdict,
    Quorum,
    is_met,
    quorum_said,
    stricter_quorum,
)
from cortex_plane.policies.verbs.policy_cache import book, request_rows
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.proof.rules.receipts import Decided
from cortex_plane.proof.verbs import receipts
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs.frame import require_found

T = TypeVar("T")

TRIES = 5
MOST_VAIN = 10
"""How many decisions in vain of one person on one card have a row and an entry each."""


async def retry_on_conflict(act: Callable[[], Awaitable[T]]) -> T:
    for _ in range(TRIES - 1):
        try:
            return await act()
        except Conflict as error:
            if error.code != "retry":
                raise
    return await act()


def key_reused() -> Conflict:
    return Conflict(
        "This Idempotency-Key was used for a different decision.",
        code="idempotency_key_reused",
        hint="Send a new key with a new request; repeat a key only with the same request.",
    )


def decision_refusal(
    opened: LockedApproval, actor: Actor, decision: Decision, edit: Edit | None
) -> CortexError | None:
    request = opened.approval
    if request.kind is not ApprovalKind.CALL:
        return Conflict(
            "This asks whether a call happened; there is nothing to approve.",
            code="not_a_call",
            hint="Answer it with `cortex approval answer`: happened, did_not_happen or fail.",
        )
    if decision.arguments is not None and decision.decision is Choice.DENIED:
        return InvalidInput("Arguments are edited to approve them.", hint="Leave `arguments` out to deny.")
    if decision.standing is not None and decision.decision is Choice.DENIED:
        return InvalidInput("Only a yes can stand for more calls.", hint="Leave `standing` out to deny.")
    authority = deciders.may_decide(request, actor, decision.decision) or deciders.one_human(
        opened.shaped_by, decision.decision
    )
    if authority is not None or request.status is not ApprovalStatus.PENDING:
        return authority
    stale = deciders.outdated(request, decision, opened.now) or _no_standing(request, decision)
    if stale is not None or edit is None:
        return stale
    if edit.policies != opened.policies:
        # Policies changed between the look at them and this lock: look again.
        raise Conflict("The policies changed meanwhile.", code="retry")
    return edit.refused or edit_authority(edit, request, actor)


def _no_standing(request: Request, decision: Decision) -> CortexError | None:
    """Why the yes to more than this one call, where somebody gives it, cannot be given."""
    return None if decision.standing is None else standing_approvals.check(request, decision.standing)


async def note_refused_decision(
    tx: Transaction, opened: LockedApproval, actor: Actor, channel: Channel, said: str, version: int,
    error: CortexError | None,
) -> None:  # fmt: skip
    """A decision or an answer that decided nothing is on the trail all the same. After the tenth of a person it is counted on
    the card alone."""
    request = opened.approval
    told = {"decision": said, "code": error.code if error else None}
    if error is None:
        kind, action = "channel_duplicate", "approval_duplicate"
    else:
        kind = "channel_conflict" if error.code == "approval_conflict" else "refused"
        action = "approval_refused"
    earlier = await approvals_store.record_refused_decision(
        tx, request.id, kind, channel, actor, told, MOST_VAIN
    )
    if earlier > MOST_VAIN:
        return
    further = {"further": "counted on the card"} if earlier == MOST_VAIN else {}
    said_of = {"approval": str(request.id), "channel": channel, "version": version, **told, **further}
    fact = Fact.of(actor, action, **said_of)
    await proof_store.append_to_session(tx, request.session_id, [fact], job=request.job_id)


def quorum_of(opened: LockedApproval, edit: Edit | None) -> Quorum:
    """An edited call may need more people than the one that was asked for, and never fewer."""
    of_edit = [each.terms.quorum for each in edit.decided if each.terms is not None] if edit else []
    return functools.reduce(stricter_quorum, of_edit, opened.approval.quorum)


def is_vote(opened: LockedApproval, edit: Edit | None) -> bool:
    """Whoever edits the arguments shapes the call: where self-approval is off, their own yes to it does not count."""
    if edit is None:
        return True
    of_edit = [each.terms for each in edit.decided if each.terms is not None]
    return opened.approval.self_approval and all(terms.self_approval for terms in of_edit)


def ends_it(
    opened: LockedApproval, actor: Actor, decision: Decision, edit: Edit | None, quorum: Quorum
) -> bool:
    """One no is enough; for a yes it takes a quorum."""
    if decision.decision is Choice.DENIED:
        return True
    if not is_vote(opened, edit):
        return False
    return deciders.completes(opened, quorum, actor, anew=edit is not None)


async def cannot_vote(
    tx: Transaction, opened: LockedApproval, actor: Actor, decision: Decision, edit: Edit | None
) -> CortexError | None:
    """Why a yes that does not end it cannot be kept."""
    if edit is None:
        return None
    if decision.standing is not None and not is_vote(opened, edit):
        return Conflict(
            "Whoever edits the arguments may not approve them, so their yes cannot stand for more calls.",
            code="edit_stands_for_nothing",
            hint="Leave `standing` out: the edit then waits for somebody else.",
        )
    if not edit.same_terms:
        # Those who are still to vote were chosen for another call.
        return Conflict(
            "With these arguments the policies ask for something else, and more votes are needed.",
            code="edit_other_terms",
            hint="Deny it with a reason, so that the agent asks for it anew.",
        )
    if await approvals_store.find_twin(tx, opened.approval.id, edit.input_hash) is not None:
        return Conflict(
            "The same call with these arguments waits for a decision already.",
            code="edit_duplicates",
            hint="Decide that one, and deny this one.",
        )
    if not is_vote(opened, edit) and not await _others_can(tx, opened, actor):
        return Conflict(
            "Whoever edits the arguments may not approve them, and too few others may.",
            code="edit_leaves_nobody",
            hint="Approve it as it is, or deny it with a reason.",
        )
    return None


async def _others_can(tx: Transaction, opened: LockedApproval, actor: Actor) -> bool:
    request = opened.approval
    barred = [
        *request.delegated,
        *request.causes,
        *([actor.user_account_id] if actor.user_account_id else []),
    ]
    able = await approvals_store.list_deciders(
        tx, request.approvers, request.required_clearance, request.owner_id, barred
    )
    return is_met(request.quorum, [each.roles for each in able])


async def record_vote(
    tx: Transaction, opened: LockedApproval, actor: Actor, decision: Decision, edit: Edit | None, channel: Channel,
    key: str | None,
) -> None:  # fmt: skip
    request = opened.approval
    version = request.version + (edit is not None)
    input_hash = edit.input_hash if edit else request.input_hash
    counts = is_vote(opened, edit)
    told = {
        "decision": decision.decision, "reason": decision.reason, "version": version, "input_hash": input_hash,
    }  # fmt: skip
    happened: list[dict[str, Any]] = [{"type": "voted", "keyed": True, "payload": told}] if counts else []
    if edit is not None:
        edited = {"from": request.input_hash, "to": edit.input_hash, "version": version}
        first = {"type": "edited", "payload": edited if counts else told | edited, "keyed": not counts}
        happened.insert(0, first)
    said = {"approval": str(request.id), "channel": channel, "tool": request.tool_name, **told}
    fact = Fact.of(
        actor, "approval_vote" if counts else "approval_edited", edited_from=request.input_hash if edit else None,
        needed=quorum_said(request.quorum), **said,
    )  # fmt: skip
    shown = {k: told[k] for k in ("decision", "reason", "version")}
    await approvals_store.insert_vote(
        tx, opened, version=version, arguments=edit.arguments if edit else None,
        input_hash=edit.input_hash if edit else None, actor=actor,
        reason=decision.reason, channel=channel, key=key, happened=happened,
        counts=counts,
        events=[("approval_voted", request.job_id, {**shown, "approval_id": str(request.id), "by": actor.name})],
        facts=[fact],
    )  # fmt: skip


async def close_approval(
    db: Database, tx: Transaction, opened: LockedApproval, actor: Actor, decision: Decision, edit: Edit | None,
    channel: Channel, key: str | None,
) -> ApprovalEnd:  # fmt: skip
    request = opened.approval
    if decision.decision is Choice.APPROVED:
        closing = deciders.approved(opened)
    else:
        closing = deciders.denied(opened, actor.name, decision.reason)
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
    recorded = {**told, "input_hash": said["input_hash"]}
    happened = [{"approval": str(request.id), "type": decision.decision, "keyed": True, "payload": recorded}]
    if edit is not None:
        edited = {"from": request.input_hash, "to": edit.input_hash, "version": version}
        happened.insert(0, {"approval": str(request.id), "type": "edited", "payload": edited})
    decided = await write_end(
        tx, opened, closing, actor, happened, Fact.of(actor, "approval_decision", **said),
        ("approval_decided", request.job_id, {**told, "approval_id": str(request.id), "by": actor.name}),
        version=version, arguments=edit.arguments if edit else None,
        input_hash=edit.input_hash if edit else None, choice=decision.decision, reason=decision.reason,
        channel=channel, key=key,
    )  # fmt: skip
    if decided is None:
        raise AssertionError("a decision leaves something to sign")
    standing = None
    if decision.standing is not None:
        standing = await standing_approvals.grant(
            tx, actor, request=request, draft=decision.standing, version=version,
            input_hash=edit.input_hash if edit else request.input_hash, reason=decision.reason, now=opened.now,
        )  # fmt: skip
    await receipts.write_receipt(
        db, tx, decided, actor=actor, decision=decision.decision, channel=channel,
        calls=[call for call, _, _ in closing.calls], standing=standing,
    )  # fmt: skip
    return closing


async def write_end(
    tx: Transaction, opened: LockedApproval, closing: ApprovalEnd, actor: Actor, happened: list[dict[str, Any]], fact: Fact,
    event: SessionEvent, *, version: int, arguments: bytes | None = None, input_hash: str | None = None,
    choice: Choice | None = None, reason: str | None = None, channel: Channel | None = None, key: str | None = None,
) -> Decided | None:  # fmt: skip
    """The end of an approval, with what it does to its jobs and their other approvals. Returns what there is to sign."""
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
    return await approvals_store.close_approval(
        tx, opened, closing, version=version, arguments=arguments, input_hash=input_hash,
        actor=actor if choice else None, choice=choice, reason=reason, channel=channel, key=key,
        happened=happened, events=events, facts=facts,
    )  # fmt: skip


def hop_fact(actor: Actor, id: UUID, hop: Row) -> Fact:
    """Somebody was out of office: their part went on by itself."""
    return Fact.of(
        actor, "approval_delegated", approval=str(id), automatic=True, reason=hop["reason"],
        **{"from": str(hop["from_member_id"]), "from_name": hop["from_member"], "to": str(hop["to_member_id"])},
        name=hop["to_member"], to_clearance=hop["to_clearance"],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Edit:
    arguments: bytes
    input_hash: str
    policies: str
    decided: Sequence[PolicyDecision]
    refused: CortexError | None
    """Why these arguments cannot be approved by anybody."""
    same_terms: bool = False
    """Whether the policies say the very same of the call as it is: whoever else is to vote may vote on this too."""


async def prepare_edit(db: Database, actor: Actor, id: UUID, decision: Decision) -> Edit | None:
    """None where nothing is edited: no arguments, or the same that are there."""
    if decision.arguments is None or decision.decision is Choice.DENIED:
        return None
    arguments = canonical(decision.arguments)
    digest = hashlib.sha256(arguments).hexdigest()
    if digest == decision.input_hash:
        return None
    version, policies = await book.current(db, actor.org_id)
    async with db.transaction(actor.org_id) as tx:
        approval, _ = require_found(await approvals_store.get_approval(tx, id, actor.sees), "approval")
        unable = may_approve(approval, actor)
        if unable is not None:
            # Whoever may not approve it does not have it checked either.
            return Edit(arguments, digest, version, [], unable)
        context = require_found(await approvals_store.approval_context(tx, id), "approval")
    sent = orjson.loads(arguments)
    fault = await asyncio.to_thread(_schema_fault, context["parameters"], sent)
    if fault is not None:
        return Edit(arguments, digest, version, [], fault)
    facts = CallFacts(
        target=approval.tool_name,
        arguments=sent,
        read_only=context["read_only"],
        risk=Risk(approval.risk),
        agent=context["agent"],
        teams=tuple(context["teams"]),
        session_kind=context["session_kind"],
    )
    # Several jobs may wait for this one decision, each with demands of its own.
    decided = [policies.decide(facts, request_rows(rows)) for rows in context["request_policies"]]
    denied = next((each for each in decided if each.verdict is PolicyVerdict.DENY), None)
    refused = None
    if denied is not None:
        refused = Forbidden(
            f"The call is denied with these arguments, by {denied.rule}.",
            code="edit_denied",
            hint="Choose arguments that the policy allows, or deny the call.",
        )
    before = replace(facts, arguments=approval.arguments)
    asked = [policies.decide(before, request_rows(rows)) for rows in context["request_policies"]]
    same = approval.policy_version == version and asked == decided
    return Edit(arguments, digest, version, decided, refused, same)


def _schema_fault(schema: dict[str, object] | None, arguments: dict[str, object]) -> CortexError | None:
    if schema is None:
        return InvalidInput(
            "The tool's schema is not known any more, so its arguments cannot be edited.",
            code="schema_unknown",
            hint="Approve the call as it is, or deny it.",
        )
    try:
        wrong = faults(compiled(schema), arguments)
    except Unusable as error:
        return InvalidInput(
            f"The arguments cannot be checked against the tool: {error}.",
            code="edit_invalid",
            hint="Approve the call as it is, or deny it.",
        )
    if not wrong:
        return None
    return InvalidInput(
        f"The edited arguments do not fit the tool: {wrong[0]}.",
        code="edit_invalid",
        hint="Correct them, or approve the call as it is.",
    )


def edit_authority(edit: Edit, request: Request, actor: Actor) -> CortexError | None:
    """An edit must not reach what its approver could not approve: the edited call has terms of its own."""
    for terms in (each.terms for each in edit.decided if each.terms is not None):
        refused = refusal(
            approvers=terms.approvers,
            required_clearance=terms.required_clearance,
            self_approval=terms.self_approval,
            owner_id=request.owner_id,
            causes=request.causes,
            actor=actor,
            choice=Choice.APPROVED,
        )
        if refused is not None:
            return refused
    return None
