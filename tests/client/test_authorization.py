"""What adapters of agent frameworks ask the plane, and that nothing runs where it does not say so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from cortex_plane import Client
from cortex_plane.agents.model.tool_names import ToolNames
from cortex_plane.agents.model.tools import ToolError
from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.calls.model import ReportedUsage, call_key
from cortex_plane.client import authorization
from cortex_plane.client.authorization import Advice, PlaneAnswer, PlaneCalls, ToolOptions
from cortex_plane.client.dialogue import ApprovalPending, InDoubt
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.tenancy.model.access import Grantable
from cortex_plane.tenancy.model.orgs import Role
from tests.client.test_guard import decide_soon, ledger
from tests.conftest import Urls
from tests.fixtures.apart import Apart, beside
from tests.fixtures.people import World, apply_policies

SCHEMA = {"type": "object", "properties": {"cents": {"type": "integer"}}, "required": ["cents"]}
INNER_ASKS = """
policies:
  - {name: ask, target: "inner.*", effect: requires_approval}
  - {name: rest, target: "*", effect: allow}
"""
REFUND = ToolOptions(parameters=SCHEMA, timeout=60)


@pytest.fixture
def server(urls: Urls) -> Iterator[Apart]:
    with beside(urls.app) as running:
        yield running


@pytest_asyncio.fixture
async def careful(server: Apart, strict: World) -> AsyncIterator[Client]:
    async with Client(server.url, strict.service.secret) as client:
        yield client


@pytest_asyncio.fixture
async def plane(server: Apart, world: World) -> AsyncIterator[Client]:
    async with Client(server.url, world.service.secret) as client:
        yield client


def calls_of(plane: Client, session: str = "thread 1", **more: Any) -> PlaneCalls:
    return PlaneCalls(plane, agent="deployer", session=session, names=ToolNames(prefix="agent"), **more)


@pytest.mark.proves("D.935")
@pytest.mark.parametrize("face", ["async", "sync"])
async def test_a_call_waits_runs_once_as_approved_and_is_used_afterwards(
    server: Apart, careful: Client, strict: World, face: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def ask(key: str, tool: ToolOptions = REFUND) -> PlaneAnswer:
        # As after a restart: nothing of an earlier question is known.
        async with Client(server.url, strict.service.secret) as client:
            calls = calls_of(client)
            if face == "sync":
                return await asyncio.to_thread(calls.sync.authorize, "createRefund", {"cents": 5}, key, tool)
            return await calls.authorize("createRefund", {"cents": 5}, key, tool)

    first = await ask("call 1")
    assert (first.next, first.tool, first.attempt) == (Advice.WAIT, "agent.create_refund", 1)
    assert first.link == f"{server.url}/approvals/{first.approval_id}"
    assert first.deadline is not None
    await decide_soon(strict, arguments={"cents": 4})
    run = await ask("call 1")
    assert (run.next, run.arguments, run.edited, run.call_id) == (Advice.RUN, {"cents": 4}, True, first.call_id)
    assert run.edit_note == 'An approver changed the arguments: it ran with {"cents":4}.'
    # Another process, while this one runs it.
    assert (await ask("call 1")).next is Advice.DOUBT
    calls = calls_of(careful)
    if face == "sync":
        await asyncio.to_thread(calls.sync.completed, run, {"id": "r-1"})
    else:
        await calls.completed(run, {"id": "r-1"})
    used = await ask("call 1")
    assert (used.next, used.result) == (Advice.USE, {"id": "r-1"})
    with caplog.at_level(logging.WARNING, "cortex_plane"):
        waiting = asyncio.create_task(ask("call 2", ToolOptions(parameters=SCHEMA, timeout=60, wait=30)))
        await decide_soon(strict, Choice.DENIED, reason="no more today")
        denied = await waiting
    assert denied.next is Advice.STOP
    assert "no more today" in str(denied.reason)
    (line,) = [record.getMessage() for record in caplog.records if "waits for a person" in record.getMessage()]
    assert line.endswith(f"{server.url}/approvals/{denied.approval_id}")
    (session,) = [session async for session in careful.sessions.list(outside_id="thread 1")]
    assert session.kind == "external"


@pytest.mark.proves("D.935")
async def test_a_killed_process_leaves_a_doubt_for_whatever_id_the_model_gives(plane: Client, world: World) -> None:
    dead, alive = calls_of(plane, runner="dead"), calls_of(plane, runner="alive")
    begun = await dead.authorize("pay", {"n": 1}, "id-1")
    assert begun.next is Advice.RUN
    again = await alive.authorize("pay", {"n": 1}, "id-2")
    assert (again.next, again.call_id) == (Advice.DOUBT, begun.call_id)
    await dead.unknown(begun, "it may have been sent")
    asked = await alive.authorize("pay", {"n": 1}, "id-2")
    assert asked.next is Advice.DOUBT
    assert asked.approval_id is not None
    # Equal calls of one process both run.
    pair = [await alive.authorize("pay", {"n": 2}, key) for key in ("a", "b")]
    assert [answer.next for answer in pair] == [Advice.RUN, Advice.RUN]
    await alive.failed(pair[0], "no")
    await alive.parked(pair[1], "what it called waits")
    assert (await alive.authorize("pay", {"n": 2}, "a")).next is Advice.STOP
    parked = await alive.authorize("pay", {"n": 2}, "b", ToolOptions(parks=True))
    assert (parked.next, parked.attempt) == (Advice.RUN, 2)
    await alive.raised(parked, ApprovalPending("a subagent"))
    # A turn of a thread is counted once, and another thread has turns of its own.
    for calls in (alive, dead, calls_of(plane, "thread 2")):
        await calls.report_usage(ReportedUsage(model="m", prompt_tokens=3, completion_tokens=4), key="Zug 1 ↻")
    assert [row.prompt_tokens async for row in plane.usage.list()] == [6]
    assert {call.status for call in await ledger(world)} == {"uncertain", "failed", "parked"}


@pytest.mark.proves("D.931")
async def test_a_guarded_function_around_one_that_waits_is_parked_where_it_says_so(plane: Client, world: World) -> None:
    await apply_policies(world.db, world.admin.actor, INNER_ASKS)
    charges = []

    @plane.guard("inner.act", agent="deployer", key="inner", wait=0)
    def inner() -> str:
        return "acted"

    @plane.guard("outer.act", agent="deployer", key="outer", parks=True)
    def outer() -> str:
        return f"outer {inner()}"

    with pytest.raises(InvalidInput, match="needs a `key`"):
        plane.guard("outer.act", agent="deployer", parks=True)(outer)
    for _ in range(2):
        with pytest.raises(ApprovalPending):
            await asyncio.to_thread(outer)
        assert [(call.tool, call.status) for call in await ledger(world)] == [
            ("outer.act", "parked"), ("inner.act", "awaiting"),
        ]  # fmt: skip
    await decide_soon(world)
    assert await asyncio.to_thread(outer) == "outer acted"
    assert [(call.status, call.attempt) for call in await ledger(world)] == [("completed", 3), ("completed", 1)]

    @plane.guard("inner.late", agent="deployer", wait=0)
    def late() -> str:
        return "acted"

    @plane.guard("charge.act", agent="deployer", key="charge", wait=0)
    def charge() -> str:
        charges.append("charged")
        return late()

    # Nobody said that it may act twice: what it did before it called the other one is not repeated.
    with pytest.raises(ApprovalPending):
        await asyncio.to_thread(charge)
    with pytest.raises(InDoubt):
        await asyncio.to_thread(charge)
    assert charges == ["charged"]


@pytest.mark.proves("D.931")
async def test_a_process_that_ends_leaves_its_parked_calls_for_the_next_one(server: Apart, world: World) -> None:
    waits = True

    def outer_of(client: Client) -> Callable[[], str]:
        @client.guard("outer.act", agent="deployer", key="outer", parks=True)
        def outer() -> str:
            if waits:
                raise ApprovalPending("another agent waits")
            return "acted"

        return outer

    async with Client(server.url, world.service.secret) as client:
        with pytest.raises(ApprovalPending):
            await asyncio.to_thread(outer_of(client))
    waits = False
    async with Client(server.url, world.service.secret) as client:
        assert await asyncio.to_thread(outer_of(client)) == "acted"


@pytest.mark.proves("D.935")
@pytest.mark.parametrize("face", ["async", "sync"])
async def test_running_a_call_reports_whatever_becomes_of_it(plane: Client, world: World, face: str) -> None:
    calls = calls_of(plane)
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def act(n: int) -> int:
        if n == 2:
            raise ToolError("nothing happened")
        if n == 3:
            raise SystemExit
        return n

    async def act_slowly(n: int) -> int:
        if n == 3:
            loop.call_soon(begun.set)
            await asyncio.Event().wait()
        return act(n)

    async def run(n: int) -> int:
        answer = await calls.authorize("pay", {"n": n}, str(n))
        if face == "async":
            return await calls.run(answer, act_slowly)
        return await asyncio.to_thread(calls.sync.run, answer, act)

    assert await run(1) == 1
    with pytest.raises(ToolError):
        await run(2)
    if face == "async":
        task = asyncio.create_task(run(3))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        with pytest.raises(SystemExit):
            await run(3)
    assert [call.status for call in await ledger(world)] == ["completed", "failed", "uncertain"]
    with pytest.raises(InvalidInput, match="may not run"):
        await run(1)


@pytest.mark.proves("D.935")
async def test_a_session_that_somebody_ended_stops_its_calls_and_the_next_run_opens_one(plane: Client) -> None:
    calls = calls_of(plane)
    await calls.completed(await calls.authorize("pay", {}, "1"), None)
    (session,) = [session async for session in plane.sessions.list(outside_id="thread 1")]
    await plane.sessions.terminate(session.id)
    for _ in range(2):
        stopped = await calls.authorize("pay", {}, "2")
        assert stopped.next is Advice.STOP
        assert "over" in str(stopped.reason)
    # Calls at once, of an object that never used the session that ended.
    calls = calls_of(plane)
    answers = await asyncio.gather(*(calls.authorize("pay", {"n": n}, str(n)) for n in (2, 3, 4)))
    assert [answer.next for answer in answers] == [Advice.RUN] * 3
    # What ran stays known.
    assert (await calls.authorize("pay", {}, "1")).next is Advice.USE
    assert len([session async for session in plane.sessions.list(outside_id="thread 1")]) == 2


def answers(*responses: Any) -> httpx.MockTransport:
    """A plane that opens sessions, and answers calls with these."""
    rest = iter(responses)

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/sessions":
            return httpx.Response(201, json={"id": "s"})
        response = next(rest)
        if isinstance(response, Exception):
            raise response
        return response if isinstance(response, httpx.Response) else httpx.Response(201, json=response)

    return httpx.MockTransport(answer)


CALL = {
    "id": "c", "tool": "look", "arguments": {}, "edited": False, "attempt": 1, "approval_id": None, "deadline": None, "reason": None,
    "result": None, "held": False, "dispatch_before": None, "now": None, "input_hash": "0" * 64, "session_id": "s",
}  # fmt: skip
KNOWN = {"status": "allowed", "dispatch_before": None, "now": None, "id": "c", "held": False, "reason": None}


@pytest.mark.proves("D.936")
@pytest.mark.parametrize(
    ("response", "words"),
    [
        (httpx.ConnectError("refused"), "does not answer"),
        (
            httpx.Response(401, json={"code": "unauthenticated", "detail": "No such key.", "hint": "Make one."}),
            "No such key. Make one.",
        ),
        (httpx.Response(200, text="<html>"), "cannot be read"),
        (httpx.Response(200, json=[1]), "cannot be read"),
        (httpx.Response(200, json={}), "cannot be read"),
        (KNOWN | {"next": "fly"}, "does not know"),
        (KNOWN | {"next": None}, "does not know"),
        (KNOWN | {"next": "run", "dispatch_before": "tomorrow"}, "cannot be read"),
        (httpx.Response(503, text="no"), "cannot be reached"),
        (httpx.Response(302, text=""), "cannot be read"),
    ],
)
async def test_whatever_goes_wrong_nothing_runs(response: Any, words: str) -> None:
    repeated = [response] * 20
    async with Client("http://plane", "key", transport=answers(*repeated)) as client:
        answer = await calls_of(client, patience=0).authorize("pay", {}, "1")
    assert answer.next is Advice.STOP
    assert words in str(answer.reason)


@pytest.mark.proves("D.936")
async def test_reports_raise_nothing_where_the_answer_cannot_be_read(caplog: pytest.LogCaptureFixture) -> None:
    run = PlaneAnswer(next=Advice.RUN, tool="look", arguments={}, call_id="c")
    usage = ReportedUsage(model="m", prompt_tokens=1, completion_tokens=1)
    async with Client("http://plane", "key", transport=answers(*[httpx.Response(200, text="<html>")] * 3)) as client:
        await calls_of(client).completed(run, 1)
        await calls_of(client).report_usage(usage)
        await calls_of(client).report_usage(usage, key="")
    assert caplog.text.count("cannot be read") == 2
    assert "must be a text" in caplog.text


@pytest.mark.proves("D.936")
async def test_a_tool_may_run_without_the_plane_where_it_says_so(caplog: pytest.LogCaptureFixture) -> None:
    tool = ToolOptions(when_unreachable="run")
    down = httpx.ConnectError("refused")
    async with Client("http://plane", "key", transport=answers(down, down)) as client:
        calls = calls_of(client, patience=0)
        answer = await calls.authorize("look", {"n": 1}, "1", tool)
        assert (answer.next, answer.is_guarded, answer.arguments) == (Advice.RUN, False, {"n": 1})
        await calls.completed(answer, None)
    assert "runs unguarded" in caplog.text
    # Once the plane has said something about the call, its word counts: the arguments were edited, the call waits, the plane is busy.
    approved = CALL | {"edited": True, "arguments": {"n": 2}, "status": "approved", "next": "begin"}
    awaiting = httpx.Response(409, json={"code": "call_awaiting", "detail": "Nobody has approved it.", "hint": None})
    busy = httpx.Response(429, json={"code": "too_many_requests", "detail": "Too many.", "hint": None})
    over = httpx.Response(409, json={"code": "external_over", "detail": "It is over.", "hint": None})
    for responses in ((approved, down, down), (approved, awaiting, down, down), (busy, busy), (over, down, down)):
        async with Client("http://plane", "key", transport=answers(*responses)) as client:
            answer = await calls_of(client, patience=0).authorize("look", {"n": 1}, "1", tool)
            assert answer.next is Advice.STOP, responses
    # A session that is over again and again.
    async with Client("http://plane", "key", transport=answers(*[over] * 2)) as client:
        assert "It is over" in str((await calls_of(client).authorize("look", {}, "1")).reason)
    wrong_key = httpx.Response(401, json={"code": "unauthenticated", "detail": "No.", "hint": None})
    async with Client("http://plane", "key", transport=answers(wrong_key)) as client:
        assert (await calls_of(client, patience=0).authorize("look", {}, "1", tool)).next is Advice.STOP
        # What cannot be named or shown is refused before anything is sent.
        for arguments in ({"at": object()}, None, [1], "x"):
            refused: Any = arguments
            assert (await calls_of(client).authorize("look", refused, "1", tool)).next is Advice.STOP
        nothing: Any = None
        assert (await calls_of(client).authorize("look", {}, nothing, tool)).next is Advice.STOP
        calls = PlaneCalls(client, agent="deployer", session="t", names=ToolNames(["getUser"]))
        assert "getUser" in str((await calls.authorize("get_user", {}, "1", tool)).reason)


@pytest.mark.proves("D.935")
def test_keys_are_made_of_session_and_call() -> None:
    assert call_key("thread-1", "toolu_01") == "thread-1:toolu_01"
    hashed = [call_key("thread 1", "a"), call_key("thread 1", "b"), call_key("x" * 255, "a")]
    assert len(set(hashed)) == 3
    assert all(key.startswith("sha256:") and len(key) == 71 for key in hashed)
    # No two pairs have the same key.
    pairs = [("a:b", "c"), ("a", "b:c"), ("a%3Ab", "c"), ("a:b:c", "d"), ("sha256", hashed[0].removeprefix("sha256:"))]
    assert len({*(call_key(*pair) for pair in pairs), hashed[0]}) == 6
    unusable: list[Any] = [None, 7, ""]
    for key in unusable:
        with pytest.raises(InvalidInput):
            call_key("t", key)


@pytest.mark.proves("D.1020")
async def test_adapters_and_guards_say_for_whom_a_service_works(server: Apart, world: World) -> None:
    pat, kim = await world.person(Role.MEMBER), await world.person(Role.MEMBER)
    service = await world.service_with(Role.MEMBER, permissions=[Grantable.SESSION_ON_BEHALF])
    async with Client(server.url, service.secret) as plane:
        for person in (pat, kim):
            answer = await calls_of(plane, on_behalf_of=str(person.member_id)).authorize("pay", {"n": 1}, "id-1")
            assert answer.next is Advice.RUN

        @plane.guard("pay", agent="deployer", on_behalf_of=lambda whom: whom)
        async def pay(whom: str) -> None: ...

        for person in (pat, kim, pat):
            await pay(str(person.member_id))
        with pytest.raises(InvalidInput, match="names nobody"):
            await pay("")
        owners = [session.user_account_id async for session in plane.sessions.list()]
    assert sorted(owners, key=str) == sorted([pat.member_id, kim.member_id] * 2, key=str)
    async with Client(server.url, world.service.secret) as plane:
        refused = await calls_of(plane, on_behalf_of=str(pat.member_id)).authorize("pay", {"n": 1}, "id-1")
    assert refused.next is Advice.STOP
    assert "session.on_behalf" in str(refused.reason)


class Lossy(httpx.AsyncBaseTransport):
    """Loses what is reported, as often as it should."""

    def __init__(self, losses: float) -> None:
        self.losses = losses
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.endswith("/outcome") and self.losses > 0:
            self.losses -= 1
            raise httpx.ConnectError("lost", request=request)
        return await self._inner.handle_async_request(request)

    async def aclose(self) -> None:
        await self._inner.aclose()


@pytest.mark.proves("D.1091")
@pytest.mark.parametrize("losses", [1, 2])
async def test_a_lost_report_is_no_leave_to_run_the_same_call_again(
    server: Apart, world: World, monkeypatch: pytest.MonkeyPatch, losses: int
) -> None:
    """The model makes the call again under a new id, in the process where nobody knows what became of the first one."""
    monkeypatch.setattr(authorization, "_runner", authorization._Runner())
    ran: list[int] = []

    async def pay(cents: int) -> None:
        ran.append(cents)
        raise RuntimeError("connection reset")

    async with Client(server.url, world.service.secret, transport=Lossy(losses)) as client:
        calls = calls_of(client, patience=0.0)
        with pytest.raises(RuntimeError):
            await calls.run(await calls.authorize("pay", {"cents": 5}, "call-1"), pay)
        # Another object of the same program, as of the next request.
        again = await calls_of(client).authorize("pay", {"cents": 5}, "call-2")
        assert (again.next, ran) == (Advice.DOUBT, [5])
        (call,) = await ledger(world)
        # Once the report is there, a person is asked at once.
        assert call.status == ("uncertain" if losses == 1 else "intended")
        assert (await calls.authorize("pay", {"cents": 6}, "call-3")).next is Advice.RUN
        assert [call.status for call in await ledger(world)] == ["uncertain", "intended"]
