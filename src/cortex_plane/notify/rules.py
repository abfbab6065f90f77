"""When a delivery is tried again, when it is given up, and what a message is about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Delegation
from cortex_plane.notify.model.notifications import Occasion

SCHEDULE = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0, *(7200.0,) * 5)
"""Seconds to wait after each failure; after the last one a message is given up. A channel may have its own."""
LONGEST_WAIT_SECONDS = 24 * 3600.0
"""Nobody may put us off for longer."""
BREAKER_FAILURES = 5
"""So many tries of a connection that fail in a row pause it."""
NO_BREAKER = 2**31 - 1
"""For connections whose receivers fail one by one."""
LONGEST_OUTAGE = timedelta(days=3)
"""A vendor that is away for so long costs a message no try."""
FIRST_PAUSE, LONGEST_PAUSE = timedelta(seconds=5), timedelta(minutes=5)
ANY_VERSION = 2**31 - 1
"""Nothing is newer: what a message would have shown is not known."""
OUTCOME_IS_NEWS = timedelta(hours=24)
"""How a request ended is told for so long. After that nobody waits for it."""


def delay(attempts: int, chance: float, least: float | None, schedule: Sequence[float] = SCHEDULE) -> float:
    """Full jitter below the step of this failure (``attempts`` counts it), but not sooner than whoever refused it asked."""
    return max(chance * schedule[min(attempts, len(schedule)) - 1], min(least or 0.0, LONGEST_WAIT_SECONDS))


def gives_up(
    attempts: int, resolved_at: datetime | None, now: datetime, schedule: Sequence[float] = SCHEDULE
) -> str | None:
    """Why nobody tries again; None where somebody does."""
    if attempts > len(schedule):
        return f"given up after {attempts} tries"
    if resolved_at is not None and now - resolved_at > OUTCOME_IS_NEWS:
        return "given up: the request was over for more than a day"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedState:
    """The state of a request that a message reports."""

    status: str
    version: int
    level: int
    delegations: int
    reminded_at: str | None
    votes: int

    @classmethod
    def of(cls, approval: Approval, delegations: Sequence[Delegation]) -> ReportedState:
        return cls(
            status=approval.status.value,
            version=approval.version,
            level=approval.escalation_level,
            delegations=len(delegations),
            reminded_at=approval.reminded_at.isoformat() if approval.reminded_at else None,
            votes=approval.votes_for,
        )


def occasion(
    approval: Approval, delegations: Sequence[Delegation], member_id: UUID, earlier: Mapping[str, Any], first_level: int
) -> Occasion:
    """What is new since the last message. ``first_level``: how far the request had gone up when this person was asked."""
    if approval.status is not ApprovalStatus.PENDING:
        return Occasion.RESOLVED
    if not earlier:
        if any(hop.to_member_id == member_id for hop in delegations):
            return Occasion.DELEGATED
        return Occasion.ESCALATED if first_level > 0 else Occasion.REQUESTED
    now = ReportedState.of(approval, delegations)
    if now.reminded_at != earlier.get("reminded_at"):
        return Occasion.REMINDED
    if now.level != earlier.get("level"):
        return Occasion.ESCALATED
    return Occasion.DELEGATED if now.delegations != earlier.get("delegations") else Occasion.CHANGED
