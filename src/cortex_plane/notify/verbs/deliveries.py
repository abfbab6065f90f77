"""Deliveries that were sent or failed, and their list for people."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import structlog

from cortex_plane.approvals import store as approvals_store
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.kernel.errors import Conflict
from cortex_plane.notify import rules as delivery_rules
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.model.channels import DeliveryReport
from cortex_plane.notify.model.notifications import Sent, TryAgain, Undeliverable
from cortex_plane.notify.rules import SCHEDULE
from cortex_plane.notify.store import LEASE, Lane, queries
from cortex_plane.notify.verbs.outbox import LOOK_AGAIN, Prepared
from cortex_plane.proof import store as proof_store
from cortex_plane.tenancy.model.access import Actor, Fact, Permission, scheduler_actor
from cortex_plane.tenancy.model.identities import CHANNEL, Delivery, NotificationKind
from cortex_plane.tenancy.verbs.frame import get_verb, read_verb, record, require_found, transaction_verb

log = structlog.get_logger()

LONGEST_ERROR = 500


@dataclass(frozen=True, kw_only=True, slots=True)
class Delivered:
    """A message that was sent; without a receipt there was nothing to say."""

    lane: Lane
    message: Prepared
    receipt: Sent | None
    following: Prepared | None = None
    """The message behind it, which is begun with the same commit."""


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    is_ours: bool
    """False where somebody else took it over meanwhile: then they may send it again."""
    is_next_begun: bool
    """False: it must be prepared anew, because something of it has changed."""


async def record_delivered(
    db: Database, actor: Actor, delivered: Sequence[Delivered], *, wait: bool = False
) -> list[DeliveryRecord | None]:
    """Write them down, each with the audit trail of its request where it is the first. None: somebody works on its request at this
    moment, and it is to be written down alone, with ``wait``."""
    columns = zip(*(_row(actor, each) for each in delivered), strict=True)
    rows = await db.call("record_deliveries", actor.org_id, wait, LEASE, *map(list, columns))
    return [None if row["recorded"] is None else DeliveryRecord(row["recorded"], row["begun"]) for row in rows]


def _row(actor: Actor, delivered: Delivered) -> tuple[Any, ...]:
    message, receipt, following = delivered.message, delivered.receipt, delivered.following
    payload = {"delivery": str(message.id), "member": message.member, "connection": message.connection}
    if message.member_id is not None:
        payload["member_id"] = str(message.member_id)
    fact = None
    if message.first and receipt is not None and message.kind is NotificationKind.APPROVAL:
        fact = Fact.of(
            actor, "approval_dispatched", approval=str(message.approval_id), channel=message.channel_type, **payload
        )
    return (
        message.id, delivered.lane.claim, message.version, receipt is not None, receipt.message_ref if receipt else None,
        dict(receipt.shown) if receipt else {}, dict(message.state), payload, fact.action if fact else None,
        fact.body if fact else None, following.id if following else None,
        following.version if following else None,
    )  # fmt: skip


async def record_part(db: Database, lane: Lane, id: UUID, receipt: Sent) -> bool:
    """Store which parts of a message its person has, and take the time for the next one. False where somebody else took it over."""
    async with db.transaction(lane.org_id) as tx:
        arguments = (id, lane.claim, receipt.message_ref, dict(receipt.shown), LEASE)
        return await tx.value(queries.record_part, *arguments) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class FailedDelivery:
    result: str
    """`retry` or `dead`."""
    holds_lane: bool = False
    """What is behind it in its lane waits with it."""


RETRIED, DEAD = FailedDelivery(result="retry"), FailedDelivery(result="dead")


async def record_failed(
    db: Database,
    actor: Actor,
    lane: Lane,
    id: UUID,
    error: TryAgain | Undeliverable,
    *,
    begun: Prepared | None = None,
    schedule: Sequence[float] = SCHEDULE,
    has_vendor: bool = False,
) -> FailedDelivery | None:
    """None where somebody else took it over. ``begun`` is what the channel was given; None where it never
    came to that. ``has_vendor``: all that goes over the connection goes to one vendor, which may be away as a whole."""
    reason = error.message[:LONGEST_ERROR]
    async with db.transaction(actor.org_id) as tx:
        row = await tx.row(queries.record_accepted, id, lane.claim)
        if row is None:
            return None
        attempts = row["attempts"] if begun else row["attempts"] + 1
        if isinstance(error, TryAgain):
            return await _retry(tx, actor, lane, id, row, error, attempts, begun, schedule, has_vendor=has_vendor)
        if error.gone and delivery_rules.gives_up(0, row["resolved_at"], row["now"]) is None:
            # Not this message is refused: like all others it waits until somebody enables the connection.
            waits = (delivery_rules.ANY_VERSION, 0, reason, LOOK_AGAIN)
            if await tx.value(queries.retry_delivery, id, lane.claim, *waits) is None:
                return None
            await _disable_connection(tx, actor, row["connection_id"], reason)
            return RETRIED
        if await tx.value(queries.give_up_delivery, id, lane.claim, attempts, reason) is None:
            return None
        await _give_up(tx, actor, id, row, reason, suppress=error.address and not error.gone)
        if error.gone:
            await _disable_connection(tx, actor, row["connection_id"], reason)
    return DEAD


async def _retry(
    tx: Transaction, actor: Actor, lane: Lane, id: UUID, row: Row, error: TryAgain, attempts: int, begun: Prepared | None,
    schedule: Sequence[float], *, has_vendor: bool,
) -> FailedDelivery | None:  # fmt: skip
    reason, asked = error.message[:LONGEST_ERROR], delivery_rules.requested_pause(error)
    is_of_chat = begun is not None and asked is not None and error.only_chat
    is_of_connection = (
        begun is not None
        and not is_of_chat
        and await _count_failure(tx, row["connection_id"], asked, reason, has_vendor=has_vendor)
    )
    if is_of_chat or is_of_connection:
        # Not this message is refused: it keeps its tries for when the vendor takes messages again.
        attempts -= row["now"] - row["created_at"] < delivery_rules.LONGEST_OUTAGE
    given_up = delivery_rules.gives_up(attempts, row["resolved_at"], row["now"], schedule)
    if given_up is not None:
        reason = f"{given_up}: {reason}"
        if await tx.value(queries.give_up_delivery, id, lane.claim, attempts, reason) is None:
            return None
        await _give_up(tx, actor, id, row, reason, suppress=False)
        return DEAD
    wait = asked if is_of_chat else None
    if not is_of_chat and (not is_of_connection or asked is None):
        chance = random.random()  # noqa: S311 -- jitter
        wait = timedelta(seconds=delivery_rules.delay(max(attempts, 1), chance, error.after_seconds, schedule))
    if is_of_chat or (wait is not None and delivery_rules.holds_lane(NotificationKind(row["kind"]), attempts)):
        held = await tx.value(queries.hold_lane, id, lane.claim, attempts, reason, wait)
        return None if held is None else FailedDelivery(result="retry", holds_lane=True)
    # What the failed message would have shown: what is newer is not put off.
    version = begun.version if begun else delivery_rules.ANY_VERSION
    retried = await tx.value(queries.retry_delivery, id, lane.claim, version, attempts, reason, wait)
    return None if retried is None else RETRIED


async def _count_failure(
    tx: Transaction, connection_id: UUID, asked: timedelta | None, reason: str, *, has_vendor: bool
) -> bool:
    """Whether the connection as a whole is to blame. Whoever asks for a pause, and a vendor that answers nobody, is left alone by all
    notifiers."""
    threshold = delivery_rules.BREAKER_FAILURES if has_vendor else delivery_rules.NO_BREAKER
    failures = await tx.value(
        queries.count_failure, connection_id, asked, threshold, delivery_rules.FIRST_PAUSE, delivery_rules.LONGEST_PAUSE, reason
    )  # fmt: skip
    return asked is not None or (failures or 0) >= threshold


async def _disable_connection(tx: Transaction, actor: Actor, connection_id: UUID, reason: str) -> bool:
    """Nothing is sent over it until somebody enables it again. Operators and admins get an alert. False: it was disabled already."""
    name = await tx.value(queries.disable_connection, connection_id, reason)
    if name is not None:
        await record(tx, actor, "connection_disabled", connection=connection_id, name=name, reason=reason)
        await tx.rows(queries.report_connection, tx.org, connection_id, reason)
    return name is not None


async def _give_up(tx: Transaction, actor: Actor, id: UUID, row: Row, reason: str, *, suppress: bool) -> None:
    """A dead letter is seen: on its request, on the audit trail, and where nothing more will arrive on what it was sent to."""
    payload: dict[str, Any] = {"delivery": str(id), "member": row["member"], "reason": reason}
    if row["call_id"] is not None:
        payload["call"] = str(row["call_id"])
    elif row["kind"] == NotificationKind.NOTICE:
        payload["connection"] = str(row["connection_id"])
    elif row["member_id"] is not None:
        payload["member_id"] = str(row["member_id"])
    if suppress and row["channel_type"] != CHANNEL and row["mapping_id"] is not None:
        mapping = await tx.value(queries.suppress_delivery, row["mapping_id"], reason)
        payload["suppressed"] = mapping is not None
    if row["approval_id"] is not None:
        event = ("undeliverable", row["channel_type"], actor.user_account_id, actor.name, None, payload)
        await tx.rows(approvals_store.queries.record_approval_event, tx.org, row["approval_id"], *event)
        fact = Fact.of(
            actor, "approval_undeliverable", approval=str(row["approval_id"]), channel=row["channel_type"], **payload
        )
        await proof_store.append_to_session(tx, row["session_id"], [fact], job=row["job_id"])
    else:
        fact = Fact.of(actor, f"{row['kind']}_undeliverable", channel=row["channel_type"], **payload)
        await proof_store.append_to_org(tx, fact)


list_deliveries = read_verb(Permission.DELIVERY_READ, notify_store.list_deliveries)
get_delivery = get_verb(Permission.DELIVERY_READ, notify_store.get_delivery, "delivery")


@transaction_verb(Permission.DELIVERY_WRITE)
async def resend_delivery(tx: Transaction, actor: Actor, id: UUID) -> Delivery:
    """What was given up is due now, with all its tries; an address that nothing was sent to any more is trusted again."""
    before = require_found(await notify_store.get_delivery(tx, id), "delivery")
    row = await tx.row(queries.resend_delivery, id)
    if row is None:
        raise Conflict(
            "Only what was given up can be sent again.",
            code="delivery_not_dead",
            hint="What is pending is tried by itself; what was delivered has arrived.",
        )
    is_trusted = await tx.value(queries.reset_failures, id) is not None
    fact = Fact.of(
        actor, "delivery_resent", delivery=id, member=before.member, channel=before.channel_type,
        reason=before.last_error, trusted_again=is_trusted,
    )  # fmt: skip
    if row["session_id"] is not None:
        await proof_store.append_to_session(tx, row["session_id"], [fact], job=row["job_id"])
    else:
        await proof_store.append_to_org(tx, fact)
    return require_found(await notify_store.get_delivery(tx, id), "delivery")


async def report_undelivered(db: Database, org_id: UUID, connection_id: UUID, report: DeliveryReport) -> None:
    """The vendor took a message and could not bring it to its person: it is a dead letter now."""
    reason = report.problem[:LONGEST_ERROR]
    async with db.transaction(org_id) as tx:
        rows = await tx.rows(queries.report_undelivered, connection_id, report.message_ref, reason, org_id)
        actor = scheduler_actor(org_id, connection_id, "channels")
        for row in rows:
            await _give_up(tx, actor, row["id"], row, reason, suppress=False)


async def revoke_connection(db: Database, org_id: UUID, connection_id: UUID, reason: str) -> None:
    """Its vendor took it away."""
    async with db.transaction(org_id) as tx:
        if not await _disable_connection(tx, scheduler_actor(org_id, connection_id, "channels"), connection_id, reason):
            return
    log.warning("connection revoked by its vendor", connection=str(connection_id), reason=reason)
