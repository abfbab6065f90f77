"""Gates that people pass, and policies beside gates: the stricter of the two holds."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.jobs.model.jobs import Cancellation, Job, JobStatus, Pause, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.worker.models.backends import Backends
from tests.fixtures.approvals import decide, pending
from tests.fixtures.gated import (
    DELETE,
    ONBOARDING,
    Desk,
    Listening,
    atlas,
    ban,
    before,
    calls_of,
    delete,
    gate,
    get,
    governed,
    question,
    say,
    state_in,
    traced,
)
from tests.fixtures.people import World, apply_policies
from tests.fixtures.standing_approvals import policy, stand, standing_of
from tests.fixtures.workers import Recording, ended, submit, turn, until, whole, working

W = JobStatus.WAITING_FOR_APPROVAL
PERSON = gate(
    "four-eyes", before("ticket.delete"), audience="human",
    questions=[question("looked", text="Did somebody look at the ticket?")],
)  # fmt: skip
ASK = [
    {"policy_id": "ask", "type": "requires_approval", "actions": ["user.ban"], "reason": "Bans need a person."},
    {"policy_id": "all", "type": "allow", "actions": ["*"]},
]


async def _asked(world: World, desk: Desk, manifest: str, *script: dict[str, Any]) -> Job:
    agent = await governed(world, manifest, *script)
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        return await until(world, id, W, JobStatus.COMPLETED, JobStatus.FAILED)


async def _on(world: World, desk: Desk, job: Job) -> Job:
    async with working(world.db, desk.app):
        return await until(world, job.id, W, JobStatus.COMPLETED, JobStatus.FAILED)


@pytest.mark.proves("D.371")
async def test_a_gate_for_people_is_an_approval_that_shows_its_questions(world: World) -> None:
    desk = Desk()
    job = await _asked(world, desk, atlas(PERSON), turn(delete()), turn(delete()))
    (card,) = await pending(world, job.id)
    assert (job.status, desk.done) == (W, [])
    assert card.rule == "gate:com.acme.desk/four-eyes"
    assert "Did somebody look at the ticket?" in (card.question or "")
    assert "four-eyes" in (card.question or "")
    await decide(world, card)
    again = await _on(world, desk, job)
    # Passed for that one call: the same one again is asked for again.
    assert (again.status, desk.deleted) == (W, ["delete 1"])
    assert await traced(world, job) == ["triggered four-eyes", "passed four-eyes", "triggered four-eyes"]
    (card,) = await pending(world, job.id)
    await decide(world, card, Choice.DENIED)
    assert (await _on(world, desk, job)).status is JobStatus.FAILED
    assert desk.deleted == ["delete 1"]
    assert await whole(world)


@pytest.mark.proves("D.371")
async def test_a_gate_of_the_session_for_people_is_asked_with_the_first_call(world: World) -> None:
    desk = Desk()
    start = gate("supervised", "session_start", audience="human", questions=[question("watch", text="Do you watch?")])
    job = await _asked(world, desk, atlas(start), turn(get()), turn(delete()))
    (card,) = await pending(world, job.id)
    assert (card.tool_name, desk.done) == ("ticket.get", [])
    assert "Do you watch?" in (card.question or "")
    await decide(world, card)
    assert (await _on(world, desk, job)).status is JobStatus.COMPLETED
    assert desk.done == ["get 1", "delete 1"]
    state = await state_in(world, job.session_id)
    assert (state.people, "com.acme.desk/supervised" in state.passed) == ((), True)


@pytest.mark.proves("D.371", "D.372")
async def test_answers_first_then_the_person_and_what_lets_it_through_is_used_up_together(world: World) -> None:
    desk = Desk()
    job = await _asked(
        world, desk, atlas(DELETE, PERSON),
        turn(delete()), turn(say("delete-confirm", sure="understood")), turn(delete()), turn(delete()),
    )  # fmt: skip
    assert len((await state_in(world, job.session_id)).passes) == 1
    (card,) = await pending(world, job.id)
    await decide(world, card)
    done = await _on(world, desk, job)
    assert (done.status, desk.deleted) == (JobStatus.COMPLETED, ["delete 1"])
    assert (await state_in(world, job.session_id)).passes == ()
    assert [each.split()[1] for each in await calls_of(world, job.id)] == [
        "rejected", "completed", "completed", "rejected",
    ]  # fmt: skip


@pytest.mark.proves("D.372")
async def test_what_an_atlas_wants_approved_no_policy_and_no_standing_approval_lets_pass(world: World) -> None:
    """The org allows everything; the atlas asks."""
    desk = Desk()
    job = await _asked(world, desk, atlas(policies=ASK), turn(ban()), turn(ban("bob")))
    (card,) = await pending(world, job.id)
    assert (card.rule, card.standing) == ("atlas:com.acme.desk/ask", False)
    await decide(world, card)
    again = await _on(world, desk, job)
    assert (again.status, desk.done) == (W, ["ban eve"])


@pytest.mark.proves("D.372")
async def test_a_standing_approval_speaks_for_policies_and_not_for_gates(world: World) -> None:
    desk = Desk()
    await apply_policies(world.db, world.admin.actor, policy("ticket.delete"))
    yes = say("delete-confirm", sure="understood")
    job = await _asked(
        world, desk, atlas(DELETE),
        turn(delete()), turn(yes), turn(delete()), turn(delete()), turn(yes), turn(delete()),
    )  # fmt: skip
    (card,) = await pending(world, job.id)
    await stand(world, card, calls=5)
    done = await _on(world, desk, job)
    assert (done.status, desk.deleted) == (JobStatus.COMPLETED, ["delete 1", "delete 1"])
    assert (await standing_of(world, job.session_id)).used_calls == 1
    assert "ticket.delete rejected" in await calls_of(world, job.id)


@pytest.mark.proves("D.372")
async def test_a_denial_of_either_holds(world: World) -> None:
    desk = Desk()
    await apply_policies(
        world.db, world.admin.actor,
        "policies: [{name: never, target: 'user.*', effect: deny}, {name: rest, target: '*', effect: allow}]",
    )  # fmt: skip
    deny = [{"policy_id": "no", "type": "deny", "actions": ["ticket.delete"], "reason": "Never."}, *ASK]
    job = await _asked(world, desk, atlas(policies=deny), turn(ban(), delete(), get()))
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["get 1"])
    assert await calls_of(world, job.id) == [
        "user.ban rejected", "ticket.delete rejected", "ticket.get completed",
    ]  # fmt: skip


@pytest.mark.proves("D.372")
async def test_policies_see_the_risk_that_the_atlas_names(world: World) -> None:
    desk = Desk()
    await apply_policies(
        world.db, world.admin.actor,
        "policies: [{name: risky, target: '*', when: 'risk == \"critical\"', effect: deny},"
        " {name: rest, target: '*', effect: allow}]",
    )  # fmt: skip
    risky = [{"action_id": "ticket.get", "name": "Get", "risk_tier": "critical"}]
    job = await _asked(world, desk, atlas(actions=risky), turn(get(), delete()))
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["delete 1"])


@pytest.mark.proves("D.373")
async def test_what_an_approval_found_shut_is_not_sent(world: World) -> None:
    """Between the question and the yes another call used up the pass: the approved one must answer its gate again."""
    desk = Desk()
    agent = await governed(
        world, atlas(DELETE, PERSON),
        turn(delete()), turn(say("delete-confirm", sure="understood")), turn(delete(), delete()),
    )  # fmt: skip
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        job = await until(world, id, W)
    (card,) = await pending(world, id)
    await decide(world, card)
    async with working(world.db, desk.app):
        job = await ended(world, id)
    # Of two identical calls of one response only one had a pass.
    assert (job.status, desk.deleted) == (JobStatus.COMPLETED, ["delete 1"])
    assert (await calls_of(world, id))[-2:] == ["ticket.delete completed", "ticket.delete rejected"]


@pytest.mark.proves("D.373")
async def test_a_job_that_is_held_between_question_and_answer_goes_on_with_the_question(world: World) -> None:
    desk, model = Desk(), Listening()
    agent = await governed(
        world, atlas(ONBOARDING, DELETE), turn(get()), turn(say("onboarding", agree=True)), turn(get())
    )  # fmt: skip
    id = await submit(world, agent)

    async def hold(number: int) -> None:
        if number == 1:
            await steering.pause(world.db, world.admin.actor, id, Pause())

    async with working(world.db, desk.app, backends=Backends({"scripted": Recording(hold)})):
        job = await until(world, id, JobStatus.PAUSED)
    assert len((await state_in(world, job.session_id)).asks) == 1
    await steering.resume(world.db, world.admin.actor, id, Resumption())
    async with working(world.db, desk.app, backends=Backends({"scripted": model})):
        job = await until(world, id, JobStatus.COMPLETED)
    assert "Do you agree?" in model.notices[0]
    assert "not accepted" in model.notices[0]
    assert desk.done == ["get 1"]
    assert await whole(world)


@pytest.mark.proves("D.373")
async def test_a_job_that_is_cancelled_at_a_question_leaves_it_to_the_next_one(world: World) -> None:
    desk = Desk()
    agent = await governed(world, atlas(ONBOARDING), turn(get()), turn(say("onboarding", agree=True)), turn(get()))
    id = await submit(world, agent)

    async def cancel(number: int) -> None:
        if number == 2:
            await steering.cancel(world.db, world.admin.actor, id, Cancellation())
            await asyncio.Event().wait()

    async with working(world.db, desk.app, backends=Backends({"scripted": Recording(cancel)})):
        job = await until(world, id, JobStatus.CANCELLED)
    (waits,) = (await state_in(world, job.session_id)).asks
    assert waits.attempts == 1
    async with working(world.db, desk.app):
        other = await ended(world, await submit(world, agent, session_id=job.session_id))
    assert (other.status, desk.done) == (JobStatus.COMPLETED, ["get 1"])
