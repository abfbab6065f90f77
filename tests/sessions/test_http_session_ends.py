"""Sessions over HTTP: what their agent does, who may read and pause them, and how they end by themselves."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.agents.model.tools import ToolError
from cortex_plane.calls.verbs import deadlines
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import CortexError, ToolFailed
from cortex_plane.kernel.ids import new_id
from cortex_plane.sessions.model.sessions import InboundMessage
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.fixtures.clock import Clock
from tests.fixtures.coded import coded, make_coded
from tests.fixtures.gated import atlas, before, gate, governed
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import FAST, Gate, call, make_agent, submit, turn, until, whole, working
from tests.jobs.test_http_pauses import events_of, read, send
from tests.worker.test_code_branches import a_write_waits, row_held, turns

START = datetime(2026, 3, 15, 12, tzinfo=UTC)


async def session_of(http: httpx.AsyncClient, world: World, job: UUID) -> str:
    return str((await read(http, world, f"jobs/{job}"))["session_id"])


async def status_of(http: httpx.AsyncClient, world: World, session: str) -> str:
    return str((await read(http, world, f"sessions/{session}"))["agent_status"])


@pytest.mark.proves("S4.203")
async def test_the_status_of_an_agent_follows_its_session_and_jobs(http: httpx.AsyncClient, world: World) -> None:
    idle = str((await send(http, world, "sessions", 201, agent="deployer"))["id"])
    assert await status_of(http, world, idle) == "INITIALIZING"
    await apply_policies(
        world.db, world.admin.actor, "policies:\n  - {name: act, target: act, effect: requires_approval}\n"
    )
    gate = Gate()
    app = App("tests")

    @app.tool()
    async def act() -> str:
        """Acts."""
        return "acted"

    @app.tool(read_only=True)
    async def look() -> str:
        """Looks."""
        await gate.passed()
        return "seen"

    job = await submit(world, await make_agent(world, [turn(call("look")), turn(call("act"))]))
    session = await session_of(http, world, job)
    async with working(world.db, app, settings=FAST):
        await asyncio.wait_for(gate.entered.wait(), 20)
        assert await status_of(http, world, session) == "ACTIVE"
        gate.opened.set()
        await until(world, job, JobStatus.WAITING_FOR_APPROVAL)
        assert await status_of(http, world, session) == "SUSPENDED"
        page = await http.get("/v1/sessions", headers=world.admin.headers)
        assert {item["id"]: item["agent_status"] for item in page.json()["items"]}[session] == "SUSPENDED"
        (card,) = (await read(http, world, f"approvals?job_id={job}"))["items"]
        shown = (await read(http, world, f"approvals/{card['id']}"))["approval"]
        decision = {"decision": "denied", "version": shown["version"], "input_hash": shown["input_hash"]}
        await send(http, world, f"approvals/{card['id']}/decide", **decision)
        await until(world, job, JobStatus.FAILED)
    assert await status_of(http, world, session) == "ERROR"
    await send(http, world, f"sessions/{session}/pause")
    assert await status_of(http, world, session) == "SUSPENDED", "nothing of it runs, and it is held"
    await send(http, world, f"sessions/{session}/resume")
    assert await status_of(http, world, session) == "ERROR"
    await send(http, world, f"sessions/{session}/terminate")
    assert await status_of(http, world, session) == "TERMINATED"


async def tick(world: World) -> list[str]:
    return (await deadlines.tick(world.db, new_id(), "s")).done


@pytest.mark.proves("S2.201")
async def test_an_agent_ends_its_own_session_with_the_tool_that_it_names(http: httpx.AsyncClient, world: World) -> None:
    agent = await make_agent(
        world, [turn(call("plane.end_session", reason="all is done"))], tools=["plane.end_session"], app="plane"
    )
    session = str((await send(http, world, "sessions", 201, agent=agent.slug))["id"])
    job = UUID((await send(http, world, f"sessions/{session}/messages", 201, text="bye"))["job_id"])
    async with working(world.db, App("tests"), settings=FAST):
        await until(world, job, JobStatus.COMPLETED)
    assert (await read(http, world, f"sessions/{session}"))["end_reason"] == "all is done"
    assert await tick(world) == ["ended"]
    ended = await read(http, world, f"sessions/{session}")
    assert (ended["status"], ended["agent_status"]) == ("TERMINATED", "TERMINATED")
    messages = (await read(http, world, f"sessions/{session}/messages"))["items"]
    assert [message["text"] for message in messages] == ["bye", "done"], "it still said goodbye"
    ((_, status),) = [e for e in await events_of(http, world, f"sessions/{session}", "status") if "session" in e[1]]
    assert status["reason"] == "its agent ended it: all is done"
    trail = [entry["action"] for entry in (await read(http, world, f"audit?session_id={session}"))["items"]]
    assert "session_end_requested" in trail
    assert "session_terminated" in trail
    assert await tick(world) == []
    assert await whole(world)


@pytest.mark.proves("S2.201")
@pytest.mark.parametrize("runs", ["model", "code"])
async def test_an_agent_under_an_atlas_ends_its_own_session(http: httpx.AsyncClient, strict: World, runs: str) -> None:
    """No atlas can name the plane's own tools, so none stands before them."""
    app, manifest = App("tests"), atlas(gate("each", before("*")))

    async def run(ctx: Context) -> str:
        await ctx.end_session("all is done")
        return "gone"

    more: dict[str, Any] = {"tools": ["plane.end_session"]}
    if runs == "code":
        coded(run, app)
        more = {"run": "run"}
    agent = await governed(strict, manifest, turn(call("plane.end_session", reason="all is done")), **more)
    job = await submit(strict, agent)
    async with working(strict.db, app, settings=FAST):
        await until(strict, job, JobStatus.COMPLETED)
    session = await read(http, strict, f"sessions/{await session_of(http, strict, job)}")
    assert session["end_reason"] == "all is done"
    assert await tick(strict) == ["ended"]


@pytest.mark.proves("S2.201")
@pytest.mark.parametrize("by", ["code", "tool"])
async def test_code_and_tools_end_a_session_when_no_job_of_it_is_open(
    http: httpx.AsyncClient, world: World, by: str
) -> None:
    gate, app = Gate(), App("tests")

    @app.tool(read_only=True)
    async def leave(context: ToolContext) -> str:
        """Leaves."""
        context.end_session("enough")
        await gate.passed()
        return "left"

    async def run(ctx: Context) -> str:
        if by == "code":
            await ctx.end_session("enough")
            await ctx.tool("leave")
        else:
            await ctx.tool("leave")
        return "gone"

    coded(run, app)
    session = str((await send(http, world, "sessions", 201, agent=(await make_coded(world)).slug))["id"])
    job = UUID((await send(http, world, "jobs", 201, agent="coded", session_id=session))["id"])
    async with working(world.db, app, settings=FAST):
        await asyncio.wait_for(gate.entered.wait(), 20)
        assert await tick(world) == [], "its job is open"
        gate.opened.set()
        await until(world, job, JobStatus.COMPLETED)
        async with asyncio.timeout(20):
            while await tick(world) != ["ended"]:  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.05)
    assert (await read(http, world, f"sessions/{session}"))["status"] == "TERMINATED"


@pytest.mark.proves("S2.201")
@pytest.mark.parametrize("read_only", [True, False], ids=["a read", "an effect"])
@pytest.mark.parametrize("by", ["model", "code"])
async def test_a_call_that_failed_ends_no_session(
    http: httpx.AsyncClient, world: World, by: str, read_only: bool
) -> None:
    app = App("tests")

    @app.tool(read_only=read_only)
    async def leave(context: ToolContext) -> str:
        """Leaves, and fails."""
        context.end_session("enough")
        raise ToolError("The door is locked.")

    async def run(ctx: Context) -> str:
        try:
            return str(await ctx.tool("leave"))
        except ToolFailed:
            return "still here"

    coded(run, app)
    agent = await (make_coded(world) if by == "code" else make_agent(world, [turn(call("leave"))]))
    job = await submit(world, agent)
    session = await session_of(http, world, job)
    async with working(world.db, app, settings=FAST):
        await until(world, job, JobStatus.COMPLETED)
    assert (await read(http, world, f"sessions/{session}"))["end_reason"] is None
    assert await tick(world) == []
    trail = [entry["action"] for entry in (await read(http, world, f"audit?session_id={session}"))["items"]]
    assert "session_end_requested" not in trail


@pytest.mark.proves("S2.201")
async def test_a_session_ends_where_the_try_that_asked_for_it_succeeds(http: httpx.AsyncClient, world: World) -> None:
    """A try whose outcome nobody knows asks for nothing; the one that succeeds does, once."""
    app = App("tests")

    @app.tool(on_uncertain="retry_with_key")
    async def leave(context: ToolContext) -> str:
        """Leaves, with the second try."""
        context.end_session(f"try {context.attempt}")
        if context.attempt == 1:
            raise RuntimeError("the line broke")
        return "left"

    job = await submit(world, await make_agent(world, [turn(call("leave"))]))
    session = await session_of(http, world, job)
    async with working(world.db, app, settings=FAST):
        await until(world, job, JobStatus.COMPLETED)
    assert (await read(http, world, f"sessions/{session}"))["end_reason"] == "try 2"
    trail = [entry["action"] for entry in (await read(http, world, f"audit?session_id={session}"))["items"]]
    assert trail.count("session_end_requested") == 1


@pytest.mark.proves("S2.201")
async def test_end_reason_of_a_tool_is_stored_as_text(http: httpx.AsyncClient, world: World) -> None:
    app = App("tests")

    @app.tool()
    async def leave(context: ToolContext) -> str:
        """Leaves, with a reason that no database takes as it is."""
        context.end_session(KeyError("all\0done"))  # type: ignore[arg-type]
        return "left"

    job = await submit(world, await make_agent(world, [turn(call("leave"))]))
    async with working(world.db, app, settings=FAST):
        await until(world, job, JobStatus.COMPLETED)
    session = await session_of(http, world, job)
    assert (await read(http, world, f"sessions/{session}"))["end_reason"] == repr("all\0done")


@pytest.mark.proves("S2.201")
async def test_an_end_that_is_asked_for_while_another_branch_writes_is_not_lost(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    leaves, acts, app = Gate(), Gate(), App("tests")

    @app.tool(read_only=True)
    async def leave(context: ToolContext) -> str:
        """Leaves."""
        await leaves.passed()
        context.end_session("enough")
        return "left"

    @app.tool()
    async def act() -> str:
        """Acts."""
        return "acted"

    async def run(ctx: Context) -> None:
        async def later() -> Any:
            await ctx.step("look", acts.passed, repeatable=True)
            return await ctx.tool("act")

        await ctx.gather(ctx.tool("leave"), later())

    coded(run, app)
    job = await submit(world, await make_coded(world))
    session = await session_of(http, world, job)
    async with working(world.db, app, settings=FAST, adoption_seconds=20.0):
        await asyncio.wait_for(leaves.entered.wait(), 20)
        await asyncio.wait_for(acts.entered.wait(), 20)
        async with row_held(admin, job):
            acts.opened.set()
            await a_write_waits(admin)
            leaves.opened.set()
            await turns()
        await until(world, job, JobStatus.COMPLETED)
    assert (await read(http, world, f"sessions/{session}"))["end_reason"] == "enough"


@pytest.mark.proves("S2.201")
async def test_a_thread_that_outlives_its_call_ends_no_session(http: httpx.AsyncClient, world: World) -> None:
    app, codes = App("tests"), list[str]()
    over, done, loop = threading.Event(), asyncio.Event(), asyncio.get_running_loop()

    @app.tool(read_only=True, timeout=0.05)
    def slow(context: ToolContext) -> None:
        """Takes longer than it has."""
        over.wait(20)
        try:
            context.end_session("late")
        except CortexError as error:
            codes.append(error.code)
        loop.call_soon_threadsafe(done.set)

    @app.tool(read_only=True)
    async def look() -> None:
        """Looks after the thread of the call before has gone on."""
        over.set()
        await asyncio.wait_for(done.wait(), 20)

    job = await submit(world, await make_agent(world, [turn(call("slow")), turn(call("look"))]))
    session = await session_of(http, world, job)
    async with working(world.db, app, settings=FAST):
        await until(world, job, JobStatus.COMPLETED)
    assert codes == ["call_over"]
    assert (await read(http, world, f"sessions/{session}"))["end_reason"] is None


@pytest.mark.proves("S2.201")
async def test_the_end_of_a_session_locks_it_before_its_job(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    """As whoever terminates it does: the two never wait for each other."""
    agent = await make_agent(world, [turn(call("plane.end_session", reason="bye"))], tools=["plane.end_session"])
    job = await submit(world, agent)
    session = await session_of(http, world, job)
    async with working(world.db, App("tests"), settings=FAST, adoption_seconds=20.0):
        async with admin.transaction():
            await admin.execute("select from session where id = $1 for update", UUID(session))
            await a_write_waits(admin)
            await admin.execute("select from job where id = $1 for update nowait", job)
        await until(world, job, JobStatus.COMPLETED)
    assert (await read(http, world, f"sessions/{session}"))["end_reason"] == "bye"


@pytest.mark.proves("S2.202")
async def test_a_session_that_stays_paused_for_longer_than_its_org_lets_it_ends(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, START)
    session = str((await world.say()).session_id)
    await admin.execute("update job set status = 'CANCELLED', runnable_at = null where session_id = $1", UUID(session))
    await clock.advance(timedelta(days=1))
    assert await tick(world) == ["idle"]
    ((_, paused),) = await events_of(http, world, f"sessions/{session}")
    assert datetime.fromisoformat(paused["paused_at"]) == START + timedelta(days=1)
    await clock.advance(timedelta(days=400))
    await session_lifecycle.end_long_paused(world.db)
    assert (await read(http, world, f"sessions/{session}"))["status"] == "PAUSED", "no limit, no end"
    await send(http, world, "org", method="PATCH", settings={"end_paused_after_seconds": 401 * 86_400})
    await session_lifecycle.end_long_paused(world.db)
    assert (await read(http, world, f"sessions/{session}"))["status"] == "PAUSED"
    await clock.advance(timedelta(days=1))
    await session_lifecycle.end_long_paused(world.db)
    assert (await read(http, world, f"sessions/{session}"))["status"] == "TERMINATED"
    trail = (await read(http, world, f"audit?session_id={session}"))["items"]
    (end,) = [entry for entry in trail if entry["action"] == "session_terminated"]
    assert end["body"]["data"]["reason"] == "it was paused for longer than 401 days"
    assert await whole(world)


@pytest.mark.proves("S4.204")
async def test_a_member_pauses_their_own_session_and_lifts_their_own_pause_alone(
    http: httpx.AsyncClient, world: World
) -> None:
    mel, other = await world.person(Role.MEMBER, name="Mel"), await world.person(Role.MEMBER, name="Other")
    session = str((await send(http, mel, "sessions", 201, agent="deployer"))["id"])
    path = f"sessions/{session}"
    assert (await send(http, other, f"{path}/pause", 404))["code"] == "session_not_found"
    mine = await send(http, mel, f"{path}/pause", reason="lunch")
    assert (mine["session"]["held_by"], mine["status"]) == (["owner"], "SUSPENDED")
    ((_, paused),) = await events_of(http, world, path)
    assert (paused["pause_source"], paused["by"], paused["reason"]) == ("owner", "Mel", "lunch")
    both = await send(http, world, f"{path}/pause", reason="incident")
    assert (both["changed"], both["session"]["held_by"]) == (True, ["owner", "operator"])
    left = await send(http, mel, f"{path}/resume")
    assert (left["session"]["held_by"], left["status"]) == (["operator"], "SUSPENDED")
    told = await send(http, mel, f"{path}/resume", 409)
    assert (told["code"], "held by operator" in told["detail"]) == ("still_held", True)
    await send(http, world, f"{path}/resume")
    assert (await send(http, mel, f"{path}/resume", 409))["code"] == "failed_precondition"
    assert [kind for kind, _ in await events_of(http, world, path)] == ["session_paused", "session_resumed"]
    await send(http, mel, f"{path}/pause")
    job = await send(http, mel, "jobs", 201, agent="deployer", session_id=session)
    assert job["holds"] == ["session"]
    assert (await send(http, world, f"{path}/resume"))["session"]["held_at"] is None, "an operator lifts any"
    assert (await read(http, mel, f"jobs/{job['id']}"))["holds"] == []


@pytest.mark.proves("S2.203")
async def test_a_service_reads_a_session_into_which_it_brought_a_message_of_its_person(
    http: httpx.AsyncClient, world: World
) -> None:
    second = await world.service_with(Role.MEMBER)
    told = await world.say("over the first service")
    path = f"/v1/sessions/{told.session_id}"

    async def answers() -> set[int]:
        places = (path, f"{path}/messages", f"{path}/events", f"/v1/jobs/{told.job_id}")
        headers = {**second.headers, "accept": "application/json"}
        return {(await http.get(place, headers=headers)).status_code for place in places}

    assert await answers() == {404}, "nothing links it to that person"
    inbound = InboundMessage(external_user_id="u-1", agent="deployer", text="over the second one")
    again = await sessions.ingest_message(world.db, second.actor, world.connection.id, inbound)
    assert again.session_id == told.session_id
    assert await answers() == {200}
    for verb, body in (("messages", {"text": "mine"}), ("terminate", {}), ("pause", {})):
        refused = await http.post(f"{path}/{verb}", json=body, headers=second.headers)
        assert refused.status_code == 404, "it may read, and no more"
    listed: dict[str, Any] = (await http.get("/v1/sessions", headers=second.headers)).json()
    assert listed["items"] == []


@pytest.mark.proves("S2.13")
async def test_channel_permissions_hold_for_the_api(http: httpx.AsyncClient, world: World) -> None:
    session = (await send(http, world, "sessions", 201, agent="deployer"))["id"]
    job = (await send(http, world, "jobs", 201, agent="deployer"))["id"]
    chat = (await world.say("over a chat")).job_id
    for id in (job, chat):
        await send(http, world, f"jobs/{id}/cancel")
    await send(http, world, "agents/deployer", method="PATCH", channel_permissions=["slack"])
    for place, body in (
        (f"jobs/{job}/resubmit", {}),
        ("sessions", {"agent": "deployer"}), ("jobs", {"agent": "deployer"}),
        ("jobs", {"agent": "deployer", "session_id": session}), (f"sessions/{session}/messages", {"text": "hi"}),
    ):  # fmt: skip
        assert (await send(http, world, place, 403, **body))["code"] == "channel_not_permitted"
    await send(http, world, f"jobs/{chat}/resubmit", 201)  # it came over a channel
    await send(http, world, "agents/deployer", method="PATCH", channel_permissions=["slack", "api"])
    await send(http, world, f"sessions/{session}/messages", 201, text="hi")
    await send(http, world, f"jobs/{job}/resubmit", 201)


@pytest.mark.proves("S4.205")
async def test_the_event_of_a_call_carries_its_redacted_input(http: httpx.AsyncClient, world: World) -> None:
    gate, app = Gate(), App("tests")

    @app.tool(read_only=True)
    async def look(what: str, password: str, badge: str) -> str:
        """Looks."""
        await gate.passed()
        return what

    await send(http, world, "org", method="PATCH", settings={"redact": ["badge"]})
    secrets = {"password": "hunter2hunter2", "badge": "7741"}
    looks = [call("look", what="a", **secrets), call("look", what="b" * 9000, **secrets)]
    job = await submit(world, await make_agent(world, [turn(*looks)]))
    async with working(world.db, app, settings=FAST):
        await gate.arrived(2)
        before = await events_of(http, world, f"jobs/{job}", "tool_call")
        gate.opened.set()
        await until(world, job, JobStatus.COMPLETED)
    after = await events_of(http, world, f"jobs/{job}", "tool_call")
    hidden = {"password": "[redacted]", "badge": "[redacted]"}
    assert before[0][1]["input"] == after[0][1]["input"] == {"what": "a", **hidden}
    for _, data in (before[1], after[1]):
        assert (data["truncated"], len(data["input"])) == (True, 8000)
    session = await session_of(http, world, job)
    assert await events_of(http, world, f"sessions/{session}", "tool_call") == after


@pytest.mark.proves("S4.206")
async def test_a_writing_call_of_a_guest_goes_to_the_approvers_of_the_agents_team(
    http: httpx.AsyncClient, strict: World
) -> None:
    app = App("tests")

    @app.tool()
    async def act() -> str:
        """Acts."""
        return "acted"

    await make_agent(strict, [turn(call("act"))])
    inbound = InboundMessage(external_user_id="guest", agent="scripted", text="please")
    async with working(strict.db, app, settings=FAST):
        told = await sessions.ingest_message(strict.db, strict.service.actor, strict.connection.id, inbound)
        failed = await until(strict, told.job_id, JobStatus.FAILED)
        assert "nobody can give it" in (failed.error_message or ""), "the team has no approvers"
        abe, far = await strict.person(Role.APPROVER, name="Abe"), await strict.person(Role.APPROVER, name="Far")
        await send(http, strict, f"members/{abe.member_id}", method="PATCH", teams=["main"])
        told = await sessions.ingest_message(strict.db, strict.service.actor, strict.connection.id, inbound)
        await until(strict, told.job_id, JobStatus.WAITING_FOR_APPROVAL)
        (card,) = (await read(http, abe, f"approvals?job_id={told.job_id}"))["items"]
        assert card["may_decide"] is True
        shown = (await read(http, abe, f"approvals/{card['id']}"))["approval"]
        decision = {"decision": "approved", "version": shown["version"], "input_hash": shown["input_hash"]}
        assert (await send(http, far, f"approvals/{card['id']}/decide", 403, **decision))["code"] == "not_an_approver"
        await send(http, abe, f"approvals/{card['id']}/decide", **decision)
        await until(strict, told.job_id, JobStatus.COMPLETED)
