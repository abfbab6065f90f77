"""What a standing approval covers: pure, asked anew for each call.

It is never wider than the authority of whoever gave it, as it is at this moment: they must be able to approve this very
call, by themselves, under the terms that hold now.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from cortex_plane.approvals.model.approvals import NEVER, Approval, ApprovalKind, StandingApproval, StandingDraft
from cortex_plane.kernel.conditions import Condition, ConditionFailed
from cortex_plane.kernel.errors import CortexError, Forbidden, InvalidInput
from cortex_plane.policies.model.policies import CallFacts, Quorum, Terms, is_met
from cortex_plane.policies.rules.engine import surroundings
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.orgs import Role

MAY_REVOKE = frozenset({Role.ADMIN, Role.OPERATOR})


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncovered:
    """A call that needs a person's yes, and under which terms."""

    call_id: UUID
    tool_name: str
    tool_digest: str
    input_hash: str
    facts: CallFacts
    terms: Terms


@dataclass(frozen=True, kw_only=True, slots=True)
class Granter:
    """Whoever gave a standing approval, as they are now."""

    id: UUID
    name: str
    roles: frozenset[Role]
    clearance: int
    active: bool
    refusal: str | None
    """Why they could not approve the call now, as a code of the SQL function `decider_refusal`."""


# Giving it --------------------------------------------------------------------------------------------------------


def check(request: Approval, draft: StandingDraft) -> CortexError | None:
    """Why a standing approval cannot be given together with this request; None where it can."""
    why = _not_for(request)
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


def _not_for(request: Approval) -> str | None:
    if request.kind is not ApprovalKind.CALL or request.tool_digest is None:
        return "Only calls of tools can have a standing approval."
    if request.template in NEVER:
        return f"What {request.template} asks for is approved call by call."
    if not request.standing:
        return "Its policy does not allow standing approvals."
    if not _is_one(request.quorum):
        return "It takes more than one person to approve this."
    return None


def _is_one(quorum: Quorum) -> bool:
    return quorum.votes == 1 and sum(needed.votes for needed in quorum.roles) <= 1


# Using it ---------------------------------------------------------------------------------------------------------


def covers(
    standing: StandingApproval,
    session_id: UUID,
    call: Uncovered,
    granter: Granter,
    now: datetime,
    *,
    reserved: int = 0,
    counted: bool = False,
) -> str | None:
    """Why it does not cover this call; None where it does.

    ``reserved``: calls of the same response that use it already. ``counted``: this very call was, when it was sent.
    """
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


def _not_by_itself(terms: Terms, granter: Granter) -> str | None:
    """Whether whoever gave it could not approve this call alone, now."""
    if not granter.active:
        return "whoever gave it is not there any more"
    if not terms.standing or terms.template in NEVER:
        return "the policy does not allow it any more"
    if not is_met(terms.quorum, [granter.roles]):
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


# Listing and revoking it ------------------------------------------------------------------------------------------


def unusable(standing: StandingApproval, granter: Granter, now: datetime) -> str | None:
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


def may_revoke(standing: StandingApproval, actor: Actor) -> CortexError | None:
    if actor.user_account_id == standing.granted_by_id or not actor.roles.isdisjoint(MAY_REVOKE):
        return None
    return Forbidden(
        "Only whoever gave it, an admin or an operator may revoke it.",
        code="not_yours_to_revoke",
        hint=f"Ask {standing.granted_by}, or an operator.",
    )
