"""`plane.guard`: functions of any kind behind a plane that runs elsewhere, and whatever can go wrong on the way."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio

from cortex_plane import Client, ToolError
from cortex_plane.approvals.model.approvals import ApprovalDecision, ApprovalStatus, Channel, Choice
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.calls.model import CallDraft, CallShown
from cortex_plane.calls.verbs import calls
from cortex_plane.client.dialogue import ApprovalPending, Denied, NotJson, TimedOut
from cortex_plane.client.guarding import current_call, default_name
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.errors import Conflict, InvalidInput, Unauthenticated, Unavailable
from cortex_plane.kernel.fields import Risk
from tests.conftest import Urls
from tests.fixtures.apart import Apart, beside
from tests.fixtures.guards import left_behind_ended
from tests.fixtures.people import World, apply_policies
from tests.fixtures.tool_confirmations import offered, publish
from tests.fixtures.workers import whole

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def server(urls: Urls) -> Iterator[Apart]:
    with beside(urls.app) as running:
        yield running


@pytest_asyncio.fixture
async def plane(server: Apart, world: World) -> AsyncIterator[Client]:
    async with Client(server.url, world.service.secret) as client:
        yield client
        await left_behind_ended()


@pytest_asyncio.fixture
async def careful(server: Apart, strict: World) -> AsyncIterator[Client]:
    """A client of an org where everything needs approval."""
    async with Client(server.url, strict.service.secret) as client:
        yield client
        await left_behind_ended()


async def ledger(world: World) -> list[CallShown]:
    return (await calls.list_calls(world.db, world.admin.actor, None, 100)).items[::-1]


async def decide_soon(world: World, choice: Choice = Choice.APPROVED, **more: Any) -> UUID:
    async with asyncio.timeout(30):
        while True:
            page = await approvals.list_approvals(world.db, world.admin.actor, None, 10, status=ApprovalStatus.PENDING)
            if page.items:
                break
            await asyncio.sleep(0.02)
    card = page.items[0]
    await decisions.decide(
        world.db,
        world.admin.actor,
        card.id,
        ApprovalDecision(decision=choice, version=card.version, input_hash=card.input_hash, **more),
        Channel.API,
    )
    return card.id


@pytest.mark.proves("D.280")
async def test_three_lines_put_a_function_behind_the_plane(server: Apart, plane: Client, world: World) -> None:
    @plane.guard("refunds.create", agent="deployer")
    def refund(order: str, cents: int = 100) -> str:
        return f"{cents} to {order}"

    # In a running event loop, and in the caller's own thread.
    assert refund("A") == "100 to A"
    assert await asyncio.to_thread(refund, "B", cents=5) == "5 to B"
    one, two = await ledger(world)
    assert (one.tool, one.status, one.verdict) == ("refunds.create", CallStatus.COMPLETED, "allow")
    detail = await calls.get_call(world.db, world.admin.actor, two.id)
    assert detail.arguments == {"order": "B", "cents": 5}
    assert detail.result == "5 to B"
    # A session once, and then two requests for each call, over one connection.
    assert server.made("/v1/sessions") == 1
    assert (server.made("/calls"), server.made("/outcome")) == (2, 2)
    assert len(server.requests) == 5
    assert refund.__name__ == "refund"


@pytest.mark.proves("D.280")
async def test_calls_one_after_the_other_share_a_connection(server: Apart, plane: Client) -> None:
    @plane.guard(agent="deployer")
    def act(n: int) -> int:
        return n

    assert [act(n) for n in range(5)] == list(range(5))
    assert len(server.connections) == 1


@pytest.mark.proves("D.280")
async def test_async_functions_methods_and_nested_guards(plane: Client, world: World) -> None:
    seen: list[str] = []

    class Shop:
        def __init__(self, name: str) -> None:
            self.name = name

        @plane.guard("shop.sell", agent="deployer")
        async def sell(self, what: str, *more: str, **how: int) -> str:
            call = current_call()
            assert call is not None
            seen.append(call.id)
            return f"{self.name}: {what} {more} {how}"

        @classmethod
        @plane.guard("shop.open", agent="deployer")
        def open(cls, where: str) -> str:
            return f"{cls.__name__} in {where}"

        @plane.guard("shop.close", agent="deployer")
        @classmethod
        def close(cls) -> str:
            return cls.__name__

        @staticmethod
        @plane.guard("shop.count", agent="deployer")
        def count(n: int) -> int:
            return n

    @plane.guard("outer.run", agent="deployer")
    def outer(n: int) -> int:
        return Shop.count(n) + 1

    assert await Shop("corner").sell("bread", "milk", cents=3) == "corner: bread ('milk',) {'cents': 3}"
    assert Shop.open("town") == "Shop in town"
    assert Shop.close() == "Shop"
    assert outer(1) == 2
    assert current_call() is None
    rows = await ledger(world)
    assert [row.tool for row in rows] == ["shop.sell", "shop.open", "shop.close", "outer.run", "shop.count"]
    assert {row.status for row in rows} == {CallStatus.COMPLETED}
    assert seen == [str(rows[0].id)]
    detail = await calls.get_call(world.db, world.admin.actor, rows[0].id)
    assert detail.arguments == {"what": "bread", "more": ["milk"], "how": {"cents": 3}}


@pytest.mark.proves("D.280")
async def test_threads_share_a_session(plane: Client, server: Apart, world: World) -> None:
    @plane.guard("act.now", agent="deployer")
    def act(n: int) -> int:
        return n

    assert sorted(await asyncio.gather(*(asyncio.to_thread(act, n) for n in range(8)))) == list(range(8))
    assert len({row.session_id for row in await ledger(world)}) == 1


@pytest.mark.proves("D.280")
async def test_it_waits_for_a_person_and_runs_what_was_approved(careful: Client, strict: World) -> None:
    ran: list[tuple[str, int]] = []

    @careful.guard("refunds.create", agent="deployer")
    async def refund(order: str, cents: int) -> str:
        ran.append((order, cents))
        return "ok"

    decided = asyncio.create_task(decide_soon(strict, arguments={"order": "A", "cents": 7}))
    assert await refund("A", 700) == "ok"
    await decided
    assert ran == [("A", 7)]
    decided = asyncio.create_task(decide_soon(strict, Choice.DENIED, reason="Too much."))
    with pytest.raises(Denied, match="Too much"):
        await refund("B", 700)
    await decided
    assert len(ran) == 1


@pytest.mark.proves("D.740")
async def test_an_answer_of_a_person_is_a_denial_that_holds_their_words(careful: Client, strict: World) -> None:
    ran: list[str] = []

    @careful.guard("refunds.create", agent="deployer", key=lambda order: order)
    async def refund(order: str) -> str:
        ran.append(order)
        return "ok"

    answering = asyncio.create_task(decide_soon(strict, Choice.RESPONDED, answer="Refund order B instead."))
    for _ in range(2):  # and again with the same key
        with pytest.raises(Denied, match="answered in its place") as no:
            await refund("A")
        assert (no.value.code, no.value.answer) == ("call_answered", "Refund order B instead.")
    await answering
    assert ran == []
    (row,) = await ledger(strict)
    assert row.status is CallStatus.ANSWERED
    assert await whole(strict)


@pytest.mark.proves("D.280")
async def test_who_cannot_wait_goes_on_later_with_the_same_key(careful: Client, strict: World) -> None:
    ran: list[str] = []

    def guarded() -> Any:
        @careful.guard("refunds.create", agent="deployer", wait=0, key=lambda order: f"refund-{order}")
        def refund(order: str) -> str:
            ran.append(order)
            return f"refunded {order}"

        return refund

    with pytest.raises(ApprovalPending) as pending:
        await asyncio.to_thread(guarded(), "A")
    assert pending.value.approval_id is not None
    assert pending.value.key == "refund-A"
    await decide_soon(strict)
    assert await asyncio.to_thread(guarded(), "A") == "refunded A"
    assert await asyncio.to_thread(guarded(), "A") == "refunded A"
    assert ran == ["A"]


@pytest.mark.proves("D.281")
async def test_what_went_wrong_is_told_apart(plane: Client, world: World) -> None:
    @plane.guard("act.refuse", agent="deployer")
    def refuse() -> None:
        raise ToolError("no such order")

    @plane.guard("act.break", agent="deployer", on_uncertain="fail")
    async def breaks() -> None:
        raise ValueError("connection reset")

    @plane.guard("act.doubt", agent="deployer")
    def doubt() -> None:
        raise KeyboardInterrupt

    with pytest.raises(ToolError, match="no such order"):
        refuse()
    with pytest.raises(ValueError, match="connection reset"):
        await breaks()
    with pytest.raises(KeyboardInterrupt):
        doubt()
    rows = await ledger(world)
    assert [row.status for row in rows] == [CallStatus.FAILED, CallStatus.FAILED, CallStatus.UNCERTAIN]
    assert (rows[0].error or "").startswith("no such order")
    assert "ValueError: connection reset" in (rows[1].error or "")


@pytest.mark.proves("D.281")
async def test_a_function_that_never_returns_is_left_behind(plane: Client, world: World) -> None:
    ends = threading.Event()

    @plane.guard("act.hang", agent="deployer", timeout=0.2)
    def hang() -> None:
        ends.wait(60)

    @plane.guard("act.dream", agent="deployer", timeout=0.2)
    async def dream() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimedOut):
        await asyncio.to_thread(hang)
    with pytest.raises(TimedOut):
        await dream()
    assert [row.status for row in await ledger(world)] == [CallStatus.UNCERTAIN, CallStatus.UNCERTAIN]
    ends.set()


@pytest.mark.proves("D.281")
async def test_whoever_cancels_it_leaves_a_doubt(plane: Client, world: World) -> None:
    started = asyncio.Event()

    @plane.guard("act.slow", agent="deployer")
    async def slow() -> None:
        started.set()
        await asyncio.Event().wait()

    running = asyncio.create_task(slow())
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [row.status for row in await ledger(world)] == [CallStatus.UNCERTAIN]


@pytest.mark.proves("D.281")
async def test_without_the_plane_nothing_runs(server: Apart, world: World) -> None:
    ran: list[int] = []

    def guarded(client: Client, agent: str = "deployer") -> Any:
        @client.guard("act.now", agent=agent, patience=0.2)
        def act(n: int) -> None:
            ran.append(n)

        return act

    nobody = Client("http://127.0.0.1:9", world.service.secret)
    with pytest.raises(Unavailable):
        guarded(nobody)(1)
    wrong = Client(server.url, "cortex_key_" + "x" * 43)
    with pytest.raises(Unauthenticated):
        await asyncio.to_thread(guarded(wrong), 1)
    unknown = Client(server.url, world.service.secret)
    with pytest.raises(Exception, match="agent"):
        await asyncio.to_thread(guarded(unknown, "nobody"), 1)
    for client in (nobody, wrong, unknown):
        await client.close()
    assert ran == []


@pytest.mark.proves("D.281")
async def test_what_cannot_be_shown_is_refused_before_anything_is_sent(server: Apart, plane: Client) -> None:
    @plane.guard("act.now", agent="deployer", leave_out=["connection"])
    def act(what: Any, connection: object = None) -> str:
        return "done"

    with pytest.raises(NotJson, match="set"):
        act({1, 2})
    with pytest.raises(TypeError):
        act()  # type: ignore[call-arg]
    with pytest.raises(NotJson):
        act("x" * 300_000)
    assert server.requests == []
    assert act("fine", connection=object()) == "done"
    with pytest.raises(InvalidInput):
        plane.guard("Not A Name", agent="deployer")(act)
    with pytest.raises(InvalidInput):
        plane.guard("act.probe", agent="deployer", on_uncertain="probe")(act)

    def pieces() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="generator"):
        plane.guard("act.pieces", agent="deployer")(pieces)
    with pytest.raises(InvalidInput):
        plane.guard("act.now", agent="deployer", key="with space")(lambda: 1)()


@pytest.mark.proves("D.281")
async def test_a_result_that_is_not_json_does_not_undo_it(plane: Client, world: World) -> None:
    thing = object()

    @plane.guard("act.make", agent="deployer", key="once")
    def make() -> object:
        return thing

    assert make() is thing
    assert [row.status for row in await ledger(world)] == [CallStatus.COMPLETED]
    with pytest.raises(Exception, match="happened before") as again:
        make()
    assert getattr(again.value, "code", None) == "result_not_kept"


@pytest.mark.proves("D.281")
async def test_an_operator_stops_it(plane: Client, world: World) -> None:
    from cortex_plane.gates.verbs import session_lifecycle
    from cortex_plane.sessions.model.sessions import Termination

    ran: list[int] = []

    @plane.guard("act.now", agent="deployer", wait=0)
    def act(n: int) -> None:
        ran.append(n)

    act(1)
    (row,) = await ledger(world)
    await session_lifecycle.terminate(world.db, world.admin.actor, row.session_id, Termination())
    with pytest.raises(Conflict) as over:
        act(2)
    assert over.value.code == "external_over"
    assert ran == [1]


FORKS = """
    import os, sys
    from cortex_plane import Client
    plane = Client.from_env()

    @plane.guard("act.fork", agent="deployer", key="the-fork")
    def act() -> str:
        if os.fork() == 0:
            os.environ["CHILD"] = "1"
            return "child"
        os.wait()
        return "parent"

    @plane.guard("act.after", agent="deployer")
    def after(who: str) -> str:
        return who

    who = act()
    print(after(who), flush=True)
    if "CHILD" in os.environ:
        os._exit(0)
"""


@pytest.mark.proves("D.281")
async def test_a_function_that_forks_reports_once(server: Apart, world: World) -> None:
    told = await asyncio.to_thread(_script, FORKS, server.url, world.service.secret)
    assert sorted(told.split()) == ["child", "parent"]
    rows = await ledger(world)
    assert sorted((row.tool, row.status) for row in rows) == [
        ("act.after", CallStatus.COMPLETED),
        ("act.after", CallStatus.COMPLETED),
        ("act.fork", CallStatus.COMPLETED),
    ]
    (forked,) = [row for row in rows if row.tool == "act.fork"]
    assert (await calls.get_call(world.db, world.admin.actor, forked.id)).result == "parent"


def _script(text: str, url: str, key: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        cwd=REPOSITORY, env={**os.environ, "CORTEX_URL": url, "CORTEX_KEY": key}, capture_output=True, text=True,
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_name_is_made_from_module_and_function() -> None:
    def Refund() -> None:
        pass

    assert default_name(_script) == "test_guard._script"
    assert default_name(Refund).startswith("test_guard.test_a_name")


@pytest.mark.proves("D.440")
async def test_a_guard_cannot_choose_its_risk(plane: Client, world: World) -> None:
    rules = 'policies: [{name: no, target: "*", effect: deny, when: risk == "critical"}, {name: all, target: "*", effect: allow}]'
    await apply_policies(world.db, world.admin.actor, rules)
    await publish(world.db, offered("pay.send", app="bank", risk=Risk.CRITICAL, server=None))

    @plane.guard("pay.send", agent="deployer", risk="low")
    async def pay(cents: int) -> int:
        raise AssertionError("it ran")

    with pytest.raises(Denied, match="org:no"):
        await pay(500)


@pytest.mark.proves("D.280")
async def test_outcomes_that_are_reported_later_come_before_the_next_call(
    server: Apart, plane: Client, world: World
) -> None:
    @plane.guard("refunds.create", agent="deployer", report="later")
    def refund(n: int) -> int:
        return n

    @plane.guard("refunds.check", agent="deployer", report="later")
    async def check(n: int) -> int:
        return n

    assert [await asyncio.to_thread(refund, n) for n in range(3)] == [0, 1, 2]
    paths = [path for path in server.requests if path.endswith(("/calls", "/outcome"))]
    assert [path.rpartition("/")[2] for path in paths[:5]] == ["calls", "outcome", "calls", "outcome", "calls"]
    assert [await check(n) for n in range(3)] == [0, 1, 2]
    await plane.close()
    assert [call.status for call in await ledger(world)] == [CallStatus.COMPLETED] * 6
    assert server.made("/outcome") == 6


@pytest.mark.proves("D.280")
async def test_a_failure_is_reported_before_the_caller_sees_it(plane: Client, world: World) -> None:
    @plane.guard("refunds.create", agent="deployer", report="later")
    async def refund(n: int) -> int:
        raise ToolError("no such order")

    with pytest.raises(ToolError):
        await refund(1)
    (call,) = await ledger(world)
    assert call.status is CallStatus.FAILED


@pytest.mark.proves("D.280")
async def test_the_client_asks_about_several_calls_at_once(plane: Client, server: Apart) -> None:
    session = await plane.sessions.open_external("deployer")
    drafts = [CallDraft(tool="refunds.create", arguments={"n": n}, key=f"batch-{n}", dispatch=True) for n in range(3)]
    answers = await session.authorize_batch(*drafts)
    assert [answer.call and answer.call.arguments for answer in answers] == [{"n": n} for n in range(3)]
    assert all(answer.call is not None and answer.call.next == "run" for answer in answers)
    assert server.made("/calls/batch") == 1
