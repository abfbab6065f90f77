"""The outbox: deliveries that are claimed, prepared, and sent by a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Delegation
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import advised
from cortex_plane.db.database import Database, Row, Transaction
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.text import redact
from cortex_plane.notify import rules as delivery_rules
from cortex_plane.notify import store as notify_store
from cortex_plane.notify.model.notifications import (
    Alert,
    Callback,
    Card,
    ChatReply,
    Content,
    DeploymentVerdict,
    Notice,
    Outgoing,
    Target,
    Undeliverable,
)
from cortex_plane.notify.rules import SCHEDULE, ReportedState
from cortex_plane.notify.store import Lane
from cortex_plane.notify.verbs import cards
from cortex_plane.notify.verbs.channel_port import ChannelPort, InteractiveChannel
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.identities import NotificationKind
from cortex_plane.tenancy.verbs import connections
from cortex_plane.tenancy.verbs.access import forgery_refusal
from cortex_plane.tenancy.verbs.frame import require_found

PER_LANE = 20
"""So many messages to one person in a turn, before others have theirs."""
LONGEST_REASON = 500
LOOK_AGAIN = timedelta(hours=1)
"""When messages over a disabled connection are looked at again; enabling it makes them due at once."""


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
    state: Mapping[str, Any] = field(default_factory=dict)
    """The state of the request that it reports."""


async def claim_deliveries(
    db: Database, channels: Sequence[str], *, after: UUID | None, full: Sequence[UUID], lanes: int
) -> list[Lane]:
    """Lanes with something that is due, one of each org, the org after ``after`` first."""
    return await notify_store.claim_deliveries(
        db, new_id(), channels, after=after, full=full, lanes=lanes, per_org=1, per_lane=PER_LANE
    )


def schedule_of(channel: ChannelPort | None) -> Sequence[float]:
    """When a channel wants to try again."""
    schedule: Sequence[float] = getattr(channel, "retry_schedule", SCHEDULE)
    return schedule


async def release_deliveries(db: Database, lane: Lane, ids: Sequence[UUID]) -> None:
    """What was taken and not begun is free again. One by one: a transaction that holds one message and waits for another could
    wait for one that ends both their requests."""
    for id in ids:
        async with db.transaction(lane.org_id) as tx:
            await tx.rows(notify_store.queries.release_deliveries, id, lane.claim)


async def prepare_deliveries(
    db: Database, channels: Mapping[str, ChannelPort], public_url: str, lane: Lane, ids: Sequence[UUID]
) -> list[Prepared]:
    """The first of them, which is begun, and those behind it that can be sent after it. Nothing where it is not for now: somebody
    else has taken it over, or its connection is disabled. Raises ``Undeliverable`` where the first cannot reach its person any more.
    """
    try:
        return await _prepare_deliveries(db, channels, public_url, lane, ids)
    except CortexError:
        raise
    except Exception:
        if len(ids) == 1:
            raise
    # One of them is at fault: alone the first shows whether it is that one.
    return await _prepare_deliveries(db, channels, public_url, lane, ids[:1])


async def _prepare_deliveries(
    db: Database, channels: Mapping[str, ChannelPort], public_url: str, lane: Lane, ids: Sequence[UUID]
) -> list[Prepared]:
    deliveries: list[Prepared] = []
    async with forgery_refusal(db, _not_theirs), db.transaction(lane.org_id) as tx:
        rows = {row["id"]: row for row in await tx.rows(notify_store.queries.open_deliveries, ids, lane.claim)}
        deciding = cards.DecidingCards(db, tx, public_url)
        for id in ids:
            row = rows.get(id)
            if row is None or (deliveries and (row["disabled"] or row["kind"] == NotificationKind.INVITATION)):
                break  # whatever writes something of its own comes first or not at all
            try:
                delivery = await _prepare(db, tx, channels, public_url, deciding, lane, row)
            except Exception:
                if not deliveries:
                    raise
                break  # it is the first of the next ones
            if delivery is None:
                break
            deliveries.append(delivery)
        await deciding.write_tokens()
        if (
            deliveries
            and deliveries[0].outgoing is not None
            and not await notify_store.begin_delivery(tx, deliveries[0].id, lane.claim, lane.lane)
        ):
            return []
    return deliveries


async def _prepare(
    db: Database, tx: Transaction, channels: Mapping[str, ChannelPort], public_url: str, deciding: cards.DecidingCards,
    lane: Lane, row: Row,
) -> Prepared | None:  # fmt: skip
    approval = parse(Approval, row["approval"]) if row["approval"] else None
    over = approval is not None and approval.status is not ApprovalStatus.PENDING
    if over and row["tried_at"] is None and row["call_id"] is None:
        # Whoever was never asked is not told how it ended.
        return _prepared(row, None, row["said"])
    channel = channels[row["channel_type"]]
    _require_reachable(row, channel, approval)
    notify_store.require_mapping(tx, row)
    if row["disabled"]:
        # The whole lane: everything in it goes over one connection.
        await tx.rows(
            notify_store.queries.postpone_delivery, lane.claim, lane.lane, row["connection_id"], _turned_off(row), LOOK_AGAIN
        )  # fmt: skip
        return None
    state: Mapping[str, Any] = {}
    content: Content | None
    if row["kind"] == NotificationKind.NOTICE:
        data = {**row["data"], "data": redact(row["data"]["data"], row["redact"] or ())}
        content = parse(Notice, {**data, "happened_at": row["created_at"]})
    elif row["kind"] == NotificationKind.ALERT:
        page = (
            f"jobs/{row['data']['job_id']}" if "job_id" in row["data"] else f"channels/{row['data']['connection_id']}"
        )
        data = {**row["data"], "url": f"{public_url.rstrip('/')}/{page}"}
        content = parse(Alert, {**data, "org": row["org"], "happened_at": row["created_at"]})
    elif row["kind"] == NotificationKind.REPLY:
        content = await _reply(tx, row)
    elif row["kind"] == NotificationKind.VERDICT:
        data = {**row["data"], "url": f"{public_url.rstrip('/')}/{row['data']['page']}"}
        content = parse(DeploymentVerdict, data)
    elif approval is None:
        content = await connections.make_invitation_code(tx, row["mapping_id"], row["data"], public_url)
    elif row["call_id"] is not None:
        content = await _callback(tx, row, approval)
    else:
        content, state = await _card(deciding, channel, public_url, row, approval)
    outgoing = None if content is None else _outgoing(db, lane.org_id, row, content)
    return _prepared(row, outgoing, state)


async def _reply(tx: Transaction, row: Row) -> ChatReply | None:
    reply = require_found(await tx.row(notify_store.queries.get_reply, row["id"]), "session")
    if reply["ended"] is not None and row["tried_at"] is None:
        # The chat shows no beginning of an answer, so nobody is told that it does not go on.
        return None
    if not reply["reachable"]:
        raise _not_theirs()
    return delivery_rules.chat_reply(reply, row["data"].get("thread"))


async def _callback(tx: Transaction, row: Row, approval: Approval) -> Callback:
    stored_call = require_found(await calls_store.get_call(tx, row["call_id"], None), "call")
    call = advised(stored_call.call, is_sender=False)
    return Callback(
        call_id=call.id, key=call.key, session_id=call.session_id, approval_id=approval.id,
        decision=approval.status, status=call.status, next=call.next, input_hash=call.input_hash,
        reason=call.reason[:LONGEST_REASON] if call.reason else None,
        decided_at=approval.resolved_at or row["now"],
    )  # fmt: skip


async def _card(
    deciding: cards.DecidingCards, channel: ChannelPort, public_url: str, row: Row, approval: Approval
) -> tuple[Card | None, Mapping[str, Any]]:
    hops = [parse(Delegation, hop) for hop in row["delegations"]]
    source = cards.source_of(row, approval)
    state = asdict(ReportedState.of(approval, hops))
    occasion = delivery_rules.occasion(approval, hops, row["member_id"], row["said"], int(row["data"].get("level", 0)))
    card = cards.card(source, occasion, public_url)
    # What may have been sent and was not written down is said again, whatever it says.
    unsure = row["tried_at"] is not None and row["sent_at"] is None
    is_repeated = row["data"].get("repeat", 0) > row["rendered_version"]
    # In a shared place anybody may press, and each press is judged by who pressed.
    if (row["decides"] or row["mapping_id"] is None) and isinstance(channel, InteractiveChannel):
        card = cards.with_buttons(card, channel, row["id"])
    if not unsure and not is_repeated and not channel.concerns(card, row["shown"]):
        return None, state
    if row["decides"] and getattr(channel, "carries_credentials", True):
        card = await deciding.make(
            card, member_id=row["member_id"], notification_id=row["id"], channel=row["channel_type"]
        )
    return card, state


def _require_reachable(row: Row, channel: ChannelPort, approval: Approval | None) -> None:
    problem = None
    if row["attempts"] > len(schedule_of(channel)):
        # Failures are counted and given up where they are written down; who died each time could not.
        problem = f"Begun {row['attempts']} times, and nobody lived to tell what became of it."
    elif row["disabled"] and delivery_rules.gives_up(0, approval.resolved_at if approval else None, row["now"]):
        problem = _turned_off(row)
    elif row["deactivated"]:
        problem = f"{row['member']} is deactivated."
    elif row["suppressed_reason"] is not None:
        problem = f"Nothing is sent to this address any more: {row['suppressed_reason']}"
    elif row["kind"] == NotificationKind.APPROVAL and row["mapping_id"] is None:
        pass  # a shared place: nobody in person
    elif row["kind"] in (NotificationKind.APPROVAL, NotificationKind.ALERT) and not row["verified"]:
        raise _not_theirs()
    if problem is not None:
        raise Undeliverable(problem)


def _not_theirs() -> Undeliverable:
    return Undeliverable("The address does not belong to this person any more.")


def _turned_off(row: Row) -> str:
    return f"The connection {row['connection']} is disabled."


def _prepared(row: Row, outgoing: Outgoing | None, state: Mapping[str, Any]) -> Prepared:
    return Prepared(
        **{name: row[name] for name in ("id", "channel_type", "approval_id", "member_id", "member", "connection")},
        version=row["desired_version"],
        kind=NotificationKind(row["kind"]),
        first=row["sent_at"] is None,
        outgoing=outgoing,
        state=state,
    )


def _outgoing(db: Database, org_id: UUID, row: Row, content: Content) -> Outgoing:
    sealed = row["connection_sealed"]
    return Outgoing(
        id=row["id"],
        org_id=org_id,
        version=row["desired_version"],
        target=Target(
            **{name: row[name] for name in ("connection_id", "connection", "config", "address", "member")},
            secrets=tenancy_store.open_secret(db.vault, org_id, row["connection_id"], sealed) if sealed else {},
        ),
        content=content,
        earlier=row["message_ref"],
        shown=row["shown"],
        timestamp=row["now"],
    )
