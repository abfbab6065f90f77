"""Edited arguments: a person approves a call with other arguments than the agent sent.

They must fit the schema that the tool had when it was asked for, and are authorised again, as a call of the agent's own.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from uuid import UUID

import orjson

from cortex_plane.agents.model.tools import Risk
from cortex_plane.approvals.model.approvals import Choice, Decision
from cortex_plane.approvals.rules.deciders import Request, may_approve, refusal
from cortex_plane.approvals.store import approvals
from cortex_plane.db.database import Database
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import CortexError, Forbidden, InvalidInput
from cortex_plane.kernel.schemas import Unusable, compiled, faults
from cortex_plane.policies.model.authorization import PolicyVerdict
from cortex_plane.policies.model.policies import CallFacts, PolicyDecision
from cortex_plane.policies.verbs.policy_cache import book, request_rows
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs.frame import require_found


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


async def prepared(db: Database, actor: Actor, id: UUID, decision: Decision) -> Edit | None:
    """None where nothing is edited: no arguments, or the same that are there."""
    if decision.arguments is None or decision.decision is Choice.DENIED:
        return None
    arguments = canonical(decision.arguments)
    digest = hashlib.sha256(arguments).hexdigest()
    if digest == decision.input_hash:
        return None
    version, policies = await book.current(db, actor.org_id)
    async with db.transaction(actor.org_id) as tx:
        approval, _ = require_found(await approvals.get(tx, id, actor.sees), "approval")
        unable = may_approve(approval, actor)
        if unable is not None:
            # Whoever may not approve it does not have it checked either.
            return Edit(arguments, digest, version, [], unable)
        context = require_found(await approvals.context(tx, id), "approval")
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


def authority(edit: Edit, request: Request, actor: Actor) -> CortexError | None:
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
