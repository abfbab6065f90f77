"""Conversations: what was said while a job ran, by whom, and in which order the model hears it."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from cortex_plane.agents.model.completions import AssistantTurn, ModelError, ToolTurn, Turn, UserTurn
from cortex_plane.jobs.model.jobs import JobStatus, Pause, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.sessions.model.sessions import InboundMessage, IngestedMessage, MessageDraft
from cortex_plane.sessions.verbs import sessions
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.fixtures.people import World
from tests.fixtures.workers import (
    Died,
    Gate,
    Recording,
    call,
    died,
    make_agent,
    steps_of,
    submit,
    turn,
    until,
    whole,
    working,
)


async def say(world: World, text: str, user: str = "u-1", agent: str = "scripted") -> IngestedMessage:
    inbound = InboundMessage(external_user_id=user, agent=agent, text=text)
    return await sessions.ingest_message(world.db, world.service.actor, world.connection.id, inbound)


async def post(world: World, session: UUID, text: str) -> IngestedMessage:
    return await sessions.post_message(world.db, world.admin.actor, session, MessageDraft(text=text))


async def said(world: World, session: UUID) -> list[tuple[str, str]]:
    page = await sessions.list_messages(world.db, world.admin.actor, session, 0, 1000)
    return [(message.role.value, message.text) for message in page]


def heard(turns: list[Turn]) -> list[str]:
    """The turns in short: who said what."""
    short = []
    for each in turns:
        if isinstance(each, UserTurn):
            short.append(f"user: {each.text}")
        elif isinstance(each, AssistantTurn):
            short.append(" ".join(["agent:", *filter(None, [each.text, "+ calls" if each.calls else None])]))
        elif isinstance(each, ToolTurn):
            short.append("tools: " + ", ".join(result.content for result in each.results))
    return short


def looking(gate: Gate | None = None) -> App:
    app = App("tests")

    @app.tool(read_only=True)
    async def look() -> str:
        if gate is not None:
            await gate.passed()
        return "seen"

    return app


@pytest.mark.proves("D.42")
async def test_a_message_is_read_at_the_next_boundary(world: World) -> None:
    gate, model = Gate(), Recording()
    await make_agent(world, [turn(call("look"), text="Wait."), turn(text="You said {message}")], model="recording")
    first = await say(world, "one")
    async with working(world.db, looking(gate), backends=Backends({"recording": model})):
        await gate.entered.wait()
        second = await say(world, "two")
        assert (second.job_id, second.created) == (first.job_id, [])
        gate.opened.set()
        await until(world, first.job_id, JobStatus.COMPLETED)
    assert heard(model.asked[1]) == ["user: one", "agent: Wait. + calls", 'tools: "seen"', "user: two"]
    assert await said(world, first.session_id) == [
        ("user", "one"), ("user", "two"), ("assistant", "You said two"),
    ]  # fmt: skip
    assert await whole(world)


async def test_a_message_during_the_last_answer_is_answered_too(world: World) -> None:
    delivered: list[IngestedMessage] = []

    async def interrupt(times: int) -> None:
        if times == 1:
            delivered.append(await say(world, "one more thing"))

    model = Recording(interrupt)
    await make_agent(world, [turn(text="Re: {message}", repeat=True)], model="recording")
    first = await say(world, "hello")
    async with working(world.db, looking(), backends=Backends({"recording": model})):
        job = await until(world, first.job_id, JobStatus.COMPLETED)
    assert [each.job_id for each in delivered] == [first.job_id]
    assert heard(model.asked[1]) == ["user: hello", "agent: Re: hello", "user: one more thing"]
    assert await said(world, first.session_id) == [
        ("user", "hello"), ("user", "one more thing"), ("assistant", "Re: hello"),
        ("assistant", "Re: one more thing"),
    ]  # fmt: skip
    assert (job.result, job.step_index) == ({"text": "Re: one more thing"}, 1)
    assert [step.text for step in await steps_of(world, job.id)] == ["Re: hello", "Re: one more thing"]
    assert await whole(world)


async def test_the_next_job_knows_what_was_said_before(world: World) -> None:
    model = Recording()
    await make_agent(world, [turn(text="Re: {message}", repeat=True)], model="recording")
    async with working(world.db, looking(), backends=Backends({"recording": model})):
        for text in ("one", "two", "three"):
            delivery = await say(world, text)
            assert "job" in delivery.created
            await until(world, delivery.job_id, JobStatus.COMPLETED)
    assert heard(model.asked[-1]) == [
        "user: one", "agent: Re: one", "user: two", "agent: Re: two", "user: three",
    ]  # fmt: skip


async def test_a_failed_job_leaves_its_message_for_the_next_one(world: World) -> None:
    async def refuse_once(times: int) -> None:
        if times == 1:
            raise ModelError("no", status=400)

    model = Recording(refuse_once)
    await make_agent(world, [turn(text="Re: {message}")], model="recording")
    async with working(world.db, looking(), backends=Backends({"recording": model})):
        first = await say(world, "one")
        await until(world, first.job_id, JobStatus.FAILED)
        second = await say(world, "two")
        assert second.session_id == first.session_id
        await until(world, second.job_id, JobStatus.COMPLETED)
    assert heard(model.asked[-1]) == ["user: one", "user: two"]


async def test_a_message_to_a_paused_job_waits_for_its_resume(world: World) -> None:
    app, model = App("tests"), Recording()

    @app.tool(read_only=True)
    async def look(ctx: ToolContext) -> str:
        await steering.pause(world.db, world.admin.actor, ctx.job_id, Pause())
        return "seen"

    await make_agent(world, [turn(call("look")), turn(text="Re: {message}")], model="recording")
    first = await say(world, "one")
    async with working(world.db, app, backends=Backends({"recording": model})):
        await until(world, first.job_id, JobStatus.PAUSED)
        second = await say(world, "two")
        assert second.job_id == first.job_id
        await steering.resume(world.db, world.admin.actor, first.job_id, Resumption())
        await until(world, first.job_id, JobStatus.COMPLETED)
    assert heard(model.asked[-1]) == ["user: one", "agent: + calls", 'tools: "seen"', "user: two"]


@pytest.mark.parametrize("dies_in", ["look", "model 3", "model 4", "nothing"])
async def test_the_order_of_turns_is_the_same_after_a_resume(world: World, dies_in: str) -> None:
    """A conversation with interruptions, told once in one go and once by two workers."""
    app, deaths = App("tests"), [dies_in]

    @app.tool(read_only=True)
    async def look(at: str) -> dict[str, Any]:
        if at == "c" and deaths == ["look"]:
            deaths.clear()
            raise Died
        if at == "b":
            await say(world, "while b")
        return {"saw": at, "z": [1.0, None, "ü"]}

    @app.tool(read_only=True)
    async def fail() -> str:
        raise RuntimeError("no")

    asked = list[list[str]]()

    async def between(_: int) -> None:
        asked.append(heard(model.asked[-1]))
        number = len(model.asked) - (dies_in.startswith("model") and not deaths)
        if deaths and deaths[0] == f"model {number}":
            deaths.clear()
            raise Died
        if number == 2 and not any("during two" in each for each in asked[-1]):
            await say(world, "during two")

    model = Recording(between)
    backends = Backends({"recording": model})
    script = [
        turn(call("look", at="a"), call("look", at="b"), call("fail"), text="First."),
        turn(text="Re: {message}"),
        turn(call("look", at="c"), call("nothing")),
        turn(text="Re: {message}"),
    ]
    await make_agent(world, script, model="recording")
    first = await say(world, "start")
    if dies_in != "nothing":
        await died(world.db, app, backends=backends)
    async with working(world.db, app, backends=backends):
        await until(world, first.job_id, JobStatus.COMPLETED, JobStatus.FAILED)
    saw = {at: f'{{"saw":"{at}","z":[1,null,"ü"]}}' for at in "abc"}
    failed = '{"error":"`fail` raised RuntimeError: no"}'
    unknown = '{"error":"There is no tool `nothing`. There are: fail, look."}'
    assert heard(model.asked[-1]) == [
        "user: start", "agent: First. + calls", f"tools: {saw['a']}, {saw['b']}, {failed}", "user: while b",
        "agent: Re: while b", "user: during two", "agent: + calls", f"tools: {saw['c']}, {unknown}",
    ]  # fmt: skip
    assert await said(world, first.session_id) == [
        ("user", "start"), ("user", "while b"), ("user", "during two"), ("assistant", "Re: while b"),
        ("assistant", "Re: during two"),
    ]  # fmt: skip


@pytest.mark.proves("D.42")
async def test_no_message_is_ever_unanswered(world: World) -> None:
    """Messages come at every moment of a job's life: while it is claimed, asked, completed, and just after."""
    await make_agent(
        world, [turn(text="Re: {message}", repeat=True)], model="recording", limits={"max_concurrent_jobs": 50}
    )
    model = Recording()

    async def talk(user: int) -> UUID:
        delivery = await say(world, "0", user=f"u-{user}")
        for number in range(1, 4):
            for _ in range((user * 7 + number * 13) % 60):
                await asyncio.sleep(0)
            if user % 2:
                async with asyncio.timeout(20):
                    while len(await said(world, delivery.session_id)) < number:  # noqa: ASYNC110
                        await asyncio.sleep(0)
            await say(world, str(number), user=f"u-{user}")
        return delivery.session_id

    async with working(world.db, looking(), backends=Backends({"recording": model}), concurrency=8):
        sessions = await asyncio.gather(*(talk(user) for user in range(50)))
        for session in sessions:
            async with asyncio.timeout(20):
                while not await answered(world, session):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
    assert await whole(world)


async def answered(world: World, session: UUID) -> bool:
    """Nothing is open, and the last answer came after the last message and is about it."""
    async with world.db.transaction(world.org_id) as tx:
        still_open = await tx.value("select count(*) from job where session_id = $1 and finished_at is null", session)
    if still_open:
        return False
    talk = await said(world, session)
    assert [text for role, text in talk if role == "user"] == ["0", "1", "2", "3"]
    assert talk[-1] == ("assistant", "Re: 3"), talk
    return True


async def test_a_task_hears_its_payload(world: World) -> None:
    model = Recording()
    agent = await make_agent(world, [], model="recording")
    async with working(world.db, looking(), backends=Backends({"recording": model})):
        for payload in ({"text": "Do it."}, {"b": 1, "a": [2]}):
            await until(world, await submit(world, agent, payload), JobStatus.COMPLETED)
    assert [heard(turns) for turns in model.asked] == [["user: Do it."], ['user: {"a":[2],"b":1}']]
