"""Handing one's part on: by hand, in a chain, and by being out of office."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, DelegationDraft
from cortex_plane.approvals.verbs import approvals
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import AbsenceDraft, Role
from cortex_plane.tenancy.verbs import orgs
from tests.approvals.test_approvals import TRAIL
from tests.fixtures.approvals import Shipping, decide, shown, waiting
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.workers import whole

NAMED = (
    "policies: [{{name: named, target: ship, effect: requires_approval, template: dev_review, clearance: 2,"
    " approvers: {{members: [{names}]}}{more}}}]"
)


async def asked_of(world: World, *people: Person, more: str = "") -> Approval:
    names = ", ".join(person.actor.name for person in people)
    await apply_policies(world.db, world.admin.actor, NAMED.format(names=names, more=more))
    _, (asked,) = await waiting(world, Shipping())
    return asked


async def hand_on(world: World, asked: Approval, by: Person, to: Person | UUID, reason: str | None = None) -> Approval:
    target = to if isinstance(to, UUID) else to.actor.user_account_id
    assert target is not None
    return await approvals.delegate(world.db, by.actor, asked.id, DelegationDraft(to=target, reason=reason))


@pytest.mark.proves("D.193")
async def test_a_part_goes_from_hand_to_hand_and_the_last_one_decides(strict: World) -> None:
    bea = await strict.person(Role.APPROVER, name="Bea", clearance=2)
    cal = await strict.person(Role.MEMBER, name="Cal", clearance=2)
    dan = await strict.person(Role.MEMBER, name="Dan", clearance=3)
    asked = await asked_of(strict, bea)
    await hand_on(strict, asked, bea, cal, "I know too little about it")
    await hand_on(strict, asked, cal, dan)
    for person in (bea, cal):
        with pytest.raises(CortexError) as refused:
            await decide(strict, asked, by=person)
        assert refused.value.code == "delegated_away"
    told = await decide(strict, asked, by=dan)
    assert (told.approval.status, told.approval.resolved_by_name) == (ApprovalStatus.APPROVED, "Dan")
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    assert [(d.from_member, d.to_member, d.to_clearance, d.reason, d.automatic) for d in details.delegations] == [
        ("Bea", "Cal", 2, "I know too little about it", False),
        ("Cal", "Dan", 3, None, False),
    ]
    trail = await audit.list_entries(strict.db, strict.admin.actor, asked.session_id, 0, 1000)
    assert [e.action for e in trail].count("approval_delegated") == 2
    assert await whole(strict)


@pytest.mark.proves("D.193")
@pytest.mark.parametrize(
    ("who", "to", "code"),
    [
        ("bea", "low", "delegate_clearance"),
        ("bea", "bea", "delegate_is_self"),
        ("bea", "nobody", "delegate_unknown"),
        ("bea", "guest", "delegate_unknown"),
        ("bea", "admin", "delegate_self_approval"),
        ("stranger", "cal", "not_an_approver"),
        ("cal", "bea", "delegation_cycle"),
    ],
)
async def test_a_delegation_that_must_not_be_changes_nothing(
    strict: World, admin: asyncpg.Connection, who: str, to: str, code: str
) -> None:
    people: dict[str, Person | UUID] = {
        "bea": await strict.person(Role.APPROVER, name="Bea", clearance=2),
        "cal": await strict.person(Role.MEMBER, name="Cal", clearance=2),
        "low": await strict.person(Role.APPROVER, name="Low", clearance=1),
        "guest": await strict.person(Role.GUEST, name="Guest", clearance=5),
        "stranger": await strict.person(Role.OPERATOR, name="Stranger", clearance=5),
        "admin": strict.admin,
        "nobody": new_id(),
    }
    await admin.execute("update user_account set clearance = 5 where display_name = 'Ada'")
    bea = people["bea"]
    assert isinstance(bea, Person)
    asked = await asked_of(strict, bea)
    if who == "cal":
        await hand_on(strict, asked, bea, people["cal"])
    by = people[who]
    assert isinstance(by, Person)
    before = await digests(admin)
    with pytest.raises(CortexError) as refused:
        await hand_on(strict, asked, by, people[to])
    assert (refused.value.code, bool(refused.value.hint)) == (code, True)
    after = await digests(admin)
    changed = {table for table in before if before[table] != after[table]}
    assert changed <= TRAIL
    assert await whole(strict)


@pytest.mark.proves("D.193")
async def test_nobody_becomes_two_votes_and_no_quorum_becomes_impossible(strict: World) -> None:
    bea = await strict.person(Role.APPROVER, name="Bea", clearance=2)
    cal = await strict.person(Role.APPROVER, name="Cal", clearance=2)
    dan = await strict.person(Role.MEMBER, name="Dan", clearance=2)
    asked = await asked_of(strict, bea, cal, more=", quorum: 2")
    with pytest.raises(CortexError) as refused:
        await hand_on(strict, asked, bea, cal)
    assert refused.value.code == "quorum_impossible"
    await decide(strict, asked, by=bea)
    with pytest.raises(CortexError) as refused:
        await hand_on(strict, asked, bea, dan)
    assert refused.value.code == "already_voted"
    await hand_on(strict, asked, cal, dan)
    assert (await decide(strict, asked, by=dan)).approval.status is ApprovalStatus.APPROVED
    with pytest.raises(CortexError) as refused:
        await hand_on(strict, asked, dan, cal)
    assert refused.value.code == "approval_conflict"


@pytest.mark.proves("D.193")
async def test_hands_that_cross_at_the_same_instant_leave_exactly_one_who_decides(strict: World) -> None:
    bea = await strict.person(Role.APPROVER, name="Bea", clearance=2)
    others = [await strict.person(Role.MEMBER, name=f"P{n}", clearance=2) for n in range(6)]
    asked = await asked_of(strict, bea)
    told = await asyncio.gather(*(hand_on(strict, asked, bea, to) for to in others), return_exceptions=True)
    assert sum(isinstance(each, Approval) for each in told) == 1
    assert {each.code for each in told if isinstance(each, CortexError)} == {"delegated_away"}
    now = await shown(strict, asked.id)
    assert len(now.delegated) == 1
    able = [p for p in others if p.actor.user_account_id in now.approvers.members]
    assert len(able) == 1
    assert (await decide(strict, asked, by=able[0])).approval.status is ApprovalStatus.APPROVED
    assert await whole(strict)


async def out(world: World, who: Person, to: Person, **more: timedelta) -> None:
    delegate = to.actor.user_account_id
    assert delegate is not None
    now = datetime.now(UTC)
    draft = AbsenceDraft(
        delegate_id=delegate,
        starts_at=now + more.get("starts", timedelta(0)),
        ends_at=now + more.get("ends", timedelta(days=1)),
        reason="holidays",
    )
    await orgs.create_absence(world.db, who.actor, draft)


@pytest.mark.proves("D.194")
async def test_who_is_out_of_office_hands_on_by_themselves_hop_by_hop(strict: World) -> None:
    bea = await strict.person(Role.APPROVER, name="Bea", clearance=2)
    cal = await strict.person(Role.MEMBER, name="Cal", clearance=2)
    dan = await strict.person(Role.MEMBER, name="Dan", clearance=2)
    await out(strict, bea, cal)
    await out(strict, cal, dan)
    asked = await asked_of(strict, bea)
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    assert [(d.from_member, d.to_member, d.automatic) for d in details.delegations] == [
        ("Bea", "Cal", True),
        ("Cal", "Dan", True),
    ]
    assert details.approval.deciders == ["Dan"]
    trail = await audit.list_entries(strict.db, strict.admin.actor, asked.session_id, 0, 1000)
    hops = [e.body["data"] for e in trail if e.action == "approval_delegated" and e.body]
    assert [(hop["from_name"], hop["name"], hop["reason"]) for hop in hops] == [
        ("Bea", "Cal", "out of office: holidays"),
        ("Cal", "Dan", "out of office: holidays"),
    ]
    assert (await decide(strict, asked, by=dan)).approval.status is ApprovalStatus.APPROVED
    assert await whole(strict)


@pytest.mark.proves("D.194")
async def test_an_absence_that_cannot_help_changes_nothing(strict: World) -> None:
    bea = await strict.person(Role.APPROVER, name="Bea", clearance=2)
    low = await strict.person(Role.MEMBER, name="Low", clearance=1)
    cal = await strict.person(Role.APPROVER, name="Cal", clearance=2)
    later = await strict.person(Role.APPROVER, name="Later", clearance=2)
    dan = await strict.person(Role.MEMBER, name="Dan", clearance=2)
    await out(strict, bea, low)
    await out(strict, cal, bea)
    await out(strict, later, dan, starts=timedelta(hours=1))
    asked = await asked_of(strict, bea, cal, later, more=", quorum: 3")
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    # Too little clearance; somebody who has a part already; not away yet.
    assert (details.delegations, details.approval.deciders) == ([], ["Bea", "Cal", "Later"])
