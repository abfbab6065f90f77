"""Whether a call may be sent. Policies and gates are not there yet: read-only calls are allowed, the others by a setting."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PolicyVerdict(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    REQUIRES_APPROVAL = "requires_approval"


class SideEffects(StrEnum):
    """What becomes of calls with side effects that no policy speaks of."""

    ALLOW = "allow"
    DENY = "deny"


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: PolicyVerdict
    rule: str
    """What decided, as the audit trail names it."""


def decide(*, read_only: bool, side_effects: SideEffects) -> Decision:
    if read_only:
        return Decision(PolicyVerdict.ALLOW, "read_only")
    return Decision(PolicyVerdict(side_effects.value), f"setting:side_effects={side_effects}")
