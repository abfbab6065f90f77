"""Standing approvals for tests: a policy that allows them, and somebody who gives one."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cortex_plane.approvals import store as rows
from cortex_plane.approvals.model.approvals import Approval, StandingApproval, StandingDraft
from cortex_plane.approvals.verbs import standing_approvals
from cortex_plane.db.database import Database
from cortex_plane.kernel.ids import new_id
from cortex_plane.tenancy.model.access import Actor
from tests.approvals import Shipping, decide, ship, waiting
from tests.people import Person, World

ROW = {
    "name": "ask", "effect": "requires_approval", "approvers": "{roles: [approver, admin]}", "self_approval": "true",
    "standing": "true",
}  # fmt: skip


def policy(target: str = "ship", **terms: str) -> str:
    """Ask for ``target``, and let approvers say yes to more than one call; everything else is allowed."""
    row = ", ".join(f"{name}: {value}" for name, value in {**ROW, "target": target, **terms}.items())
    return f"policies: [{{{row}}}, {{name: rest, target: '*', effect: allow}}]"


async def standing_world(db: Database, slug: str = "standing") -> World:
    return await World.create(db, slug, policies=policy())


async def given_standing(world: World, approval_id: UUID, by: Actor) -> str:
    """One that is only a row: its request still waits."""
    id = new_id()
    giver = by.user_account_id or world.admin.actor.user_account_id
    assert giver is not None
    async with world.db.transaction(world.org_id) as tx:
        now: datetime = await tx.value("select plane_now()")
        await rows.insert_standing(
            tx, id, approval_id, input_hash=None, condition=None, max_calls=5, expires_at=now + timedelta(hours=1),
            granted_by=by.name, granted_by_id=giver, reason=None, version=1, now=now,
        )  # fmt: skip
    return str(id)


async def standing_of(world: World, session_id: UUID) -> StandingApproval:
    (found,) = (
        await standing_approvals.list_page(world.db, world.admin.actor, None, 10, session_id=session_id)
    ).items
    return found


async def stand(
    world: World, approval: Approval, by: Person | None = None, *, arguments: Any = None, **bounds: Any
) -> StandingApproval:
    """Approve a request and say yes to more."""
    await decide(world, approval, by=by, arguments=arguments, standing=StandingDraft(**bounds))
    return await standing_of(world, approval.session_id)


async def standing(
    world: World, shipping: Shipping, *after: Any, by: Person | None = None, **bounds: Any
) -> tuple[UUID, StandingApproval]:
    """A job whose first call was approved together with more; ``after`` is what its model says next."""
    job, (asked,) = await waiting(world, shipping, ship("1.0"), after=after)
    return job, await stand(world, asked, by, **bounds)
