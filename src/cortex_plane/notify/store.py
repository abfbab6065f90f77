"""The outbox and inbound webhooks in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from cortex_plane.db.database import NOBODY, Database, Queries, Row, Transaction, after, many, one, page
from cortex_plane.kernel.pages import After, Page
from cortex_plane.tenancy.model.access import MacKind
from cortex_plane.tenancy.model.identities import Delivery, DeliveryStatus

queries = Queries("notify")

LEASE = timedelta(seconds=60)
"""So long a notifier has what it took. It renews it before every send, which takes less."""


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


async def count_notifiers(db: Database, id: UUID, life: timedelta) -> int:
    """How many processes send messages, this one included."""
    (row,) = await db.call("count_notifiers", None, id, life)
    count: int = row["count_notifiers"]
    return count


async def begin_delivery(tx: Transaction, id: UUID, claim: UUID, lane: int) -> bool:
    """Just before it is sent: the lease is renewed, the try is counted, and from now on it may have been sent."""
    begun = await tx.row(queries.begin_delivery, id, claim, lane, LEASE)
    if begun is not None and begun["others_run_out"]:
        # What else of the lane was taken, so that it is not taken again meanwhile.
        await tx.rows(queries.renew_lease, claim, lane, LEASE)
    return begun is not None


async def list_deliveries(
    tx: Transaction, position: After, limit: int, status: DeliveryStatus | None = None, approval_id: UUID | None = None
) -> Page[Delivery]:
    rows = await tx.rows(queries.list_deliveries, *after(position), limit + 1, status, approval_id)
    return page(Delivery, rows, limit)


async def get_delivery(tx: Transaction, id: UUID) -> Delivery | None:
    return one(Delivery, await tx.row(queries.get_delivery, id))


async def deliveries_of_approval(tx: Transaction, approval_id: UUID) -> list[Delivery]:
    return many(Delivery, await tx.rows(queries.deliveries_of_approval, approval_id))


async def claim_webhook(
    tx: Transaction, connection_id: UUID, event_id: str, body_hash: bytes
) -> tuple[bytes, dict[str, Any] | None]:
    """Of an event, new or known: the digest of the body that it came with first, and its answer where there is one."""
    await tx.rows(queries.claim_webhook, tx.org, connection_id, event_id, body_hash)
    (row,) = await tx.rows(queries.get_webhook, connection_id, event_id)
    return row["body_hash"], row["answer"]


async def answer_webhook(tx: Transaction, connection_id: UUID, event_id: str, answer: dict[str, Any]) -> bool:
    """Keep the answer; False where another delivery was faster."""
    return await tx.value(queries.answer_webhook, connection_id, event_id, answer) is not None


def require_mapping(tx: Transaction, row: Row) -> None:
    """A message carries what decides in somebody's name: it goes only where the plane itself wrote that they are there."""
    if row["mapping_id"] is None or row["removed"]:
        return
    written = {
        "org_id": tx.org, "id": row["mapping_id"], "connection_id": row["connection_id"],
        "channel_user_id": row["address"], "user_account_id": row["member_id"], "verified": row["verified"],
    }  # fmt: skip
    tx.credential_key.require(MacKind.MAPPING, written, row["mapping_mac"])
