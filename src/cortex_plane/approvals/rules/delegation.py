"""Whether somebody may hand their part in a request to somebody else: pure, from what the database locked and showed."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from cortex_plane.approvals.model.approvals import ApprovalKind, ApprovalStatus, Choice
from cortex_plane.approvals.rules.deciders import (
    LockedApproval,
    Request,
    already,
    approval_expired,
    has_voted,
    may_decide,
    one_human,
)
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound
from cortex_plane.policies.model.quorums import is_met, quorum_said
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.orgs import Member, Role


def cannot_delegate(
    opened: LockedApproval,
    actor: Actor,
    to: Member,
    others: Mapping[UUID, frozenset[Role]],
    tied: str | None = None,
) -> CortexError | None:
    """Why the actor may not hand their part to this person. ``others`` may decide besides the actor, with their roles. ``tied``: a
    cause of the call who could be the same human as this person."""
    request = opened.approval
    if request.status is not ApprovalStatus.PENDING:
        return already(request)
    if request.kind is not ApprovalKind.CALL:
        return Conflict(
            "This asks whether a call happened; there is no part in it to hand on.",
            code="not_a_call",
            hint="Answer it, or ask somebody who knows to answer it.",
        )
    if request.deadline is not None and opened.now >= request.deadline:
        return approval_expired()
    # Whoever could not approve it has nothing to hand on: they must not choose who does.
    authority = may_decide(request, actor, Choice.APPROVED) or one_human(opened.shaped_by, Choice.APPROVED)
    if authority is not None:
        return authority
    if has_voted(opened, actor):
        return Conflict(
            "You have approved this already.",
            code="already_voted",
            hint="Your vote stands, unless you deny the request.",
        )
    return _cannot_take(request, actor, to, tied) or _too_few(request, to, others)


def nobody_to_take_it() -> NotFound:
    return NotFound(
        "There is no such member who could take it.",
        code="delegate_unknown",
        hint="Name an active member, not a guest: `cortex absence delegates` lists them.",
    )


def _cannot_take(request: Request, actor: Actor, to: Member, tied: str | None) -> CortexError | None:
    if to.deactivated_at is not None or set(to.roles) <= {Role.GUEST}:
        return nobody_to_take_it()
    if to.id == actor.user_account_id:
        return InvalidInput("You have it already.", code="delegate_is_self", hint="Name somebody else.")
    if to.id in request.delegated:
        return Conflict(
            f"{to.display_name} handed this on before: it would go round in a circle.",
            code="delegation_cycle",
            hint="Name somebody who has not had it yet.",
        )
    if to.clearance < request.required_clearance:
        return Forbidden(
            f"This needs clearance {request.required_clearance}; {to.display_name} has {to.clearance}.",
            code="delegate_clearance",
            hint="Name somebody with that clearance.",
        )
    if not request.self_approval and to.id in request.causes:
        return Forbidden(
            f"{to.display_name} asked for this, and its policy wants somebody else to approve it.",
            code="delegate_self_approval",
            hint="Name somebody who had no part in asking.",
        )
    if tied is not None:
        return Forbidden(
            f"{to.display_name} and {tied}, who asked for this, count as one human, and its policy wants somebody else to approve it.",
            code="delegate_self_approval",
            hint="Name somebody else, or let them prove a channel of their own: `cortex user link`.",
        )
    return None


def _too_few(request: Request, to: Member, others: Mapping[UUID, frozenset[Role]]) -> CortexError | None:
    able = {**others, to.id: frozenset(to.roles)}
    if is_met(request.quorum, list(able.values())):
        return None
    return Conflict(
        f"Without you too few are left: this needs {quorum_said(request.quorum)}.",
        code="quorum_impossible",
        hint="Name somebody who could not decide it yet.",
    )
