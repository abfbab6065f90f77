"""What people do on channels: the door through which vendors bring it, and what it leads to.

The order of a request of a vendor: which connection, is its signature good, what does it hold, store it, answer. What it leads to comes
afterwards: a press decides, a message reaches an agent, a report marks a delivery.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import CortexError, InvalidInput, Unauthenticated
from cortex_plane.kernel.meters import meters
from cortex_plane.notify.model import channels as model
from cortex_plane.notify.model.channels import InboundReply, InboundRequest, ReceivedRequest
from cortex_plane.notify.verbs import channel_events, conversations, deliveries, deployments, presses
from cortex_plane.notify.verbs.channel_events import SenderReassigned, StoredEvent
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.store import SealedConnection
from cortex_plane.tenancy.verbs import links

log = structlog.get_logger()

# Of a body that is signed and is not what a channel expects.
_UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, IndexError)


@dataclass(frozen=True, slots=True)
class InboundDoor:
    """The channels of this process, and whom to wake when something was stored."""

    channels: Mapping[str, InteractiveChannel] = field(default_factory=dict)
    wake: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class VendorRequest:
    """A request of a vendor as HTTP has it."""

    method: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


async def receive(db: Database, door: InboundDoor, connection_id: UUID | None, request: VendorRequest) -> InboundReply:
    """The answer for the vendor, once everything is stored. Nothing of the body is believed before its signature is known to be good."""
    channel: InteractiveChannel | None = None
    try:
        org_id = await _org_of(db, connection_id)
        async with db.transaction(org_id) as tx:
            connection = await tenancy_store.sealed_connection(tx, connection_id) if connection_id else None
            channel = door.channels.get(connection.channel_type) if connection else None
            if connection is None or channel is None:
                raise _forged()
            received = _received(db, org_id, connection, channel, request)
            is_taken = bool(received.items) and connection.disabled_at is None
            count = await channel_events.store_items(tx, connection.id, channel, received.items) if is_taken else 0
    except Unauthenticated:
        # What cannot be tied to an org has no place on its trail.
        meters().called_back(channel.channel_type if channel else "unknown", "hmac_invalid")
        log.warning("event refused", connection=str(connection_id), reason="hmac_invalid")
        raise _forged() from None
    except MalformedEvent:
        meters().called_back(channel.channel_type if channel else "unknown", "refused")
        log.warning("event refused", connection=str(connection_id), reason="malformed", bytes=len(request.body))
        raise
    if is_taken:
        meters().called_back(channel.channel_type, "ok" if count else "duplicate")
    if count:
        door.wake()
    return received.reply


def _received(
    db: Database, org_id: UUID, connection: SealedConnection, channel: InteractiveChannel, request: VendorRequest
) -> ReceivedRequest:
    row = {name: getattr(connection, name) for name in ("id", "name", "config", "sealed")}
    target = channel_events.connection_target(db, org_id, row)
    inbound_request = InboundRequest(
        method=request.method, query=request.query, headers=request.headers, body=request.body,
        received_at=connection.now,
    )  # fmt: skip
    try:
        return channel.receive(target, inbound_request)
    except InvalidInput as error:
        raise MalformedEvent(error.message) from None
    except _UNREADABLE as error:
        log.warning("event does not have the vendor's form", error=type(error).__name__)
        raise MalformedEvent("This is no request of the vendor.") from None


class MalformedEvent(CortexError):
    """A signed request of a vendor that is not what the vendor sends."""

    code = "event_malformed"
    http_status = 400
    default_hint = "Check that the address of this connection is set up at the vendor that it belongs to."


async def _org_of(db: Database, connection_id: UUID | None) -> UUID:
    rows = await db.call("resolve_connection", None, connection_id) if connection_id else []
    if not rows:
        raise _forged()
    org_id: UUID = rows[0]["org_id"]
    return org_id


def _forged() -> Unauthenticated:
    """The same words for a connection that does not exist and for a signature that is not good, of whichever channel."""
    return Unauthenticated(
        "The connection or the signature of this request is not valid.",
        code="event_signature_invalid",
        hint="Check the secret of the connection: `cortex connection check`.",
    )


async def handle(db: Database, event: StoredEvent) -> None:
    """Do what it asks for. Raises ``TryAgain`` and ``Unavailable`` where a later try may help; whatever concerns its sender was answered."""
    occurrence = event.channel.read(event.payload)
    if event.is_disabled and not isinstance(occurrence, model.DecidedCall):
        return
    try:
        await _handle(db, event, occurrence)
    except SenderReassigned:
        if not isinstance(occurrence, model.InboundEvent) or occurrence.sender.owner is None:
            raise
        sender = occurrence.sender
        await links.unlink_reassigned(
            db, event.bridge(), event.target.connection_id, sender.id, occurrence.sender.owner
        )
        await _handle(db, event, occurrence)


async def _handle(
    db: Database,
    event: StoredEvent,
    occurrence: model.InboundEvent | model.DecidedCall | model.DeliveryReport | model.ConnectionRevoked | None,
) -> None:
    match occurrence:
        case model.HeldDeployment():
            await deployments.ask(db, event, occurrence)
        case model.EndedDeployment():
            await deployments.withdraw(db, event, occurrence)
        case model.DecidedCall():
            await deployments.settle(db, event, occurrence.call_id)
        case model.ButtonPress():
            await presses.press(db, event, occurrence)
        case model.ChatMessage():
            await conversations.hear(db, event, occurrence)
        case model.DeliveryReport():
            await deliveries.report_undelivered(db, event.org_id, event.target.connection_id, occurrence)
        case model.ConnectionRevoked():
            await deliveries.revoke_connection(db, event.org_id, event.target.connection_id, occurrence.reason)
