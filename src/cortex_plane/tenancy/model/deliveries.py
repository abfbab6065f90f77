"""Deliveries: what became of each notification, as surfaces show it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID


class NotificationKind(StrEnum):
    APPROVAL = "approval"
    """A request that somebody may decide; its message follows the request to its end."""
    INVITATION = "invitation"
    """A link with which somebody proves that an address is theirs."""
    CALLBACK = "callback"
    """What was decided about a call, for the agent that runs elsewhere and waits for it."""
    NOTICE = "notice"
    """What happened under an atlas, for its steward."""


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    """It shows less than it should: it is sent as soon as its time has come."""
    DELIVERED = "delivered"
    DEAD = "dead"
    """Given up. It stays visible, and can be sent again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivery:
    """A notification as surfaces show it."""

    id: UUID
    kind: NotificationKind
    approval_id: UUID | None
    call_id: UUID | None = None
    """The call that a callback is about."""
    channel_type: str
    connection_id: UUID
    connection: str
    """Its name."""
    member_id: UUID | None
    """None where an agent or a steward is told."""
    member: str
    """Who is told: a person, an agent, or the steward of an atlas."""
    address: str
    status: DeliveryStatus
    attempts: int
    """Tries since something was last delivered."""
    desired_version: int
    rendered_version: int
    next_attempt_at: datetime | None
    last_error: str | None
    message_ref: str | None
    """The channel's own name for the message."""
    sent_at: datetime | None
    created_at: datetime
