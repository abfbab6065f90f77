"""Delegation of a request, and standing approvals: who may give or revoke them, and which calls they cover."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from cortex_plane.approvals.model import approvals as approval_model
from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Choice, StandingApproval
from cortex_plane.approvals.rules.decisions import LockedApproval, already_decided, approval_expired, refusal
from cortex_plane.gates.rules.authorization import Uncovered
from cortex_plane.kernel.conditions import Condition, ConditionFailed
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound
from cortex_plane.policies.model import policies as policy_model
from cortex_plane.policies.rules.engine import surroundings
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.orgs import Role


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A member as they are now, and why they could not approve something, where they could not."""

    id: UUID
    name: str
    roles: frozenset[Role]
    clearance: int
    active: bool
    refusal: str | None
    """As a code of the SQL function `decider_refusal`."""
    same_human_as: str | None = None
    """With the code `one_human`: the cause of the call who could be the same human."""


def cannot_delegate(
    row: LockedApproval, actor: Actor, taker: Candidate, others: Mapping[UUID, frozenset[Role]]
) -> CortexError | None:
    """Why the actor may not hand their part to this person. ``others`` may decide besides the actor, with their roles."""
    approval = row.approval
    if approval.status is not ApprovalStatus.PENDING:
        return already_decided(approval)
    if approval.kind is approval_model.ApprovalKind.CHANGE:
        return Conflict(
            "A change of rules is decided by those whose rules they are; there is no part in it to hand on.",
            code="not_a_call",
            hint="An atlas is handed over as a whole: `cortex atlas hand-over`.",
        )
    if approval.kind is not approval_model.ApprovalKind.CALL:
        return Conflict(
            "This asks whether a call happened; there is no part in it to hand on.",
            code="not_a_call",
            hint="Answer it, or ask somebody who knows to answer it.",
        )
    if approval.deadline is not None and row.now >= approval.deadline:
        return approval_expired()
    # Whoever could not approve it has nothing to hand on: they must not choose who does.
    error = refusal(approval, actor, Choice.APPROVED)
    if error is not None:
        return error
    if any(vote.member_id == actor.user_account_id for vote in row.votes):
        return Conflict(
            "You have approved this already.",
            code="already_voted",
            hint="Your vote stands, unless you deny the request.",
        )
    error = _cannot_take(approval, actor, taker)
    if error is None and not policy_model.is_met(approval.quorum, [*{**others, taker.id: taker.roles}.values()]):
        return Conflict(
            f"Without you too few are left: this needs {approval.quorum.in_words()}.",
            code="quorum_impossible",
            hint="Name somebody who could not decide it yet.",
        )
    return error


def nobody_to_take_it() -> NotFound:
    return NotFound(
        "There is no such member who could take it.",
        code="delegate_unknown",
        hint="Name an active member, not a guest: `cortex absence delegates` lists them.",
    )


def _cannot_take(approval: Approval, actor: Actor, taker: Candidate) -> CortexError | None:
    if not taker.active or taker.refusal == "guest_cannot_decide":
        return nobody_to_take_it()
    if taker.id == actor.user_account_id:
        return InvalidInput("You have it already.", code="delegate_is_self", hint="Name somebody else.")
    name = taker.name
    match taker.refusal:
        case "delegated_away":
            return Conflict(
                f"{name} handed this on before: it would go round in a circle.",
                code="delegation_cycle",
                hint="Name somebody who has not had it yet.",
            )
        case "clearance_too_low":
            message = f"This needs clearance {approval.required_clearance}; {name} has {taker.clearance}."
            return Forbidden(message, code="delegate_clearance", hint="Name somebody with that clearance.")
        case "self_approval":
            message = f"{name} asked for this, and its policy wants somebody else to approve it."
            hint = "Name somebody who had no part in asking."
        case "one_human":
            human = f"{name} and {taker.same_human_as}, who asked for this, count as one human"
            message = f"{human}, and its policy wants somebody else to approve it."
            hint = "Name somebody else, or let them prove a channel of their own: `cortex user link`."
        case _:
            return None
    return Forbidden(message, code="delegate_self_approval", hint=hint)


MAY_REVOKE = frozenset({Role.ADMIN, Role.OPERATOR})


def standing_refusal(request: Approval, draft: approval_model.StandingDraft) -> CortexError | None:
    """Why a standing approval cannot be given together with this request; None where it can."""
    why = standing_obstacle(request)
    if why is not None:
        return Forbidden(why, code="standing_not_allowed", hint="Approve this one call: leave `standing` out.")
    if not draft.is_bounded:
        return InvalidInput(
            "A standing approval needs a bound.",
            code="standing_unbounded",
            hint="Say how far it goes: same_arguments, calls, seconds or condition.",
        )
    if draft.condition is not None:
        try:
            Condition.of(draft.condition)
        except InvalidInput as error:
            return error
    return None


def standing_obstacle(request: Approval) -> str | None:
    """Why nobody may approve more than this one call; None where an approver may."""
    if request.kind is not approval_model.ApprovalKind.CALL or request.tool_digest is None:
        return "Only calls of tools can have a standing approval."
    if request.template in approval_model.NEVER:
        return f"What {request.template} asks for is approved call by call."
    if not request.standing:
        return "Its policy does not allow standing approvals."
    if request.quorum.votes > 1 or sum(needed.votes for needed in request.quorum.roles) > 1:
        return "It takes more than one person to approve this."
    return None


def why_not_covered(
    standing: StandingApproval,
    session_id: UUID,
    call: Uncovered,
    granter: Candidate,
    now: datetime,
    *,
    reserved: int = 0,
    counted: bool = False,
) -> str | None:
    """Why it does not cover this call; None where it does. ``reserved``: calls of the same response that use it
    already. ``counted``: this very call was, when it was sent."""
    return (
        _spent(standing, now, reserved=reserved, counted=counted)
        or _elsewhere(standing, session_id, call)
        or _not_by_itself(call.terms, granter)
        or _not_under(standing, call)
    )


def _spent(standing: StandingApproval, now: datetime, *, reserved: int = 0, counted: bool = False) -> str | None:
    if standing.revoked_at is not None:
        return f"{standing.revoked_by} revoked it"
    if standing.expires_at <= now:
        return "its time is over"
    if not counted and standing.calls_left is not None and standing.calls_left <= reserved:
        return "all its calls are used"
    return None


def _elsewhere(standing: StandingApproval, session_id: UUID, call: Uncovered) -> str | None:
    if standing.session_id != session_id:
        return "it is for another session"
    if standing.tool_name != call.tool_name:
        return "it is for another tool"
    if standing.tool_digest != call.tool_digest:
        return "it is for another version of the tool"
    if standing.input_hash is not None and standing.input_hash != call.input_hash:
        return "it is for other arguments"
    return None


def _not_by_itself(terms: policy_model.Terms, granter: Candidate) -> str | None:
    """Whether whoever gave it could not approve this call alone, now."""
    if not granter.active:
        return "whoever gave it is not there any more"
    if not terms.standing or terms.template in approval_model.NEVER:
        return "the policy does not allow it any more"
    if not policy_model.is_met(terms.quorum, [granter.roles]):
        return "one person is not enough any more"
    if terms.named is not None and granter.id not in terms.named:
        return "the call asks for somebody else"
    if granter.refusal == "one_human":
        return "whoever gave it and somebody who shaped the call count as one human"
    return granter.refusal and f"{granter.name} could not approve it now ({granter.refusal})"


def _not_under(standing: StandingApproval, call: Uncovered) -> str | None:
    if standing.condition is None:
        return None
    try:
        holds = Condition.of(standing.condition).holds(surroundings(call.facts))
    except InvalidInput:
        return "its condition cannot be used any more"
    except ConditionFailed as error:
        return f"its condition failed: {error}"
    return None if holds else "its condition is false"


def why_unusable(standing: StandingApproval, granter: Candidate, now: datetime) -> str | None:
    """Why it covers nothing now, as far as that can be told without a call."""
    spent = _spent(standing, now)
    if spent is not None:
        return spent
    if not granter.active:
        return f"{standing.granted_by} is not active any more"
    if granter.refusal == "clearance_too_low":
        return f"{granter.name} has clearance {granter.clearance} by now, and it needs {standing.required.clearance}"
    if granter.refusal == "guest_cannot_decide":
        return f"{granter.name} is a guest by now"
    return granter.refusal and f"{granter.name} is not one of those who may approve it any more"


def revocation_refusal(standing: StandingApproval, actor: Actor) -> CortexError | None:
    if actor.user_account_id == standing.granted_by_id or not actor.roles.isdisjoint(MAY_REVOKE):
        return None
    return Forbidden(
        "Only whoever gave it, an admin or an operator may revoke it.",
        code="not_yours_to_revoke",
        hint=f"Ask {standing.granted_by}, or an operator.",
    )
