"""The outbox and inbound webhooks in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from cortex_plane.db.database import NOBODY, Database, Queries, Row, Transaction, after, one, page
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.identities import Delivery, DeliveryStatus
from cortex_plane.tenancy.rules import MacKind

queries = Queries("notify")

LEASE = timedelta(seconds=60)
"""So long a notifier has what it took. It renews it before every send, which takes less."""


LOOK_AGAIN = timedelta(hours=1)
"""What goes over a connection that is disabled; enabling it makes it due at once."""


@dataclass(frozen=True, slots=True)
class Lane:
    """Messages to one person on one connection, in order, taken by one notifier."""

    org_id: UUID
    lane: int
    claim: UUID
    """Fences whatever is written about them."""
    ids: tuple[UUID, ...]


async def claim_deliveries(
    db: Database,
    claim: UUID,
    channels: Sequence[str],
    *,
    after: UUID | None,
    full: Sequence[UUID],
    lanes: int,
    per_org: int,
    per_lane: int,
) -> list[Lane]:
    rows = await db.call(
        "claim_notifications", None, claim, list(channels), after or NOBODY, list(full), lanes, per_org,
        per_lane, LEASE,
    )  # fmt: skip
    return [Lane(row["org_id"], row["lane"], claim, tuple(row["ids"])) for row in rows]


async def open_delivery(tx: Transaction, id: UUID, claim: UUID) -> Row | None:
    """Everything that its message needs; None where the claim does not hold any more."""
    return await tx.row(queries.open_delivery, id, claim)


async def renew_lease(tx: Transaction, claim: UUID, lane: int) -> None:
    """What else of the lane was taken, so that it is not taken again meanwhile."""
    await tx.rows(queries.renew_lease, claim, lane, LEASE)


async def begin_delivery(tx: Transaction, id: UUID, claim: UUID, lane: int) -> bool:
    """Just before it is sent: the lease is renewed, the try is counted, and from now on it may have been sent."""
    begun = await tx.row(queries.begin_delivery, id, claim, lane, LEASE)
    if begun is not None and begun["others_run_out"]:
        await renew_lease(tx, claim, lane)
    return begun is not None


async def release_deliveries(db: Database, lane: Lane, ids: Sequence[UUID]) -> None:
    """One by one: who holds one message and waits for another could wait for somebody who ends both their requests."""
    for id in ids:
        async with db.transaction(lane.org_id) as tx:
            await tx.rows(queries.release_deliveries, id, lane.claim)


async def record_delivery(
    db: Database,
    lane: Lane,
    id: UUID,
    version: int,
    *,
    sent: bool,
    first: bool,
    ref: str | None,
    shown: Mapping[str, Any],
    remark: Mapping[str, Any],
    payload: Mapping[str, Any],
    facts: Sequence[Fact],
) -> bool:
    rows = await db.call(
        "record_delivery", lane.org_id, id, lane.claim, version, sent, first, ref, dict(shown), dict(remark),
        dict(payload), [fact.action for fact in facts], [fact.body for fact in facts],
    )  # fmt: skip
    return bool(rows[0]["record_delivery"])


async def record_accepted(tx: Transaction, id: UUID, claim: UUID) -> Row | None:
    return await tx.row(queries.record_accepted, id, claim)


async def retry_delivery(
    tx: Transaction, id: UUID, claim: UUID, version: int, attempts: int, error: str, after: timedelta
) -> bool:
    """``version`` is what the failed message would have shown: what is newer is not put off."""
    return await tx.value(queries.retry_delivery, id, claim, version, attempts, error, after) is not None


async def give_up_delivery(tx: Transaction, id: UUID, claim: UUID, attempts: int, error: str) -> bool:
    return await tx.value(queries.give_up_delivery, id, claim, attempts, error) is not None


async def postpone_delivery(tx: Transaction, lane: Lane, connection_id: UUID, reason: str) -> None:
    """The whole lane: everything in it goes over one connection."""
    await tx.rows(queries.postpone_delivery, lane.claim, lane.lane, connection_id, reason, LOOK_AGAIN)


async def hasten_delivery(tx: Transaction, connection_id: UUID) -> None:
    """Whatever waits for this connection is due now, and tried anew."""
    await tx.rows(queries.hasten_delivery, tx.org, connection_id)


async def suppress_delivery(tx: Transaction, mapping_id: UUID, reason: str) -> bool:
    """Nothing is sent to this address any more; False where that was so before."""
    return await tx.value(queries.suppress_delivery, mapping_id, reason) is not None


async def reset_failures(tx: Transaction, id: UUID) -> bool:
    """Lifts the suppression of the address that this one goes to."""
    return await tx.value(queries.reset_failures, id) is not None


async def count_failures(tx: Transaction, connection_id: UUID) -> None:
    await tx.rows(queries.count_failures, connection_id)


async def disable_connection(tx: Transaction, id: UUID, reason: str) -> str | None:
    """Its name; None where it was disabled before."""
    name: str | None = await tx.value(queries.disable_connection, id, reason)
    return name


async def insert_invitation(
    tx: Transaction,
    id: UUID,
    connection_id: UUID,
    mapping_id: UUID,
    member_id: UUID,
    address: str,
    data: Mapping[str, Any],
) -> bool:
    made = await tx.value(
        queries.insert_invitation, tx.org, id, connection_id, mapping_id, member_id, address, dict(data)
    )
    return made is not None


async def add_connection_notice(tx: Transaction, mapping_id: UUID) -> None:
    """A mapping became somebody's way: what waits for their decision already is told there."""
    await tx.rows(queries.add_connection_notice, tx.org, mapping_id)


# As surfaces show it ---------------------------------------------------------------------------------------------


async def list_deliveries(
    tx: Transaction, position: Position | None, limit: int, status: DeliveryStatus | None, approval_id: UUID | None
) -> Page[Delivery]:
    rows = await tx.rows(queries.list_deliveries, *after(position), limit + 1, status, approval_id)
    return page(Delivery, rows, limit)


async def get_delivery(tx: Transaction, id: UUID) -> Delivery | None:
    return one(Delivery, await tx.row(queries.get_delivery, id))


async def deliveries_of_approval(tx: Transaction, approval_id: UUID) -> list[Delivery]:
    return [parse(Delivery, row) for row in await tx.rows(queries.deliveries_of_approval, approval_id)]


async def resend_delivery(tx: Transaction, id: UUID) -> Row | None:
    """With its session, if it has one; None where it is not dead."""
    return await tx.row(queries.resend_delivery, id)


async def resolve_webhook(db: Database, connection_id: UUID) -> UUID | None:
    """The org of a connection."""
    rows = await db.call("resolve_connection", None, connection_id)
    return rows[0]["org_id"] if rows else None


async def claim_webhook(
    tx: Transaction, connection_id: UUID, event_id: str, body_hash: bytes
) -> tuple[bytes, dict[str, Any] | None]:
    """Of an event, new or known: the digest of the body that it came with first, and its answer where there is one."""
    await tx.rows(queries.claim_webhook, tx.org, connection_id, event_id, body_hash)
    row = await get_webhook(tx, connection_id, event_id)
    if row is None:
        raise RuntimeError("the event that was just written is not there")
    return row["body_hash"], row["answer"]


async def get_webhook(tx: Transaction, connection_id: UUID, event_id: str) -> Row | None:
    return await tx.row(queries.get_webhook, connection_id, event_id)


async def answer_webhook(tx: Transaction, connection_id: UUID, event_id: str, answer: dict[str, Any]) -> bool:
    """Keep the answer; False where another delivery was faster."""
    return await tx.value(queries.answer_webhook, connection_id, event_id, answer) is not None


async def get_webhook_answer(tx: Transaction, connection_id: UUID, event_id: str) -> dict[str, Any] | None:
    row = await get_webhook(tx, connection_id, event_id)
    return None if row is None else row["answer"]


async def forget_webhooks(db: Database, older: timedelta, limit: int) -> int:
    """Delete events of any org that came longer ago than that; how many."""
    rows = await db.call("forget_inbound_events", None, older, limit)
    return int(rows[0]["forget_inbound_events"])


def require_mapping(tx: Transaction, row: Row) -> None:
    """A message carries what decides in somebody's name: it goes only where the plane itself wrote that they are there."""
    if row["mapping_id"] is None or row["removed"]:
        return
    written = {
        "org_id": tx.org, "id": row["mapping_id"], "connection_id": row["connection_id"],
        "channel_user_id": row["address"], "user_account_id": row["member_id"], "verified": row["verified"],
    }  # fmt: skip
    tx.credential_key.require(MacKind.MAPPING, written, row["mapping_mac"])
