"""Webhooks in both directions, as Standard Webhooks 1.0 has them: who signed what, and when.

What is signed is ``id.timestamp.body``, byte for byte. A timestamp that is far from now is worth nothing, so that what
somebody overheard cannot be sent again later.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.approvals.model.approvals import ApprovalStatus, Choice, RecordResult
from cortex_plane.kernel.errors import Unauthenticated
from cortex_plane.kernel.fields import DRAFT, ExternalId, Note

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


# Signatures -------------------------------------------------------------------------------------------------------


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
        kept = {"secret": self.secret}
        if self.previous is not None and self.previous_until is not None:
            kept |= {"previous": self.previous, "previous_until": self.previous_until.isoformat()}
        return kept

    @classmethod
    def of(cls, kept: Mapping[str, str]) -> Secrets:
        until = kept.get("previous_until")
        return cls(
            secret=kept["secret"],
            previous=kept.get("previous"),
            previous_until=datetime.fromisoformat(until) if until else None,
        )


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
    given = _signatures(headers.get("webhook-signature", ""))
    # Everything is compared with everything, so that the time it takes tells nothing.
    found = False
    for secret in secrets:
        expected = _mac(secret, id, timestamp, body)
        for signature in given:
            found |= hmac.compare_digest(expected, signature)
    if not found:
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
    found: list[bytes] = []
    for each in header.split(" ")[:_MAX_SIGNATURES]:
        version, _, text = each.partition(",")
        if version != "v1":
            continue
        try:
            found.append(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            continue
    return found


# Addresses --------------------------------------------------------------------------------------------------------


# What comes in ----------------------------------------------------------------------------------------------------


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


@draft(config=DRAFT, frozen=True, kw_only=True)
class InboundEvent:
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
    said: str
    """The status of the answer, or what went wrong."""
    seconds: float
