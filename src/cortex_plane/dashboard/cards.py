"""What the templates of a card show of a request, to one person."""

from __future__ import annotations

from typing import Any

from cortex_plane.agents.model.tools import ToolVersion
from cortex_plane.approvals.model.approvals import (
    NEVER,
    Approval,
    ApprovalDetails,
    ApprovalKind,
    ApprovalStatus,
    Choice,
    Vote,
)
from cortex_plane.approvals.rules.deciders import refusal
from cortex_plane.dashboard import pages, text
from cortex_plane.tenancy.model.access import Actor, Permission

ASKED_TWICE = frozenset({"high", "critical"})
"""The risks that are approved with a second press."""
SPANS = {3600: "1 hour", 8 * 3600: "8 hours", 24 * 3600: "1 day", 7 * 24 * 3600: "7 days"}
"""How long a standing approval may last, as the card offers it."""


def card(details: ApprovalDetails, tool: ToolVersion | None, actor: Actor) -> dict[str, Any]:
    """What the templates of a card show."""
    approval = details.approval
    edited = approval.original_arguments is not None
    tree = text.tree(approval.arguments)
    voted = _own_vote(details, actor)
    return {
        "details": details,
        "approval": approval,
        "tool": tool,
        "tree": tree,
        "lines": tree.count("\n") + 1,
        "raw": text.escaped_json(approval.arguments),
        "changes": text.changes(approval.original_arguments, approval.arguments) if edited else [],
        "may_resend": actor.may(Permission.DELIVERY_WRITE),
        "asked_twice": approval.risk in ASKED_TWICE,
        "may_deny": _may_deny(approval, actor),
        # What adds nothing can be said again, by whoever has proven a channel since.
        "voted": voted if voted is not None and voted.counts_with is None else None,
        "may_delegate": approval.may_decide and approval.kind is ApprovalKind.CALL and voted is None,
        "standing_spans": SPANS if _offers_standing(approval) else {},
        "seen": seen_of(details),
        "now": details.now,
    }


def seen_of(details: ApprovalDetails) -> str:
    """From what is read anyway: whether a card changed is asked far more often than it is shown."""
    approval = details.approval
    last = details.events[-1].created_at if details.events else None
    return pages.fingerprint(
        (approval.status, approval.version, approval.may_decide, len(details.events), last),
        (len(details.votes), len(details.delegations), approval.escalation_level),
        [(d.id, d.status, d.attempts, d.rendered_version == d.desired_version) for d in details.deliveries],
    )


def _own_vote(details: ApprovalDetails, actor: Actor) -> Vote | None:
    """A yes that was given. An answer about an uncertain effect may still become another one."""
    if details.approval.kind is ApprovalKind.UNCERTAIN_EFFECT:
        return None
    return next(
        (
            vote
            for vote in details.votes
            if vote.member_id == actor.user_account_id
            and vote.version == details.approval.version
            and details.approval.status is ApprovalStatus.PENDING
        ),
        None,
    )


def _offers_standing(approval: Approval) -> bool:
    """Whether its policy lets one person say yes to more than this call; the verb has the last word."""
    one = approval.quorum.votes == 1 and sum(needed.votes for needed in approval.quorum.roles) <= 1
    return approval.standing and one and approval.template not in NEVER and approval.tool_digest is not None


def _may_deny(approval: Approval, actor: Actor) -> bool:
    """Whoever asked for a thing may always say no to it, also where somebody else must say yes."""
    if approval.kind is ApprovalKind.UNCERTAIN_EFFECT:
        return False
    return refusal(approval, actor, Choice.DENIED) is None
