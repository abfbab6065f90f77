"""Who may do what: the roles of people, and whether a call may be sent."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    ADMIN = "admin"
    """Manages the org: people, keys, agents, connections."""
    STEWARD = "steward"
    """Writes gates and policies."""
    OPERATOR = "operator"
    """Watches and steers jobs."""
    APPROVER = "approver"
    """Decides approvals."""
    MEMBER = "member"
    """Talks with agents and submits work."""
    GUEST = "guest"
    """Came in over a channel; may chat, decides nothing."""


class PolicyVerdict(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    REQUIRES_APPROVAL = "requires_approval"


STRICTNESS = {PolicyVerdict.ALLOW: 0, PolicyVerdict.REQUIRES_APPROVAL: 1, PolicyVerdict.DENY: 2}
