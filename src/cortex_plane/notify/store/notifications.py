"""Notifications in SQL: the outbox, and the deliveries that surfaces show of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from cortex_plane.db.database import NOBODY, Database, Queries, Row, Transaction, after, one, page
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import parse
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.identities import Delivery, DeliveryStatus

queries = Queries(__file__)

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


async def claim(
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


async def open_one(tx: Transaction, id: UUID, claim: UUID) -> Row | None:
    """Everything that its message needs; None where the claim does not hold any more."""
    return await tx.row(queries.open_one, id, claim)


async def renew(tx: Transaction, claim: UUID, lane: int) -> None:
    """What else of the lane was taken, so that it is not taken again meanwhile."""
    await tx.rows(queries.renew, claim, lane, LEASE)


async def begin(tx: Transaction, id: UUID, claim: UUID, lane: int) -> bool:
    """Just before it is sent: the lease is renewed, the try is counted, and from now on it may have been sent."""
    begun = await tx.row(queries.begin, id, claim, lane, LEASE)
    if begun is not None and begun["others_run_out"]:
        await renew(tx, claim, lane)
    return begun is not None


async def release(db: Database, lane: Lane, ids: Sequence[UUID]) -> None:
    """One by one: who holds one message and waits for another could wait for somebody who ends both their requests."""
    for id in ids:
        async with db.transaction(lane.org_id) as tx:
            await tx.rows(queries.release, id, lane.claim)


async def record(
    db: Database,
    lane: Lane,
    id: UUID,
    version: int,
    *,
    sent: bool,
    first: bool,
    ref: str | None,
    shown: Mapping[str, Any],
    said: Mapping[str, Any],
    payload: Mapping[str, Any],
    facts: Sequence[Fact],
) -> bool:
    rows = await db.call(
        "record_delivery", lane.org_id, id, lane.claim, version, sent, first, ref, dict(shown), dict(said),
        dict(payload), [fact.action for fact in facts], [fact.body for fact in facts],
    )  # fmt: skip
    return bool(rows[0]["record_delivery"])


async def taken(tx: Transaction, id: UUID, claim: UUID) -> Row | None:
    return await tx.row(queries.taken, id, claim)


async def retry(
    tx: Transaction, id: UUID, claim: UUID, version: int, attempts: int, error: str, after: timedelta
) -> bool:
    """``version`` is what the failed message would have shown: what is newer is not put off."""
    return await tx.value(queries.retry, id, claim, version, attempts, error, after) is not None


async def give_up(tx: Transaction, id: UUID, claim: UUID, attempts: int, error: str) -> bool:
    return await tx.value(queries.give_up, id, claim, attempts, error) is not None


async def postpone(tx: Transaction, lane: Lane, connection_id: UUID, reason: str) -> None:
    """The whole lane: everything in it goes over one connection."""
    await tx.rows(queries.postpone, lane.claim, lane.lane, connection_id, reason, LOOK_AGAIN)


async def hasten(tx: Transaction, connection_id: UUID) -> None:
    """Whatever waits for this connection is due now, and tried anew."""
    await tx.rows(queries.hasten, tx.org, connection_id)


async def suppress(tx: Transaction, mapping_id: UUID, reason: str) -> bool:
    """Nothing is sent to this address any more; False where that was so before."""
    return await tx.value(queries.suppress, mapping_id, reason) is not None


async def trust_again(tx: Transaction, id: UUID) -> bool:
    """Lifts the suppression of the address that this one goes to."""
    return await tx.value(queries.trust_again, id) is not None


async def failing(tx: Transaction, connection_id: UUID) -> None:
    await tx.rows(queries.failing, connection_id)


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


async def tell_there(tx: Transaction, mapping_id: UUID) -> None:
    """A mapping became somebody's way: what waits for their decision already is told there."""
    await tx.rows(queries.tell_there, tx.org, mapping_id)


# As surfaces show it ---------------------------------------------------------------------------------------------


async def list_page(
    tx: Transaction,
    position: Position | None,
    limit: int,
    status: DeliveryStatus | None,
    approval_id: UUID | None,
) -> Page[Delivery]:
    rows = await tx.rows(queries.list_page, *after(position), limit + 1, status, approval_id)
    return page(Delivery, rows, limit)


async def get(tx: Transaction, id: UUID) -> Delivery | None:
    return one(Delivery, await tx.row(queries.get, id))


async def of_approval(tx: Transaction, approval_id: UUID) -> list[Delivery]:
    return [parse(Delivery, row) for row in await tx.rows(queries.of_approval, approval_id)]


async def resend(tx: Transaction, id: UUID) -> Row | None:
    """With its session, if it has one; None where it is not dead."""
    return await tx.row(queries.resend, id)
