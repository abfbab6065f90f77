"""What runs only with its own permission: an approval passes what it showed, for the call that it was given for."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange, ModelConfig
from cortex_plane.approvals.model.approvals import Approval, ApprovalDecision, Channel, Choice, EffectAnswer
from cortex_plane.approvals.verbs import decisions, settlements
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import TERMINAL, Job, JobStatus
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.fields import adapter
from cortex_plane.proof.verbs import audit
from cortex_plane.worker.models.backends import Backends
from tests.fixtures.approvals import decide, pending
from tests.fixtures.gated import (
    ATLAS,
    DELETE,
    Desk,
    atlas,
    before,
    calls_of,
    delete,
    gate,
    governed,
    ledger,
    question,
    say,
    state_in,
    traced,
)
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import Died, Recording, call, died, ended, job_of, submit, turn, until, whole, working

W, PAUSED = JobStatus.WAITING_FOR_APPROVAL, JobStatus.PAUSED
OVER = (JobStatus.COMPLETED, JobStatus.FAILED)
ADMIN = [{"capability_id": "admin", "name": "Admin", "actions": ["ticket.delete"]}]
OPENS = gate("opens", "session_start", mode="advisory", unlock_capabilities=["admin"])
BOSS = gate(
    "boss", {"type": "capability_access", "capability_ids": ["admin"]}, audience="human",
    questions=[question("knows", text="Does the boss know?")],
)  # fmt: skip
YES = say("delete-confirm", sure="understood")


async def _deletes_are_asked_about(world: World) -> None:
    await apply_policies(
        world.db, world.admin.actor,
        "policies: [{name: ask, target: 'ticket.delete', effect: requires_approval},"
        " {name: rest, target: '*', effect: allow}]",
    )  # fmt: skip


async def _begun(world: World, desk: Desk, manifest: str, *script: dict[str, Any]) -> Job:
    agent = await governed(world, manifest, *script)
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        return await until(world, id, W, *OVER)


async def _on(world: World, desk: Desk, job: Job) -> Job:
    async with working(world.db, desk.app):
        return await until(world, job.id, W, *OVER)


async def _told(world: World, job: Job, action: str) -> list[dict[str, Any]]:
    entries = await audit.list_entries(world.db, world.admin.actor, job.session_id, 0, 1000)
    return [entry.body["data"] for entry in entries if entry.action == action and entry.body is not None]


@pytest.mark.proves("D.371")
@pytest.mark.parametrize("asks", [True, False])
async def test_a_gate_that_nobody_was_shown_is_asked_about_before_an_approved_call_is_sent(
    world: World, asks: bool
) -> None:
    """The response that locks the capability has the call, too: its card cannot show the gate."""
    await _deletes_are_asked_about(world)
    desk, mail = Desk(), call("mail.send", to="a")
    lock = gate("lock", before("mail.send"), lock_capabilities=["admin"])
    script = [turn(mail), turn(say("lock", sure="understood"), delete())]
    if not asks:
        lock, script = {**lock, "mode": "advisory", "questions": []}, [turn(mail, delete())]
    job = await _begun(world, desk, atlas(OPENS, lock, BOSS, capabilities=ADMIN), *script)
    (card,) = await pending(world, job.id)
    assert (card.tool_name, card.question) == ("ticket.delete", None)
    await decide(world, card)
    job = await _on(world, desk, job)
    assert (job.status, desk.deleted) == (W, [])
    (outgrown,) = await _told(world, job, "approval_outgrown")
    assert "not shown a gate" in outgrown["reason"]
    (card,) = await pending(world, job.id)
    assert "Does the boss know?" in (card.question or "")
    await decide(world, card)
    job = await _on(world, desk, job)
    assert (job.status, desk.deleted) == (JobStatus.COMPLETED, ["delete 1"])
    state = await state_in(world, job.session_id)
    assert f"{ATLAS}/boss" in state.passed
    assert await whole(world)


async def _edited(world: World, card: Approval, arguments: dict[str, Any]) -> None:
    decision = ApprovalDecision(
        decision=Choice.APPROVED, version=card.version, input_hash=card.input_hash, arguments=arguments
    )
    await decisions.decide(world.db, world.admin.actor, card.id, decision, Channel.API)


@pytest.mark.proves("D.361", "D.366")
async def test_two_approved_calls_do_not_run_on_one_pass(world: World) -> None:
    """A person makes one of them the other: each needs a pass of its own all the same."""
    await _deletes_are_asked_about(world)
    desk = Desk()
    job = await _begun(
        world, desk, atlas(DELETE), turn(delete("1")), turn(YES), turn(delete("2")), turn(YES),
        turn(delete("1"), delete("2")),
    )  # fmt: skip
    for card in await pending(world, job.id):
        if card.arguments["id"] == "2":
            await _edited(world, card, {"id": "1"})
        else:
            await decide(world, card)
    job = await _on(world, desk, job)
    assert desk.deleted == ["delete 1"]
    assert [each.input_hash for each in (await state_in(world, job.session_id)).passes] != []
    assert sorted(await calls_of(world, job.id))[-4:].count("ticket.delete completed") == 1


@pytest.mark.proves("D.366")
async def test_two_approved_calls_do_not_run_on_what_a_budget_has_left_for_one(world: World) -> None:
    await _deletes_are_asked_about(world)
    desk = Desk()
    one = [
        {"policy_id": "one", "type": "budget", "actions": ["ticket.delete"], "max_calls": 1},
        {"policy_id": "all", "type": "allow", "actions": ["*"]},
    ]
    agent = await governed(world, atlas(policies=one), turn(delete("1")), limits={"max_concurrent_jobs": 2})
    first = await submit(world, agent)
    async with working(world.db, desk.app):
        job = await until(world, first, W)
        second = await submit(world, agent, {"text": "2"}, session_id=job.session_id)
        await until(world, second, W)
        for id in (first, second):
            for card in await pending(world, id):
                await decide(world, card)
        for id in (first, second):
            await until(world, id, *OVER)
    assert desk.deleted == ["delete 1"]


@pytest.mark.proves("D.371")
async def test_what_people_saw_is_kept_with_the_request_and_for_its_call_alone(world: World) -> None:
    desk = Desk()
    person = gate("four-eyes", before("ticket.delete"), audience="human", questions=[question("looked")])
    job = await _begun(world, desk, atlas(person), turn(delete("1")), turn(delete("2")))
    (asked,) = await ledger(world, job.id)
    state = await state_in(world, job.session_id)
    assert [(each.gate, each.call) for each in state.cards] == [(f"{ATLAS}/four-eyes", str(asked.id))]


@pytest.mark.proves("D.371")
async def test_a_call_that_nobody_can_approve_shows_nobody_anything(world: World) -> None:
    desk = Desk()
    await apply_policies(
        world.db, world.admin.actor,
        "policies: [{name: four-eyes, target: 'ticket.delete', effect: requires_approval, template: dev_review,"
        " approvers: {roles: [admin]}, self_approval: false, on_deny: continue},"
        " {name: rest, target: '*', effect: allow}]",
    )  # fmt: skip
    person = gate("four-eyes", before("ticket.delete"), audience="human", questions=[question("looked")])
    job = await _begun(world, desk, atlas(person), turn(delete()))
    assert (job.status, await pending(world, job.id)) == (JobStatus.FAILED, [])
    assert (await state_in(world, job.session_id)).cards == ()
    assert desk.deleted == []


@pytest.mark.proves("D.360")
async def test_gates_hear_of_a_call_that_ends_its_job_because_nobody_knows(world: World) -> None:
    desk = Desk()

    @desk.app.tool(name="disk.wipe", on_uncertain="fail")
    async def wipe() -> str:
        raise RuntimeError("the line went dead")

    posted = gate("posted", {"type": "action_post", "patterns": ["disk.*"]}, mode="observational")
    wrong = gate("wrong", "error_occurred", mode="observational")
    mailed = gate("mailed", {"type": "action_post", "patterns": ["mail.*"]}, mode="observational")
    both = turn(call("mail.send", to="ada"), call("disk.wipe"))
    agent = await governed(world, atlas(posted, wrong, mailed), both)
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        job = await ended(world, id)
    assert job.status is JobStatus.FAILED
    assert sorted(await traced(world, job)) == ["triggered mailed", "triggered posted", "triggered wrong"]
    assert await whole(world)


@pytest.mark.proves("D.360")
@pytest.mark.parametrize("door", ["settle", "card"])
@pytest.mark.parametrize("verdict", list(Verdict))
async def test_gates_hear_once_of_a_call_that_a_person_decided(world: World, door: str, verdict: Verdict) -> None:
    """Whatever ends with it: also the call that had run before it in the same response."""
    desk, dead = Desk(), [True]

    @desk.app.tool(name="disk.wipe", on_uncertain="ask_human", timeout=5)
    async def wipe() -> str:
        if dead:
            dead.clear()
            raise RuntimeError("the line went dead")
        return "wiped"

    posted = gate("posted", {"type": "action_post", "patterns": ["disk.*"]}, mode="observational")
    wrong = gate("wrong", "error_occurred", mode="advisory", deny_actions=["disk.*"])
    mailed = gate("mailed", {"type": "action_post", "patterns": ["mail.*"]}, mode="observational")
    both = turn(call("mail.send", to="ada"), call("disk.wipe"))
    agent = await governed(world, atlas(posted, wrong, mailed), both)
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        job = await until(world, id, PAUSED)
        assert await traced(world, job) == ["triggered mailed"]
        if door == "settle":
            (asked,) = await steering.list_questions(world.db, world.admin.actor, id)
            given = Answer(verdict=verdict, note="enough")
            await settlements.settle(world.db, world.admin.actor, id, asked.call_id, given)
        else:
            (card,) = await pending(world, id)
            await settlements.answer(
                world.db, world.admin.actor, card.id, EffectAnswer(verdict=verdict, note="enough"), Channel.API
            )  # fmt: skip
        job = await ended(world, id)
    failed = verdict is Verdict.FAIL
    assert job.status is (JobStatus.FAILED if failed else JobStatus.COMPLETED)
    told = ["triggered mailed", "triggered posted"]
    assert sorted(await traced(world, job)) == sorted([*told, *(["triggered wrong", "passed wrong"] if failed else [])])
    assert ("disk.*" in (await state_in(world, job.session_id)).actions) == failed
    assert await whole(world)


async def _doubted(world: World, desk: Desk, manifest: str, *script: dict[str, Any]) -> Job:
    """Approved, sent, and its worker died: a person says that it did not happen."""
    job = await _begun(world, desk, manifest, *script)
    (card,) = await pending(world, job.id)
    await decide(world, card)
    await died(world.db, desk.app)
    async with working(world.db, desk.app):
        return await until(world, job.id, PAUSED)


async def _did_not_happen(world: World, job: Job) -> None:
    (asked,) = await steering.list_questions(world.db, world.admin.actor, job.id)
    await settlements.settle(
        world.db, world.admin.actor, job.id, asked.call_id, Answer(verdict=Verdict.DID_NOT_HAPPEN)
    )  # fmt: skip


@pytest.mark.proves("D.371", "D.378")
@pytest.mark.parametrize("locked", [False, True])
async def test_a_call_is_sent_again_with_its_approval_unless_a_gate_came_that_nobody_saw(
    world: World, locked: bool
) -> None:
    desk, dying = Desk(), [True]

    @desk.app.tool(name="disk.delete", on_uncertain="ask_human", timeout=0.5)
    async def wipe() -> str:
        if dying:
            dying.clear()
            raise Died
        desk.done.append("delete disk")
        return "wiped"

    person = gate("four-eyes", before("disk.delete"), audience="human", questions=[question("looked")])
    payroll = gate(
        "payroll", {"type": "keyword", "patterns": ["payroll"]}, audience="human",
        questions=[question("again", text="Is it still right?")],
    )  # fmt: skip
    job = await _doubted(world, desk, atlas(person, payroll), turn(call("disk.delete")))
    if locked:
        talks = AgentChange(
            model_config=adapter(ModelConfig).validate_python({"model": "scripted", "script": [turn(text="Fine.")]})
        )
        agent = await agents.update_agent(world.db, world.admin.actor, "clerk", talks, None)
        other = await submit(world, agent, {"text": "Do the payroll."}, session_id=job.session_id)
        async with working(world.db, desk.app):
            assert (await ended(world, other)).status is JobStatus.COMPLETED
        assert (await state_in(world, job.session_id)).people == (f"{ATLAS}/payroll",)
    await _did_not_happen(world, job)
    job = await _on(world, desk, job)
    if locked:
        assert (job.status, desk.deleted) == (W, [])
        (card,) = await pending(world, job.id)
        assert "Is it still right?" in (card.question or "")
        await decide(world, card)
        job = await _on(world, desk, job)
        assert (await state_in(world, job.session_id)).people == ()
    assert (job.status, desk.deleted) == (JobStatus.COMPLETED, ["delete disk"])
    assert await whole(world)


@pytest.mark.proves("D.367")
async def test_a_try_that_went_wrong_keeps_what_gates_told_of_it(world: World) -> None:
    """Its checkpoint stays as it was; that the gate fired is on the trail all the same."""
    desk = Desk()
    start = gate("hello", "session_start", mode="observational")
    agent = await governed(world, atlas(start), turn(delete()))
    id = await submit(world, agent)

    async def broken(number: int) -> None:
        if number == 1:
            raise RuntimeError("out of order")

    async with working(world.db, desk.app, backends=Backends({"scripted": Recording(broken)})):
        job = await ended(world, id)
    assert (job.status, desk.deleted) == (JobStatus.COMPLETED, ["delete 1"])
    assert await traced(world, job) == ["triggered hello"]
    entries = await audit.list_entries(world.db, world.admin.actor, job.session_id, 0, 1000)
    names = [entry.action for entry in entries]
    assert names.index("checkpoint_triggered") < names.index("job_retried") + 2
    assert names.count("job_resumed") + names.count("job_started") >= 2


@pytest.mark.proves("D.340", "D.367")
@pytest.mark.parametrize("kind", ["keyword", "custom"])
async def test_what_a_task_begins_with_is_looked_at_once_however_often_it_is_tried(world: World, kind: str) -> None:
    desk, seen = Desk(), list[str]()

    @desk.app.trigger("mood")
    def mood(text: str, params: dict[str, Any]) -> bool:
        seen.append(text)
        return True

    on = {"type": kind, "patterns": ["payroll"]} if kind == "keyword" else {"type": kind, "trigger_id": "mood"}
    heard = gate("heard", on, questions=[question("agree")])
    wish = [turn(say("heard", agree=True)), turn(delete())]
    agent = await governed(world, atlas(heard), *wish)
    id = await submit(world, agent, {"text": "Do the payroll."})

    async def broken(number: int) -> None:
        # Before the question was answered, and after.
        if number in (1, 2, 4):
            raise RuntimeError("out of order")

    async with working(world.db, desk.app, backends=Backends({"scripted": Recording(broken)})):
        job = await ended(world, id, seconds=60)
        assert (job.status, desk.deleted) == (JobStatus.COMPLETED, ["delete 1"])
        told = ["triggered heard", "response heard", "passed heard"]
        assert await traced(world, job) == told
        assert len(seen) == (kind == "custom")
        # Another job of the session begins with an input of its own.
        other = await ended(world, await submit(world, agent, {"text": "payroll"}, session_id=job.session_id))
    assert other.status is JobStatus.COMPLETED
    assert await traced(world, other) == told * 2


async def _wake(admin: asyncpg.Connection, id: UUID) -> None:
    await admin.execute("update job set wake_at = now(), runnable_at = now() where id = $1 and status = 'SLEEPING'", id)


@pytest.mark.proves("D.377")
async def test_what_waits_for_a_stewards_limit_is_traced_when_it_is_sent(
    world: World, admin: asyncpg.Connection
) -> None:
    desk = Desk()
    steward = {"id": "acme", "name": "Acme", "access": {"type": "public", "rate_limit": {"requests_per_minute": 1}}}
    hint = gate("hint", before("ticket.delete"), mode="advisory")
    agent = await governed(world, atlas(hint, steward=steward), turn(delete("1")))
    id = await submit(world, agent)
    # As if others had used up this minute, and those that follow.
    await admin.execute(
        "insert into atlas_minute (org_id, atlas_id, minute, calls) select $1, $2,"
        " date_trunc('minute', now()) + n * interval '1 minute', 1 from generate_series(-1, 30) n",
        world.org_id, ATLAS,
    )  # fmt: skip
    async with working(world.db, desk.app):
        for times in (1, 2):
            async with asyncio.timeout(30):
                while len(await _told(world, job := await job_of(world, id), "job_sleeps")) < times:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert (await traced(world, job), desk.deleted) == ([], [])
            await _wake(admin, id)
        await admin.execute("delete from atlas_minute")
        # It may be about to sleep once more, by what it saw before.
        async with asyncio.timeout(30):
            while (job := await job_of(world, id)).status not in TERMINAL:
                await _wake(admin, id)
                await asyncio.sleep(0.02)
    assert desk.deleted == ["delete 1"]
    assert await traced(world, job) == ["triggered hint", "passed hint"]
