"""Agents written as code, from their submission to their end, on a real database."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange
from cortex_plane.agents.model.tools import ToolError, UncertainOutcome
from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.approvals.verbs import settlements
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import Hold, JobStatus
from cortex_plane.jobs.model.journal import SignalDraft
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import StepFailed, ToolDenied, ToolFailed, WaitTimeout
from cortex_plane.sessions.verbs import sessions
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.fixtures.approvals import decide, pending_soon
from tests.fixtures.clock import Clock
from tests.fixtures.coded import coded, entries_of, keys_of, make_coded
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import Gate, Recording, ended, steps_of, submit, turn, until, whole, working

START = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Outside:
    """The world that tools act upon, and that steps count in."""

    def __init__(self) -> None:
        self.log: list[str] = []

    def app(self) -> App:
        app = App("tests")

        @app.tool(on_uncertain="retry_with_key")
        async def act(what: str, ctx: ToolContext) -> dict[str, str]:
            self.log.append(f"act {what}")
            return {"acted": what, "key": ctx.idempotency_key}

        @app.tool(read_only=True)
        async def look(at: str) -> str:
            self.log.append(f"look {at}")
            return f"saw {at}"

        @app.tool(on_uncertain="fail")
        async def refuse() -> None:
            raise ToolError("The door is shut.")

        return app

    def said(self, word: str) -> str:
        self.log.append(word)
        return word


async def run_once(world: World, app: App, payload: dict[str, Any] | None = None) -> Any:
    id = await submit(world, await make_coded(world), payload)
    async with working(world.db, app):
        return await ended(world, id)


@pytest.mark.proves("D.240")
async def test_a_function_runs_to_its_end(world: World) -> None:
    outside = Outside()

    async def run(ctx: Context) -> dict[str, Any]:
        plan = await ctx.step("plan", outside.said, ctx.payload["text"], repeatable=True)
        seen = await ctx.tool("look", at="here")
        done = await ctx.tool("act", what=plan)
        return {"plan": plan, "seen": seen, "done": done["acted"]}

    job = await run_once(world, coded(run, outside.app()), {"text": "go"})
    assert (job.error_message, job.status) == (None, JobStatus.COMPLETED)
    assert job.result == {"plan": "go", "seen": "saw here", "done": "go"}
    assert outside.log == ["go", "look here", "act go"]
    assert await keys_of(world, job.id) == [("plan#0", "done"), ("look#0", "done"), ("act#0", "done")]
    assert await whole(world)


@pytest.mark.proves("D.241")
async def test_what_was_recorded_is_not_done_again(strict: World) -> None:
    outside = Outside()

    async def run(ctx: Context) -> list[Any]:
        first = await ctx.step("first", outside.said, "one", repeatable=True)
        now, number, id = await ctx.now(), await ctx.random(), await ctx.uuid()
        acted = await ctx.tool("act", what="a")
        return [first, now.isoformat(), number, str(id), acted["acted"]]

    seen: list[Any] = []

    async def watched(ctx: Context) -> list[Any]:
        seen.append(
            (
                await ctx.step("first", outside.said, "one", repeatable=True),
                await ctx.now(),
                await ctx.random(),
                await ctx.uuid(),
            )
        )
        return [*seen[-1][:1], (await ctx.tool("act", what="a"))["acted"]]

    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, coded(watched, outside.app())):
        (asked,) = await pending_soon(strict, id)
        await decide(strict, asked)
        job = await ended(strict, id)
    assert (job.error_message, job.status, job.result) == (None, JobStatus.COMPLETED, {"value": ["one", "a"]})
    assert outside.log == ["one", "act a"]
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert isinstance(seen[0][1], datetime)
    assert isinstance(seen[0][3], UUID)


@pytest.mark.parametrize("choice", Choice)
async def test_people_are_asked_and_their_answer_is_a_decision(world: World, choice: Choice) -> None:
    async def run(ctx: Context) -> dict[str, Any]:
        said = await ctx.request_approval("Deploy to production?", details={"ref": "main"})
        return {"approved": said.approved, "reason": said.reason, "by": said.by}

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        (asked,) = await pending_soon(world, id)
        assert (asked.tool_name, asked.action, asked.details) == ("plane.ask", "Deploy to production?", {"ref": "main"})
        await decide(world, asked, choice, reason="because")
        job = await ended(world, id)
    assert (job.error_message, job.status) == (None, JobStatus.COMPLETED)
    reason = "Go another way." if choice is Choice.RESPONDED else "because"
    assert job.result == {"approved": choice is Choice.APPROVED, "reason": reason, "by": "Ada"}
    assert await whole(world)


@pytest.mark.proves("D.246")
async def test_branches_run_at_once_and_ask_together(strict: World) -> None:
    outside = Outside()

    async def check(ctx: Context, name: str) -> str:
        await ctx.step("look", outside.said, name, repeatable=True)
        acted = await ctx.tool("act", what=name)
        return str(acted["acted"])

    async def run(ctx: Context) -> list[Any]:
        both = await ctx.gather(check(ctx, "a"), check(ctx, "b"), ctx.step("alone", outside.said, "c", repeatable=True))
        return [*both, await ctx.step("after", outside.said, "d", repeatable=True)]

    id = await submit(strict, await make_coded(strict))
    async with working(strict.db, coded(run, outside.app())):
        job = await until(strict, id, JobStatus.WAITING_FOR_APPROVAL)
        asked = await pending_soon(strict, id)
        assert (job.open_approvals, len(asked)) == (2, 2)
        assert sorted(outside.log) == ["a", "b", "c"]
        for each in asked:
            await decide(strict, each)
        job = await ended(strict, id)
    assert (job.error_message, job.result) == (None, {"value": ["a", "b", "c", "d"]})
    assert sorted(outside.log) == ["a", "act a", "act b", "b", "c", "d"]
    assert sorted(await keys_of(strict, id)) == sorted(
        (key, "done")
        for key in (
            "gather#0", "gather#0/0/look#0", "gather#0/0/act#0", "gather#0/1/look#0", "gather#0/1/act#0",
            "gather#0/2/alone#0", "after#0",
        )
    )  # fmt: skip
    assert await whole(strict)


@pytest.mark.proves("D.246")
async def test_many_decide_at_once_and_two_workers_go_on_with_it(strict: World) -> None:
    outside = Outside()
    words = [f"w{number}" for number in range(6)]

    async def one(ctx: Context, word: str) -> bool:
        said = await ctx.request_approval(f"May {word} act?")
        if said:
            await ctx.step("note", outside.said, word, repeatable=True)
        return said.approved

    async def run(ctx: Context) -> list[bool]:
        return await ctx.gather(*(one(ctx, word) for word in words))

    id = await submit(strict, await make_coded(strict))
    app = coded(run, outside.app())
    async with working(strict.db, app), working(strict.db, app):
        await until(strict, id, JobStatus.WAITING_FOR_APPROVAL)
        asked = sorted(await pending_soon(strict, id), key=lambda each: str(each.action))
        assert len(asked) == len(words)
        choices = [Choice.DENIED if number % 3 == 0 else Choice.APPROVED for number in range(6)]
        await asyncio.gather(*(decide(strict, *each) for each in zip(asked, choices, strict=True)))
        job = await ended(strict, id)
    assert (job.error_message, job.result) == (None, {"value": [False, True, True, False, True, True]})
    assert sorted(outside.log) == ["w1", "w2", "w4", "w5"]
    assert await whole(strict)


@pytest.mark.proves("D.247")
async def test_a_sleeping_job_holds_nothing(world: World, admin: asyncpg.Connection) -> None:
    outside = Outside()

    async def run(ctx: Context) -> str:
        await ctx.step("before", outside.said, "before", repeatable=True)
        await ctx.sleep(3600)
        return await ctx.step("after", outside.said, "after", repeatable=True)

    clock = await Clock.install(admin, START)
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run, outside.app())):
        job = await until(world, id, JobStatus.SLEEPING)
        assert job.wake_at is not None
        assert timedelta(minutes=59) < job.wake_at - START <= timedelta(minutes=61)
        held = await admin.fetchval("select count(*) from job where worker_id is not null")
        assert (held, outside.log) == (0, ["before"])
        await clock.advance(timedelta(hours=2))
        job = await ended(world, id)
    assert (job.error_message, job.result, outside.log) == (None, {"text": "after"}, ["before", "after"])


@pytest.mark.proves("D.247")
async def test_the_earliest_of_several_sleeps_wakes_the_job(world: World, admin: asyncpg.Connection) -> None:
    outside = Outside()

    async def nap(ctx: Context, hours: int) -> str:
        began = await ctx.now()
        await ctx.sleep(until=began + timedelta(hours=hours))
        return await ctx.step("woke", outside.said, f"{hours}", repeatable=True)

    async def run(ctx: Context) -> list[str]:
        return await ctx.gather(nap(ctx, 1), nap(ctx, 3))

    clock = await Clock.install(admin, START)
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        await until(world, id, JobStatus.SLEEPING)
        await clock.advance(timedelta(hours=2))
        while (job := await until(world, id, JobStatus.SLEEPING)).wake_at < START + timedelta(hours=2):  # type: ignore[operator]  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert outside.log == ["1"]
        await clock.advance(timedelta(hours=2))
        job = await ended(world, id)
    assert (job.error_message, job.result) == (None, {"value": ["1", "3"]})
    assert outside.log == ["1", "3"]


@pytest.mark.proves("D.247")
@pytest.mark.parametrize("first", ["the signal", "the wait"])
async def test_a_signal_wakes_the_job(world: World, first: str) -> None:
    async def run(ctx: Context) -> Any:
        return await ctx.wait_event("payment", key="order-42", timeout=3600)

    async def send() -> None:
        draft = SignalDraft(name="payment", key="order-42", payload={"paid": 12})
        await steering.send_signal(world.db, world.admin.actor, draft)

    if first == "the signal":
        await send()
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        if first == "the wait":
            await until(world, id, JobStatus.SLEEPING)
            await send()
        job = await ended(world, id)
    assert (job.error_message, job.result) == (None, {"paid": 12})


@pytest.mark.proves("D.247")
async def test_nobody_sends_the_signal(world: World, admin: asyncpg.Connection) -> None:
    async def run(ctx: Context) -> str:
        try:
            await ctx.wait_event("payment", key="order-42", timeout=3600)
        except WaitTimeout as late:
            return await ctx.step("late", str, f"late: {late.code}", repeatable=True)
        return "paid"

    clock = await Clock.install(admin, START)
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        await until(world, id, JobStatus.SLEEPING)
        await clock.advance(timedelta(hours=2))
        job = await ended(world, id)
    assert (job.error_message, job.result) == (None, {"text": "late: wait_timeout"})
    assert await keys_of(world, id) == [("payment#0", "failed"), ("late#0", "done")]


@pytest.mark.proves("D.245")
async def test_the_model_is_asked_and_its_answer_recorded(world: World) -> None:
    model = Recording()

    async def run(ctx: Context) -> list[str]:
        first = await ctx.model("Say one thing.")
        await ctx.sleep(0.01)
        return [first, await ctx.model("Say another.", system="Be brief.")]

    id = await submit(world, await make_coded(world, turn(text="one"), turn(text="two")))
    async with working(world.db, coded(run), backends=Backends({"scripted": model})):
        job = await ended(world, id)
    assert (job.error_message, job.result) == (None, {"value": ["one", "two"]})
    assert len(model.asked) == 2
    steps = await steps_of(world, id)
    assert [(step.text, step.prompt_tokens > 0) for step in steps] == [("one", True), ("two", True)]


async def test_too_many_questions_to_the_model_end_the_job(world: World) -> None:
    async def run(ctx: Context) -> None:
        for _ in range(3):
            await ctx.model("Again.")

    id = await submit(world, await make_coded(world, turn(text="x"), turn(text="y"), limits={"max_iterations": 2}))
    async with working(world.db, coded(run)):
        job = await ended(world, id)
    assert job.status is JobStatus.FAILED
    assert "asked 2 times" in (job.error_message or "")


# What goes wrong ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.242")
async def test_tools_that_fail_and_tools_that_are_denied_are_told_apart(world: World) -> None:
    deny = 'policies: [{name: no, target: "act", effect: deny}, {name: rest, target: "*", effect: allow}]'
    await apply_policies(world.db, world.admin.actor, deny)

    async def run(ctx: Context) -> list[str]:
        said = []
        for name, arguments in (("act", {"what": "x"}), ("refuse", {}), ("look", {"for": 1}), ("gone", {})):
            try:
                await ctx.tool(name, **arguments)
            except (ToolDenied, ToolFailed) as error:
                said.append(f"{error.code}: {error.message}")
        await ctx.sleep(0.01)
        return said

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run, Outside().app())):
        job = await ended(world, id)
    said = (job.result or {})["value"]
    assert [each.partition(":")[0] for each in said] == ["tool_denied", "tool_failed", "tool_failed", "tool_failed"]
    assert "org:no@" in said[0]
    assert "The door is shut." in said[1]
    assert "`at` is missing" in said[2]
    assert "There is no tool `gone`" in said[3]
    assert [status for _, status in await keys_of(world, id)] == ["failed"] * 4 + ["done"]


@pytest.mark.parametrize("on_deny", ["fail", "continue"])
async def test_a_person_denies_a_tool(world: World, on_deny: str) -> None:
    ask = f'policies: [{{name: ask, target: "act", effect: requires_approval, on_deny: {on_deny}, approvers: {{roles: [admin]}}}}]'
    await apply_policies(world.db, world.admin.actor, ask)

    async def run(ctx: Context) -> str:
        try:
            await ctx.tool("act", what="x")
        except ToolDenied as error:
            return error.message
        return "acted"

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run, Outside().app())):
        (asked,) = await pending_soon(world, id)
        await decide(world, asked, Choice.DENIED, reason="not today")
        job = await ended(world, id)
    said = job.error_message if on_deny == "fail" else (job.result or {})["text"]
    assert job.status is (JobStatus.FAILED if on_deny == "fail" else JobStatus.COMPLETED)
    assert "denied by Ada: not today" in (said or "")


async def test_an_uncaught_tool_failure_fails_the_job(world: World) -> None:
    async def run(ctx: Context) -> None:
        await ctx.tool("refuse")

    job = await run_once(world, coded(run, Outside().app()))
    assert job.status is JobStatus.FAILED
    assert "ToolFailed: The door is shut." in job.error_message


@pytest.mark.proves("D.243")
async def test_a_step_that_failed_and_was_caught_fails_again_in_the_same_way(world: World) -> None:
    tries: list[int] = []

    def flaky() -> None:
        tries.append(len(tries))
        raise ValueError(f"try {len(tries)}")

    async def run(ctx: Context) -> str:
        try:
            await ctx.step("flaky", flaky, repeatable=True)
            said = "fine"
        except StepFailed as error:
            said = error.message
        await ctx.sleep(0.01)
        return said

    job = await run_once(world, coded(run))
    assert (job.error_message, job.result) == (None, {"text": "The step `flaky` raised ValueError: try 1"})
    assert tries == [0]


@pytest.mark.proves("D.243")
async def test_a_step_whose_failure_nobody_caught_runs_again(world: World) -> None:
    tries: list[int] = []

    def flaky() -> str:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return "at last"

    async def run(ctx: Context) -> str:
        await ctx.step("first", lambda: 1, repeatable=True)
        return await ctx.step("flaky", flaky, repeatable=True)

    agent = await make_coded(world, limits={"retry_base_seconds": 0.001})
    id = await submit(world, agent)
    async with working(world.db, coded(run)):
        job = await ended(world, id)
    assert (job.error_message, job.result, job.retry_count) == (None, {"text": "at last"}, 2)


async def test_a_step_is_tried_again_within_its_own_retries(world: World) -> None:
    tries: list[int] = []

    async def flaky(word: str) -> str:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return word

    async def run(ctx: Context) -> str:
        return await ctx.step("flaky", flaky, "there", retries=5, timeout=10, repeatable=True)

    id = await submit(world, await make_coded(world, limits={"retry_base_seconds": 0.001}), max_retries=0)
    async with working(world.db, coded(run)):
        job = await ended(world, id)
    assert (job.error_message, job.result, len(tries)) == (None, {"text": "there"}, 3)


@pytest.mark.proves("D.242")
async def test_an_uncertain_effect_in_a_branch_waits_for_a_person_while_the_others_go_on(world: World) -> None:
    outside = Outside()
    app = outside.app()

    @app.tool(on_uncertain="ask_human")
    async def blur() -> None:
        outside.log.append("blur")
        raise UncertainOutcome("the line went dead")

    async def steps(ctx: Context) -> str:
        for number in range(3):
            await ctx.step("work", outside.said, f"{number}", repeatable=True)
        return "worked"

    async def run(ctx: Context) -> list[Any]:
        return await ctx.gather(ctx.tool("blur"), steps(ctx))

    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(run, app)):
        job = await until(world, id, JobStatus.PAUSED)
        assert job.holds == [Hold.UNCERTAIN_EFFECT]
        assert sorted(outside.log) == ["0", "1", "2", "blur"]
        (question,) = await steering.list_questions(world.db, world.admin.actor, id)
        answer = Answer(verdict=Verdict.HAPPENED, result={"seen": True})
        await settlements.settle(world.db, world.admin.actor, id, question.call_id, answer)
        job = await until(world, id, JobStatus.COMPLETED, JobStatus.FAILED)
    assert (job.error_message, job.result) == (None, {"value": [{"seen": True}, "worked"]})
    assert sorted(outside.log) == ["0", "1", "2", "blur"]


async def test_large_results_are_kept_apart(world: World) -> None:
    text = "x" * 2_000_000
    seen: list[int] = []

    async def run(ctx: Context) -> int:
        big = await ctx.step("big", lambda: text, repeatable=True)
        also = await ctx.tool("fetch")
        seen.append(len(big) + len(also))
        await ctx.sleep(0.01)
        return len(big)

    app = App("tests")

    @app.tool(read_only=True)
    async def fetch() -> str:
        return text

    job = await run_once(world, coded(run, app))
    assert (job.error_message, job.result, seen) == (None, {"value": 2_000_000}, [4_000_000] * 2)
    entry = (await entries_of(world, job.id))[0]
    assert entry.result_id is not None
    content = await steering.get_stored_result(world.db, world.admin.actor, job.id, entry.result_id)
    assert len(content) == 2_000_002


async def test_a_conversation_is_answered_and_so_is_what_comes_meanwhile(world: World) -> None:
    gate = Gate()
    heard: list[str] = []

    async def run(ctx: Context) -> str:
        heard.append(await ctx.step("hear", lambda: ctx.payload["text"], repeatable=True))
        if len(heard) == 1:
            await gate.passed()
        return f"You said: {heard[-1]}"

    await agents.update_agent(
        world.db, world.admin.actor, world.agent.slug, AgentChange(skill_config={"app": "tests", "run": "run"}), None
    )
    first = await world.say("Hello")
    async with working(world.db, coded(run)):
        await asyncio.wait_for(gate.entered.wait(), 20)
        second = await world.say("And more")
        assert second.job_id == first.job_id
        gate.opened.set()
        job = await ended(world, first.job_id)
    assert job.error_message is None
    said = await sessions.list_messages(world.db, world.admin.actor, first.session_id, 0, 10)
    assert [(m.role, m.text) for m in said] == [
        ("user", "Hello"), ("user", "And more"), ("assistant", "You said: Hello"), ("assistant", "You said: And more"),
    ]  # fmt: skip
    assert heard == ["Hello", "And more"]
