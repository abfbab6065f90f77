"""Cards that ask whether a call happened: who may answer, once, through either door."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalStatus,
    Channel,
    Choice,
    DecisionReceipt,
    EffectAnswer,
)
from cortex_plane.approvals.verbs import approvals, settlements
from cortex_plane.calls.verbs import deadlines
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import Cancellation, JobStatus
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import Conflict, Forbidden, NotFound
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from tests.approvals.test_approvals import TRAIL, refused
from tests.fixtures.approvals import Shipping, pending, shown, waiting
from tests.fixtures.people import Person, World
from tests.fixtures.rows import digests
from tests.fixtures.stages import Held, held_job
from tests.fixtures.workers import job_of, steps_of, whole


async def asked_about(world: World) -> tuple[Held, Approval]:
    held = await held_job(world)
    (card,) = await pending(world, held.job)
    return held, card


async def answer(
    world: World, card: Approval, verdict: Verdict, by: Person | None = None, note: str | None = None
) -> DecisionReceipt:
    given = EffectAnswer(verdict=verdict, note=note)
    return await settlements.answer(world.db, (by or world.admin).actor, card.id, given, Channel.API)


@pytest.mark.proves("D.96")
async def test_a_card_can_be_answered_and_neither_approved_nor_denied(world: World, admin: asyncpg.Connection) -> None:
    held, card = await asked_about(world)
    for choice in Choice:
        error = await refused(world, admin, card, "not_a_call", choice=choice)
        assert "cortex approval answer" in error.hint
    job = await job_of(world, held.job)
    assert (job.status, job.holds) == (JobStatus.PAUSED, ["uncertain_effect"])
    assert [c.id for c in await pending(world, held.job)] == [card.id]
    receipt = await answer(world, card, Verdict.HAPPENED, note="I looked")
    assert (receipt.approval.status, receipt.approval.resolution_reason) == ("approved", "I looked")
    assert (await job_of(world, held.job)).status is JobStatus.RUNNING


async def test_a_request_to_approve_cannot_be_answered(strict: World, admin: asyncpg.Connection) -> None:
    id, (asked,) = await waiting(strict, Shipping())
    before = await digests(admin)
    for verdict in Verdict:
        with pytest.raises(Conflict) as told:
            await answer(strict, asked, verdict)
        assert told.value.code == "not_a_question"
    after = await digests(admin)
    assert {table for table in before if before[table] != after[table]} == TRAIL
    assert (await job_of(strict, id)).status is JobStatus.WAITING_FOR_APPROVAL
    events = (await approvals.get_approval(strict.db, strict.admin.actor, asked.id)).events
    assert [event.event_type for event in events[-3:]] == ["refused"] * 3
    assert await whole(strict)


async def test_who_may_settle_a_job_may_answer_and_nobody_else(
    world: World, other: World, admin: asyncpg.Connection
) -> None:
    _, card = await asked_about(world)
    for role in (Role.MEMBER, Role.GUEST):
        person = await world.person(role, name=f"A {role}")
        before = await digests(admin)
        with pytest.raises(NotFound):
            await answer(world, card, Verdict.HAPPENED, by=person)
        assert await digests(admin) == before, "they do not even see it"
    with pytest.raises(NotFound):
        await answer(other, card, Verdict.HAPPENED)
    assert await digests(admin) == before
    approver = await world.person(Role.APPROVER, name="Approver")
    assert (await approvals.get_approval(world.db, approver.actor, card.id)).approval.may_decide
    steward = await world.person(Role.STEWARD, name="Steward")
    seen = (await approvals.get_approval(world.db, steward.actor, card.id)).approval
    assert not seen.may_decide
    assert "admins, operators and approvers" in (seen.why_not or "")
    with pytest.raises(Forbidden):
        await answer(world, card, Verdict.HAPPENED, by=steward)
    assert (await answer(world, card, Verdict.HAPPENED, by=approver)).approval.resolved_by_name == "Approver"


@pytest.mark.parametrize(
    ("verdict", "status", "ends"),
    [
        (Verdict.HAPPENED, ApprovalStatus.APPROVED, JobStatus.RUNNING),
        (Verdict.DID_NOT_HAPPEN, ApprovalStatus.APPROVED, JobStatus.RUNNING),
        (Verdict.FAIL, ApprovalStatus.DENIED, JobStatus.FAILED),
    ],
)
async def test_either_door_closes_the_card(
    world: World, verdict: Verdict, status: ApprovalStatus, ends: JobStatus
) -> None:
    held, card = await asked_about(world)
    await settlements.settle(world.db, world.admin.actor, held.job, held.call, Answer(verdict=verdict))
    closed = await approvals.get_approval(world.db, world.admin.actor, card.id)
    assert (closed.approval.status, closed.approval.resolved_by_name) == (status, "Ada")
    assert [event.event_type for event in closed.events] == ["requested", "dispatched", "answered"]
    assert closed.events[-1].payload["verdict"] == verdict
    assert (await job_of(world, held.job)).status is ends
    with pytest.raises(Conflict) as told:
        await answer(world, card, Verdict.HAPPENED)
    assert told.value.code == "approval_conflict"
    events = (await approvals.get_approval(world.db, world.admin.actor, card.id)).events
    assert events[-1].event_type == "channel_conflict"
    assert await whole(world)


async def test_of_two_doors_at_once_one_answers(world: World) -> None:
    held, card = await asked_about(world)
    given = Answer(verdict=Verdict.HAPPENED, result="paid")
    tries = [
        call
        for _ in range(3)
        for call in (
            answer(world, card, Verdict.DID_NOT_HAPPEN),
            settlements.settle(world.db, world.admin.actor, held.job, held.call, given),
        )
    ]
    answers = await asyncio.gather(*tries, return_exceptions=True)
    lost = [a for a in answers if isinstance(a, BaseException)]
    assert len(lost) == 5
    assert {getattr(error, "code", error) for error in lost} <= {"approval_conflict", "call_settled"}
    call = (await steps_of(world, held.job))[1].calls[0]
    assert call.status in ("completed", "cleared")
    entries = await audit.list_entries(world.db, world.admin.actor, held.session, 0, 1000)
    assert [entry.action for entry in entries].count("effect_settled") == 1
    assert await whole(world)


async def test_a_card_waits_as_long_as_it_takes_and_ends_with_its_job(world: World, admin: asyncpg.Connection) -> None:
    held, card = await asked_about(world)
    assert card.deadline is None
    assert await admin.fetchval("select next_action_at from approval_request where id = $1", card.id) is None
    assert (await deadlines.tick(world.db, new_id(), "tick")).done == []
    await steering.cancel(world.db, world.admin.actor, held.job, Cancellation(reason="never mind"))
    assert (await shown(world, card.id)).status is ApprovalStatus.CANCELLED
    with pytest.raises(Conflict) as told:
        await answer(world, card, Verdict.HAPPENED)
    assert told.value.code == "approval_conflict"
