"""The outbox: deliveries that are claimed, prepared, sent by a channel and recorded; and their list for people."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Delegation, Vote
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import advised
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.redaction import redact
from cortex_plane.notify import rules as delivery_rules
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.model.notifications import (
    Callback,
    Card,
    Invitation,
    Notice,
    Outgoing,
    Sent,
    Target,
    TryAgain,
    Undeliverable,
)
from cortex_plane.notify.rules import SCHEDULE, Said
from cortex_plane.notify.store import Lane
from cortex_plane.notify.verbs import cards
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.identities import Delivery, DeliveryStatus, NotificationKind
from cortex_plane.tenancy.rules import MacKind
from cortex_plane.tenancy.store import identities as identities_store
from cortex_plane.tenancy.verbs import invitations
from cortex_plane.tenancy.verbs.access import forgery_refusal
from cortex_plane.tenancy.verbs.frame import require_found, verb

PER_LANE = 20
"""So many messages to one person in a turn, before others have theirs."""
LONGEST_ERROR = 500


class Channel(Protocol):
    """Carries messages to people. Keeps nothing between two messages that it could not do without.

    Two things it may say besides. ``retry_schedule``: how many seconds to wait after each failure; without it the plane's own
    times count. ``carries_credentials = False``: what it carries is read by others than its person, so its cards hold neither
    links nor a token.
    """

    channel_type: str

    def concerns(self, card: Card, shown: Mapping[str, Any]) -> bool:
        """Whether this card says something that the last one did not: a mail cannot be edited, and nobody wants one for
        every vote. ``shown`` is what the channel remembered of the last one."""
        ...

    async def send(self, outgoing: Outgoing) -> Sent:
        """Deliver it, or bring the earlier message up to date. Raises ``TryAgain`` or ``Undeliverable``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """A message that is about to be sent, or the reason why it is not."""

    id: UUID
    version: int
    kind: NotificationKind
    channel_type: str
    approval_id: UUID | None
    member_id: UUID | None
    member: str
    connection: str
    first: bool
    """Nobody told them of it before."""
    outgoing: Outgoing | None
    """None: there is nothing new to say."""
    said: Mapping[str, Any] = field(default_factory=dict)


async def claim_deliveries(
    db: Database, channels: Sequence[str], *, after: UUID | None, full: Sequence[UUID], lanes: int
) -> list[Lane]:
    """Lanes with something that is due, one of each org, the org after ``after`` first."""
    return await notify_store.claim_deliveries(
        db, new_id(), channels, after=after, full=full, lanes=lanes, per_org=1, per_lane=PER_LANE
    )


def schedule_of(channel: Channel | None) -> Sequence[float]:
    """When a channel wants to try again."""
    schedule: Sequence[float] = getattr(channel, "retry_schedule", SCHEDULE)
    return schedule


async def release_deliveries(db: Database, lane: Lane, ids: Sequence[UUID]) -> None:
    """What was taken and not begun is free again."""
    await notify_store.release_deliveries(db, lane, ids)


# Before it is sent ----------------------------------------------------------------------------------------------------


async def prepare_delivery(
    db: Database, channels: Mapping[str, Channel], public_url: str, lane: Lane, id: UUID
) -> Prepared | None:
    """None where it is not for now, nor what is behind it: somebody else has taken it over, or its connection is disabled. Raises ``Undeliverable`` where it cannot reach its person any more."""
    async with forgery_refusal(db, _not_theirs), db.transaction(lane.org_id) as tx:
        row = await notify_store.open_delivery(tx, id, lane.claim)
        if row is None:
            return None
        approval = parse(Approval, row["approval"]) if row["approval"] else None
        over = approval is not None and approval.status is not ApprovalStatus.PENDING
        if over and row["tried_at"] is None and row["call_id"] is None:
            # Whoever was never asked is not told how it ended.
            return _prepared(id, row, None, row["said"])
        _require_reachable(row, channels[row["channel_type"]])
        _require_true(tx, row)
        if row["disabled"]:
            await notify_store.postpone_delivery(tx, lane, row["connection_id"], _turned_off(row))
            return None
        said: Mapping[str, Any] = {}
        content: Card | Invitation | Callback | Notice | None
        if row["kind"] == NotificationKind.NOTICE:
            told = {**row["data"], "data": redact(row["data"]["data"], row["redact"] or ())}
            content = parse(Notice, {**told, "happened_at": row["created_at"]})
        elif approval is None:
            content = await invitations.make_invitation_code(tx, row["mapping_id"], row["data"], public_url)
        elif row["call_id"] is not None:
            content = await _callback(tx, row, approval)
        else:
            content, said = await _card(db, tx, channels[row["channel_type"]], public_url, id, row, approval)
        if content is None:
            return _prepared(id, row, None, said)
        if not await notify_store.begin_delivery(tx, id, lane.claim, lane.lane):
            return None
        return _prepared(id, row, _outgoing(db, lane.org_id, id, row, content), said)


async def _callback(tx: Transaction, row: Row, approval: Approval) -> Callback:
    kept = require_found(await calls_store.get_call(tx, row["call_id"], None), "call")
    call = advised(kept.call, is_sender=False)
    return Callback(
        call_id=call.id, key=call.key, session_id=call.session_id, approval_id=approval.id,
        decision=approval.status, status=call.status, next=call.next, input_hash=call.input_hash,
        reason=call.reason[:LONGEST_ERROR] if call.reason else None,
        decided_at=approval.resolved_at or row["now"],
    )  # fmt: skip


async def _card(
    db: Database, tx: Transaction, channel: Channel, public_url: str, id: UUID, row: Row, approval: Approval
) -> tuple[Card | None, Mapping[str, Any]]:
    hops = [parse(Delegation, hop) for hop in row["delegations"]]
    shown = cards.Shown(
        approval=approval,
        votes=[parse(Vote, vote) for vote in row["votes"]],
        delegations=hops,
        deciders=row["deciders"],
        org=row["org"],
        redact=row["redact"],
    )
    said = asdict(Said.of(approval, hops))
    first_level = int(row["data"].get("level", 0))
    occasion = delivery_rules.occasion(approval, hops, row["member_id"], row["said"], first_level)
    card = cards.card(shown, occasion, public_url)
    # What may have been sent and was not written down is said again, whatever it says.
    unsure = row["tried_at"] is not None and row["sent_at"] is None
    if not unsure and not channel.concerns(card, row["shown"]):
        return None, said
    if row["decides"] and getattr(channel, "carries_credentials", True):
        card = await cards.deciding_card(
            db, tx, card, member_id=row["member_id"], notification_id=id, channel=row["channel_type"],
            public_url=public_url,
        )  # fmt: skip
    return card, said


def _require_reachable(row: Row, channel: Channel) -> None:
    problem = None
    if row["attempts"] > len(schedule_of(channel)):
        # Failures are counted and given up where they are written down; who died each time could not.
        problem = f"Begun {row['attempts']} times, and nobody lived to tell what became of it."
    elif row["disabled"] and delivery_rules.gives_up(0, _resolved_at(row), row["now"]):
        problem = _turned_off(row)
    elif row["deactivated"]:
        problem = f"{row['member']} is deactivated."
    elif row["suppressed_reason"] is not None:
        problem = f"Nothing is sent to this address any more: {row['suppressed_reason']}"
    elif row["kind"] == NotificationKind.APPROVAL and not row["verified"]:
        raise _not_theirs()
    if problem is not None:
        raise Undeliverable(problem)


def _not_theirs() -> Undeliverable:
    return Undeliverable("The address does not belong to this person any more.")


def _require_true(tx: Transaction, row: Row) -> None:
    """A message carries what decides in somebody's name: it goes only where the plane itself wrote that they are there."""
    if row["mapping_id"] is None or row["removed"]:
        return
    written = {
        "org_id": tx.org, "id": row["mapping_id"], "connection_id": row["connection_id"],
        "channel_user_id": row["address"], "user_account_id": row["member_id"], "verified": row["verified"],
    }  # fmt: skip
    tx.credential_key.require(MacKind.MAPPING, written, row["mapping_mac"])


def _turned_off(row: Row) -> str:
    return f"The connection {row['connection']} is disabled."


def _resolved_at(row: Row) -> datetime | None:
    at = row["approval"]["resolved_at"] if row["approval"] else None
    return None if at is None else datetime.fromisoformat(at)


def _prepared(id: UUID, row: Row, outgoing: Outgoing | None, said: Mapping[str, Any]) -> Prepared:
    return Prepared(
        id=id,
        version=row["desired_version"],
        kind=NotificationKind(row["kind"]),
        channel_type=row["channel_type"],
        approval_id=row["approval_id"],
        member_id=row["member_id"],
        member=row["member"],
        connection=row["connection"],
        first=row["sent_at"] is None,
        outgoing=outgoing,
        said=said,
    )


def _outgoing(
    db: Database, org_id: UUID, id: UUID, row: Row, content: Card | Invitation | Callback | Notice
) -> Outgoing:
    sealed = row["connection_sealed"]
    return Outgoing(
        id=id,
        org_id=org_id,
        version=row["desired_version"],
        target=Target(
            connection_id=row["connection_id"],
            connection=row["connection"],
            config=row["config"],
            secrets=identities_store.open_secret(db.vault, org_id, row["connection_id"], sealed)
            if sealed
            else {},
            address=row["address"],
            member=row["member"],
        ),
        content=content,
        earlier=row["message_ref"],
        shown=row["shown"],
        timestamp=row["now"],
    )


# Afterwards -----------------------------------------------------------------------------------------------------------


async def record_delivered(
    db: Database, actor: Actor, lane: Lane, prepared: Prepared, sent: Sent | None
) -> bool:
    """Written down, with the audit trail of its request where it is the first; ``sent`` is None where there was nothing to
    say. False where somebody else took it over meanwhile: then they may send it again."""
    first = prepared.first and sent is not None and prepared.kind is NotificationKind.APPROVAL
    told = {
        "delivery": str(prepared.id),
        "member_id": str(prepared.member_id),
        "member": prepared.member,
        "connection": prepared.connection,
    }
    fact = Fact.of(
        actor,
        "approval_dispatched",
        approval=str(prepared.approval_id),
        channel=prepared.channel_type,
        **told,
    )
    return await notify_store.record_delivery(
        db, lane, prepared.id, prepared.version, sent=sent is not None, first=first,
        ref=sent.message_ref if sent else None, shown=sent.shown if sent else {}, said=prepared.said,
        payload=told, facts=[fact] if first else [],
    )  # fmt: skip


async def record_failed(
    db: Database,
    actor: Actor,
    lane: Lane,
    id: UUID,
    error: TryAgain | Undeliverable,
    *,
    begun: Prepared | None = None,
    schedule: Sequence[float] = SCHEDULE,
) -> str | None:
    """`retry` or `dead`; None where somebody else took it over. ``begun`` is what the channel was given; None where it never
    came to that."""
    reason = error.message[:LONGEST_ERROR]
    async with db.transaction(actor.org_id) as tx:
        row = await notify_store.record_accepted(tx, id, lane.claim)
        if row is None:
            return None
        attempts = row["attempts"] if begun else row["attempts"] + 1
        if isinstance(error, TryAgain):
            given_up = delivery_rules.gives_up(attempts, row["resolved_at"], row["now"], schedule)
            if given_up is None:
                chance = random.random()  # noqa: S311 -- jitter
                wait = timedelta(
                    seconds=delivery_rules.delay(attempts, chance, error.after_seconds, schedule)
                )
                version = begun.version if begun else delivery_rules.ANY_VERSION
                if not await notify_store.retry_delivery(tx, id, lane.claim, version, attempts, reason, wait):
                    return None
                if begun:
                    await notify_store.count_failures(tx, row["connection_id"])
                return "retry"
            reason = f"{given_up}: {reason}"
        if not await notify_store.give_up_delivery(tx, id, lane.claim, attempts, reason):
            return None
        gone = isinstance(error, Undeliverable) and error.gone
        refused = isinstance(error, Undeliverable) and error.address
        await _give_up(tx, actor, id, row, reason, gone=gone, suppress=refused and not gone)
    return "dead"


async def _give_up(
    tx: Transaction, actor: Actor, id: UUID, row: Row, reason: str, *, gone: bool, suppress: bool
) -> None:
    """A dead letter is seen: on its request, on the audit trail, and where nothing more will arrive on what it was sent to."""
    told: dict[str, Any] = {"delivery": str(id), "member": row["member"], "reason": reason}
    if row["call_id"] is not None:
        told["call"] = str(row["call_id"])
    elif row["kind"] == NotificationKind.NOTICE:
        told["connection"] = str(row["connection_id"])
    else:
        told["member_id"] = str(row["member_id"])
    if suppress and row["channel_type"] == "email" and row["mapping_id"] is not None:
        told["suppressed"] = await notify_store.suppress_delivery(tx, row["mapping_id"], reason)
    name = await notify_store.disable_connection(tx, row["connection_id"], reason) if gone else None
    if row["approval_id"] is not None:
        await approvals_store.record_approval_event(
            tx, row["approval_id"], "undeliverable", row["channel_type"], actor, told
        )
        fact = Fact.of(
            actor,
            "approval_undeliverable",
            approval=str(row["approval_id"]),
            channel=row["channel_type"],
            **told,
        )
        await proof_store.append_to_session(tx, row["session_id"], [fact], job=row["job_id"])
    facts = []
    if row["approval_id"] is None:
        kind = "notice" if row["kind"] == NotificationKind.NOTICE else "invitation"
        facts.append(Fact.of(actor, f"{kind}_undeliverable", channel=row["channel_type"], **told))
    if name is not None:
        facts.append(
            Fact.of(
                actor, "connection_disabled", connection=str(row["connection_id"]), name=name, reason=reason
            )
        )
    if facts:
        await proof_store.append_to_org(tx, *facts)


@verb(Permission.DELIVERY_READ)
async def list_deliveries(
    db: Database,
    actor: Actor,
    position: Position | None,
    limit: int,
    *,
    status: DeliveryStatus | None = None,
    approval_id: UUID | None = None,
) -> Page[Delivery]:
    """Newest first."""
    async with db.transaction(actor.org_id) as tx:
        return await notify_store.list_deliveries(tx, position, limit, status, approval_id)


@verb(Permission.DELIVERY_READ)
async def get_delivery(db: Database, actor: Actor, id: UUID) -> Delivery:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await notify_store.get_delivery(tx, id), "delivery")


@verb(Permission.DELIVERY_WRITE)
async def resend_delivery(db: Database, actor: Actor, id: UUID) -> Delivery:
    """What was given up is due now, with all its tries; an address that nothing was sent to any more is trusted again."""
    async with db.transaction(actor.org_id) as tx:
        before = require_found(await notify_store.get_delivery(tx, id), "delivery")
        again = await notify_store.resend_delivery(tx, id)
        if again is None:
            raise Conflict(
                "Only what was given up can be sent again.",
                code="delivery_not_dead",
                hint="What is pending is tried by itself; what was delivered has arrived.",
            )
        trusted = await notify_store.reset_failures(tx, id)
        fact = Fact.of(
            actor, "delivery_resent", delivery=str(id), member=before.member, channel=before.channel_type,
            reason=before.last_error, trusted_again=trusted,
        )  # fmt: skip
        if again["session_id"] is not None:
            await proof_store.append_to_session(tx, again["session_id"], [fact], job=again["job_id"])
        else:
            await proof_store.append_to_org(tx, fact)
        return require_found(await notify_store.get_delivery(tx, id), "delivery")
