"""Ways around a gate that a model, its code or several jobs of a session might find: batching, racing, asking, coming early."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cortex_plane import Context, ToolDenied
from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.agents import AgentChange
from cortex_plane.agents.model.completions import ModelRequest, Response, TextChunk
from cortex_plane.approvals.verbs import settlements
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import JobDraft, JobStatus
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.sessions.model.sessions import SessionDraft, SessionKind
from cortex_plane.worker.models.backends import Backends
from tests.fixtures.approvals import decide, pending_soon
from tests.fixtures.atlases import plain, publish
from tests.fixtures.coded import coded
from tests.fixtures.gated import (
    ATLAS,
    DELETE,
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
    run,
    say,
    state_in,
    traced,
)
from tests.fixtures.people import World
from tests.fixtures.standing_approvals import policy, stand
from tests.fixtures.workers import call, ended, job_of, make_agent, submit, turn, until, whole, working
from tests.worker.test_gates_races import _Meeting, _model


def budget(action: str, calls: int) -> list[dict[str, Any]]:
    return [
        {"policy_id": "few", "type": "budget", "actions": [action], "max_calls": calls},
        {"policy_id": "all", "type": "allow", "actions": ["*"]},
    ]


# One response with many calls ------------------------------------------------------------------------------------


@pytest.mark.proves("D.361")
async def test_what_comes_after_a_call_stops_the_rest_of_its_response(world: World) -> None:
    desk = Desk()
    after = gate("after", {"type": "action_post", "patterns": ["ticket.delete"]})
    job = await run(
        world, desk, atlas(after), turn(delete(), ban("eve"), get()), turn(say("after", sure="understood")), turn(ban())
    )  # fmt: skip
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["delete 1", "ban eve"])
    assert await calls_of(world, job.id) == [
        "ticket.delete completed", "user.ban rejected", "ticket.get rejected", "plane.answer completed",
        "user.ban completed",
    ]  # fmt: skip
    assert (await traced(world, job)).count("triggered after") == 1
    assert await whole(world)


@pytest.mark.proves("S5.6", "D.361")
async def test_every_so_many_actions_is_counted_within_a_response_too(world: World) -> None:
    desk = Desk()
    each = gate("each", {"type": "count_interval", "actions": 2})
    many = [delete(str(number)) for number in range(5)]
    sure = turn(say("each", sure="understood"))
    job = await run(world, desk, atlas(each, counts=False), turn(*many), sure, turn(*many), sure, turn(get()))
    assert desk.done == ["delete 0", "delete 1", "delete 0", "delete 1", "get 1"]
    assert (await traced(world, job)).count("triggered each") == 2


@pytest.mark.proves("D.361")
async def test_what_a_call_forbids_holds_for_those_after_it_in_the_same_response(world: World) -> None:
    desk = Desk()
    taint = gate("taint", before("ticket.get"), mode="advisory", deny_actions=["user.ban"])
    job = await run(world, desk, atlas(taint), turn(get(), ban("eve")), turn(ban("adam")))
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["get 1"])
    assert Counter(await calls_of(world, job.id)) == {"ticket.get completed": 1, "user.ban rejected": 2}


@pytest.mark.proves("D.361", "D.385")
async def test_what_is_refused_or_only_asked_about_opens_nothing(world: World) -> None:
    desk = Desk()
    helper = gate("helper", before("user.ban"), mode="advisory", unlock_capabilities=["adm"])
    sure = gate("sure", before("user.ban"))
    adm = [{"capability_id": "adm", "name": "Admin", "actions": ["ticket.delete"]}]
    job = await run(
        world, desk, atlas(helper, sure, capabilities=adm),
        turn(ban("eve")), turn(delete()), turn(say("sure", sure="understood")), turn(ban("eve")), turn(delete()),
    )  # fmt: skip
    assert desk.done == ["ban eve", "delete 1"]
    assert (await calls_of(world, job.id))[:2] == ["user.ban rejected", "ticket.delete rejected"]


# Several at once -------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.367", "D.377")
@pytest.mark.parametrize("scarce", ["budget", "pass"])
async def test_jobs_of_one_session_do_not_share_what_one_read_uses_up(world: World, scarce: str) -> None:
    desk = Desk()
    manifest = (
        atlas(policies=budget("ticket.get", 1)) if scarce == "budget" else atlas(gate("look", before("ticket.get")))
    )  # fmt: skip
    script = [turn(text="hello")] if scarce == "budget" else [turn(get()), turn(say("look", sure="understood"))]
    agent = await governed(world, manifest, *script, limits={"max_concurrent_jobs": 10})
    first = await submit(world, agent)
    async with working(world.db, desk.app):
        session = (await ended(world, first)).session_id
    assert desk.done == []
    all_here = asyncio.Barrier(4)

    async def meet() -> None:
        async with asyncio.timeout(60):
            await all_here.wait()

    change = AgentChange(model_config=_model(model="eager", script=[turn(get())]))
    eager = await agents.update_agent(world.db, world.admin.actor, agent.slug, change, None)
    ids = [await submit(world, eager, {"text": str(number)}, session_id=session) for number in range(4)]
    async with working(world.db, desk.app, backends=Backends({"eager": _Meeting(meet)})):
        for id in ids:
            await ended(world, id)
    assert desk.done == ["get 1"]


@pytest.mark.proves("D.367")
@pytest.mark.parametrize("scarce", ["budget", "pass"])
async def test_branches_of_code_do_not_share_it_either_while_standing_approvals_are_looked_up(
    db: Database, scarce: str
) -> None:
    world = await World.create(db, "standing", policies=policy("ticket.delete"))
    desk = Desk()

    async def one(ctx: Context, id: str) -> str:
        try:
            return str(await ctx.tool("ticket.delete", id=id))
        except ToolDenied:
            return "denied"

    async def code(ctx: Context) -> Any:
        if scarce == "budget":
            await one(ctx, "0")
            return await ctx.gather(*(one(ctx, str(number)) for number in range(1, 6)))
        await one(ctx, "1")
        await ctx.answer("delete-confirm", {"sure": "understood"})
        await one(ctx, "1")
        await one(ctx, "1")
        await ctx.answer("delete-confirm", {"sure": "understood"})
        return await ctx.gather(*(one(ctx, "1") for _ in range(4)))

    coded(code, desk.app)
    manifest = atlas(policies=budget("ticket.delete", 2)) if scarce == "budget" else atlas(DELETE)
    agent = await governed(world, manifest, run="run", slug="coded")
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        (asked,) = await pending_soon(world, id)
        await stand(world, asked, calls=20)
        job = await ended(world, id)
    assert job.status is JobStatus.COMPLETED
    assert len(desk.deleted) == 2


@pytest.mark.proves("D.377")
async def test_what_fires_once_is_told_once_whoever_comes_first(world: World) -> None:
    desk = Desk()
    start = gate("hello", "session_start", mode="observational")
    agent = await governed(world, atlas(start), turn(get()), limits={"max_concurrent_jobs": 10})
    draft = SessionDraft(agent="clerk", kind=SessionKind.PROGRAMMATIC)
    session = await session_lifecycle.create(world.db, world.admin.actor, draft)
    ids = [await submit(world, agent, {"text": str(n)}, session_id=session.id) for n in range(6)]
    async with working(world.db, desk.app, concurrency=10):
        done = [await ended(world, id) for id in ids]
    assert {job.status for job in done} == {JobStatus.COMPLETED}
    assert await traced(world, done[0]) == ["triggered hello"]


@pytest.mark.proves("D.377")
async def test_a_denial_that_came_meanwhile_holds_where_nothing_is_counted(world: World) -> None:
    """No call changes what these gates remember: what was judged is compared with what is there by then."""
    desk = Desk()
    taint = gate("taint", {"type": "keyword", "patterns": ["stop"]}, mode="advisory", deny_actions=["ticket.*"])
    agent = await governed(world, atlas(taint, counts=False), turn(delete()), limits={"max_concurrent_jobs": 10})
    id = await submit(world, agent)

    class Overtaken(Listening):
        async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
            if len(self.asked) == 0:
                session = (await job_of(world, id)).session_id
                other = Desk("other")
                change = AgentChange(model_config=_model(model="scripted", script=[turn(text="done")]), skill_config={"app": "other", "atlases": [ATLAS]})  # fmt: skip
                await agents.update_agent(world.db, world.admin.actor, agent.slug, change, None)
                second = await submit(world, agent, {"text": "stop"}, session_id=session)
                async with working(world.db, other.app):
                    await ended(world, second)
            async for piece in super().stream(request):
                yield piece

    async with working(world.db, desk.app, backends=Backends({"scripted": Overtaken()})):
        job = await ended(world, id)
    assert (job.status, desk.done) == (JobStatus.COMPLETED, [])
    assert "ticket.*" in (await state_in(world, job.session_id)).actions


# Bound while it runs ---------------------------------------------------------------------------------------------


@pytest.mark.proves("D.377")
async def test_an_atlas_that_comes_while_a_job_runs_governs_what_it_reads(world: World) -> None:
    desk = Desk()
    nothing = [{"policy_id": "no", "type": "deny", "actions": ["*"]}]
    await publish(world, plain(ATLAS, "1", policies=nothing))
    agent = await make_agent(
        world, [turn(get("1")), turn(get("2")), turn(get("3"))], slug="clerk", limits={"max_concurrent_jobs": 5}
    )  # fmt: skip
    id = await submit(world, agent)

    class Binding(Listening):
        async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
            if len(self.asked) == 1:
                session = (await job_of(world, id)).session_id
                draft = JobDraft(agent="clerk", session_id=session, atlases=[ATLAS])
                await jobs.submit(world.db, world.admin.actor, draft)
            async for piece in super().stream(request):
                yield piece

    async with working(world.db, desk.app, backends=Backends({"scripted": Binding()})):
        job = await ended(world, id)
    assert job.status is JobStatus.COMPLETED
    assert desk.done == ["get 1"]
    assert (await calls_of(world, id)) == ["ticket.get completed", "ticket.get rejected", "ticket.get rejected"]


# What a gate gives to the call that it stands before --------------------------------------------------------------

HELPS = gate("helps", before("ticket.delete"), mode="advisory", allow_actions=["ticket.delete"])
ONLY_READING = [{"policy_id": "reading", "type": "allow", "actions": ["ticket.get"]}]


@pytest.mark.proves("D.361", "D.371")
async def test_what_its_own_gate_allows_is_allowed_after_a_person_said_yes(db: Database) -> None:
    world = await World.create(db, "asking", policies=policy("ticket.delete"))
    desk = Desk()
    agent = await governed(world, atlas(HELPS, policies=ONLY_READING), turn(get(), delete()))
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        (asked,) = await pending_soon(world, id)
        await decide(world, asked)
        job = await ended(world, id)
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["get 1", "delete 1"])
    assert (await traced(world, job)).count("triggered helps") == 1


@pytest.mark.proves("D.371", "D.376")
async def test_the_same_in_code(db: Database) -> None:
    world = await World.create(db, "asking", policies=policy("ticket.delete"))
    desk = Desk()

    async def code(ctx: Context) -> Any:
        return await ctx.tool("ticket.delete", id="1")

    coded(code, desk.app)
    agent = await governed(world, atlas(HELPS, policies=ONLY_READING), run="run", slug="coded")
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        (asked,) = await pending_soon(world, id)
        await decide(world, asked)
        job = await ended(world, id)
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["delete 1"])


@pytest.mark.proves("D.376")
async def test_what_a_read_opens_is_open_for_the_next_line_of_code(world: World) -> None:
    desk = Desk()

    async def code(ctx: Context) -> Any:
        await ctx.tool("ticket.get", id="1")
        return await ctx.tool("ticket.delete", id="1")

    coded(code, desk.app)
    runbook = gate("runbook", before("ticket.get"), mode="advisory", unlock_capabilities=["adm"])
    adm = [{"capability_id": "adm", "name": "Admin", "actions": ["ticket.delete"]}]
    agent = await governed(world, atlas(runbook, capabilities=adm), run="run", slug="coded")
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        job = await ended(world, id)
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["get 1", "delete 1"])


@pytest.mark.proves("D.376")
async def test_gates_hear_of_what_a_person_says_happened_in_code(world: World) -> None:
    desk = Desk()

    @desk.app.tool(name="disk.wipe", on_uncertain="ask_human", timeout=5)
    async def wipe() -> str:
        raise RuntimeError("the line went dead")

    async def code(ctx: Context) -> Any:
        return await ctx.tool("disk.wipe")

    coded(code, desk.app)
    posted = gate("posted", {"type": "action_post", "patterns": ["disk.*"]}, mode="observational")
    agent = await governed(world, atlas(posted), run="run", slug="coded")
    id = await submit(world, agent)
    async with working(world.db, desk.app):
        await until(world, id, JobStatus.PAUSED)
        (asked,) = await steering.list_questions(world.db, world.admin.actor, id)
        answer = Answer(verdict=Verdict.HAPPENED, result={"seen": True})
        await settlements.settle(world.db, world.admin.actor, id, asked.call_id, answer)
        job = await ended(world, id)
    assert job.result == {"seen": True}
    assert await traced(world, job) == ["triggered posted"]


@pytest.mark.proves("D.366")
async def test_a_limited_read_that_goes_wrong_is_an_answer_for_the_model(world: World) -> None:
    desk = Desk()

    @desk.app.tool(name="disk.look", read_only=True)
    async def look() -> str:
        desk.done.append("look")
        raise KeyError("no such disk")

    job = await run(world, desk, atlas(policies=budget("disk.look", 5)), turn(call("disk.look")))
    assert (job.status, desk.done) == (JobStatus.COMPLETED, ["look"])
    assert await calls_of(world, job.id) == ["disk.look failed"]
