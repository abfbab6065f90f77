"""Deliveries: what was sent to whom, what was given up, and sending that again."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.notify.store import notifications
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.identities import Delivery, DeliveryStatus
from cortex_plane.tenancy.verbs.frame import require_found, verb


@verb(Permission.DELIVERY_READ)
async def list_page(
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
        return await notifications.list_page(tx, position, limit, status, approval_id)


@verb(Permission.DELIVERY_READ)
async def get(db: Database, actor: Actor, id: UUID) -> Delivery:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await notifications.get(tx, id), "delivery")


@verb(Permission.DELIVERY_WRITE)
async def resend(db: Database, actor: Actor, id: UUID) -> Delivery:
    """What was given up is due now, with all its tries; an address that nothing was sent to any more is trusted again."""
    async with db.transaction(actor.org_id) as tx:
        before = require_found(await notifications.get(tx, id), "delivery")
        again = await notifications.resend(tx, id)
        if again is None:
            raise Conflict(
                "Only what was given up can be sent again.",
                code="delivery_not_dead",
                hint="What is pending is tried by itself; what was delivered has arrived.",
            )
        trusted = await notifications.trust_again(tx, id)
        fact = Fact.of(
            actor, "delivery_resent", delivery=str(id), member=before.member, channel=before.channel_type,
            reason=before.last_error, trusted_again=trusted,
        )  # fmt: skip
        if again["session_id"] is not None:
            await proof_store.append_to_session(tx, again["session_id"], [fact], job=again["job_id"])
        else:
            await proof_store.append_to_org(tx, fact)
        return require_found(await notifications.get(tx, id), "delivery")
