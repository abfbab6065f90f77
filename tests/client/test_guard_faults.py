"""`plane.guard` against its own surroundings: objects that change, functions inside of others, a plane that is busy."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import asyncpg
import httpx
import pytest
import pytest_asyncio

from cortex_plane import Client, ToolError
from cortex_plane.agents.model.tools import Happened
from cortex_plane.approvals.model.approvals import Approval, ApprovalDecision, ApprovalStatus, Channel, Choice
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.calls.model import CallDraft, CallShown, ExternalCall, Next
from cortex_plane.calls.verbs import calls
from cortex_plane.client import dialogue
from cortex_plane.client.dialogue import CallFailed, TimedOut
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.http.streams import wait_for_decision
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.sessions.model.sessions import SessionDraft, SessionKind
from cortex_plane.sessions.verbs.events import QUEUE, EventFeed
from tests.conftest import Urls
from tests.fixtures.apart import Apart, beside
from tests.fixtures.clock import Clock
from tests.fixtures.guards import left_behind_ended
from tests.fixtures.people import World


@pytest.fixture
def apart(urls: Urls) -> Iterator[Apart]:
    with beside(urls.app) as running:
        yield running


@pytest_asyncio.fixture
async def plane(apart: Apart, world: World) -> AsyncIterator[Client]:
    async with Client(apart.url, world.service.secret) as client:
        yield client
        await left_behind_ended()


async def ledger(world: World) -> list[CallShown]:
    return (await calls.list_calls(world.db, world.admin.actor, None, 100)).items[::-1]


async def until(check: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(30):
        while True:
            found = await check()
            if found:
                return found
            await asyncio.sleep(0.02)


async def pending(world: World) -> list[Approval]:
    page = await approvals.list_approvals(world.db, world.admin.actor, None, 10, status=ApprovalStatus.PENDING)
    return page.items


async def approved(world: World) -> None:
    card = (await until(lambda: pending(world)))[0]
    decision = ApprovalDecision(decision=Choice.APPROVED, version=card.version, input_hash=card.input_hash)
    await decisions.decide(world.db, world.admin.actor, card.id, decision, Channel.API)


# What is shown is what runs ---------------------------------------------------------------------------------------


@pytest.mark.proves("D.280")
async def test_what_changes_while_somebody_decides_is_not_run(apart: Apart, strict: World) -> None:
    ran: list[Any] = []
    passed: list[object] = []
    connection = object()
    orders = [{"order": "A"}]
    async with Client(apart.url, strict.service.secret) as careful:

        def act(orders: list[dict[str, str]], connection: object, *more: list[str]) -> None:
            ran.append((orders, more))
            passed.append(connection)

        async def act_async(orders: list[dict[str, str]], connection: object, *more: list[str]) -> None:
            act(orders, connection, *more)

        plain = careful.guard("act.plain", agent="deployer", leave_out=["connection"])(act)
        waits = careful.guard("act.async", agent="deployer", leave_out=["connection"])(act_async)
        for call in (lambda *a: asyncio.to_thread(plain, *a), waits):
            extra = ["x"]
            running = asyncio.ensure_future(call(orders, connection, extra))
            await until(lambda: pending(strict))
            orders[0]["order"] = "EVIL"
            orders.append({"order": "MORE"})
            extra.append("EVIL")
            await approved(strict)
            await running
            assert ran.pop() == ([{"order": "A"}], (["x"],))
            assert passed.pop() is connection
            orders[:] = [{"order": "A"}]


class _Sly(dict[str, int]):
    def __getitem__(self, key: str) -> int:
        return 999_999


class _Text(str):
    __slots__ = ()


@pytest.mark.proves("D.280")
async def test_objects_that_are_more_than_they_show_come_as_plain_json(plane: Client) -> None:
    @plane.guard("act.now", agent="deployer")
    def act(given: dict[str, int], name: str, many: Any) -> tuple[type, int, type, Any]:
        return type(given), given["cents"], type(name), many

    assert act(_Sly(cents=1), _Text("a"), (1, 2)) == (dict, 1, str, [1, 2])


# Functions inside of others ---------------------------------------------------------------------------------------


@pytest.mark.proves("D.281")
async def test_what_fails_inside_says_nothing_about_what_is_around_it(plane: Client, world: World) -> None:
    @plane.guard("act.inner", agent="deployer", key="inner")
    def inner() -> None:
        raise ToolError("no such order")

    @plane.guard("act.outer", agent="deployer")
    def outer() -> None:
        inner()

    # First its own error comes out of it, then that it failed before: the outer one may have acted each time.
    with pytest.raises(ToolError):
        outer()
    with pytest.raises(CallFailed) as failed:
        outer()
    assert failed.value.code == "call_failed"
    assert not isinstance(failed.value, ToolError)
    rows = await ledger(world)
    assert sorted((row.tool, row.status) for row in rows) == [
        ("act.inner", CallStatus.FAILED),
        ("act.outer", CallStatus.UNCERTAIN),
        ("act.outer", CallStatus.UNCERTAIN),
    ]


@pytest.mark.proves("D.281")
async def test_only_functions_are_guarded(plane: Client) -> None:
    class Thing:
        async def __call__(self) -> None: ...

    for thing in (functools.partial(print, 1), Thing()):
        with pytest.raises(TypeError, match="put on a function"):
            plane.guard("act.now", agent="deployer")(thing)


# Time -------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.281")
async def test_a_function_without_a_timeout_may_be_under_way_for_a_day(plane: Client, world: World) -> None:
    @plane.guard("act.now", agent="deployer")
    def act() -> None: ...

    act()
    (row,) = await ledger(world)
    assert (await calls.get_call(world.db, world.admin.actor, row.id)).timeout_seconds == 86_400
    with pytest.raises(InvalidInput, match="timeout"):
        plane.guard("act.look", agent="deployer", on_uncertain="probe", probe=lambda: None)(act)


@pytest.mark.proves("D.281")
async def test_what_returns_too_late_is_told_all_the_same(plane: Client, world: World) -> None:
    ends = threading.Event()

    @plane.guard("act.slow", agent="deployer", timeout=0.2)
    def slow(fails: bool) -> str:
        ends.wait(60)
        if fails:
            raise ToolError("nothing happened")
        return "done"

    for fails in (False, True):
        with pytest.raises(TimedOut):
            await asyncio.to_thread(slow, fails)
    assert {row.status for row in await ledger(world)} == {CallStatus.UNCERTAIN}
    ends.set()

    async def settled() -> list[CallShown]:
        rows = await ledger(world)
        return [] if any(row.status is CallStatus.UNCERTAIN for row in rows) else rows

    rows = await until(settled)
    assert [row.status for row in rows] == [CallStatus.COMPLETED, CallStatus.FAILED]
    assert await pending(world) == []


@pytest.mark.proves("D.281")
async def test_a_probe_gets_the_arguments_as_the_function_does(
    plane: Client, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    looked: list[Any] = []

    def probe(order: str, /, *more: str, **how: int) -> Happened:
        looked.append((order, more, how))
        return Happened("seen")

    @plane.guard("act.now", agent="deployer", key="k", on_uncertain="probe", probe=probe, timeout=5)
    def act(order: str, /, *more: str, **how: int) -> str:
        raise ValueError("connection reset")

    @plane.guard("act.later", agent="deployer", key="l", on_uncertain="probe", probe=probe, timeout=5)
    async def later(order: str, /, *more: str, **how: int) -> str:
        raise ValueError("connection reset")

    with pytest.raises(ValueError, match="reset"):
        await asyncio.to_thread(act, "A", "b", n=1)
    with pytest.raises(ValueError, match="reset"):
        await later("A", "b", n=1)
    await clock.advance(timedelta(hours=1))
    assert await asyncio.to_thread(act, "A", "b", n=1) == "seen"
    assert await later("A", "b", n=1) == "seen"
    assert looked == [("A", ("b",), {"n": 1})] * 2


# A plane that is busy, and callers that do not wait ---------------------------------------------------------------


class Way(httpx.AsyncBaseTransport):
    """The way to the plane, with things in it."""

    def __init__(self) -> None:
        self.inner = httpx.AsyncHTTPTransport(verify=False)
        self.refusals: dict[tuple[str, str], list[int]] = {}
        """By method and end of the path: how the next ones are answered before they arrive."""
        self.holds = ""
        self.arrived, self.lets_go = asyncio.Event(), asyncio.Event()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        for (method, end), statuses in self.refusals.items():
            if statuses and request.method == method and path.endswith(end):
                return httpx.Response(statuses.pop(0), text="busy")
        answer = await self.inner.handle_async_request(request)
        if self.holds and path.endswith(self.holds):
            self.arrived.set()
            await self.lets_go.wait()
        return answer

    async def aclose(self) -> None:
        await self.inner.aclose()


@pytest.mark.proves("D.281")
async def test_a_plane_that_is_busy_is_asked_again(apart: Apart, strict: World) -> None:
    way = Way()
    async with Client(apart.url, strict.service.secret, transport=way) as careful:

        @careful.guard("act.now", agent="deployer")
        async def act(n: int) -> int:
            return n

        way.refusals = {
            ("POST", "/v1/sessions"): [503, 429],
            ("POST", "/calls"): [429],
            ("POST", "/intent"): [429],
            ("POST", "/outcome"): [429],
        }
        running = asyncio.create_task(act(7))
        await approved(strict)
        assert await running == 7
    assert [row.status for row in await ledger(strict)] == [CallStatus.COMPLETED]
    assert not any(way.refusals.values())


@pytest.mark.proves("D.281")
async def test_too_many_who_wait_are_asked_to_wait_and_do(
    apart: Apart, strict: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialogue, "HELD_SECONDS", 0.05)
    way = Way()
    async with Client(apart.url, strict.service.secret, transport=way) as careful:

        @careful.guard("act.now", agent="deployer", key="k", wait=0)
        async def first(n: int) -> int:
            return n

        @careful.guard("act.now", agent="deployer", key="k")
        async def second(n: int) -> int:
            return n

        with pytest.raises(Exception, match="approve"):
            await first(7)
        (row,) = await ledger(strict)
        refused = way.refusals["GET", f"/v1/calls/{row.id}"] = [429, 429]
        running = asyncio.create_task(second(7))

        async def all_refused() -> bool:
            return refused == []

        await until(all_refused)
        await approved(strict)
        assert await running == 7


@pytest.mark.proves("D.281")
@pytest.mark.parametrize("held", ["/calls", "/intent"])
async def test_whoever_cancels_it_before_it_runs_leaves_no_doubt(
    apart: Apart, world: World, strict: World, held: str
) -> None:
    ran: list[int] = []
    way = Way()
    org = world if held == "/calls" else strict
    async with Client(apart.url, org.service.secret, transport=way) as client:

        @client.guard("act.now", agent="deployer")
        async def act(n: int) -> None:
            ran.append(n)

        way.holds = held
        running = asyncio.create_task(act(1))
        if org is strict:
            await approved(strict)
        await asyncio.wait_for(way.arrived.wait(), 30)
        running.cancel()
        way.lets_go.set()
        with pytest.raises(asyncio.CancelledError):
            await running

        async def settled() -> list[CallShown]:
            return [row for row in await ledger(org) if row.status is CallStatus.FAILED]

        (row,) = await until(settled)
    assert "not run" in (row.error or "")
    assert ran == []


@pytest.mark.proves("D.271")
async def test_a_wait_that_missed_something_is_answered(strict: World) -> None:
    actor = strict.service.actor
    session = await session_lifecycle.create(
        strict.db, actor, SessionDraft(agent="deployer", kind=SessionKind.EXTERNAL)
    )
    asked = await calls.authorize_call(strict.db, actor, session.id, CallDraft(tool="pay.out"))
    feed = EventFeed(strict.db)
    reads = 0

    async def read() -> tuple[ExternalCall, int]:
        nonlocal reads
        reads += 1
        if reads == 2:
            (live,) = feed._sessions[strict.org_id][session.id].readers
            live.give(cast("Any", [None] * (QUEUE + 1)))
        return await calls.watch_call(strict.db, actor, asked.id)

    async def is_gone() -> bool:
        return False

    try:
        call = await wait_for_decision(feed, strict.org_id, read, 3, is_gone)
    finally:
        feed.close()
    assert (call.next, reads) == (Next.WAIT, 2)
