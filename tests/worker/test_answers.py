"""People who answer: in the place of a call, and to questions of agents. Over HTTP, with a worker, on a real database."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import orjson
import pytest

from cortex_plane.agents.model.completions import ToolTurn
from cortex_plane.approvals.model.approvals import ApprovalStatus, Choice, RecordResult
from cortex_plane.jobs.model.jobs import Cancellation, JobStatus
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import CortexError, ToolDenied
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.models.backends import Backends
from tests.approvals.test_http_approvals import Door
from tests.approvals.test_question_forms import AMOUNT
from tests.calls.test_deadlines import tick
from tests.fixtures.approvals import Shipping, decide, pending, pending_soon, ship, shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.coded import coded, keys_of, make_coded
from tests.fixtures.hostile import INVISIBLE
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import (
    Recording,
    actions,
    call,
    ended,
    job_of,
    make_agent,
    moves,
    steps_of,
    submit,
    turn,
    until,
    whole,
    working,
)

R = Choice.RESPONDED
W = JobStatus.WAITING_FOR_APPROVAL
START = datetime(2030, 1, 1, 12, tzinfo=UTC)
TWO_OF_STAFF = """
policies:
  - {name: two, target: ship, effect: requires_approval, quorum: 2, approvers: {roles: [admin, approver]}, clearance: 2}
"""
FOUR_EYES = """
policies:
  - {name: four-eyes, target: ship, effect: requires_approval, template: dev_review, on_deny: continue, approvers: {roles: [admin, approver]}}
"""


@pytest.fixture
def door(http: httpx.AsyncClient, strict: World) -> Door:
    return Door(http, strict.admin)


async def call_rows(admin: asyncpg.Connection, job: UUID) -> list[tuple[Any, ...]]:
    rows = await admin.fetch(
        "select status, settled_by, result::text, granted, turned_down, dispatch_before from tool_call where job_id = $1"
        " order by step_index, position",
        job,
    )
    return [tuple(row) for row in rows]


# In the place of a call --------------------------------------------------------------------------------------------


@pytest.mark.proves("D.740")
async def test_a_response_is_the_result_of_the_call_and_nothing_is_sent(
    strict: World, door: Door, admin: asyncpg.Connection
) -> None:
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping, after=[turn(text="{result}")])
    answer = await door.decide(await door.card(id), "responded", answer="Ship 1.1 instead.", reason="known bug")
    assert answer.status_code == 200, answer.text
    receipt = answer.json()
    assert (receipt["result"], receipt["approval"]["status"]) == ("OK", "responded")
    assert (receipt["approval"]["answer"], receipt["approval"]["resolved_by_name"]) == ("Ship 1.1 instead.", "Ada")
    assert await call_rows(admin, id) == [("answered", "responded", '"Ship 1.1 instead."', False, False, None)]
    model = Recording()
    async with working(strict.db, shipping.app, backends=Backends({"scripted": model})):
        job = await ended(strict, id)
    assert (job.status, shipping.shipped) == (JobStatus.COMPLETED, [])
    assert await moves(strict, id) == ["PENDING", "RUNNING", "WAITING_FOR_APPROVAL", "RUNNING", "COMPLETED"]
    (results,) = [turn for turn in model.asked[-1] if isinstance(turn, ToolTurn)]
    assert [(result.content, result.is_error) for result in results.results] == [('"Ship 1.1 instead."', False)]
    # What the answer leaves: no grant, a receipt, an event, and an entry of the trail with its words.
    assert await admin.fetchval("select count(*) from approval_grant") == 0
    proof = await door.get(f"approvals/{asked.id}/receipt")
    assert (orjson.loads(proof["body"])["decision"], orjson.loads(proof["body"])["expires_at"]) == ("responded", None)
    events = await door.get(f"sessions/{job.session_id}/events")
    (decided,) = [event for event in events["items"] if event["type"] == "approval_decided"]
    assert decided["data"]["decision"] == "responded"
    (result,) = [event for event in events["items"] if event["type"] == "tool_result"]
    assert result["data"]["status"] == "answered"
    body = await admin.fetchval("select body from audit_entry where action = 'approval_decision'")
    assert orjson.loads(body)["data"]["answer"] == "Ship 1.1 instead."
    assert "call_intended" not in await actions(strict, job)
    assert await whole(strict)
    # And a changed answer does not pass for what was said.
    await admin.execute("alter table approval_request disable trigger approval_guard")
    await admin.execute("update approval_request set answer = '\"Ship 9\"'")
    faults = (await audit.verify(strict.db, strict.admin.actor)).row_faults
    assert [fault.reason for fault in faults] == ["its answer is not what the trail says was answered"]


@pytest.mark.proves("D.740")
async def test_one_person_who_may_approve_responds_although_a_yes_takes_two(strict: World, door: Door) -> None:
    low = await strict.person(Role.APPROVER, name="Low", clearance=1)
    high = await strict.person(Role.APPROVER, name="High", clearance=2)
    await strict.person(Role.APPROVER, name="Third", clearance=2)
    await apply_policies(strict.db, strict.admin.actor, TWO_OF_STAFF)
    shipping = Shipping()
    _, (asked,) = await waiting(strict, shipping)
    with pytest.raises(CortexError) as refused:
        await decide(strict, asked, R, low)
    assert refused.value.code == "clearance_too_low"
    receipt = await decide(strict, asked, R, high)
    assert receipt.approval.status is ApprovalStatus.RESPONDED


@pytest.mark.proves("D.740")
async def test_whoever_answers_shaped_what_follows_and_a_cause_may_not_answer(strict: World, door: Door) -> None:
    await apply_policies(strict.db, strict.admin.actor, FOUR_EYES)
    bea = await strict.person(Role.APPROVER, name="Bea")
    cal = await strict.person(Role.APPROVER, name="Cal")
    shipping = Shipping()
    id, (asked,) = await waiting(strict, shipping, after=[turn(ship("1.1"), text="then that")])
    with pytest.raises(CortexError) as refused:
        await decide(strict, asked, R)  # Ada submitted the job
    assert refused.value.code == "self_approval"
    await decide(strict, asked, R, bea, answer="Ship 1.1.")
    async with working(strict.db, shipping.app):
        (again,) = await pending_soon(strict, id)
        why = [cause.why for cause in (await shown(strict, again.id)).caused if cause.name == "Bea"]
        assert why == ["gave an answer that it has read"]
        with pytest.raises(CortexError) as refused:
            await decide(strict, again, by=bea)
        assert refused.value.code == "self_approval"
        await decide(strict, again, by=cal)
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert shipping.shipped == ["1.1 to production"]


@pytest.mark.proves("D.740")
async def test_an_answer_twice_is_a_duplicate_and_another_one_a_conflict(strict: World, door: Door) -> None:
    shipping = Shipping()
    id, _ = await waiting(strict, shipping)
    card = await door.card(id)
    for tries in range(2):
        answer = await door.decide(card, "responded", "key", answer="No need.")
        assert (answer.status_code, answer.json()["result"]) == (200, ["OK", "DUPLICATE"][tries])
    assert (await door.decide(card, "responded", answer="No need.")).json()["result"] == "DUPLICATE"
    other = await door.decide(card, "responded", answer="Not now.")
    assert (other.status_code, other.json()["code"]) == (409, "approval_conflict")
    reused = await door.decide(card, "responded", "key", answer="Not now.")
    assert (reused.status_code, reused.json()["code"]) == (409, "idempotency_key_reused")
    for choice in ("approved", "denied"):
        assert (await door.decide(card, choice)).json()["code"] == "approval_conflict"


@pytest.mark.proves("D.743")
async def test_what_is_no_answer_changes_nothing(strict: World, door: Door, admin: asyncpg.Connection) -> None:
    id, _ = await waiting(strict, Shipping())
    card = await door.card(id)
    before = await admin.fetchrow("select * from approval_request")
    for decision, more, code in (
        ("responded", {}, "answer_invalid"),
        ("responded", {"answer": ""}, "answer_invalid"),
        ("responded", {"answer": {"a": 1}}, "answer_invalid"),
        ("responded", {"answer": "x" * 20_000}, "answer_invalid"),
        ("responded", {"answer": "a\x00b"}, "invalid_request"),
        ("responded", {"answer": "ok", "arguments": {"version": "2"}}, "invalid_request"),
        ("responded", {"answer": "ok", "standing": {"calls": 2}}, "invalid_request"),
        ("approved", {"answer": "ok"}, "invalid_request"),
        ("denied", {"answer": "ok"}, "invalid_request"),
    ):
        answer = await door.decide(card, decision, **more)
        assert (answer.status_code, answer.json()["code"]) == (422, code), (decision, more, answer.text)
    assert await admin.fetchrow("select * from approval_request") == before
    assert (await job_of(strict, id)).status is W
    assert (await door.decide(card, "responded", answer=f"{INVISIBLE} fine")).status_code == 200


@pytest.mark.proves("D.740")
async def test_one_call_of_three_is_answered_and_the_others_are_decided(strict: World) -> None:
    shipping = Shipping()
    id, asked = await waiting(strict, shipping, *(ship(version) for version in "123"))
    await decide(strict, asked[0])
    await decide(strict, asked[1], R, answer="Not 2.")
    assert (await job_of(strict, id)).status is W
    await decide(strict, asked[2])
    async with working(strict.db, shipping.app):
        job = await ended(strict, id)
    assert (job.status, sorted(shipping.shipped)) == (JobStatus.COMPLETED, ["1 to production", "3 to production"])
    calls = (await steps_of(strict, id))[0].calls
    assert [(row.status, row.settled_by) for row in calls] == [
        ("completed", None), ("answered", "responded"), ("completed", None),
    ]  # fmt: skip
    assert await whole(strict)


async def test_a_response_to_a_call_of_code_is_an_error_with_the_answer(strict: World) -> None:
    shipping = Shipping()

    async def run(ctx: Context) -> Any:
        said = await ctx.request_approval("Go on?")
        try:
            await ctx.tool("ship", version="1.0")
        except ToolDenied as no:
            await ctx.step("note", lambda: "noted")
            return [said.approved, said.reason, no.code, no.answer, str(no)]

    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, coded(run, shipping.app)):
        (asked,) = await pending_soon(strict, id)
        await decide(strict, asked, R, answer="Ask me tomorrow.")
        async with asyncio.timeout(20):
            while not (waiting_now := [a for a in await pending(strict, id) if a.tool_name == "ship"]):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await decide(strict, waiting_now[0], R, answer="Ship 1.1.")
        job = await ended(strict, id)
    assert job.error_message is None
    assert job.result is not None
    assert job.result["value"][:4] == [False, "Ask me tomorrow.", "tool_answered", "Ship 1.1."]
    assert "`ship` was not sent: Ada answered in its place." in job.result["value"][4]
    assert shipping.shipped == []
    assert await whole(strict)


# Questions of code -------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.741")
async def test_code_asks_and_goes_on_with_words_a_choice_or_a_form(strict: World, door: Door) -> None:
    async def run(ctx: Context) -> Any:
        words = await ctx.ask("What should the mail say?")
        choice = await ctx.ask("Which plan?", choices=["basic", "pro"])
        form = await ctx.ask("How much?", schema=AMOUNT, deadline=timedelta(hours=2))
        return [words, choice, form]

    id = await submit(strict, await make_coded(strict))
    answers: list[Any] = ["Dear\nAda", "pro", {"amount": 40, "to": "card"}]
    async with working(strict.db, coded(run)):
        for number, answer in enumerate(answers):
            await until(strict, id, W)
            (asked,) = await pending_soon(strict, id)
            card = await door.card(id)
            seen = card["approval"]
            assert (seen["tool_name"], seen["question"]) == ("plane.ask_person", seen["arguments"]["question"])
            assert (seen["rule"], seen["deciders"], seen["risk"]) == ("default:owner", ["Ada"], "low")
            refused = await door.decide(card, "approved")
            assert (refused.status_code, refused.json()["code"]) == (409, "answer_needed")
            if number:
                unfit = await door.decide(card, "responded", answer="neither")
                assert (unfit.status_code, unfit.json()["code"]) == (422, "answer_invalid")
                assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING
            given = await door.decide(card, "responded", answer=answer)
            assert given.status_code == 200, given.text
        job = await ended(strict, id)
    assert (job.error_message, job.result) == (None, {"value": answers})
    assert await keys_of(strict, id) == [(f"plane.ask_person#{number}", "done") for number in range(3)]
    assert await whole(strict)


@pytest.mark.proves("D.741")
async def test_a_question_is_always_asked_and_policies_say_whom(strict: World) -> None:
    allow = "policies: [{name: all, target: '*', effect: allow}]"
    await apply_policies(strict.db, strict.admin.actor, allow)
    bea = await strict.person(Role.APPROVER, name="Bea")

    async def run(ctx: Context) -> Any:
        return await ctx.ask("Who pays?", approvers=[str(strict.admin.actor.user_account_id)])

    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, coded(run)):
        (asked,) = await pending_soon(strict, id)
        with pytest.raises(CortexError):
            await decide(strict, asked, R, bea, answer="me")
        await decide(strict, asked, R, answer="Acme")
        assert (await ended(strict, id)).result == {"text": "Acme"}


@pytest.mark.proves("D.741")
async def test_two_questions_of_two_branches_wait_together(strict: World) -> None:
    async def run(ctx: Context) -> Any:
        return await ctx.gather(ctx.ask("One?"), ctx.ask("Two?", choices=["a", "b"]))

    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, coded(run)):
        await until(strict, id, W)
        asked = {approval.question: approval for approval in await pending(strict, id)}
        await decide(strict, asked["Two?"], R, answer="b")
        await decide(strict, asked["One?"], R, answer="first")
        job = await ended(strict, id)
    assert (job.error_message, job.result) == (None, {"value": ["first", "b"]})


@pytest.mark.proves("D.741")
async def test_a_question_that_is_declined_is_an_error_that_code_may_catch(strict: World) -> None:
    async def run(ctx: Context) -> Any:
        try:
            return await ctx.ask("Which plan?", choices=["basic", "pro"])
        except ToolDenied as no:
            return str(no)

    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, coded(run)):
        (asked,) = await pending_soon(strict, id)
        await decide(strict, asked, Choice.DENIED, reason="Not mine to say.")
        job = await ended(strict, id)
    assert job.error_message is None
    assert job.result is not None
    assert job.result["text"].startswith("The question was declined by Ada: Not mine to say.")


@pytest.mark.proves("D.743")
@pytest.mark.parametrize("default", ["basic", None])
async def test_at_the_deadline_the_default_is_the_answer_or_code_is_told(
    strict: World, admin: asyncpg.Connection, default: str | None
) -> None:
    clock = await Clock.install(admin, START)

    async def run(ctx: Context) -> Any:
        try:
            return await ctx.ask("Which plan?", choices=["basic", "pro"], default=default, deadline=600)
        except ToolDenied as late:
            return str(late)

    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, coded(run)):
        (asked,) = await pending_soon(strict, id)
        assert asked.deadline == START + timedelta(minutes=10)
        await clock.set(START + timedelta(minutes=10))
        with pytest.raises(CortexError) as late:
            await decide(strict, asked, R, answer="pro")
        assert late.value.code == "approval_expired"
        assert await tick(strict) == ["expired"]
        job = await ended(strict, id)
    after = await shown(strict, asked.id)
    assert (after.status, after.answer) == (ApprovalStatus.EXPIRED, default)
    said = "The question timed out after 10 minutes." if default is None else default
    assert job.error_message is None
    assert job.result is not None
    assert job.result["text"].startswith(said)
    assert (await call_rows(admin, id))[0][:2] == ("rejected" if default is None else "answered", "expired")
    assert await whole(strict)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda ctx: ctx.ask(""), "`question`"),
        (lambda ctx: ctx.ask("Which?", choices=["a", "a"]), "twice"),
        (lambda ctx: ctx.ask("Which?", choices=["a"], default="b"), "`default`"),
        (lambda ctx: ctx.ask("Which?", deadline=-1), "deadline"),
        (lambda ctx: ctx.ask("Which?", deadline=9_999_999), "deadline"),
        (lambda ctx: ctx.ask("Which?", approvers=["ada"]), "`approvers`"),
    ],
)
@pytest.mark.proves("D.743")
async def test_code_that_asks_badly_fails_with_what_to_correct(strict: World, ask: Any, words: str) -> None:
    async def run(ctx: Context) -> Any:
        return await ask(ctx)

    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, coded(run)):
        job = await ended(strict, id)
    assert job.status is JobStatus.FAILED
    assert words in (job.error_message or "")
    assert await pending(strict) == []


# Questions of a model ----------------------------------------------------------------------------------------------


@pytest.mark.proves("D.742")
async def test_a_model_that_may_ask_people_is_offered_the_tool_and_gets_the_answer(strict: World, door: Door) -> None:
    bad = call("plane_ask_person", question="Which?", choices=["a", "a"])
    good = call("plane_ask_person", question="Which plan?", choices=["basic", "pro"], deadline_seconds=3600)
    turns = [turn(bad, text="hm"), turn(good, text="I ask."), turn(text="{result}")]
    agent = await make_agent(strict, turns, ask_people=True)
    id = await submit(strict, agent)
    model = Recording()
    async with working(strict.db, Shipping().app, backends=Backends({"scripted": model})):
        (asked,) = await pending_soon(strict, id)
        assert (asked.question, asked.agent_says) == ("Which plan?", "I ask.")
        assert asked.deadline is not None
        assert (asked.deadline - asked.requested_at) == timedelta(hours=1)
        answer = await door.decide(await door.card(id), "responded", answer="pro")
        assert answer.status_code == 200, answer.text
        job = await ended(strict, id)
    assert job.status is JobStatus.COMPLETED
    first, second = [turn for turn in model.asked[-1] if isinstance(turn, ToolTurn)]
    assert "twice" in first.results[0].content
    assert (second.results[0].content, second.results[0].is_error) == ('"pro"', False)
    assert await whole(strict)


@pytest.mark.proves("D.742")
async def test_a_model_is_told_that_nobody_answered_and_may_ask_again(strict: World, admin: asyncpg.Connection) -> None:
    clock = await Clock.install(admin, START)
    ask = call("plane_ask_person", question="Which plan?", deadline_seconds=60)
    agent = await make_agent(strict, [turn(ask), turn(ask), turn(text="{result}")], ask_people=True)
    id = await submit(strict, agent)
    async with working(strict.db, Shipping().app):
        await pending_soon(strict, id)
        await clock.set(START + timedelta(minutes=1))
        assert await tick(strict) == ["expired"]
        (again,) = await pending_soon(strict, id)
        await decide(strict, again, R, answer="pro")
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    first, second = (await steps_of(strict, id))[:2]
    assert "The question timed out" in (first.calls[0].error or "")
    assert (second.calls[0].result, second.calls[0].error) == ("pro", None)


@pytest.mark.proves("D.742")
async def test_without_the_setting_a_model_has_no_such_tool(strict: World, door: Door) -> None:
    agent = await make_agent(strict, [turn(call("plane_ask_person", question="Who?")), turn(text="done")])
    id = await submit(strict, agent)
    async with working(strict.db, Shipping().app):
        assert (await ended(strict, id)).status is JobStatus.COMPLETED
    assert "There is no tool" in ((await steps_of(strict, id))[0].calls[0].error or "")
    refused = await door.post(
        "agents", {"name": "A", "slug": "a", "model_config": {"model": "m"}, "skill_config": {"ask_people": 1}}
    )
    assert refused.status_code == 422
    assert "ask_people must be true or false" in refused.text


# Everybody at once -------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.745")
async def test_of_many_answers_at_once_one_counts(strict: World) -> None:
    people = [await strict.person(Role.ADMIN, name=f"P{number}") for number in range(4)]
    await apply_policies(
        strict.db,
        strict.admin.actor,
        "policies: [{name: a, target: plane.ask_person, effect: requires_approval, approvers: {roles: [admin]}}]",
    )

    async def run(ctx: Context) -> Any:
        return [await ctx.ask(f"Number {number}?") for number in range(6)]

    id = await submit(strict, await make_coded(strict))
    told: list[str] = []
    async with working(strict.db, coded(run)), working(strict.db, coded(run)):
        for number in range(6):
            async with asyncio.timeout(20):
                while not (asked := [a for a in await pending(strict, id) if a.question == f"Number {number}?"]):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            answers = await asyncio.gather(
                *(
                    decide(strict, asked[0], R, by, answer=f"{by.actor.name}: {number}")
                    for by in people
                    for _ in range(2)
                ),
                return_exceptions=True,
            )
            results = [answer.result for answer in answers if not isinstance(answer, BaseException)]
            assert results.count(RecordResult.OK) == 1
            assert results.count(RecordResult.DUPLICATE) == 1
            codes = [answer.code for answer in answers if isinstance(answer, CortexError)]
            assert codes == ["approval_conflict"] * 6
            told.append(next(str(a.approval.answer) for a in answers if not isinstance(a, BaseException)))
        job = await ended(strict, id)
    assert (job.error_message, job.result) == (None, {"value": told})
    assert await whole(strict)


@pytest.mark.proves("D.745")
@pytest.mark.parametrize("rival", ["expiry", "cancel"])
async def test_an_answer_against_the_deadline_or_a_cancellation(
    strict: World, admin: asyncpg.Connection, rival: str
) -> None:
    async def run(ctx: Context) -> Any:
        return await ctx.ask("Which plan?", default="basic")

    async def act(id: UUID, approval: UUID) -> object:
        if rival == "cancel":
            return await steering.cancel(strict.db, strict.admin.actor, id, Cancellation())
        # The deadline as it is read under the lock: an answer that is first finds it open.
        await admin.execute(
            "update approval_request set deadline = plane_now(), next_action_at = plane_now() where id = $1", approval
        )
        return await tick(strict)

    ends: set[str] = set()
    app = coded(run)
    agent = await make_coded(strict)
    async with working(strict.db, app):
        for number in range(12):
            id = await submit(strict, agent)
            (asked,) = await pending_soon(strict, id)
            answer = asyncio.create_task(decide(strict, asked, R, answer="pro"))
            for _ in range(number % 4 * 3):
                await asyncio.sleep(0)
            told, _ = await asyncio.gather(answer, act(id, asked.id), return_exceptions=True)
            job = await ended(strict, id)
            after = await shown(strict, asked.id)
            ends.add(after.status)
            if after.status is ApprovalStatus.RESPONDED:
                assert not isinstance(told, BaseException)
                assert job.result in ({"text": "pro"}, None)
            else:
                assert isinstance(told, CortexError)
                assert told.code in ("approval_conflict", "approval_expired")
                assert job.result == ({"text": "basic"} if rival == "expiry" else None)
    assert ends <= {"responded", "expired", "cancelled"}
    assert await whole(strict)
