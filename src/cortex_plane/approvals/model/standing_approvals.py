"""Standing approvals: a person's explicit, bounded, revocable yes to a class of calls.

Always bound to one session, one tool and its version, and always with an end. What else it may be bound to is below;
whether it covers a call is decided in ``covering``, anew for each call.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field, StrictBool
from pydantic.dataclasses import dataclass as draft

from cortex_plane.kernel.fields import DRAFT, Note
from cortex_plane.policies.model.policies import Approvers, Template
from cortex_plane.proof.model import iso

DEFAULT_SECONDS = 24 * 3600
MAX_SECONDS = 7 * 24 * 3600
MAX_CALLS = 1000
NEVER = frozenset({Template.FULL_PIPELINE, Template.CRITICAL_PATH})
"""What these templates ask for is decided call by call, whatever a row says."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class StandingDraft:
    """What an approver says yes to beyond the one call. At least one bound is named."""

    same_arguments: StrictBool = False
    """Only calls with exactly the arguments that are approved."""
    calls: Annotated[int, Field(strict=True, ge=1, le=MAX_CALLS)] | None = None
    """So many more calls, after the one that is approved."""
    seconds: Annotated[int, Field(strict=True, ge=1, le=MAX_SECONDS)] | None = None
    """So long from now; a day where nothing is said."""
    condition: Note | None = None
    """CEL over the arguments and the context, as in policies."""

    @property
    def is_bounded(self) -> bool:
        return (
            self.same_arguments
            or self.calls is not None
            or self.seconds is not None
            or self.condition is not None
        )


@draft(config=DRAFT, frozen=True, kw_only=True)
class Revocation:
    """Take a standing approval back."""

    reason: Note | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GrantedUnder:
    """What the request demanded of its approver when the standing approval was given."""

    rule: str
    template: Template
    clearance: int
    approvers: Approvers = field(default_factory=Approvers)
    version: int = 1
    """Of the request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingApproval:
    id: UUID
    session_id: UUID
    agent: str
    """Its slug."""
    tool_name: str
    tool_digest: str
    input_hash: str | None
    """Where only these arguments are covered: their SHA-256, in hex."""
    condition: str | None
    max_calls: int | None
    used_calls: int
    expires_at: datetime
    granted_by: str
    granted_by_id: UUID
    required: GrantedUnder
    approval_id: UUID
    """The request that was approved together with it."""
    reason: str | None
    revoked_at: datetime | None
    revoked_by: str | None
    revocation_reason: str | None
    created_at: datetime
    last_used_at: datetime | None
    owner_id: UUID | None
    """Whose session it is."""
    usable: bool = False
    """Whether it covers anything now; each call is looked at anew all the same."""
    why_not: str | None = None
    """Where it does not: why."""

    @property
    def calls_left(self) -> int | None:
        return None if self.max_calls is None else self.max_calls - self.used_calls

    def bounds(self) -> dict[str, Any]:
        """As the audit trail and the receipt tell them."""
        return {
            "tool": self.tool_name,
            "digest": self.tool_digest,
            "input_hash": self.input_hash,
            "condition": self.condition,
            "max_calls": self.max_calls,
            "expires_at": iso(self.expires_at),
        }
