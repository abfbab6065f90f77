"""What an agent keeps with its job: set by tools and code agents, written with what they did, and with nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.agents.model.completions import CallRequest, ModelRequest, ModelUsage, Response, TextChunk
from cortex_plane.agents.model.tools import DidNotHappen, Happened, ToolError
from cortex_plane.approvals.verbs import settlements
from cortex_plane.calls.verbs import steps
from cortex_plane.jobs.model import checkpoints
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import JobStatus, Pause, Resumption
from cortex_plane.jobs.model.state import MAX_STATE_BYTES
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import CortexError, ToolFailed
from cortex_plane.tenancy.verbs import logins
from cortex_plane.worker.attempt import Attempt
from cortex_plane.worker.code import journal
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext, ToolState
from tests.fixtures.approvals import decide, pending_soon
from tests.fixtures.coded import coded, keys_of, make_coded
from tests.fixtures.people import World
from tests.fixtures.windows import Listening, small_agent
from tests.fixtures.workers import (
    Died,
    Gate,
    Recording,
    call,
    died,
    ended,
    job_of,
    leased,
    make_agent,
    steps_of,
    submit,
    turn,
    until,
    whole,
    working,
)

NOTES = [turn(call("note", word=word)) for word in "abc"]


def notes(during: Any = None, **declared: Any) -> App:
    """An app whose tool keeps the words of its calls, in order."""
    app = App("tests")

    @app.tool(**(declared or {"on_uncertain": "retry_with_key"}))
    async def note(word: str, ctx: ToolContext) -> list[str]:
        """Keeps a word."""
        words: list[str] = [*ctx.state.get("words", []), word]
        ctx.state.set("words", words)
        if during is not None:
            await during(word, ctx)
        return words

    return app


async def state_of(world: World, job: UUID) -> dict[str, Any]:
    """As anybody reads it: in the checkpoint, beside the plane's own entry."""
    blob = await steering.get_checkpoint(world.db, world.admin.actor, job)
    working: dict[str, Any] = blob["memory_context"]["working_data"]
    assert "$plane" in working
    return {key: value for key, value in working.items() if key != "$plane"}


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["at once", "with the next intent"])
@pytest.mark.proves("S1.240")
async def test_tools_keep_what_later_calls_read(world: World, seconds: float) -> None:
    job = await submit(world, await make_agent(world, NOTES))
    async with working(world.db, notes(), defer_seconds=seconds):
        assert (await ended(world, job)).status is JobStatus.COMPLETED
    assert await state_of(world, job) == {"words": ["a", "b", "c"]}
    assert await whole(world)


@pytest.mark.proves("S1.240")
async def test_the_page_of_a_job_shows_its_state(world: World, http: httpx.AsyncClient) -> None:
    async def more(word: str, ctx: ToolContext) -> None:
        ctx.state.set("<b>", {"customer": "Ann \u202e"})

    job = await submit(world, await make_agent(world, NOTES))
    async with working(world.db, notes(more)):
        await ended(world, job)
    answer = await http.get(f"/v1/jobs/{job}/checkpoint", headers={"Authorization": f"Bearer {world.admin.secret}"})
    assert answer.json()["memory_context"]["working_data"]["words"] == ["a", "b", "c"]
    link = await logins.issue_own_login_link(world.db, world.admin.actor)
    await http.post(link.url_path)
    page = (await http.get(f"/jobs/{job}", headers={"Accept": "text/html"})).text
    assert "State of its agent" in page
    assert "&lt;b&gt;" in page
    assert "\u202e" not in page


@pytest.mark.proves("S1.240")
async def test_what_a_failed_call_set_is_not_kept(world: World) -> None:
    async def fail(word: str, ctx: ToolContext) -> None:
        if word == "b":
            raise ToolError("It did not work.")

    job = await submit(world, await make_agent(world, NOTES))
    async with working(world.db, notes(fail)):
        await ended(world, job)
    assert await state_of(world, job) == {"words": ["a", "c"]}


@pytest.mark.parametrize("seconds", [0.0, 60.0], ids=["at once", "with the next intent"])
@pytest.mark.parametrize("dies_in", ["a", "b", "c"])
@pytest.mark.proves("S1.240")
async def test_state_and_outcome_are_one_write_wherever_a_worker_dies(
    world: World, dies_in: str, seconds: float
) -> None:
    """The call that was under way is sent again with its key, and the words stand there once."""
    deaths: list[str] = []

    async def die(word: str, ctx: ToolContext) -> None:
        if word == dies_in and not deaths:
            deaths.append(word)
            raise Died

    job = await submit(world, await make_agent(world, NOTES))
    await died(world.db, notes(die))
    before = "abc"[: "abc".index(dies_in)]
    if before:
        assert await state_of(world, job) == {"words": list(before)}
    async with working(world.db, notes(die), defer_seconds=seconds):
        assert (await ended(world, job)).status is JobStatus.COMPLETED
    assert await state_of(world, job) == {"words": ["a", "b", "c"]}
    assert await whole(world)


@pytest.mark.proves("S1.240")
async def test_a_write_that_is_lost_takes_state_and_outcome_with_it(
    world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write with the second outcome never arrives, and its worker is gone."""
    advance = steps.advance

    async def lost(db: Any, job: Any, worker: Any, number: int, write: StepWrite, seconds: float) -> Any:
        if write.state is not None and b'"b"' in (write.state["words"] or b""):
            raise Died
        return await advance(db, job, worker, number, write, seconds)

    monkeypatch.setattr(steps, "advance", lost)
    job = await submit(world, await make_agent(world, NOTES))
    await died(world.db, notes())
    rows = await admin.fetch("select status from tool_call where job_id = $1 order by step_index", job)
    assert [row["status"] for row in rows] == ["completed", "intended"]
    assert await state_of(world, job) == {"words": ["a"]}
    monkeypatch.undo()
    async with working(world.db, notes()):
        await ended(world, job)
    assert await state_of(world, job) == {"words": ["a", "b", "c"]}


@pytest.mark.proves("S1.240")
async def test_reads_of_one_response_begin_with_the_same_state_and_the_later_holds(world: World) -> None:
    app, gate = App("tests"), Gate()

    @app.tool(read_only=True)
    async def look(at: int, ctx: ToolContext) -> int:
        """Looks, and the last of the response is done first."""
        seen: int = ctx.state.get("count", 0)
        ctx.state.set("count", seen + at)
        ctx.state.set(f"at-{at}", True)
        if at == 1:
            await gate.passed()
        else:
            gate.opened.set()
        return seen

    @app.tool(read_only=True)
    async def count(ctx: ToolContext) -> int:
        """How many."""
        ctx.state.delete("at-1")
        return int(ctx.state.get("count"))

    job = await submit(
        world, await make_agent(world, [turn(call("look", at=1), call("look", at=2)), turn(call("count"))])
    )
    async with working(world.db, app):
        await ended(world, job)
    assert await state_of(world, job) == {"count": 2, "at-2": True}
    answers = [
        call.result
        for step in await steering.list_steps(world.db, world.admin.actor, job, -1, 9)
        for call in step.calls
    ]
    assert answers == [0, 0, 2]


@pytest.mark.parametrize("answer", [Happened("found"), DidNotHappen(), None])
@pytest.mark.proves("S1.240")
async def test_state_of_an_uncertain_call_is_that_of_whoever_settles_it(world: World, answer: Any) -> None:
    calls: list[str] = []

    async def probe(word: str, ctx: ToolContext) -> Any:
        ctx.state.set("probed", word)
        return answer

    async def lose(word: str, ctx: ToolContext) -> None:
        calls.append(word)
        if calls == ["a"]:
            raise RuntimeError("the line broke")

    app = notes(lose, on_uncertain="probe", probe=probe, timeout=0.2)
    job = await submit(world, await make_agent(world, NOTES[:1]))
    async with working(world.db, app):
        await ended(world, job)
        if answer is None:
            assert "words" not in await state_of(world, job)
            happened = Answer(verdict=Verdict.HAPPENED)
            (question,) = await steering.list_questions(world.db, world.admin.actor, job)
            await settlements.settle(world.db, world.admin.actor, job, question.call_id, happened)
            await until(world, job, JobStatus.COMPLETED)
    expected = {"Happened": {"probed": "a"}, "DidNotHappen": {"words": ["a"]}, "NoneType": {}}
    assert await state_of(world, job) == expected[type(answer).__name__]


@pytest.mark.proves("S1.240")
async def test_state_survives_a_park_and_a_hold(strict: World) -> None:
    app = notes()

    job = await submit(strict, await make_agent(strict, NOTES))
    async with working(strict.db, app):
        (asked,) = await pending_soon(strict, job)
        await decide(strict, asked)
        asked = (await pending_soon(strict, job))[0]
        assert await state_of(strict, job) == {"words": ["a"]}
        await steering.pause(strict.db, strict.admin.actor, job, Pause())
        await decide(strict, asked)
    async with working(strict.db, app):
        await steering.resume(strict.db, strict.admin.actor, job, Resumption())
        await decide(strict, (await pending_soon(strict, job))[0])
        await ended(strict, job)
    assert await state_of(strict, job) == {"words": ["a", "b", "c"]}


@pytest.mark.proves("S1.240")
async def test_state_survives_compaction(world: World, admin: asyncpg.Connection) -> None:
    script = [turn(call("note", word=f"{n}"), text="x" * 1500) for n in range(8)]
    await small_agent(world, [*script, turn(text="done")], context_tokens=3_000)
    agent = await make_agent(world, [])
    job = await submit(world, replace(agent, slug="small"))
    async with working(world.db, notes(), backends=Backends({"listening": Listening()})):
        assert (await ended(world, job)).status is JobStatus.COMPLETED
    compacted = await admin.fetchval("select count(*) from event where job_id = $1 and type = 'context_compacted'", job)
    assert compacted > 0
    assert await state_of(world, job) == {"words": [f"{n}" for n in range(8)]}


# What cannot be kept ------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[Any, str]] = {
    "a key of the plane": (lambda state: state.set("$plane", 1), "`$plane` starts with `$`: such keys are the plane's own"),
    "deleting one": (lambda state: state.delete("$plane"), "`$plane` starts with `$`"),
    "an empty key": (lambda state: state.set("", 1), "'' cannot be a key of the state"),
    "a long key": (lambda state: state.set("x" * 201, 1), "cannot be a key of the state. Use a text of 1 to 200"),
    "a key that is no text": (lambda state: state.get(7), "'7' cannot be a key of the state"),
    "a key that cannot be stored": (lambda state: state.set("a\0", 1), "key"),
    "no JSON": (lambda state: state.set("a", object()), "The entry `a` of the state cannot be stored: `$` is a object"),
    "not a number": (lambda state: state.set("a", {"b": float("nan")}), "The entry `a` of the state cannot be stored"),
    "too much": (lambda state: state.set("a", "x" * MAX_STATE_BYTES), f"the limit is {MAX_STATE_BYTES}"),
    "too much in many": (
        lambda state: [state.set(f"{n}", "x" * 30_000) for n in range(9)],
        f"with `8`; the limit is {MAX_STATE_BYTES}. Delete entries",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.proves("S1.240")
def test_what_cannot_be_kept_is_refused_where_it_is_set(case: str) -> None:
    use, words = REFUSED[case]
    with pytest.raises(CortexError) as error:
        use(ToolState())
    assert words in str(error.value)


@pytest.mark.proves("S1.240")
def test_a_full_state_has_room_again_once_something_is_deleted() -> None:
    state = ToolState()
    state.set("a", "x" * 200_000)
    with pytest.raises(CortexError) as error:
        state.set("b", "x" * 100_000)
    assert error.value.code == "state_too_large"
    state.delete("a")
    state.set("b", "x" * 100_000)
    assert (state.get("a", "none"), len(state.get("b"))) == ("none", 100_000)


@pytest.mark.proves("S1.240")
async def test_a_thread_that_outlives_its_call_changes_nothing(world: World) -> None:
    app = App("tests")
    errors: list[str] = []
    done = asyncio.Event()
    loop = asyncio.get_running_loop()

    @app.tool(on_uncertain="fail", timeout=0.05)
    def slow(ctx: ToolContext) -> None:
        """Takes longer than it has."""
        asyncio.run_coroutine_threadsafe(ends.wait(), loop).result()
        try:
            ctx.state.set("late", True)
        except CortexError as error:
            errors.append(error.code)
        loop.call_soon_threadsafe(done.set)

    ends = asyncio.Event()
    job = await submit(world, await make_agent(world, [turn(call("slow"))]))
    async with working(world.db, app):
        await ended(world, job)
        ends.set()
        await asyncio.wait_for(done.wait(), 5)
    assert errors == ["call_over"]
    assert await state_of(world, job) == {}


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "threads"])
@pytest.mark.proves("S1.240")
async def test_calls_that_run_at_once_share_the_room_of_the_state(world: World, is_async: bool) -> None:
    """The one that finds no room any more is told so, and may go on without; what the others set is kept."""
    app, gate, barrier = notes(), Gate(), threading.Barrier(5, timeout=20)

    if is_async:

        @app.tool(name="fill", read_only=True)
        async def fill(key: str, ctx: ToolContext) -> None:
            """Fills the state, when all are under way."""
            asyncio.get_running_loop().call_soon(gate.opened.set)
            await gate.passed()
            ctx.state.set(key, "x" * 100_000)

    else:

        @app.tool(name="fill", read_only=True)
        def fill_in_thread(key: str, ctx: ToolContext) -> None:
            """Fills the state, when all are under way."""
            barrier.wait()
            ctx.state.set(key, "x" * 100_000)

    script = [NOTES[0], turn(*(call("fill", key=key) for key in "uvwxy")), NOTES[1]]
    job = await submit(world, await make_agent(world, script))
    async with working(world.db, app):
        end = await ended(world, job)
    assert end.status is JobStatus.COMPLETED, end.error_message
    state = await state_of(world, job)
    assert state.pop("words") == ["a", "b"]
    assert len(state) == 2
    answers = (await steps_of(world, job))[1].calls
    assert {call.arguments["key"] for call in answers if call.error is None} == set(state)
    errors = [call.error or "" for call in answers if call.error is not None]
    assert len(errors) == 3
    for error in errors:
        assert f"the limit is {MAX_STATE_BYTES}" in error


@pytest.mark.proves("S1.240")
async def test_what_a_failed_call_set_takes_no_room_from_those_beside_it(world: World) -> None:
    app, failed = App("tests"), asyncio.Event()

    @app.tool(read_only=True)
    async def fail(ctx: ToolContext) -> None:
        """Fills the state, and fails."""
        ctx.state.set("a", "x" * 200_000)
        asyncio.get_running_loop().call_later(0, failed.set)
        raise ToolError("It did not work.")

    @app.tool(read_only=True)
    async def fill(ctx: ToolContext) -> None:
        """Fills the state after that."""
        await failed.wait()
        ctx.state.set("b", "x" * 200_000)

    job = await submit(world, await make_agent(world, [turn(call("fail"), call("fill"))]))
    async with working(world.db, app):
        await ended(world, job)
    assert list(await state_of(world, job)) == ["b"]


@pytest.mark.proves("S1.240")
async def test_a_checkpoint_that_is_too_large_beside_the_state_ends_the_job(world: World) -> None:
    """Small results of many calls are a part of it while their step is under way. What was there stays."""
    app = notes()

    @app.tool(read_only=True)
    async def fill(ctx: ToolContext) -> None:
        """Fills the state."""
        ctx.state.set("x", "x" * 250_000)

    @app.tool(read_only=True)
    async def look() -> str:
        """Looks."""
        return "y" * 2000

    responses = iter([["note"], ["fill"], [*["look"] * 400, "note"]])

    class Busy:
        async def stream(self, _request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
            calls = (
                CallRequest(id=f"{n}", name=tool, arguments={"word": "a"} if tool == "note" else {})
                for n, tool in enumerate(next(responses))
            )
            yield Response(text=None, calls=tuple(calls), usage=ModelUsage(prompt_tokens=1, completion_tokens=1))

    job = await submit(world, await make_agent(world, [], model="busy"))
    async with working(world.db, app, backends=Backends({"busy": Busy()})):
        end = await ended(world, job)
    assert end.status is JobStatus.FAILED
    assert "Its largest part is working_data.x with 250002 bytes." in (end.error_message or "")
    state = await state_of(world, job)
    assert (state["words"], len(state["x"])) == (["a"], 250_000)


# Code agents --------------------------------------------------------------------------------------------------------


async def count_up(ctx: Context) -> dict[str, Any]:
    """Reads, changes and deletes, before and after a wait for people."""
    first = await ctx.state.get("count", 0)
    await ctx.state.set("count", first + 1)
    await ctx.state.set("gone", None)
    is_there = await ctx.state.get("gone", "nothing")
    await ctx.state.delete("gone")
    await ctx.request_approval("Go on?")
    again: int = await ctx.state.get("count")
    await ctx.state.set("count", again + 1)
    word = await ctx.tool("note", word="x")
    return {
        "seen": [first, is_there, again, await ctx.state.get("gone", "nothing"), word, await ctx.state.get("words")]
    }


@pytest.mark.proves("S1.240")
async def test_code_reads_the_same_when_it_runs_again(world: World) -> None:
    job = await submit(world, await make_coded(world))
    async with working(world.db, coded(count_up, notes())):
        asked = (await pending_soon(world, job))[0]
        assert await state_of(world, job) == {"count": 1}
        await decide(world, asked)
        end = await ended(world, job)
    assert end.result == {"seen": [0, None, 1, "nothing", ["x"], ["x"]]}, end.error_message
    assert await state_of(world, job) == {"count": 2, "words": ["x"]}
    keys = [key for key, _ in await keys_of(world, job)]
    assert keys[:5] == ["state.get#0", "state.set#0", "state.set#1", "state.get#1", "state.delete#0"]
    assert await whole(world)


@pytest.mark.parametrize(
    ("at", "flush_seconds"), [*((at, journal.FLUSH_SECONDS) for at in range(1, 8)), (1, 0.0), (2, 0.0)]
)
@pytest.mark.proves("S1.240")
async def test_code_changes_its_state_once_wherever_a_write_is_lost(
    world: World, monkeypatch: pytest.MonkeyPatch, at: int, flush_seconds: float
) -> None:
    """After no time what is recorded is written in the background, as on a machine that is busy."""
    monkeypatch.setattr(journal, "FLUSH_SECONDS", flush_seconds)

    async def run(ctx: Context) -> int:
        for word in "abc":
            await ctx.state.set("count", await ctx.state.get("count", 0) + 1)
            await ctx.tool("note", word=word)
        return int(await ctx.state.get("count"))

    advance, writes = steps.advance, 0

    async def lost(*args: Any) -> Any:
        nonlocal writes
        writes += 1
        if writes == at:
            raise Died
        return await advance(*args)

    monkeypatch.setattr(steps, "advance", lost)
    job = await submit(world, await make_coded(world))
    app = coded(run, notes())
    try:
        await died(world.db, app)
    except AssertionError:
        assert at > 4, "so many writes it has at least"
    monkeypatch.undo()
    async with working(world.db, app):
        end = await ended(world, job)
    assert (end.error_message, end.result) == (None, {"value": 3})
    assert await state_of(world, job) == {"count": 3, "words": ["a", "b", "c"]}


@pytest.mark.proves("S1.240")
async def test_a_code_agent_may_catch_that_its_state_is_full(world: World) -> None:
    async def run(ctx: Context) -> list[Any]:
        codes = []
        for key in ("a", "b"):
            try:
                await ctx.state.set(key, "x" * 200_000)
            except CortexError as error:
                codes.append(error.code)
        await ctx.request_approval("Go on?")
        return [codes, await ctx.state.get("b")]

    job = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        await decide(world, (await pending_soon(world, job))[0])
        end = await ended(world, job)
    assert (end.error_message, end.result) == (None, {"value": [["state_too_large"], None]})


@pytest.mark.parametrize(
    ("use", "words"),
    [
        (lambda ctx: ctx.state.set("$plane", 1), "`$plane` starts with `$`"),
        (lambda ctx: ctx.state.get(""), "'' cannot be a key"),
        (lambda ctx: ctx.state.set("a", object()), "The entry `a` of the state cannot be stored"),
    ],
)
@pytest.mark.proves("S1.240")
async def test_what_code_cannot_keep_fails_its_job(world: World, use: Any, words: str) -> None:
    async def run(ctx: Context) -> None:
        await use(ctx)

    job = await submit(world, await make_coded(world))
    async with working(world.db, coded(run)):
        end = await ended(world, job)
    assert end.status is JobStatus.FAILED
    assert words in (end.error_message or "")


@pytest.mark.proves("S1.240")
async def test_an_attempt_that_cannot_write_leaves_the_state_as_it_was(world: World) -> None:
    """A worker that lost its job meanwhile writes neither outcome nor state."""
    job = await submit(world, await make_agent(world, NOTES))

    async def lose(word: str, ctx: ToolContext) -> None:
        if word == "b":
            async with world.db.transaction(world.org_id) as tx:
                await tx.rows("update job set epoch = epoch + 1 where id = $1", job)

    worker, assignment = await leased(world.db, notes(lose))
    await Attempt(worker._host, assignment).run()
    assert (await job_of(world, job)).status is JobStatus.RUNNING
    assert await state_of(world, job) == {"words": ["a"]}


@pytest.mark.proves("S1.240")
async def test_branches_of_code_share_the_room_of_the_state(world: World) -> None:
    """Whoever is first has it: a tool of another branch, or the function itself."""
    app, gates = App("tests"), {"a": Gate(), "b": Gate()}

    @app.tool(read_only=True)
    async def fill(key: str, ctx: ToolContext) -> None:
        """Fills the state, and takes a while."""
        ctx.state.set(key, "x" * 100_000)
        await gates[key].passed()

    async def run(ctx: Context) -> list[str]:
        async def branch(key: str) -> str:
            try:
                await ctx.tool("fill", key=key)
            except ToolFailed as error:
                return str(error)
            return "kept"

        async def own() -> str:
            for gate in gates.values():
                await ctx.step("wait", gate.entered.wait, repeatable=True)
            code = "kept"
            try:
                await ctx.state.set("c", "x" * 100_000)
            except CortexError as error:
                code = error.code
            for gate in gates.values():
                gate.opened.set()
            return code

        codes = list(await ctx.gather(branch("a"), branch("b"), own()))
        await ctx.state.delete("a")
        await ctx.state.set("d", "x" * 100_000)
        return codes

    job = await submit(world, await make_coded(world))
    async with working(world.db, coded(run, app)):
        end = await ended(world, job)
    assert (end.error_message, end.result) == (None, {"value": ["kept", "kept", "state_too_large"]})
    assert sorted(await state_of(world, job)) == ["b", "d"]


@pytest.mark.proves("S1.240")
async def test_a_tool_of_code_finds_what_other_branches_kept_meanwhile(world: World) -> None:
    app, gate = App("tests"), Gate()

    @app.tool(read_only=True)
    async def fill(ctx: ToolContext) -> None:
        """Fills the state after another branch did."""
        await gate.passed()
        ctx.state.set("a", "x" * 200_000)

    async def run(ctx: Context) -> str:
        async def own() -> None:
            await ctx.step("wait", gate.entered.wait, repeatable=True)
            await ctx.state.set("b", "x" * 200_000)
            gate.opened.set()

        async def branch() -> str:
            try:
                await ctx.tool("fill")
            except ToolFailed as error:
                return str(error)
            return "kept"

        first, _ = await ctx.gather(branch(), own())
        return str(first)

    job = await submit(world, await make_coded(world))
    async with working(world.db, coded(run, app)):
        end = await ended(world, job)
    assert f"the limit is {MAX_STATE_BYTES}" in str(end.result), end.error_message
    assert list(await state_of(world, job)) == ["b"]


# Ends of an attempt ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("S1.240")
async def test_what_is_recorded_when_the_plane_fails_is_written_before_the_job_is_tried_again(
    world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One branch sets something; in another one the plane goes wrong before that is written."""
    monkeypatch.setattr(journal, "FLUSH_SECONDS", 60.0)
    asked, broken, seen = asyncio.Event(), asyncio.Event(), list[str | None]()

    async def break_once(count: int) -> None:
        asked.set()
        await broken.wait()
        if count == 1:
            raise RuntimeError("out of order")

    async def run(ctx: Context) -> int:
        seen.append(await admin.fetchval("select memory #>> '{working_data,count}' from job where id = $1", ctx.job_id))

        async def own() -> None:
            await ctx.step("wait", asked.wait, repeatable=True)
            await ctx.state.set("count", 1)
            broken.set()

        await ctx.gather(own(), ctx.model("What now?"))
        return int(await ctx.state.get("count"))

    job = await submit(world, await make_coded(world, turn(text="this"), model="frail"))
    async with working(world.db, coded(run), backends=Backends({"frail": Recording(break_once)})):
        end = await ended(world, job)
    assert (end.error_message, end.result) == (None, {"value": 1})
    assert seen == [None, "1"], "the second attempt begins with it"
    assert await whole(world)


@pytest.mark.proves("S1.240")
async def test_checkpoint_that_grew_too_large_fails_the_job_once(
    world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the checkpoint without the new state fits: the one that was written last stays, and outcomes are kept."""
    app = App("tests")

    @app.tool()
    async def act(ctx: ToolContext) -> str:
        """Acts, and from then on no checkpoint is small enough."""
        ctx.state.set("x", "x")
        ctx.end_session("done")
        monkeypatch.setattr(checkpoints, "MAX_BYTES", 10)
        return "acted"

    async def run(ctx: Context) -> str:
        await ctx.tool("act")
        return "done"

    job = await submit(world, await make_coded(world))
    async with working(world.db, coded(run, app)):
        end = await ended(world, job)
    assert end.status is JobStatus.FAILED
    assert "the limit is 10" in (end.error_message or "")
    rows = await admin.fetch("select status, result from tool_call where job_id = $1", job)
    assert [tuple(row) for row in rows] == [("completed", '"acted"')]
    assert await state_of(world, job) == {}
    assert await admin.fetchval("select end_reason from session") == "done", "the outcome that asked for it is kept"
