"""Gates around agents that are written as code."""

from __future__ import annotations

from typing import Any

import pytest

import cortex_plane
from cortex_plane import Context, ToolDenied, ToolFailed
from cortex_plane.jobs.model.jobs import Job, JobStatus
from cortex_plane.kernel.errors import GateClosed
from cortex_plane.worker.models.backends import Backends
from tests.fixtures.approvals import decide, pending_soon
from tests.fixtures.coded import Code, coded, entries_of
from tests.fixtures.gated import (
    DELETE,
    ONBOARDING,
    Desk,
    Listening,
    atlas,
    before,
    calls_of,
    gate,
    governed,
    state_in,
    traced,
)
from tests.fixtures.people import World
from tests.fixtures.workers import Died, died, ended, submit, turn, until, whole, working


async def _run(world: World, desk: Desk, manifest: str, code: Code, *script: dict[str, Any], **more: Any) -> Job:
    coded(code, desk.app)
    agent = await governed(world, manifest, *script, run="run", slug="coded")
    id = await submit(world, agent)
    async with working(world.db, desk.app, **more):
        return await ended(world, id)


@pytest.mark.proves("D.376")
async def test_code_is_stopped_by_a_gate_and_goes_on_when_it_answers(world: World) -> None:
    desk, closed = Desk(), list[GateClosed]()

    async def code(ctx: Context) -> Any:
        try:
            await ctx.tool("ticket.delete", id="1")
        except GateClosed as error:
            closed.append(error)
            wrong = await ctx.answer(error.gate, {"sure": "maybe"})
            right = await ctx.answer(error.gate, {"sure": "understood"}, call=error.questions[0]["call"])
            return [wrong, right, await ctx.tool("ticket.delete", id="1")]
        return "not stopped"

    job = await _run(world, desk, atlas(DELETE), code)
    assert job.result == {"value": [False, True, "1 is gone"]}
    assert desk.deleted == ["delete 1"]
    (error,) = closed
    assert isinstance(error, ToolDenied)
    assert error.questions[0]["questions"][0]["question"] == "I understand."
    assert [each.key for each in await entries_of(world, job.id)] == [
        "ticket.delete#0", "plane.answer#0", "plane.answer#1", "ticket.delete#1",
    ]  # fmt: skip
    assert await calls_of(world, job.id) == []
    assert await whole(world)


@pytest.mark.proves("D.376")
async def test_what_code_heard_of_gates_comes_again_when_it_goes_on(world: World) -> None:
    """Its worker dies with the gated call under way: the refusal, its questions and the answer are read from the journal."""
    desk, heard = Desk(), list[tuple[str, str, bool]]()
    dying = [True]

    @desk.app.tool(name="disk.delete", on_uncertain="retry_with_key", timeout=0.5)
    async def wipe() -> str:
        if dying.pop() if dying else False:
            raise Died
        desk.done.append("delete disk")
        return "wiped"

    async def code(ctx: Context) -> Any:
        try:
            await ctx.tool("disk.delete")
        except GateClosed as error:
            heard.append((error.gate, error.message, await ctx.answer(error.gate, {"sure": "understood"})))
        return await ctx.tool("disk.delete")

    coded(code, desk.app)
    agent = await governed(world, atlas(DELETE), run="run", slug="coded")
    id = await submit(world, agent)
    await died(world.db, desk.app)
    async with working(world.db, desk.app):
        job = await ended(world, id, seconds=30)
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["delete disk"])
    # It comes again as often as the job goes on, and is always the same.
    assert len(heard) >= 2
    assert len(set(heard)) == 1
    assert (await state_in(world, job.session_id)).executed == 1
    assert await traced(world, job) == [
        "triggered delete-confirm", "blocked delete-confirm", "response delete-confirm", "passed delete-confirm",
    ]  # fmt: skip


@pytest.mark.proves("D.376", "D.361")
@pytest.mark.parametrize("tool", ["ticket.get", "ticket.delete", "ticket_delete"])
async def test_an_answer_of_code_lets_one_call_through_and_the_next_is_stopped_again(world: World, tool: str) -> None:
    """Whether the tool reads or acts, and also by the name that providers see; within a branch as anywhere."""
    desk = Desk()

    async def tried(ctx: Context, id: str = "1") -> str:
        try:
            return str(await ctx.tool(tool, id=id))
        except GateClosed as error:
            return f"stopped by {error.gate}: {error.questions[0]['questions'][0]['question']}"

    async def code(ctx: Context) -> Any:
        said = [await tried(ctx), await tried(ctx)]
        passed = await ctx.answer("any", {"sure": "understood"})
        said += [await tried(ctx, "2"), *await ctx.gather(tried(ctx))]
        said.append(await ctx.step("plan", lambda: "a step is no call", repeatable=True))
        return [passed, *said, await tried(ctx)]

    job = await _run(world, desk, atlas(gate("any", before("ticket.*"))), code)
    stopped = "stopped by any: I understand."
    done = {"ticket.get": ("ticket 1", "get 1")}.get(tool, ("1 is gone", "delete 1"))
    assert job.result == {"value": [True, stopped, stopped, stopped, done[0], "a step is no call", stopped]}, (
        job.error_message
    )
    assert desk.done == [done[1]]


@pytest.mark.proves("D.376")
async def test_branches_that_want_the_same_need_a_pass_each(world: World) -> None:
    desk = Desk()

    async def again(ctx: Context) -> str:
        try:
            return str(await ctx.tool("ticket.delete", id="1"))
        except GateClosed:
            return "stopped"

    async def code(ctx: Context) -> Any:
        await again(ctx)
        await ctx.answer("delete-confirm", {"sure": "understood"})
        return await ctx.gather(*(again(ctx) for _ in range(4)))

    job = await _run(world, desk, atlas(DELETE), code)
    assert job.status is JobStatus.COMPLETED
    assert sorted(job.result["value"]) == ["1 is gone", "stopped", "stopped", "stopped"]  # type: ignore[index]
    assert desk.deleted == ["delete 1"]


@pytest.mark.proves("D.376")
async def test_a_gate_that_is_shut_says_so_and_one_that_does_not_wait_is_a_mistake(world: World) -> None:
    desk = Desk()

    async def code(ctx: Context) -> Any:
        said = []
        with pytest.raises(ToolFailed, match="does not wait"):
            await ctx.answer("delete-confirm", {"sure": "understood"})
        with pytest.raises(GateClosed):
            await ctx.tool("ticket.delete", id="1")
        for _ in range(2):
            said.append(await ctx.answer("delete-confirm", {"sure": "no"}))
        with pytest.raises(GateClosed, match="shut") as shut:
            await ctx.answer("delete-confirm", {"sure": "no"})
        with pytest.raises(ToolDenied, match="shut") as denied:
            await ctx.tool("ticket.delete", id="1")
        return [*said, shut.value.questions, isinstance(denied.value, GateClosed)]

    job = await _run(world, desk, atlas(DELETE), code)
    assert job.result == {"value": [False, False, [], False]}, job.error_message
    assert desk.done == []


@pytest.mark.proves("D.376")
async def test_gates_of_the_session_stop_all_tools_and_the_end_but_no_step(world: World) -> None:
    desk = Desk()

    async def silent(ctx: Context) -> Any:
        return await ctx.step("plan", lambda: "a plan", repeatable=True)

    job = await _run(world, desk, atlas(ONBOARDING), silent)
    assert job.status is JobStatus.FAILED
    assert "onboarding" in (job.error_message or "")
    assert "ctx.answer" in (job.error_message or "")


@pytest.mark.proves("D.376")
async def test_a_model_that_code_asks_reads_what_gates_say(world: World) -> None:
    desk, model = Desk(), Listening()
    guide = {"format": "system_instruction", "content": "Be careful."}
    start = gate("hello", "session_start", mode="advisory", guidance=guide)

    async def code(ctx: Context) -> Any:
        return [await ctx.model("What now?"), await ctx.model("And now?", system="You are brief.")]

    job = await _run(
        world, desk, atlas(start), code, turn(text="wait"), turn(text="go"),
        backends=Backends({"scripted": model}),
    )  # fmt: skip
    assert job.result == {"value": ["wait", "go"]}
    assert [request.system_prompt for request in model.asked] == ["Be careful.", "Be careful.\n\nYou are brief."]


@pytest.mark.proves("D.371", "D.376")
async def test_a_gate_for_people_stops_code_until_they_said_yes(world: World) -> None:
    desk = Desk()
    person = gate("four-eyes", before("*.delete"), audience="human",
                  questions=[{"question_id": "q", "question": "Seen?", "response_type": "boolean"}])  # fmt: skip

    async def code(ctx: Context) -> Any:
        return await ctx.tool("ticket.delete", id="1")

    coded(code, desk.app)
    agent = await governed(world, atlas(person), run="run", slug="coded")
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        (card,) = await pending_soon(world, id)
        assert desk.done == []
        assert "Seen?" in (card.question or "")
        await decide(world, card)
        job = await until(world, id, JobStatus.COMPLETED)
    assert desk.deleted == ["delete 1"]
    assert await traced(world, job) == ["triggered four-eyes", "passed four-eyes"]


@pytest.mark.proves("D.376")
def test_the_error_is_a_public_name() -> None:
    assert cortex_plane.GateClosed is GateClosed


@pytest.mark.proves("D.376", "D.340")
async def test_gates_hear_all_that_code_is_given(world: World) -> None:
    """A function reads whatever it likes of its payload, so a word is found wherever it stands there."""
    desk = Desk()
    words = {"type": "keyword", "patterns": ["money back"], "match_mode": "phrase"}

    async def code(ctx: Context) -> Any:
        return "done"

    coded(code, desk.app)
    agent = await governed(world, atlas(gate("refunds", words)), run="run", slug="coded")
    id = await submit(world, agent, {"text": "hello", "order": {"notes": ["fine", "I want my\nmoney back"]}})
    async with working(world.db, desk.app):
        job = await ended(world, id)
    assert (await traced(world, job))[:1] == ["triggered refunds"]
