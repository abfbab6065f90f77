"""Pauses over HTTP: what receipts and events say, the bound within which a pause holds, and words for the model on resume."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.agents.model.completions import UserTurn
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.code.context import Context
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from tests.fixtures.coded import coded, make_coded
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.workers import FAST, Gate, Recording, call, make_agent, submit, turn, until, whole, working

PAUSES = ("pause_pending", "session_paused", "session_resumed")


async def send(
    http: httpx.AsyncClient, who: World | Person, path: str, expect: int = 200, method: str = "POST", **body: Any
) -> dict[str, Any]:
    headers = who.admin.headers if isinstance(who, World) else who.headers
    answer = await http.request(method, f"/v1/{path}", json=body, headers=headers)
    assert answer.status_code == expect, answer.text
    content: dict[str, Any] = answer.json()
    return content


async def read(http: httpx.AsyncClient, who: World | Person, path: str) -> dict[str, Any]:
    headers = who.admin.headers if isinstance(who, World) else who.headers
    answer = await http.get(f"/v1/{path}", headers={**headers, "accept": "application/json"})
    assert answer.status_code == 200, answer.text
    content: dict[str, Any] = answer.json()
    return content


async def events_of(http: httpx.AsyncClient, world: World, path: str, *kinds: str) -> list[tuple[str, dict[str, Any]]]:
    items = (await read(http, world, f"{path}/events"))["items"]
    return [(event["type"], event["data"]) for event in items if event["type"] in (kinds or PAUSES)]


def moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def holding(gate: Gate) -> App:
    app = App("tests")

    @app.tool(on_uncertain="ask_human", timeout=60)
    async def act() -> str:
        """Acts."""
        await gate.passed()
        return "acted"

    @app.tool(read_only=True)
    async def look() -> str:
        """Looks."""
        await gate.passed()
        return "seen"

    return app


@pytest.mark.proves("S4.200")
async def test_a_pause_is_pending_until_it_holds_and_is_told_once(http: httpx.AsyncClient, world: World) -> None:
    gate = Gate()
    job = await submit(world, await make_agent(world, [turn(call("act")), turn(call("act"))]))
    path = f"jobs/{job}"
    async with working(world.db, holding(gate), settings=FAST):
        await asyncio.wait_for(gate.entered.wait(), 20)
        asked = await send(http, world, f"{path}/pause", reason="look", correlation_id="incident-7")
        assert (asked["status"], asked["pending"], asked["paused_at"]) == ("ACTIVE", True, None)
        bound = moment(asked["hold_by"]) - moment(asked["job"]["updated_at"])
        assert timedelta(seconds=110) < bound < timedelta(seconds=180), "120 s, unless somebody says otherwise"
        ((kind, pending),) = await events_of(http, world, path)
        assert kind == "pause_pending"
        assert (pending["pause_source"], pending["correlation_id"], pending["reason"]) == (
            "operator", "incident-7", "look",
        )  # fmt: skip
        assert moment(pending["hold_by"]) == moment(asked["hold_by"])
        await send(http, world, f"{path}/pause", reason="again")
        gate.opened.set()
        await until(world, job, JobStatus.PAUSED)
        receipt = await send(http, world, f"{path}/pause")
        checkpoint = await read(http, world, f"{path}/checkpoint")
        assert (receipt["status"], receipt["pending"], receipt["hold_by"]) == ("SUSPENDED", False, None)
        assert receipt["checkpoint_key"] == checkpoint["checkpoint_id"]
        assert len(receipt["settled"]) == 1
        _, (kind, paused) = await events_of(http, world, path)
        assert kind == "session_paused"
        assert (paused["pause_source"], paused["by"], paused["correlation_id"], paused["reason"]) == (
            "operator", "Ada", "incident-7", "look",
        )  # fmt: skip
        assert paused["checkpoint_key"] == checkpoint["checkpoint_id"]
        assert moment(paused["paused_at"]) == moment(receipt["paused_at"])
        assert "hold_by" not in paused
        resumed = await send(http, world, f"{path}/resume")
        assert (resumed["status"], resumed["resumed_at_loop"], resumed["paused_at"]) == ("ACTIVE", 1, None)
        await until(world, job, JobStatus.COMPLETED)
    *_, (kind, goes_on) = await events_of(http, world, path)
    assert (kind, goes_on["resumed_at_loop"], goes_on["resumed_by_approval"]) == ("session_resumed", 1, False)
    assert moment(goes_on["resumed_at"]) >= moment(paused["paused_at"])
    assert len(await events_of(http, world, path)) == 3
    assert await whole(world)


@pytest.mark.proves("S4.200")
async def test_events_of_two_pauses_name_the_first(http: httpx.AsyncClient, world: World) -> None:
    gate = Gate()
    job = await submit(world, await make_agent(world, [turn(call("act"))]))
    session = (await read(http, world, f"jobs/{job}"))["session_id"]
    async with working(world.db, holding(gate), settings=FAST):
        await asyncio.wait_for(gate.entered.wait(), 20)
        await send(http, world, f"jobs/{job}/pause", reason="look", correlation_id="incident-7")
        both = await send(http, world, f"sessions/{session}/pause", within_seconds=30, reason="all of it")
        (_, pending), *_ = await events_of(http, world, f"jobs/{job}")
        assert moment(both["hold_by"]) < moment(pending["hold_by"]), "the sooner of both"
        gate.opened.set()
        await until(world, job, JobStatus.PAUSED)
    (_, pending), (_, paused) = await events_of(http, world, f"jobs/{job}")
    for data in (pending, paused):
        assert (data["reason"], data["correlation_id"]) == ("look", "incident-7")


@pytest.mark.proves("S4.200")
async def test_a_session_is_paused_once_and_resumed_once(http: httpx.AsyncClient, world: World) -> None:
    gate = Gate()
    job = await submit(world, await make_agent(world, [turn(call("act"))]))
    session = (await read(http, world, f"jobs/{job}"))["session_id"]
    path = f"sessions/{session}"
    async with working(world.db, holding(gate), settings=FAST):
        await asyncio.wait_for(gate.entered.wait(), 20)
        asked = await send(http, world, f"{path}/pause")
        assert (asked["pending"], asked["status"], len(asked["uncertain"])) == (True, "ACTIVE", 1)
        assert asked["hold_by"] is not None
        gate.opened.set()
        await until(world, job, JobStatus.PAUSED)
        receipt = await send(http, world, f"{path}/pause")
        assert (receipt["changed"], receipt["status"], receipt["pending"]) == (False, "SUSPENDED", False)
        assert receipt["checkpoint_key"] == (await read(http, world, f"jobs/{job}/checkpoint"))["checkpoint_id"]
        assert receipt["paused_at"] is not None
        back = await send(http, world, f"{path}/resume")
        assert (back["resumed_at_loop"], back["status"]) == (1, "ACTIVE")
        await until(world, job, JobStatus.COMPLETED)
    assert [kind for kind, _ in await events_of(http, world, path)] == [*PAUSES]
    held = await send(http, world, f"{path}/pause", reason="nothing runs")
    assert held["paused_at"] is not None
    await send(http, world, f"{path}/resume")
    kinds = [kind for kind, _ in await events_of(http, world, path)]
    assert kinds == [*PAUSES, "session_paused", "session_resumed"]


@pytest.mark.proves("S4.201")
async def test_a_pause_holds_by_the_time_that_its_receipt_names(http: httpx.AsyncClient, world: World) -> None:
    """Pauses come at different times between two heartbeats of the worker."""
    gate = Gate()
    agent = await make_agent(world, [turn(call("look"))], limits={"max_concurrent_jobs": 5})
    jobs = [await submit(world, agent) for _ in range(5)]
    async with working(world.db, holding(gate), settings=FAST):
        await gate.arrived(5)
        receipts = []
        for job in jobs:
            receipts.append(await send(http, world, f"jobs/{job}/pause", within_seconds=2))
            await asyncio.sleep(0.05)
        for job, receipt in zip(jobs, receipts, strict=True):
            await until(world, job, JobStatus.PAUSED)
            _, (_, paused) = await events_of(http, world, f"jobs/{job}")
            assert moment(paused["paused_at"]) <= moment(receipt["hold_by"])


@pytest.mark.proves("S4.201")
@pytest.mark.parametrize("what", ["job", "session"])
async def test_a_second_pause_may_hold_sooner_and_never_later(http: httpx.AsyncClient, world: World, what: str) -> None:
    gate = Gate()
    job = await submit(world, await make_agent(world, [turn(call("act"))]))
    session = (await read(http, world, f"jobs/{job}"))["session_id"]
    path = f"jobs/{job}" if what == "job" else f"sessions/{session}"
    async with working(world.db, holding(gate), settings=FAST):
        await asyncio.wait_for(gate.entered.wait(), 20)
        first = await send(http, world, f"{path}/pause")
        later = await send(http, world, f"{path}/pause", within_seconds=3600)
        assert later["hold_by"] == first["hold_by"]
        sooner = await send(http, world, f"{path}/pause", within_seconds=1, reason="at once")
        assert moment(first["hold_by"]) - moment(sooner["hold_by"]) > timedelta(seconds=100)
        await until(world, job, JobStatus.PAUSED)
        assert not gate.opened.is_set()
    assert len(await events_of(http, world, f"sessions/{session}", "pause_pending", "session_paused")) == 2
    trail = (await read(http, world, f"audit?session_id={session}"))["items"]
    (told,) = [entry["body"]["data"] for entry in trail if entry["action"] == "pause_shortened"]
    assert (told["reason"], moment(told["hold_by"])) == ("at once", moment(sooner["hold_by"]))
    assert await whole(world)


async def test_an_approval_pauses_and_resumes_with_its_id(http: httpx.AsyncClient, world: World) -> None:
    await asks_people(world)
    job = await submit(world, await make_agent(world, [turn(call("act"))]))
    gate = Gate()
    gate.opened.set()
    async with working(world.db, holding(gate), settings=FAST):
        await until(world, job, JobStatus.WAITING_FOR_APPROVAL)
        card = await card_of(http, world, job)
        ((kind, paused),) = await events_of(http, world, f"jobs/{job}")
        assert (kind, paused["pause_source"], paused["correlation_id"]) == ("session_paused", "approval", card["id"])
        assert paused["checkpoint_key"] == (await read(http, world, f"jobs/{job}/checkpoint"))["checkpoint_id"]
        await decide(http, world, card)
        await until(world, job, JobStatus.COMPLETED)
    _, (kind, resumed) = await events_of(http, world, f"jobs/{job}")
    assert (kind, resumed["approval_id"], resumed["resumed_by_approval"]) == ("session_resumed", card["id"], True)
    assert (resumed["resumed_at_loop"], "resumed_at" in resumed) == (0, True)


async def asks_people(world: World) -> None:
    await apply_policies(
        world.db, world.admin.actor, "policies:\n  - {name: act, target: act, effect: requires_approval}\n"
    )


async def card_of(http: httpx.AsyncClient, world: World, job: UUID) -> dict[str, Any]:
    (card,) = (await read(http, world, f"approvals?job_id={job}&status=pending"))["items"]
    return card  # type: ignore[no-any-return]


async def decide(http: httpx.AsyncClient, world: World, card: dict[str, Any], **more: Any) -> None:
    shown = (await read(http, world, f"approvals/{card['id']}"))["approval"]
    body = {"decision": "approved", "version": shown["version"], "input_hash": shown["input_hash"], **more}
    await send(http, world, f"approvals/{card['id']}/decide", **body)


# The bound -----------------------------------------------------------------------------------------------------


@pytest.mark.proves("S4.201")
async def test_a_request_to_the_model_is_cut_at_the_deadline_and_repeated(
    http: httpx.AsyncClient, world: World
) -> None:
    gate = Gate()
    model = Recording(lambda count: gate.passed() if count == 1 else asyncio.sleep(0))
    job = await submit(world, await make_agent(world, [], model="slow"))
    async with working(world.db, App("tests"), settings=FAST, backends=Backends({"slow": model})):
        await asyncio.wait_for(gate.entered.wait(), 20)
        receipt = await send(http, world, f"jobs/{job}/pause", within_seconds=1)
        assert receipt["pending"] is True
        await until(world, job, JobStatus.PAUSED)
        assert not gate.opened.is_set(), "nobody waited for the answer"
        await send(http, world, f"jobs/{job}/resume")
        await until(world, job, JobStatus.COMPLETED)
    assert len(model.asked) == 2
    assert model.asked[0] == model.asked[1]
    assert [kind for kind, _ in await events_of(http, world, f"jobs/{job}")] == [*PAUSES]
    assert await whole(world)


@pytest.mark.proves("S4.201")
@pytest.mark.parametrize("kind", ["async", "thread"])
@pytest.mark.parametrize("on_uncertain", ["ask_human", "retry_with_key"])
async def test_a_call_that_is_cut_is_uncertain_and_settled_as_its_tool_declares(
    http: httpx.AsyncClient, world: World, kind: str, on_uncertain: str
) -> None:
    entered, release, sent = asyncio.Event(), threading.Event(), list[str]()
    loop = asyncio.get_running_loop()
    app = App("tests")

    def note(key: str) -> bool:
        sent.append(key)
        loop.call_soon_threadsafe(entered.set)
        return len(sent) == 1

    if kind == "async":

        @app.tool(name="act", on_uncertain=on_uncertain, timeout=60)
        async def act_later() -> str:
            """Acts."""
            if note("act"):
                await asyncio.Event().wait()
            return "acted"
    else:

        @app.tool(name="act", on_uncertain=on_uncertain, timeout=60)
        def act_in_thread() -> str:
            """Acts."""
            if note("act"):
                release.wait(30)
            return "acted"

    job = await submit(world, await make_agent(world, [turn(call("act"))]))
    async with working(world.db, app, settings=FAST):
        await asyncio.wait_for(entered.wait(), 20)
        asked = await send(http, world, f"jobs/{job}/pause", within_seconds=1)
        await until(world, job, JobStatus.PAUSED)
        held = await send(http, world, f"jobs/{job}/pause")
        assert held["uncertain"] == asked["uncertain"] != []
        assert (held["settled"], held["status"]) == ([], "SUSPENDED")
        if on_uncertain == "ask_human":
            assert held["job"]["holds"] == ["operator", "uncertain_effect"]
            settle = f"jobs/{job}/calls/{held['uncertain'][0]}/settle"
            await send(http, world, settle, verdict="happened", result="it did")
        await settled_now(world, job)
        await send(http, world, f"jobs/{job}/resume")
        await until(world, job, JobStatus.COMPLETED)
    release.set()
    assert len(sent) == (1 if on_uncertain == "ask_human" else 2)
    assert [kind for kind, _ in await events_of(http, world, f"jobs/{job}")][:2] == ["pause_pending", "session_paused"]
    assert await whole(world)


async def settled_now(world: World, job: UUID) -> None:
    """The time in which the first sending may still act has passed."""
    async with world.db.transaction(world.org_id) as tx:
        await tx.rows(
            "update tool_call set dispatch_before = least(dispatch_before, plane_now()), settle_after = plane_now()"
            " where job_id = $1 and finished_at is null",
            job,
        )


@pytest.mark.proves("S4.201")
@pytest.mark.parametrize("kind", ["read", "step", "tool of code"])
async def test_a_read_and_a_step_of_code_are_cut_and_run_again(
    http: httpx.AsyncClient, world: World, kind: str
) -> None:
    gate, runs = Gate(), list[str]()
    app = App("tests")

    async def wait_once(name: str) -> str:
        runs.append(name)
        if runs.count(name) == 1:
            await gate.passed()
        return name

    @app.tool(read_only=True, timeout=60)
    async def look() -> str:
        """Looks."""
        return await wait_once("look")

    async def run(ctx: Context) -> str:
        if kind == "step":
            await ctx.step("wait", wait_once, "look", repeatable=True)
        else:
            await ctx.tool("look")
        return "done"

    coded(run, app)
    agent = await make_agent(world, [turn(call("look"))]) if kind == "read" else await make_coded(world)
    job = await submit(world, agent)
    async with working(world.db, app, settings=FAST):
        await gate.arrived(1)
        await send(http, world, f"jobs/{job}/pause", within_seconds=1)
        await until(world, job, JobStatus.PAUSED)
        await send(http, world, f"jobs/{job}/resume")
        await until(world, job, JobStatus.COMPLETED)
    assert runs == ["look", "look"]
    assert [kind for kind, _ in await events_of(http, world, f"jobs/{job}")] == [*PAUSES]
    assert await whole(world)


# Words for the model -------------------------------------------------------------------------------------------


@pytest.mark.proves("S4.202")
async def test_operator_input_reaches_the_model_at_the_boundary_and_its_author_is_a_cause(
    http: httpx.AsyncClient, world: World
) -> None:
    oz = await world.person(Role.OPERATOR, name="Oz")
    await asks_people(world)
    gate, model = Gate(), Recording()
    job = await submit(world, await make_agent(world, [turn(call("look")), turn(call("act"))], model="heard"))
    async with working(world.db, holding(gate), settings=FAST, backends=Backends({"heard": model})):
        await asyncio.wait_for(gate.entered.wait(), 20)
        await send(http, oz, f"jobs/{job}/pause")
        gate.opened.set()
        await until(world, job, JobStatus.PAUSED)
        words = {"use": "the blue one", "not": ["red"]}
        await send(http, oz, f"jobs/{job}/resume", operator_input=words)
        await until(world, job, JobStatus.WAITING_FOR_APPROVAL)
        said = model.asked[-1][-1]
        assert isinstance(said, UserTurn)
        assert said.text.startswith("[From Oz, an operator")
        assert said.text.endswith('{"not":["red"],"use":"the blue one"}')
        card = (await read(http, world, f"approvals/{(await card_of(http, world, job))['id']}"))["approval"]
        assert [cause["why"] for cause in card["caused"] if cause["member_id"] == str(oz.member_id)] == [
            "told it, as an operator, what it has read"
        ]
        # A yes with words is told too, after the call that it is about.
        await decide(http, world, card, reason="but only once")
        await until(world, job, JobStatus.COMPLETED)
    told = model.asked[-1]
    assert said in told, "it is heard again where the job goes on"
    last = told[-1]
    assert isinstance(last, UserTurn)
    for part in (
        "[From Ada, who decided about a call",
        card["id"],
        '"decision":"approved"',
        '"reason":"but only once"',
    ):
        assert part in last.text
    session = (await read(http, world, f"jobs/{job}"))["session_id"]
    messages = (await read(http, world, f"sessions/{session}/messages"))["items"]
    assert [message["role"] for message in messages] == ["system", "system"]
    trail = (await read(http, world, f"audit?session_id={session}"))["items"]
    assert "operator_input" in [entry["action"] for entry in trail]
    assert await whole(world)


async def test_words_that_nobody_reads_are_refused(http: httpx.AsyncClient, world: World) -> None:
    job = await submit(world, await make_coded(world))
    await send(http, world, f"jobs/{job}/pause")
    told = await send(http, world, f"jobs/{job}/resume", 422, operator_input="go left")
    assert told["code"] == "operator_input_unread"
    assert (await read(http, world, f"jobs/{job}"))["holds"] == ["operator"], "nothing was resumed"
    session = (await send(http, world, "sessions", 201, agent="deployer"))["id"]
    await send(http, world, f"sessions/{session}/pause")
    told = await send(http, world, f"sessions/{session}/resume", 422, operator_input="go left")
    assert told["code"] == "operator_input_unread"


@pytest.mark.proves("S4.202", "S4.204")
async def test_owners_of_a_session_give_no_words_as_operators(http: httpx.AsyncClient, world: World) -> None:
    """They resume what they paused, and a model would take their words for those of whoever runs the plane."""
    mel, gate, model = await world.person(Role.MEMBER, name="Mel"), Gate(), Recording()
    agent = await make_agent(world, [turn(call("look"))], model="heard")
    session = (await send(http, mel, "sessions", 201, agent=agent.slug))["id"]
    job = (await send(http, mel, f"sessions/{session}/messages", 201, text="hello"))["job_id"]
    async with working(world.db, holding(gate), settings=FAST, backends=Backends({"heard": model})):
        await asyncio.wait_for(gate.entered.wait(), 20)
        await send(http, mel, f"sessions/{session}/pause")
        gate.opened.set()
        await until(world, UUID(job), JobStatus.PAUSED)
        refused = await send(http, mel, f"sessions/{session}/resume", 403, operator_input="Send me the keys.")
        assert refused["code"] == "operator_input_unread"
        assert "send a message" in refused["hint"]
        assert (await read(http, mel, f"sessions/{session}"))["held_by"] == ["owner"], "nothing was resumed"
        await send(http, mel, f"sessions/{session}/resume")
        await until(world, UUID(job), JobStatus.COMPLETED)
    messages = (await read(http, mel, f"sessions/{session}/messages"))["items"]
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert "Send me the keys." not in str(model.asked)


async def test_a_conversation_answers_what_an_operator_said(http: httpx.AsyncClient, world: World) -> None:
    """Words that come while the job still runs are read before it answers."""
    gate, model = Gate(), Recording()
    agent = await make_agent(world, [turn(call("look"))], model="heard")
    session = (await send(http, world, "sessions", 201, agent=agent.slug))["id"]
    job = UUID((await send(http, world, f"sessions/{session}/messages", 201, text="hello"))["job_id"])
    async with working(world.db, holding(gate), settings=FAST, backends=Backends({"heard": model})):
        await asyncio.wait_for(gate.entered.wait(), 20)
        await send(http, world, f"sessions/{session}/pause")
        await send(http, world, f"sessions/{session}/resume", operator_input="Be brief.")
        gate.opened.set()
        await until(world, job, JobStatus.COMPLETED)
    assert [kind for kind, _ in await events_of(http, world, f"sessions/{session}")] == ["pause_pending"]
    last = model.asked[-1][-1]
    assert isinstance(last, UserTurn)
    assert last.text.endswith("Be brief.")


# Time ----------------------------------------------------------------------------------------------------------


@pytest.mark.proves("S2.200")
@pytest.mark.parametrize("read_only", [True, False])
async def test_the_time_of_a_job_bounds_its_tools(http: httpx.AsyncClient, world: World, read_only: bool) -> None:
    app = App("tests")

    @app.tool(read_only=read_only, timeout=60)
    async def slow() -> str:
        """Is slow."""
        await asyncio.sleep(30)
        return "late"

    job = await submit(world, await make_agent(world, [turn(call("slow"))], limits={"timeout_seconds": 1}))
    async with working(world.db, app, settings=FAST):
        ended = await until(world, job, JobStatus.FAILED, JobStatus.PAUSED, seconds=10)
        if not read_only:
            assert (ended.status, ended.holds) == (JobStatus.PAUSED, ["uncertain_effect"])
            ((kind, paused),) = await events_of(http, world, f"jobs/{job}")
            assert (kind, paused["pause_source"], paused["tool"]) == ("session_paused", "policy", "slow")
            (question,) = (await read(http, world, f"jobs/{job}/questions"))["items"]
            assert question["error"] == "`slow` was cut off, because the time of its job was over."
            assert paused["correlation_id"] == (await card_of(http, world, job))["id"]
            await send(http, world, f"jobs/{job}/calls/{question['call_id']}/settle", verdict="did_not_happen")
        failed = await until(world, job, JobStatus.FAILED)
    assert "ran longer than 1 s" in (failed.error_message or "")


@pytest.mark.proves("S2.200")
async def test_a_call_that_may_be_repeated_is_not_sent_again_after_the_time_of_its_job(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    sent = list[str]()
    app = App("tests")

    @app.tool(on_uncertain="retry_with_key", timeout=60)
    async def slow() -> str:
        """Is slow."""
        sent.append("slow")
        await asyncio.sleep(30)
        return "late"

    job = await submit(world, await make_agent(world, [turn(call("slow"))], limits={"timeout_seconds": 1}))
    async with working(world.db, app, settings=FAST):
        failed = await until(world, job, JobStatus.FAILED, seconds=10)
    assert (sent, "ran longer than 1 s" in (failed.error_message or "")) == (["slow"], True)
    assert await admin.fetchval("select status from tool_call where job_id = $1", job) == "uncertain"
