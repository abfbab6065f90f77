"""More than one person: votes, what ends them, and what makes them void."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import ApprovalDecision, ApprovalStatus, Channel, Choice, RecordResult
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import CortexError, InvalidInput
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import orgs
from tests.fixtures.approvals import Shipping, decide, ship, shown, waiting
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.rows import digests
from tests.fixtures.workers import ended, job_of, make_agent, steps_of, submit, turn, whole, working


def quorum(said: str = "2", more: str = "") -> str:
    return (
        "policies: [{name: two-of-us, target: ship, effect: requires_approval, template: dev_review,"
        f" quorum: {said}{more}}}]"
    )


async def two(world: World, said: str = "2", more: str = "", clearance: int = 0) -> tuple[Person, Person]:
    bea = await world.person(Role.APPROVER, name="Bea", clearance=clearance)
    cal = await world.person(Role.APPROVER, name="Cal", clearance=clearance)
    await apply_policies(world.db, world.admin.actor, quorum(said, more))
    return bea, cal


@pytest.mark.proves("D.190")
async def test_the_job_goes_on_with_the_last_vote_and_not_before(strict: World) -> None:
    bea, cal = await two(strict)
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping, after=[turn(text="Done.")])
    assert (asked.quorum.votes, asked.votes_for) == (2, 0)
    first = await decide(strict, asked, by=bea)
    assert (first.result, first.approval.status, first.approval.votes_for) == (
        RecordResult.OK,
        ApprovalStatus.PENDING,
        1,
    )
    assert (await job_of(strict, id)).status is JobStatus.WAITING_FOR_APPROVAL
    again = await decide(strict, asked, by=bea)
    assert (again.result, again.approval.votes_for) == (RecordResult.DUPLICATE, 1)
    last = await decide(strict, asked, by=cal)
    assert (last.result, last.approval.status, last.approval.votes_for) == (RecordResult.OK, ApprovalStatus.APPROVED, 2)
    async with working(strict.db, shipping.app):
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert shipping.shipped == ["1.0 to production"]
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    assert [(v.member, v.decision) for v in details.votes] == [("Bea", "approved"), ("Cal", "approved")]
    assert [e.event_type for e in details.events if e.actor] == ["voted", "channel_duplicate", "approved"]
    trail = await audit.list_entries(strict.db, strict.admin.actor, asked.session_id, 0, 1000)
    assert [e.action for e in trail if "vote" in e.action or "decision" in e.action] == [
        "approval_vote",
        "approval_decision",
    ]
    assert await whole(strict)


@pytest.mark.proves("D.190")
async def test_one_no_ends_it_also_from_somebody_who_said_yes(strict: World) -> None:
    bea, _ = await two(strict)
    id, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked, by=bea)
    told = await decide(strict, asked, Choice.DENIED, by=bea, reason="on second thoughts")
    assert told.approval.status is ApprovalStatus.DENIED
    assert (await job_of(strict, id)).status is JobStatus.FAILED
    details = await approvals.get_approval(strict.db, strict.admin.actor, asked.id)
    assert [(v.member, v.decision) for v in details.votes] == [("Bea", "denied")]
    assert await whole(strict)


@pytest.mark.proves("D.190")
async def test_roles_are_counted_and_one_person_is_one_vote(strict: World) -> None:
    root = await strict.person(Role.ADMIN, Role.APPROVER, name="Root")
    bea, cal = await two(strict, "{votes: 2, roles: {admin: 1}}")
    _, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked, by=bea)
    still = await decide(strict, asked, by=cal)
    assert still.approval.status is ApprovalStatus.PENDING, "two votes, and no admin among them"
    assert (await decide(strict, asked, by=root)).approval.status is ApprovalStatus.APPROVED


@pytest.mark.proves("D.191")
async def test_an_edit_makes_earlier_votes_void_and_runs_as_edited(strict: World) -> None:
    bea, cal = await two(strict)
    dan = await strict.person(Role.APPROVER, name="Dan")
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping, after=[turn(text="Done.")])
    await decide(strict, asked, by=bea)
    edited = await decide(strict, asked, by=cal, arguments={"version": "2.0", "to": "staging"})
    assert (edited.approval.status, edited.approval.votes_for) == (ApprovalStatus.PENDING, 0)
    assert edited.approval.version == asked.version + 1
    assert edited.approval.original_arguments == {"version": "1.0"}
    with pytest.raises(CortexError) as stale:
        await decide(strict, asked, by=bea)
    assert stale.value.code == "approval_changed"
    now = await shown(strict, asked.id)
    with pytest.raises(CortexError) as own:
        await decide(strict, now, by=cal)
    assert own.value.code == "self_approval", "whoever edited it shaped it"
    assert (await decide(strict, now, by=bea)).approval.votes_for == 1
    assert (await decide(strict, now, by=dan)).approval.status is ApprovalStatus.APPROVED
    async with working(strict.db, shipping.app):
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert shipping.shipped == ["2.0 to staging"]
    calls = [call for step in await steps_of(strict, id) for call in step.calls]
    assert [call.arguments for call in calls] == [{"version": "2.0", "to": "staging"}]
    assert await whole(strict)


@pytest.mark.proves("D.191")
async def test_a_vote_of_somebody_who_lost_the_right_does_not_count(strict: World) -> None:
    bea, cal = await two(strict, more=", clearance: 1", clearance=1)
    _, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked, by=bea)
    await orgs.update_member(strict.db, strict.admin.actor, bea.member_id, MemberChange(clearance=0), None)
    assert (await decide(strict, asked, by=cal)).approval.status is ApprovalStatus.PENDING


@pytest.mark.proves("D.192")
async def test_an_impossible_quorum_is_refused_at_once(strict: World, admin: asyncpg.Connection) -> None:
    bea, _ = await two(strict)
    before = await digests(admin)
    with pytest.raises(InvalidInput) as refused:
        await apply_policies(strict.db, strict.admin.actor, quorum("9"))
    assert "9" in refused.value.message
    assert await digests(admin) == before
    for person in (bea,):
        await orgs.update_member(strict.db, strict.admin.actor, person.member_id, MemberChange(active=False), None)
    shipping = Shipping()
    agent = await make_agent(strict, [turn(ship(), text="I ship.")], slug="shipper")
    id = await submit(strict, agent)
    async with working(strict.db, shipping.app):
        job = await ended(strict, id)
    assert job.status is JobStatus.FAILED
    assert "too few can give its 2 votes" in (job.error_message or "")
    assert shipping.shipped == []


@pytest.mark.proves("D.190")
async def test_a_key_repeats_one_vote_and_no_other(strict: World) -> None:
    bea, cal = await two(strict)
    _, (asked,) = await waiting(strict, Shipping())
    once = IdempotencyKey(key="k1", fingerprint=b"x")
    decision = ApprovalDecision(decision=Choice.APPROVED, version=asked.version, input_hash=asked.input_hash)

    async def vote(person: Person) -> RecordResult:
        told = await decisions.decide(strict.db, person.actor, asked.id, decision, Channel.API, once)
        return told.result

    assert [await vote(bea), await vote(bea)] == [RecordResult.OK, RecordResult.DUPLICATE]
    with pytest.raises(CortexError) as reused:
        await decisions.decide(
            strict.db, bea.actor, asked.id, replace(decision, decision=Choice.DENIED), Channel.API, once
        )
    assert reused.value.code == "idempotency_key_reused"
    assert (await shown(strict, asked.id)).votes_for == 1
    assert await vote(cal) is RecordResult.OK, "everybody's keys are their own"


@pytest.mark.proves("D.190")
async def test_votes_at_the_same_instant_decide_once(strict: World) -> None:
    people = [*(await two(strict)), *[await strict.person(Role.APPROVER, name=f"P{n}") for n in range(6)]]
    for n in range(5):
        id, (asked,) = await waiting(strict, Shipping(), ship(str(n)), slug=f"shipper-{n}")
        told = await asyncio.gather(*(decide(strict, asked, by=person) for person in people), return_exceptions=True)
        ended_it = [t for t in told if not isinstance(t, BaseException) and t.result is RecordResult.OK]
        assert len(ended_it) == 2
        final = await shown(strict, asked.id)
        assert (final.status, final.votes_for) == (ApprovalStatus.APPROVED, 2)
        assert (await job_of(strict, id)).status is JobStatus.RUNNING
    assert await whole(strict)


@pytest.mark.proves("D.191")
@pytest.mark.parametrize("left", [Role.GUEST, Role.MEMBER])
async def test_a_vote_goes_with_the_role_that_it_was_given_with(strict: World, left: Role) -> None:
    bea, cal = await two(strict)
    _, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked, by=bea)
    await orgs.update_member(strict.db, strict.admin.actor, bea.member_id, MemberChange(roles=[left]), None)
    after = await decide(strict, asked, by=cal)
    assert (after.approval.status, after.approval.votes_for) == (ApprovalStatus.PENDING, 1)


FINAL = """
policies:
  - name: prod-gate
    target: ship
    when: args.to == "production"
    effect: requires_approval
    template: critical_path
    approvers: {roles: [admin]}
    quorum: 2
    final: true
  - {name: ships, target: ship, effect: requires_approval, template: dev_review, approvers: {roles: [approver]}, quorum: 2}
"""


@pytest.mark.proves("D.191")
async def test_an_edit_does_not_carry_a_call_past_those_who_would_be_asked_about_it(strict: World) -> None:
    root = await strict.person(Role.ADMIN, Role.APPROVER, name="Root")
    await strict.person(Role.ADMIN, name="Other admin")
    await strict.person(Role.APPROVER, name="Cal")
    await apply_policies(strict.db, strict.admin.actor, FINAL)
    _, (asked,) = await waiting(strict, Shipping(), ship("1", to="staging"))
    with pytest.raises(CortexError) as refused:
        await decide(strict, asked, by=root, arguments={"version": "1", "to": "production"})
    assert refused.value.code == "edit_other_terms"
    now = await shown(strict, asked.id)
    assert (now.version, now.votes_for, now.arguments["to"]) == (asked.version, 0, "staging")


@pytest.mark.proves("D.191")
async def test_an_edit_into_what_is_asked_already_is_refused_and_on_the_trail(strict: World) -> None:
    bea, _ = await two(strict)
    _, asked = await waiting(strict, Shipping(), ship("1"), ship("2"))
    with pytest.raises(CortexError) as refused:
        await decide(strict, asked[0], by=bea, arguments=asked[1].arguments)
    assert refused.value.code == "edit_duplicates"
    trail = await audit.list_entries(strict.db, strict.admin.actor, asked[0].session_id, 0, 1000)
    assert trail[-1].action == "approval_refused"


@pytest.mark.proves("D.192")
async def test_a_quorum_among_very_many_is_not_taken_for_an_impossible_one(
    strict: World, admin: asyncpg.Connection
) -> None:
    await admin.execute(
        "insert into user_account (org_id, id, display_name, roles) select $1, gen_random_uuid(), 'a' || n, '{approver}'"
        " from generate_series(1, 250) n",
        strict.org_id,
    )
    await strict.person(Role.STEWARD, Role.APPROVER, name="Zed")
    await apply_policies(strict.db, strict.admin.actor, quorum("{votes: 2, roles: {steward: 1}}"))
    _, (asked,) = await waiting(strict, Shipping())
    assert asked.status is ApprovalStatus.PENDING
