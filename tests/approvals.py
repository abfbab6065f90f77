"""Jobs that wait for people, and people who decide."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalStatus,
    Channel,
    Choice,
    Decision,
    DecisionReceipt,
)
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.worker.tools.app import App
from tests.people import Person, World
from tests.runtime.planes import call, make_agent, submit, turn, until, working


class Shipping:
    """An app whose one effect is counted outside of the plane."""

    def __init__(self, name: str = "tests") -> None:
        self.shipped: list[str] = []
        self.app = App(name)

        @self.app.tool(risk="high", timeout=5, on_uncertain="retry_with_key")
        async def ship(version: str, to: str = "production") -> str:
            """Ship a version."""
            self.shipped.append(f"{version} to {to}")
            return f"{version} is out"

        @self.app.tool(read_only=True)
        async def look() -> str:
            return "seen"


def ship(version: str = "1.0", **more: Any) -> dict[str, Any]:
    return call("ship", version=version, **more)


async def waiting(
    world: World,
    shipping: Shipping,
    *calls: dict[str, Any],
    slug: str = "shipper",
    after: Sequence[Any] = (),
    **more: Any,
) -> tuple[UUID, list[Approval]]:
    """A job that asks for these calls in one response, and waits; its worker is gone."""
    agent = await make_agent(world, [turn(*(calls or (ship(),)), text="I ship."), *after], slug=slug)
    id = await submit(world, agent, **more)
    async with working(world.db, shipping.app):
        await until(world, id, JobStatus.WAITING_FOR_APPROVAL)
    return id, await pending(world, id)


async def pending(world: World, job_id: UUID | None = None) -> list[Approval]:
    """What waits for a decision, oldest first."""
    page = await approvals.list_approvals(
        world.db, world.admin.actor, None, 100, status=ApprovalStatus.PENDING, job_id=job_id
    )
    return page.items[::-1]


async def pending_soon(world: World, job_id: UUID, seconds: float = 20) -> list[Approval]:
    async with asyncio.timeout(seconds):
        while not (found := await pending(world, job_id)):  # noqa: ASYNC110 -- only the database knows
            await asyncio.sleep(0.01)
    return found


async def shown(world: World, id: UUID) -> Approval:
    return (await approvals.get_approval(world.db, world.admin.actor, id)).approval


async def decide(
    world: World,
    approval: Approval,
    choice: Choice = Choice.APPROVED,
    by: Person | None = None,
    **more: Any,
) -> DecisionReceipt:
    seen = {"version": approval.version, "input_hash": approval.input_hash}
    decision = Decision(decision=choice, **{**seen, **more})
    actor = (by or world.admin).actor
    return await decisions.decide(world.db, actor, approval.id, decision, Channel.API)
