"""Level by level: more people are asked, until the same deadline; each level once, however many look."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime, timedelta

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.verbs import deadlines
from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import CortexError
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from tests.calls.test_deadlines import tick
from tests.conftest import Urls
from tests.fixtures.approvals import Shipping, decide, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.fixtures.servers import VAULT
from tests.fixtures.workers import whole

UP = """
policies:
  - name: up
    target: ship
    effect: requires_approval
    template: full_pipeline
    timeout: 10h
    escalate_before: 6h
    remind_before: never
    approvers: {roles: [operator]}
    escalate_to: [{roles: [approver]}, {roles: [admin]}]
"""


async def going_up(world: World) -> Approval:
    await world.person(Role.OPERATOR, name="Op")
    await world.person(Role.APPROVER, name="Bea")
    await apply_policies(world.db, world.admin.actor, UP)
    _, (asked,) = await waiting(world, Shipping())
    return asked


def hours_before(asked: Approval, hours: float) -> datetime:
    assert asked.deadline is not None
    return asked.deadline - timedelta(hours=hours)


@pytest.mark.proves("S4.20", "D.195")
async def test_it_goes_up_level_by_level_and_the_deadline_stays(strict: World, admin: asyncpg.Connection) -> None:
    root = await strict.person(Role.ADMIN, name="Root")
    asked = await going_up(strict)
    assert (asked.escalations, asked.escalation_level) == (2, 0)
    assert asked.escalate_at == hours_before(asked, 6)
    with pytest.raises(CortexError):
        await decide(strict, asked, by=root)
    clock = await Clock.install(admin, hours_before(asked, 6) - timedelta(microseconds=1))
    assert await tick(strict) == []
    await clock.set(hours_before(asked, 6))
    assert (await tick(strict), await tick(strict)) == (["escalated"], [])
    first = await shown(strict, asked.id)
    assert (first.escalation_level, first.deadline, first.version) == (1, asked.deadline, asked.version)
    assert first.escalate_at == hours_before(asked, 3)
    with pytest.raises(CortexError) as refused:
        await decide(strict, asked, by=root)
    assert refused.value.code == "not_an_approver"
    await clock.set(hours_before(asked, 3))
    assert await tick(strict) == ["escalated"]
    assert await deadlines.seconds_to_next(strict.db) == 3 * 3600
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    assert [e.payload for e in details.events if e.event_type == "escalated"] == [{"level": 1}, {"level": 2}]
    assert {"Op", "Bea", "Root"} <= set(details.approval.deciders)
    trail = await audit.list_entries(strict.db, strict.admin.actor, asked.session_id, 0, 1000)
    ups = [e.body["data"] for e in trail if e.action == "approval_escalated" and e.body]
    assert [(up["level"], up["to"]) for up in ups] == [
        (1, "anybody with the role approver"),
        (2, "anybody with the role admin"),
    ]
    assert (await decide(strict, asked, by=root)).approval.status is ApprovalStatus.APPROVED
    assert await whole(strict)


@pytest.mark.proves("D.195")
async def test_a_late_scheduler_does_not_leap_over_anybody(strict: World, admin: asyncpg.Connection) -> None:
    asked = await going_up(strict)
    await Clock.install(admin, hours_before(asked, 1))
    assert [await tick(strict) for _ in range(3)] == [["escalated"], ["escalated"], []]


@pytest.mark.proves("D.195")
async def test_two_schedulers_at_once_go_up_once(strict: World, admin: asyncpg.Connection, urls: Urls) -> None:
    asked = await going_up(strict)
    clock = await Clock.install(admin, hours_before(asked, 6))
    others = [await Database.open(urls.app, vault=VAULT) for _ in range(3)]
    try:
        for level, hours in ((1, 6.0), (2, 3.0)):
            await clock.set(hours_before(asked, hours))
            worlds = [replace(strict, db=db) for db in others]
            done = await asyncio.gather(*(tick(world) for world in worlds))
            assert [each for some in done for each in some] == ["escalated"]
            assert (await shown(strict, asked.id)).escalation_level == level
    finally:
        for db in others:
            await db.close()
