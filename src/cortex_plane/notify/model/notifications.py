"""Notifications: what a channel carries to one person, and what became of it.

A notification is one row for a request, a person and a channel. It wants to show ``desired_version`` and shows
``rendered_version``; whoever delivers brings it to the newest, so that several changes become one message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from cortex_plane.approvals.model.approvals import ApprovalKind, ApprovalStatus, Choice
from cortex_plane.calls.model import Next
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.errors import CortexError
from cortex_plane.policies.model.policies import Template


class Occasion(StrEnum):
    """Why a card is sent now."""

    REQUESTED = "requested"
    ESCALATED = "escalated"
    DELEGATED = "delegated"
    REMINDED = "reminded"
    CHANGED = "changed"
    """Other arguments, another vote, one call more."""
    RESOLVED = "resolved"


@dataclass(frozen=True, kw_only=True, slots=True)
class CardVote:
    member: str
    decision: Choice
    reason: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What a person needs on any screen, from the very bytes that would be sent; redacted, cut and labelled already.

    Text in it is an agent's or a stranger's: a channel escapes it.
    """

    approval_id: UUID
    kind: ApprovalKind
    status: ApprovalStatus
    version: int
    input_hash: str
    occasion: Occasion
    org: str
    """Its name."""
    agent: str
    tool: str
    target: str
    risk: str
    template: Template
    action: str
    """One line: what is to happen."""
    details: Mapping[str, Any] | None
    arguments: str
    """As readable JSON, with hidden characters shown."""
    truncated: bool
    """Something of it was cut: the whole is behind ``url``."""
    original_arguments: str | None
    """Before somebody edited them."""
    invocations: int
    agent_says: str | None
    asked_for: str | None
    question: str | None
    rule: str
    policy_version: str
    required_clearance: int
    deciders: tuple[str, ...]
    shaped_by: str | None = None
    """Who shaped the call, and whether they may approve it."""
    votes: tuple[CardVote, ...]
    votes_needed: int
    delegations: tuple[tuple[str, str, str | None], ...]
    """From whom, to whom, why."""
    escalation_level: int
    requested_at: datetime
    deadline: datetime | None
    resolved_at: datetime | None
    resolved_by: str | None
    resolution_reason: str | None
    url: str
    """The whole card in the dashboard."""
    redacted: bool = False
    """Something of it is hidden by the org's rules: the whole is behind ``url``, too."""
    approve_url: str | None = None
    deny_url: str | None = None
    """Signed links for this one person; each shows a page that asks. None where only the dashboard may decide, and on a
    channel that carries nothing personal."""
    token: str | None = None
    """Decides over REST, once, as this person. None where this card does not show all that it would decide, and where only
    the dashboard may."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Invitation:
    """What somebody is told who is asked whether an address is theirs."""

    org: str
    invited_by: str
    url: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Callback:
    """What an agent that runs elsewhere is told of a decision about its call. It asks for the arguments itself, with its key.

    All but ``decision`` is what holds when it is sent.
    """

    call_id: UUID
    key: str | None
    session_id: UUID
    approval_id: UUID
    decision: ApprovalStatus
    status: CallStatus
    next: Next
    reason: str | None
    input_hash: str
    decided_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Notice:
    """What a steward is told of a session that is bound to one of their atlases. It holds no arguments and no answers."""

    trigger: str
    """As the manifest's `notifications.triggers` name it."""
    atlas_id: str
    version: str
    session_id: UUID
    data: Mapping[str, Any]
    """As the session's chain has it."""
    happened_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """Where a message goes, with what the channel needs to get it there."""

    connection_id: UUID
    connection: str
    config: Mapping[str, Any]
    secrets: Mapping[str, str]
    """Opened for this one delivery; in no log."""
    address: str
    """Of the person, on that connection: an address, an id."""
    member: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Outgoing:
    """One message to deliver."""

    id: UUID
    """Of the notification: the same for all that is said about one request to one person on one channel."""
    org_id: UUID
    version: int
    """What this message shows; `id` and it together are the same for every retry."""
    target: Target
    content: Card | Invitation | Callback | Notice
    earlier: str | None
    """What the channel called the last message of this notification; None: there is none yet."""
    shown: Mapping[str, Any] = field(default_factory=dict)
    """What the channel wanted to remember of it."""
    timestamp: datetime
    """The database's time of this try."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    message_ref: str | None = None
    shown: Mapping[str, Any] = field(default_factory=dict)


class TryAgain(CortexError):
    """The message was not delivered, or nobody knows; later it may be."""

    code = "delivery_failed"
    http_status = 424

    def __init__(self, message: str, *, after_seconds: float | None = None) -> None:
        super().__init__(message, hint="It is tried again by itself.")
        self.after_seconds = after_seconds


class Undeliverable(CortexError):
    """No later try would help."""

    code = "undeliverable"
    http_status = 424

    def __init__(self, message: str, *, gone: bool = False, address: bool = False) -> None:
        super().__init__(message, hint="Correct the address or the connection, then `cortex delivery resend` it.")
        self.gone = gone
        """The whole connection is not wanted any more."""
        self.address = address
        """It is the address that was refused, whatever is sent to it; not this message, and not its sender."""
