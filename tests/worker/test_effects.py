"""Effects whose outcome nobody knows: how they are settled, by the tool's own word or by a person's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents.model.tools import DidNotHappen, Happened, UncertainOutcome
from cortex_plane.approvals.verbs import settlements
from cortex_plane.jobs.model.effects import Answer, Question, Verdict
from cortex_plane.jobs.model.jobs import Cancellation, Hold, Job, JobStatus, Pause, Resumption, SteeringResult
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import Conflict, Forbidden
from cortex_plane.sessions.verbs import events
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import (
    FAST,
    Died,
    Gate,
    actions,
    call,
    died,
    ended,
    job_of,
    make_agent,
    names_what_to_do,
    steps_of,
    submit,
    turn,
    until,
    whole,
    working,
)

TOLD = turn(text="{result}")


class Outside:
    """The world that a tool acts upon; every sending is noted, and goes as the test says."""

    def __init__(self, *ends: Exception | type[BaseException] | str) -> None:
        self.sent: list[tuple[str, int]] = []
        self._ends = list(ends)

    async def act(self, ctx: ToolContext) -> str:
        self.sent.append((ctx.idempotency_key, ctx.attempt))
        end = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        if isinstance(end, str):
            return end
        raise end

    def app(self, on_uncertain: str = "ask_human", **more: Any) -> App:
        app = App("tests")

        @app.tool(on_uncertain=on_uncertain, **more)
        async def act(ctx: ToolContext) -> str:
            return await self.act(ctx)

        return app


LOST = UncertainOutcome("the line went dead")


async def run(world: World, app: App, script: list[dict[str, Any]] | None = None, **skills: Any) -> Job:
    """A job that acts once, until it is over or waits for a person."""
    agent = await make_agent(world, script or [turn(call("act")), TOLD], **skills)
    id = await submit(world, agent)
    async with working(world.db, app):
        return await ended(world, id)


async def asked(world: World, app: App) -> tuple[UUID, Question]:
    """A job that waits for a person's answer, and its question."""
    job = await run(world, app)
    assert (job.status, job.holds) == (JobStatus.PAUSED, [Hold.UNCERTAIN_EFFECT])
    (question,) = await steering.list_questions(world.db, world.admin.actor, job.id)
    return job.id, question


async def settle(world: World, id: UUID, question: Question, verdict: Verdict, **more: Any) -> SteeringResult:
    answer = Answer(verdict=verdict, **more)
    return await settlements.settle(world.db, world.admin.actor, id, question.call_id, answer)


# As the tool declares ----------------------------------------------------------------------------------------------


@pytest.mark.proves("D.37")
async def test_retry_with_key_sends_again_with_the_same_key(world: World) -> None:
    outside = Outside(LOST, RuntimeError("reset"), "done it")
    job = await run(world, outside.app("retry_with_key"))
    assert (job.status, job.result) == (JobStatus.COMPLETED, {"text": '"done it"'})
    assert [attempt for _, attempt in outside.sent] == [1, 2, 3]
    assert len({key for key, _ in outside.sent}) == 1
    (made,) = (await steps_of(world, job.id))[0].calls
    assert (made.status, made.attempt, made.result, made.error) == ("completed", 3, "done it", None)
    assert (await actions(world, job)).count("call_sent_again") == 2
    assert await whole(world)


async def test_after_three_sendings_a_person_is_asked(world: World) -> None:
    outside = Outside(LOST)
    id, question = await asked(world, outside.app("retry_with_key"))
    assert [attempt for _, attempt in outside.sent] == [1, 2, 3]
    assert question.attempt == 3
    await settle(world, id, question, Verdict.DID_NOT_HAPPEN)
    async with working(world.db, outside.app("retry_with_key")):
        await until(world, id, JobStatus.RUNNING)
        await until(world, id, JobStatus.PAUSED)
    assert [attempt for _, attempt in outside.sent] == [1, 2, 3, 4], "cleared once, sent once"
    assert len({key for key, _ in outside.sent}) == 1


@pytest.mark.proves("D.37")
async def test_fail_ends_the_job(world: World) -> None:
    outside = Outside(LOST)
    job = await run(world, outside.app("fail"))
    assert job.status is JobStatus.FAILED
    assert "Nobody knows whether `act` happened, and it declares on_uncertain=fail." in (job.error_message or "")
    assert names_what_to_do(job, 0)
    (made,) = (await steps_of(world, job.id))[0].calls
    assert (made.status, len(outside.sent)) == ("failed", 1)
    assert "the line went dead" in (made.error or "")


def probed(outside: Outside, probe: Callable[[], Any], **more: Any) -> App:
    async def ask(ctx: ToolContext) -> Any:
        found = probe()
        if isinstance(found, Exception):
            raise found
        return found

    return outside.app("probe", probe=ask, **{"timeout": 0.3, **more})


@pytest.mark.proves("D.37")
async def test_a_probe_that_says_it_happened_gives_the_result(world: World) -> None:
    outside = Outside(LOST)
    job = await run(world, probed(outside, lambda: Happened({"id": 7})))
    assert (job.status, job.result) == (JobStatus.COMPLETED, {"text": '{"id":7}'})
    (made,) = (await steps_of(world, job.id))[0].calls
    assert (made.status, made.settled_by, made.attempt, len(outside.sent)) == ("completed", "probe", 1, 1)


async def test_a_probe_that_says_it_did_not_happen_sends_again(world: World) -> None:
    outside = Outside(LOST, "second time")
    job = await run(world, probed(outside, DidNotHappen))
    assert (job.status, job.result) == (JobStatus.COMPLETED, {"text": '"second time"'})
    assert [attempt for _, attempt in outside.sent] == [1, 2]


@pytest.mark.parametrize(
    "found", [None, RuntimeError("probe broke"), TimeoutError(), "yes"], ids=["none", "raises", "times_out", "nonsense"]
)
async def test_a_probe_that_cannot_tell_asks_a_person(world: World, found: Any) -> None:
    outside = Outside(LOST)
    _, question = await asked(world, probed(outside, lambda: found))
    assert (question.attempt, len(outside.sent)) == (1, 1)


async def test_a_probe_is_not_asked_while_a_thread_may_still_act(world: World) -> None:
    """A thread cannot be stopped: a probe that looks before it acted would say that it did not happen."""
    app, stuck, asked_probe = App("tests"), threading.Event(), []

    async def ask() -> DidNotHappen:
        asked_probe.append(1)
        return DidNotHappen()

    @app.tool(on_uncertain="probe", probe=ask, timeout=0.1)
    def act() -> str:
        stuck.wait(20)
        return "late"

    try:
        _, question = await asked(world, app)
    finally:
        stuck.set()
    assert (question.attempt, asked_probe) == (1, [])


async def test_a_thread_that_raised_a_timeout_itself_is_over_and_can_be_probed(world: World) -> None:
    app, sent = App("tests"), []

    async def ask() -> Happened:
        return Happened("it did")

    @app.tool(on_uncertain="probe", probe=ask, timeout=0.3)
    def act() -> str:
        sent.append(1)
        raise TimeoutError("read timed out")

    job = await run(world, app)
    assert (job.status, job.result, sent) == (JobStatus.COMPLETED, {"text": '"it did"'}, [1])


async def test_calls_in_threads_do_not_wait_for_each_other(world: World) -> None:
    """A call that waits for a free thread would be sent late, and its time would run out meanwhile."""
    app, together = App("tests"), threading.Barrier(40, timeout=10)

    @app.tool(read_only=True)
    def meet() -> int:
        together.wait()
        return 1

    job = await run(world, app, [turn(*[call("meet")] * 40)])
    assert job.status is JobStatus.COMPLETED
    assert {c.status for c in (await steps_of(world, job.id))[0].calls} == {"completed"}


# A person's answer -------------------------------------------------------------------------------------------------


async def test_the_question_says_what_it_is_about(world: World) -> None:
    outside = Outside(LOST)
    id, question = await asked(world, outside.app())
    assert (question.job_id, question.tool_name, question.step_index) == (id, "act", 0)
    assert "`act`" in question.text
    assert "happened, did_not_happen or fail" in question.text
    receipt = await steering.pause(world.db, world.admin.actor, id, Pause())
    assert (receipt.settled, receipt.uncertain) == ([], [question.call_id])


@pytest.mark.parametrize("result", [None, {"id": 9}])
@pytest.mark.proves("D.37")
async def test_it_happened(world: World, result: Any) -> None:
    outside = Outside(LOST)
    id, question = await asked(world, outside.app())
    receipt = await settle(world, id, question, Verdict.HAPPENED, result=result, note="seen")
    assert (receipt.job.status, receipt.job.holds) == (JobStatus.RUNNING, [])
    assert receipt.settled == [question.call_id]
    async with working(world.db, outside.app()):
        job = await until(world, id, JobStatus.COMPLETED)
    expected = '{"id":9}' if result else '{"confirmed_by":"Ada","note":"seen"}'
    assert (job.result, len(outside.sent)) == ({"text": expected}, 1)
    (made,) = (await steps_of(world, id))[0].calls
    assert (made.status, made.settled_by, made.error) == ("completed", "Ada", None)
    assert await steering.list_questions(world.db, world.admin.actor, id) == []
    assert "effect_settled" in await actions(world, job)
    assert await whole(world)


async def test_it_did_not_happen_and_is_sent_once_more(world: World) -> None:
    outside = Outside(LOST, "now")
    id, question = await asked(world, outside.app())
    await settle(world, id, question, Verdict.DID_NOT_HAPPEN)
    async with working(world.db, outside.app()):
        job = await until(world, id, JobStatus.COMPLETED)
    assert (job.result, [attempt for _, attempt in outside.sent]) == ({"text": '"now"'}, [1, 2])
    assert len({key for key, _ in outside.sent}) == 1


async def test_giving_up_fails_the_job(world: World) -> None:
    outside = Outside(LOST)
    id, question = await asked(world, outside.app())
    receipt = await settle(world, id, question, Verdict.FAIL, note="too risky")
    assert (receipt.job.status, receipt.job.holds) == (JobStatus.FAILED, [])
    assert receipt.job.error_message == "`act` of step 0 was given up by Ada: too risky"
    *_, error, status = (await events.of_job(world.db, world.admin.actor, id, 0)).events
    assert (error.type, error.data) == ("error", {"message": receipt.job.error_message})
    assert status.data == {"status": "FAILED", "error": receipt.job.error_message}
    assert await whole(world)


async def test_an_answer_lifts_only_the_hold_that_it_is_about(world: World) -> None:
    outside = Outside(LOST)
    id, question = await asked(world, outside.app())
    with pytest.raises(Conflict) as refused:
        await steering.resume(world.db, world.admin.actor, id, Resumption())
    assert refused.value.code == "still_held"
    paused = await steering.pause(world.db, world.admin.actor, id, Pause())
    assert paused.job.holds == [Hold.UNCERTAIN_EFFECT, Hold.OPERATOR]
    receipt = await settle(world, id, question, Verdict.HAPPENED)
    assert (receipt.job.status, receipt.job.holds) == (JobStatus.PAUSED, [Hold.OPERATOR])
    resumed = await steering.resume(world.db, world.admin.actor, id, Resumption())
    assert (resumed.changed, resumed.job.status) == (True, JobStatus.RUNNING)
    async with working(world.db, outside.app()):
        await until(world, id, JobStatus.COMPLETED)
    assert len(outside.sent) == 1


async def test_a_resume_leaves_the_question_open(world: World) -> None:
    """The other way round: the operator's hold goes, the question stays."""
    outside = Outside(LOST)
    id, question = await asked(world, outside.app())
    await steering.pause(world.db, world.admin.actor, id, Pause())
    receipt = await steering.resume(world.db, world.admin.actor, id, Resumption())
    assert (receipt.changed, receipt.job.status) == (True, JobStatus.PAUSED)
    assert receipt.job.holds == [Hold.UNCERTAIN_EFFECT]
    assert await steering.list_questions(world.db, world.admin.actor, id) == [question]


async def test_a_second_answer_is_a_conflict(world: World) -> None:
    outside = Outside(LOST)
    id, question = await asked(world, outside.app())
    await settle(world, id, question, Verdict.HAPPENED)
    with pytest.raises(Conflict) as refused:
        await settle(world, id, question, Verdict.DID_NOT_HAPPEN)
    assert refused.value.code == "call_settled"


async def test_of_two_answers_at_once_exactly_one_counts(world: World) -> None:
    outside = Outside(LOST)
    agent = await make_agent(world, [turn(call("act")), TOLD], limits={"max_concurrent_jobs": 20})
    ids = [await submit(world, agent) for _ in range(12)]
    async with working(world.db, outside.app()):
        for id in ids:
            await until(world, id, JobStatus.PAUSED)
    verdicts = [Verdict.HAPPENED, Verdict.DID_NOT_HAPPEN, Verdict.FAIL]
    for id in ids:
        (question,) = await steering.list_questions(world.db, world.admin.actor, id)
        ends = await asyncio.gather(
            *(settle(world, id, question, verdict) for verdict in verdicts), return_exceptions=True
        )
        assert sum(isinstance(end, SteeringResult) for end in ends) == 1
        losers = [end for end in ends if not isinstance(end, SteeringResult)]
        assert [end.code for end in losers if isinstance(end, Conflict)] == ["call_settled"] * 2
        verdicts.append(verdicts.pop(0))
    assert await whole(world)


async def test_only_those_who_may_can_answer(world: World) -> None:
    outside = Outside(LOST)
    id, question = await asked(world, outside.app())
    for role, allowed in ((Role.MEMBER, False), (Role.STEWARD, False), (Role.APPROVER, True)):
        person = await world.person(role, name=role)
        answer = settlements.settle(world.db, person.actor, id, question.call_id, Answer(verdict=Verdict.HAPPENED))
        if allowed:
            await answer
        else:
            with pytest.raises(Forbidden):
                await answer


async def test_a_cancelled_job_takes_no_answer_and_keeps_its_doubt(world: World) -> None:
    outside = Outside(LOST)
    id, question = await asked(world, outside.app())
    receipt = await steering.cancel(world.db, world.admin.actor, id, Cancellation())
    assert (receipt.job.status, receipt.uncertain) == (JobStatus.CANCELLED, [question.call_id])
    with pytest.raises(Conflict) as refused:
        await settle(world, id, question, Verdict.HAPPENED)
    assert refused.value.code == "job_finished"


# After a death -----------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.37")
async def test_an_intent_of_a_dead_worker_waits_until_it_is_safe_and_is_then_settled(world: World) -> None:
    outside = Outside(Died, "after the death")
    app = outside.app("retry_with_key", timeout=0.3)
    agent = await make_agent(world, [turn(call("act")), TOLD])
    id = await submit(world, agent)
    await died(world.db, app, time_passes=False)
    (before,) = (await steps_of(world, id))[0].calls
    async with working(world.db, app):
        job = await until(world, id, JobStatus.COMPLETED)
    assert job.result == {"text": '"after the death"'}
    assert outside.sent == [(str(before.id), 1), (str(before.id), 2)]
    assert {"job_adopted", "job_sleeps", "call_sent_again"} <= set(await actions(world, job))
    assert await whole(world)


@pytest.mark.parametrize("kind", ["ask_human", "fail"])
async def test_an_intent_of_a_dead_worker_is_never_simply_sent_again(world: World, kind: str) -> None:
    outside = Outside(Died, "twice!")
    app = outside.app(kind, timeout=0.1)
    agent = await make_agent(world, [turn(call("act")), TOLD])
    id = await submit(world, agent)
    await died(world.db, app)
    async with working(world.db, app):
        job = await until(world, id, JobStatus.PAUSED, JobStatus.FAILED)
    assert job.status is (JobStatus.PAUSED if kind == "ask_human" else JobStatus.FAILED)
    assert len(outside.sent) == 1


async def test_what_an_effect_did_is_durable_before_others_read(world: World) -> None:
    """A worker that dies in a later call of the same step still knows what the effect returned."""
    app, sent, deaths = App("tests"), [], [1]

    @app.tool
    async def act() -> str:
        sent.append(1)
        return "done"

    @app.tool(read_only=True)
    async def look() -> str:
        if deaths:
            deaths.pop()
            raise Died
        return "seen"

    agent = await make_agent(world, [turn(call("act"), call("look")), TOLD])
    id = await submit(world, agent)
    await died(world.db, app)
    async with working(world.db, app):
        job = await ended(world, id)
    assert (job.status, job.result, sent) == (JobStatus.COMPLETED, {"text": '"seen"'}, [1])


@pytest.mark.parametrize("changed", [{"read_only": True}, {"on_uncertain": "retry_with_key"}])
async def test_new_code_does_not_change_how_an_old_call_is_settled(world: World, changed: dict[str, Any]) -> None:
    """It was sent by code that had no key; the new code's word comes too late for it."""
    old, new, sent = App("tests"), App("tests"), []

    @old.tool(name="act", timeout=0.1)
    async def act(what: str) -> str:
        sent.append("old")
        raise Died

    @new.tool(name="act", timeout=0.1, **changed)
    async def act_again(what: str) -> str:
        sent.append("new")
        return what

    agent = await make_agent(world, [turn(call("act", what="x")), TOLD])
    id = await submit(world, agent)
    await died(world.db, old)
    async with working(world.db, new):
        job = await ended(world, id)
    assert (job.status, job.holds, sent) == (JobStatus.PAUSED, [Hold.UNCERTAIN_EFFECT], ["old"])


async def test_a_call_whose_tool_is_gone_waits_for_an_operator_and_goes_on_when_it_is_back(world: World) -> None:
    outside = Outside(Died, "back")
    app = outside.app("retry_with_key", timeout=0.1)
    agent = await make_agent(world, [turn(call("act")), TOLD])
    id = await submit(world, agent)
    await died(world.db, app)
    async with working(world.db, App("tests")):
        job = await ended(world, id)
    assert (job.status, job.holds) == (JobStatus.PAUSED, [Hold.CODE_CHANGED])
    await steering.resume(world.db, world.admin.actor, id, Resumption())
    async with working(world.db, app):
        job = await until(world, id, JobStatus.COMPLETED)
    assert job.result == {"text": '"back"'}


# Cancelling in the middle --------------------------------------------------------------------------------------------


async def test_a_cancelled_job_with_an_uncertain_effect_ends_and_keeps_the_doubt(world: World) -> None:
    """The cancellation waits for the call, not for a person."""
    app, gate = App("tests"), Gate()

    @app.tool
    async def act() -> str:
        await gate.passed()
        raise LOST

    agent = await make_agent(world, [turn(call("act")), TOLD])
    id = await submit(world, agent)
    async with working(world.db, app):
        await gate.entered.wait()
        receipt = await steering.cancel(world.db, world.admin.actor, id, Cancellation())
        assert (receipt.pending, receipt.job.status) == (True, JobStatus.RUNNING)
        gate.opened.set()
        job = await ended(world, id)
    assert job.status is JobStatus.CANCELLED
    (made,) = (await steps_of(world, id))[0].calls
    assert made.status == "uncertain"
    assert await whole(world)


async def test_a_call_that_is_not_sent_again_does_not_claim_that_it_never_was(world: World) -> None:
    app, gate = App("tests"), Gate()

    @app.tool(on_uncertain="retry_with_key")
    async def act() -> str:
        await gate.passed()
        raise LOST

    agent = await make_agent(world, [turn(call("act")), TOLD])
    id = await submit(world, agent)
    async with working(world.db, app):
        await gate.entered.wait()
        await steering.cancel(world.db, world.admin.actor, id, Cancellation())
        gate.opened.set()
        await until(world, id, JobStatus.CANCELLED)
    (made,) = (await steps_of(world, id))[0].calls
    assert made.status == "failed"
    assert (made.error or "").startswith("not sent again: the job was cancelled, and nobody knows whether")
    assert "the line went dead" in (made.error or "")


async def test_what_follows_a_cancelled_effect_is_not_sent(world: World) -> None:
    app, gate, sent = App("tests"), Gate(), []

    @app.tool
    async def act(number: int) -> int:
        sent.append(number)
        await gate.passed()
        return number

    agent = await make_agent(world, [turn(call("act", number=1), call("act", number=2))])
    id = await submit(world, agent)
    async with working(world.db, app):
        await gate.entered.wait()
        await steering.cancel(world.db, world.admin.actor, id, Cancellation())
        gate.opened.set()
        await until(world, id, JobStatus.CANCELLED)
    first, second = (await steps_of(world, id))[0].calls
    assert (sent, first.status, first.result) == ([1], "completed", 1)
    assert (second.status, second.error) == ("failed", "not sent: the job was cancelled")


# Who may act at all --------------------------------------------------------------------------------------------------


@pytest.mark.proves("S1.7")
async def test_a_read_only_tool_can_be_treated_as_an_effect(world: World) -> None:
    app, sent = App("tests"), []

    @app.tool(read_only=True)
    async def look() -> str:
        sent.append(1)
        raise RuntimeError("reset")

    job = await run(world, app, [turn(call("look")), TOLD], side_effect_tools=["look"])
    assert (job.status, job.holds, sent) == (JobStatus.PAUSED, [Hold.UNCERTAIN_EFFECT], [1])
    (made,) = (await steps_of(world, job.id))[0].calls
    assert made.read_only is False


async def test_effects_can_be_denied_by_a_policy(world: World, admin: asyncpg.Connection) -> None:
    outside = Outside("never")
    app = outside.app()

    @app.tool(read_only=True)
    async def look() -> str:
        return "seen"

    await apply_policies(world.db, world.admin.actor, "policies: [{name: no-acts, target: act, effect: deny}]")
    agent = await make_agent(world, [turn(call("look"), call("act")), TOLD])
    id = await submit(world, agent)
    async with working(world.db, app, settings=FAST):
        job = await ended(world, id)
    assert (job.status, outside.sent) == (JobStatus.COMPLETED, [])
    assert "denied (org:no-acts" in str(job.result)
    looked, acted = (await steps_of(world, id))[0].calls
    assert (looked.status, acted.status) == ("completed", "rejected")
    rows = await admin.fetch(
        "select tool_name, verdict, rule from tool_call where job_id = $1 and verdict is not null", id
    )
    # Reading needs no intent: what allowed it is on the trail alone.
    assert [tuple(row) for row in rows] == [("act", "deny", "org:no-acts@2.1")]
    bodies = await admin.fetch("select body from audit_entry where action = 'step_responded'")
    assert [b'"rule":"default:read_only"' in row["body"] for row in bodies] == [True]


INTENT = """
insert into tool_call (org_id, id, job_id, step_index, position, tool_name, arguments, input_hash, read_only,
  on_uncertain, verdict, rule, status, dispatch_before, settle_after)
select org_id, gen_random_uuid(), job_id, step_index, 7, tool_name, arguments, input_hash, false, 'ask_human', $2,
  'default', 'intended', now(), now()
from tool_call where id = $1
"""


@pytest.mark.proves("D.36")
async def test_an_intent_that_nobody_authorised_cannot_be_written(world: World, admin: asyncpg.Connection) -> None:
    outside = Outside("sent")
    job = await run(world, outside.app())
    (made,) = (await steps_of(world, job.id))[0].calls
    assert await admin.fetchval("select verdict from tool_call where id = $1", made.id) == "allow"
    for verdict in (None, "deny", "requires_approval"):
        with pytest.raises(asyncpg.CheckViolationError, match="chk_tool_call_intent"):
            await admin.execute(INTENT, made.id, verdict)
    assert await job_of(world, job.id) == job
