"""Notifications, which a channel carries to one person, and webhooks in both directions.

A notification is one row for a request, a person and a channel. It wants to show ``desired_version`` and shows
``rendered_version``; the notifier brings it to the newest, so that several changes become one message.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.approvals.model.approvals import ApprovalKind, ApprovalStatus, Choice, RecordResult
from cortex_plane.calls.model import Next
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.errors import CortexError, Unauthenticated
from cortex_plane.kernel.fields import DRAFT, ExternalId, JsonValue, Note
from cortex_plane.notify.model.channels import Button
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
class CardAnswer:
    """An answer of the agent to a question of a gate."""

    gate: str
    question: str
    answer: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """What a person needs on any screen, from the very bytes that would be sent; redacted, cut and labelled already.
    Text in it is an agent's or a stranger's: a channel escapes it."""

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
    """What it is about; the tool again where the call names nothing."""
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
    rule_reason: str | None = None
    """Why its policies ask for approval, in their stewards' words."""
    gate_answers: tuple[CardAnswer, ...] = ()
    """What the agent answered to gates before this call: its own words, which may mislead."""
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
    if_nobody: str
    """What happens where nobody decides."""
    is_question: bool = False
    """It waits for an answer: there is nothing to approve."""
    answer: str | None = None
    """What was answered in the place of the call, as JSON or as plain words."""
    approve_url: str | None = None
    deny_url: str | None = None
    respond_url: str | None = None
    """Signed links for this one person; each shows a page that asks. None where only the dashboard may decide, and on a
    channel that carries nothing personal."""
    token: str | None = None
    """Decides over REST, once, as this person. None where this card does not show all that it would decide, and where only
    the dashboard may."""
    buttons: tuple[Button, ...] = ()
    """What this person may press on a channel with buttons. `Approve` stands here only where its message shows every argument whole."""

    @property
    def subject(self) -> str:
        """The tool, and what it is about."""
        return self.tool if self.target in ("", self.tool) else f"{self.tool} {self.target}"

    @property
    def names_version(self) -> bool:
        """As `Approval.names_version`."""
        return self.rule.endswith(f"@{self.policy_version}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Invitation:
    """What somebody is told who is asked whether an address is theirs."""

    org: str
    invited_by: str
    url: str
    expires_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Callback:
    """What an agent that runs elsewhere is told of a decision about its call. It asks for the arguments itself, with
    its key. All but ``decision`` is what holds when it is sent."""

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
class Alert:
    """What operators and admins are told of at once: a job failed because its checkpoint cannot be trusted, or a connection was
    disabled because its vendor took it away."""

    alert: str
    """What happened: `checkpoint_corrupt` or `connection_disabled`."""
    org: str
    """Its name."""
    message: str
    url: str
    """The page of the job, or of the connection, in the dashboard."""
    happened_at: datetime
    agent: str = ""
    agent_id: UUID | None = None
    job_id: UUID | None = None
    session_id: UUID | None = None
    corruption_type: str = ""
    connection: str = ""
    """The name of the connection that was disabled."""
    connection_id: UUID | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatReply:
    """What an agent said, for the chat from which its person wrote last: ``Target.address`` is that chat."""

    agent: str
    text: str
    """Markdown of a model: untrusted."""
    thread: str | None = None
    is_final: bool = True
    """False while the agent is still working: a channel may show that it is typing."""
    is_partial: bool = False
    """The agent is still writing it: a channel shows the first message of it, and the whole later in its place."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentVerdict:
    """Whether a deployment may go on, for the vendor that holds it: ``Target.address`` is where."""

    environment: str
    is_allowed: bool
    decided_by: str | None
    """The name of the person who decided last. None where policy did, and where strangers would read it."""
    reason: str | None
    """In the words of people or of a policy: untrusted. None where strangers would read it."""
    url: str
    """The request, or the job, in the dashboard."""


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


Content = Card | Invitation | Callback | Notice | Alert | ChatReply | DeploymentVerdict


@dataclass(frozen=True, kw_only=True, slots=True)
class Outgoing:
    """One message to deliver."""

    id: UUID
    """Of the notification: the same for all that is said about one request to one person on one channel."""
    org_id: UUID
    version: int
    """What this message shows; `id` and it together are the same for every retry."""
    target: Target
    content: Content
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
    more: bool = False
    """Parts of it are left: it is sent again, with this receipt, once the receipt is stored."""


class TryAgain(CortexError):
    """The message was not delivered, or nobody knows; later it may be."""

    code = "delivery_failed"
    http_status = 424

    def __init__(self, message: str, *, after_seconds: float | None = None, only_chat: bool = False) -> None:
        super().__init__(message, hint="It is tried again by itself.")
        self.after_seconds = after_seconds
        """How long whoever refused it asked to wait. Nothing goes over the connection until then."""
        self.only_chat = only_chat
        """The pause is for this chat alone: the connection goes on."""


class Undeliverable(CortexError):
    """No later try would help."""

    code = "undeliverable"
    http_status = 424

    def __init__(
        self, message: str, *, gone: bool = False, address: bool = False, vendor_code: int | None = None
    ) -> None:
        super().__init__(message, hint="Correct the address or the connection, then `cortex delivery resend` it.")
        self.gone = gone
        """The whole connection is not wanted any more."""
        self.address = address
        """It is the address that was refused, whatever is sent to it; not this message, and not its sender."""
        self.vendor_code = vendor_code
        """The vendor's own number of the error, for a caller that knows how to go on from it."""


SECRET_PREFIX = "whsec_"  # noqa: S105 -- the prefix of one
SECRET_BYTES = 32
MIN_SECRET_BYTES, MAX_SECRET_BYTES = 24, 64
SKEW = timedelta(minutes=5)
GRACE = timedelta(hours=24)
"""How long the secret before a rotation still counts."""
MAX_INBOUND_BYTES = 64 * 1024
_MAX_SIGNATURES = 10

# A dot would let one signature fit two readings of `id.timestamp.body`.
_ID = re.compile(r"[\x21-\x2d\x2f-\x7e]{1,150}")
_TIMESTAMP = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Secrets:
    """The secret of a connection, and for a while the one before it."""

    secret: str
    previous: str | None = None
    previous_until: datetime | None = None

    def valid(self, now: datetime) -> tuple[str, ...]:
        if self.previous is None or self.previous_until is None or now >= self.previous_until:
            return (self.secret,)
        return (self.secret, self.previous)

    def rotated(self, secret: str, now: datetime) -> Secrets:
        return Secrets(secret=secret, previous=self.secret, previous_until=now + GRACE)

    def kept(self) -> dict[str, str]:
        """As it is sealed, and as a channel is given it."""
        record = {"secret": self.secret}
        if self.previous is not None and self.previous_until is not None:
            record |= {"previous": self.previous, "previous_until": self.previous_until.isoformat()}
        return record

    @classmethod
    def of(cls, record: Mapping[str, str]) -> Secrets:
        until = record.get("previous_until")
        previous_until = datetime.fromisoformat(until) if until else None
        return cls(secret=record["secret"], previous=record.get("previous"), previous_until=previous_until)


def secret_of(key: bytes) -> str:
    return SECRET_PREFIX + base64.b64encode(key).decode()


def key_of(secret: str) -> bytes:
    """The bytes that a secret stands for. Raises ``ValueError`` for what is none."""
    if not secret.startswith(SECRET_PREFIX):
        raise ValueError("no secret of a webhook")
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
    if not MIN_SECRET_BYTES <= len(key) <= MAX_SECRET_BYTES:
        raise ValueError("a secret is 24 to 64 bytes long")
    return key


def sign(secret: str, id: str, timestamp: int, body: bytes) -> str:
    return "v1," + base64.b64encode(_mac(secret, id, str(timestamp), body)).decode()


def signed(secrets: Sequence[str], id: str, at: datetime, body: bytes) -> dict[str, str]:
    """The headers of a message; with several secrets whoever holds one of them can verify it."""
    timestamp = int(at.timestamp())
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(sign(secret, id, timestamp, body) for secret in secrets),
    }


def verify(secrets: Sequence[str], headers: Mapping[str, str], body: bytes, now: datetime) -> str:
    """The id of a message that one of these secrets signed. Raises ``Unauthenticated``, in the same words for whatever is wrong."""
    id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not _ID.fullmatch(id) or not _TIMESTAMP.fullmatch(timestamp):
        raise forged()
    if abs(int(timestamp) - now.timestamp()) > SKEW.total_seconds():
        raise forged()
    signatures = _signatures(headers.get("webhook-signature", ""))
    # Everything is compared with everything, so that the time it takes tells nothing.
    is_valid = False
    for secret in secrets:
        expected = _mac(secret, id, timestamp, body)
        for signature in signatures:
            is_valid |= hmac.compare_digest(expected, signature)
    if not is_valid:
        raise forged()
    return id


def forged() -> Unauthenticated:
    return Unauthenticated(
        "The connection or the signature of this webhook is not valid, or its time is more than five minutes off.",
        code="webhook_signature_invalid",
        hint="Sign `id.timestamp.body` with the secret of the connection, as Standard Webhooks has it, and check the clock.",
    )


def _mac(secret: str, id: str, timestamp: str, body: bytes) -> bytes:
    return hmac.digest(key_of(secret), f"{id}.{timestamp}.".encode() + body, hashlib.sha256)


def _signatures(header: str) -> list[bytes]:
    signatures: list[bytes] = []
    for part in header.split(" ")[:_MAX_SIGNATURES]:
        version, _, text = part.partition(",")
        if version == "v1":
            with contextlib.suppress(ValueError):
                signatures.append(base64.b64decode(text, validate=True))
    return signatures


class WebhookEventType(StrEnum):
    PING = "ping"
    DECISION = "approval.decision"


@draft(config=DRAFT, frozen=True, kw_only=True)
class DecisionEvent:
    """A decision that somebody made in another system."""

    approval_id: UUID
    decision: Choice
    version: Annotated[int, Field(strict=True, ge=1, le=1_000_000)]
    input_hash: Annotated[str, Field(pattern="^[a-f0-9]{64}$")]
    external_user: ExternalId
    """The name that the system has for the person."""
    reason: Note | None = None
    answer: JsonValue = None
    """With `responded`: what the agent gets as the result of its call."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class WebhookEvent:
    """The body of a webhook to the plane."""

    type: WebhookEventType
    timestamp: datetime
    data: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class EventAnswer:
    """What the plane did with an event; a redelivered one is answered alike."""

    type: WebhookEventType
    result: RecordResult
    approval_id: UUID | None = None
    status: ApprovalStatus | None = None
    """Of the approval, after this decision."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ping:
    """What came back from a connection that was tried out."""

    delivered: bool
    """Whether the message arrived."""
    said: str
    """The status of the answer, or what went wrong."""
    seconds: float
