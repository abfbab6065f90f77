"""Who listens to a connection, where its channel fetches what people send: one process at a time, by a lease with an epoch.

A process that was stopped past its lease is not believed when it goes on: what it stores carries its epoch, and another has a newer one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict
from cortex_plane.notify.model.channels import InboundItem
from cortex_plane.notify.model.notifications import Target
from cortex_plane.notify.store import queries
from cortex_plane.notify.verbs import channel_events
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from cortex_plane.tenancy import store as tenancy_store

LEASE = timedelta(seconds=30)
MOST_AT_ONCE = 20
"""How many connections a process takes over in one look."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListenerLease:
    org_id: UUID
    connection_id: UUID
    owner_id: UUID
    epoch: int
    revision: int
    """Of the connection: with another its listener begins anew."""
    cursor: str | None


async def claim_listeners(db: Database, owner_id: UUID, channels: Sequence[str], limit: int) -> list[ListenerLease]:
    """Connections that nobody listens to."""
    rows = await db.call("claim_channel_listeners", None, owner_id, list(channels), limit, LEASE)
    names = ("org_id", "connection_id", "epoch", "revision", "cursor")
    return [ListenerLease(owner_id=owner_id, **{name: row[name] for name in names}) for row in rows]


async def renew_listeners(db: Database, owner_id: UUID, leases: Sequence[ListenerLease]) -> set[UUID]:
    """The connections of those that this process still has."""
    rows = await db.call(
        "renew_channel_listeners", None, owner_id, [lease.connection_id for lease in leases],
        [lease.epoch for lease in leases], [lease.revision for lease in leases], LEASE,
    )  # fmt: skip
    return {row["connection_id"] for row in rows}


async def release_listener(db: Database, lease: ListenerLease) -> None:
    """Others may have it at once."""
    async with db.transaction(lease.org_id) as tx:
        await tx.rows(queries.release_listener, lease.connection_id, lease.owner_id, lease.epoch)


async def note_error(db: Database, lease: ListenerLease, error: str) -> None:
    """Why it cannot listen now, for whoever looks after the connection."""
    async with db.transaction(lease.org_id) as tx:
        await tx.rows(queries.note_listener_error, lease.connection_id, lease.owner_id, lease.epoch, error[:500])


async def listener_target(db: Database, lease: ListenerLease) -> tuple[str, Target] | None:
    """The channel of the connection, and what it needs; None where it is gone or disabled."""
    async with db.transaction(lease.org_id) as tx:
        row = await tenancy_store.sealed_connection(tx, lease.connection_id)
    if row is None or row.disabled_at is not None:
        return None
    values = {name: getattr(row, name) for name in ("id", "name", "config", "sealed")}
    return row.channel_type, channel_events.connection_target(db, lease.org_id, values)


async def store_heard(
    db: Database, lease: ListenerLease, channel: InteractiveChannel, items: Sequence[InboundItem], cursor: str | None
) -> int:
    """Store items with the cursor after them; returns how many are new. Raises ``Conflict`` (`listener_lost`) where another process
    listens by now: nothing is stored then."""
    async with db.transaction(lease.org_id) as tx:
        held = await tx.value(queries.advance_listener, lease.connection_id, lease.owner_id, lease.epoch, cursor)
        if held is None:
            raise Conflict(
                "Another process listens to this connection by now.",
                code="listener_lost",
                hint="Stop listening: the other one has what was not stored.",
            )
        return await channel_events.store_items(tx, lease.connection_id, channel, items) if items else 0
