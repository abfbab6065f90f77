"""Edits of the arguments of a call: what gates and policies say about the call as its approver wants it."""

from __future__ import annotations

import asyncio
import hashlib
from uuid import UUID

import orjson

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import ApprovalDecision, ApprovalKind, Choice, EditContext
from cortex_plane.approvals.rules.decisions import Edit, LockedApproval, describe_refusal, ends_it, is_vote, refusal
from cortex_plane.approvals.store import queries
from cortex_plane.calls.rules.pipeline import CallVerdict, judge_edited
from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates.verbs.session_gates import stored_gates
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.schemas import Unusable, compiled, faults
from cortex_plane.policies.model.policies import PolicyVerdict, is_met
from cortex_plane.policies.verbs.policy_cache import book, request_rows
from cortex_plane.sessions.model.sessions import SessionKind
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs.frame import require_found


async def prepare_edit(db: Database, actor: Actor, id: UUID, decision: ApprovalDecision) -> Edit | None:
    """None where nothing is edited: no arguments, or the same that are there."""
    if decision.arguments is None or decision.decision is not Choice.APPROVED:
        return None
    arguments = canonical(decision.arguments)
    digest = hashlib.sha256(arguments).hexdigest()
    if digest == decision.input_hash:
        return None
    version, policies = await book.current(db, actor.org_id)
    async with db.transaction(actor.org_id) as tx:
        approval, _ = require_found(await approvals_store.get_approval(tx, id, actor), "approval")
        error = refusal(approval, actor, Choice.APPROVED)
        if approval.kind is not ApprovalKind.CALL:
            return None  # it is refused whatever the arguments are
        if error is not None:
            # Whoever may not approve it does not have it checked either.
            return Edit(arguments, digest, version, [], error)
        context = parse(EditContext, require_found(await tx.row(queries.approval_context, id), "approval"))
    fault = await asyncio.to_thread(_schema_fault, context.parameters, orjson.loads(arguments))
    if fault is not None:
        return Edit(arguments, digest, version, [], fault)
    gates = await stored_gates(
        db, actor.org_id, approval.session_id, loads_code=context.session_kind != SessionKind.EXTERNAL
    )
    demands = [request_rows(rows) for rows in context.request_policies]
    verdicts = judge_edited(policies, context, approval, arguments, demands, gates)
    denial = next((verdict for verdict in verdicts if verdict.verdict is PolicyVerdict.DENY), None)
    if denial is not None:
        error = _edit_denied(denial)
    earlier = judge_edited(policies, context, approval, canonical(approval.arguments), demands, gates)
    same = approval.policy_version == version and [v.answer for v in earlier] == [v.answer for v in verdicts]
    decisions = [verdict.answer.decision for verdict in verdicts]
    terms = [decision.terms for decision in decisions if decision.terms is not None]
    return Edit(arguments, digest, version, terms, error, same)


def _edit_denied(denial: CallVerdict) -> Forbidden:
    hint = "Choose arguments that the policy allows, or deny the call."
    if denial.reason and denial.ruling is not None and denial.ruling.asks:
        hint = "Approve the call as it is, or deny it with a reason: then the agent can make another call and answer the gate for it."
    return Forbidden(
        f"The call is denied with these arguments, by {denial.answer.decision.rule}{denial.reason}.",
        code="edit_denied",
        hint=hint,
    )


def _schema_fault(schema: dict[str, object] | None, arguments: dict[str, object]) -> CortexError | None:
    if schema is None:
        return InvalidInput(
            "The tool's schema is not known any more, so its arguments cannot be edited.",
            code="schema_unknown",
            hint="Approve the call as it is, or deny it.",
        )
    try:
        problems = faults(compiled(schema), arguments)
    except Unusable as error:
        return InvalidInput(
            f"The arguments cannot be checked against the tool: {error}.",
            code="edit_invalid",
            hint="Approve the call as it is, or deny it.",
        )
    if not problems:
        return None
    return InvalidInput(
        f"The edited arguments do not fit the tool: {problems[0]}.",
        code="edit_invalid",
        hint="Correct them, or approve the call as it is.",
    )


async def edit_refusal(
    tx: Transaction, row: LockedApproval, actor: Actor, decision: ApprovalDecision, edit: Edit
) -> CortexError | None:
    """An edit must not reach what its approver could not approve: the edited call has terms of its own."""
    if edit.policies != row.policies:
        # Policies changed between the look at them and this lock: look again.
        raise Conflict("The policies changed meanwhile.", code="retry")
    if edit.error is not None:
        return edit.error
    approval = row.approval
    for terms in edit.terms:
        code = await approvals_store.refusal_under_terms(tx, terms, approval.owner_id, approval.causes, actor)
        if code is not None:
            return describe_refusal(code, actor, terms.approvers, terms.required_clearance)
    return None if ends_it(row, actor, edit) else await _open_edit_refusal(tx, row, actor, decision, edit)


async def _open_edit_refusal(
    tx: Transaction, row: LockedApproval, actor: Actor, decision: ApprovalDecision, edit: Edit
) -> CortexError | None:
    """Why an edit that does not end the request cannot be kept."""
    if decision.standing is not None and not is_vote(row, edit):
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
    if await tx.value(queries.find_twin, row.approval.id, bytes.fromhex(edit.input_hash)) is not None:
        return Conflict(
            "The same call with these arguments waits for a decision already.",
            code="edit_duplicates",
            hint="Decide that one, and deny this one.",
        )
    barred = {*row.approval.causes, actor.user_account_id}
    if not is_vote(row, edit) and not is_met(
        row.approval.quorum,
        [d.roles for d in await approvals_store.deciders_of_approval(tx, row.approval.id) if d.id not in barred],
    ):
        return Conflict(
            "Whoever edits the arguments may not approve them, and too few others may.",
            code="edit_leaves_nobody",
            hint="Approve it as it is, or deny it with a reason.",
        )
    return None
