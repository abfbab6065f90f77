"""Who may do what: the roles of people, and whether a call may be sent."""

from __future__ import annotations

from enum import StrEnum


class PolicyVerdict(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    REQUIRES_APPROVAL = "requires_approval"


STRICTNESS = {PolicyVerdict.ALLOW: 0, PolicyVerdict.REQUIRES_APPROVAL: 1, PolicyVerdict.DENY: 2}
