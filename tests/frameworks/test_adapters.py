"""The adapters of all frameworks behave alike: over a plane behind a socket, with agents made anew for each turn."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio
from examples.frameworks import langchain_parts, openai_agents_parts, pydantic_ai_parts

from cortex_plane import Client, ToolError
from cortex_plane.approvals.model.approvals import ApprovalDecision, ApprovalStatus, Channel, Choice
from cortex_plane.approvals.verbs import approvals, decisions
from cortex_plane.client.adapter import Adapter
from cortex_plane.client.authorization import Advice
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.sessions.model.sessions import Termination
from tests.client.test_guard import ledger
from tests.conftest import Urls
from tests.fixtures.apart import Apart, beside
from tests.fixtures.people import World
from tests.frameworks.drivers import THREAD, Driver, drivers


@pytest.fixture
def server(urls: Urls) -> Iterator[Apart]:
    with beside(urls.app) as running:
        yield running


@pytest.fixture(params=list(drivers()))
def new_driver(request: pytest.FixtureRequest) -> Callable[[], Driver]:
    return drivers()[request.param]


@pytest_asyncio.fixture
async def plane(server: Apart, world: World) -> AsyncIterator[Client]:
    async with Client(server.url, world.service.secret) as client:
        yield client


@pytest_asyncio.fixture
async def careful(server: Apart, strict: World) -> AsyncIterator[Client]:
    async with Client(server.url, strict.service.secret) as client:
        yield client


async def decide(world: World, order: str, choice: Choice, **more: Any) -> None:
    page = await approvals.list_approvals(world.db, world.admin.actor, None, 10, status=ApprovalStatus.PENDING)
    (card,) = [card for card in page.items if card.arguments["order"] == order]
    decision = ApprovalDecision(decision=choice, version=card.version, input_hash=card.input_hash, **more)
    await decisions.decide(world.db, world.admin.actor, card.id, decision, Channel.API)


@pytest.mark.proves("D.945")
async def test_parallel_calls_wait_are_decided_apart_and_run_once(
    server: Apart, strict: World, new_driver: Callable[[], Driver]
) -> None:
    driver = new_driver()
    ran: list[tuple[str, int]] = []

    def refund(order: str, cents: int) -> str:
        ran.append((order, cents))
        return f"{order} is paid back."

    async def turn(prompt: str | None = None) -> tuple[str, set[str]]:
        # Nothing of an earlier turn but the saved state.
        async with Client(server.url, strict.service.secret) as client:
            done = await driver.run(client, refund, prompt)
        assert all(wait["link"].startswith(f"{server.url}/approvals/") and not wait["in_doubt"] for wait in done.waits)
        return done.text, {wait["arguments"]["order"] for wait in done.waits}

    _, waits = await turn("Refund A-1 A-2 A-3")
    assert waits == {"A-1", "A-2", "A-3"}
    # A resume decides nothing.
    assert (await turn())[1] == waits
    await decide(strict, "A-1", Choice.APPROVED, arguments={"order": "A-1", "cents": 400})
    assert (await turn())[1] == {"A-2", "A-3"}
    assert ran == [("A-1", 400)]
    await decide(strict, "A-2", Choice.DENIED, reason="no more today")
    await decide(strict, "A-3", Choice.APPROVED)
    text, waits = await turn()
    assert (waits, ran) == (set(), [("A-1", 400), ("A-3", 500)])
    assert "A-1 is paid back." in text
    assert 'it ran with {"cents":400,"order":"A-1"}' in text
    assert "no more today" in text
    assert "A-3 is paid back." in text
    assert {call.status for call in await ledger(strict)} == {"completed", "rejected"}


@pytest.mark.proves("D.1108")
@pytest.mark.parametrize("framework", ["langchain", "langchain-sync", "pydantic-ai", "openai-agents"])
async def test_an_id_that_comes_again_in_a_later_turn_is_another_call(
    careful: Client, strict: World, monkeypatch: pytest.MonkeyPatch, framework: str
) -> None:
    class CountedAnew:
        """Of a provider whose first call in each answer has the same id."""

        hex = "call_0"

    for parts in (langchain_parts, pydantic_ai_parts, openai_agents_parts):
        monkeypatch.setattr(parts, "uuid4", CountedAnew)
    driver = drivers()[framework]()
    ran: list[str] = []

    def refund(order: str, cents: int) -> str:
        ran.append(order)
        return f"{order} is paid back."

    for turn, order in enumerate(("A-1", "A-1", "A-2"), 1):
        assert len((await driver.run(careful, refund, f"Refund {order}")).waits) == 1
        assert len((await driver.run(careful, refund)).waits) == 1, "the same call in each resume"
        await decide(strict, order, Choice.APPROVED)
        assert f"{order} is paid back." in (await driver.run(careful, refund)).text
        assert len(ran) == turn
    assert ran == ["A-1", "A-1", "A-2"]
    assert [call.status for call in await ledger(strict)] == ["completed"] * 3


@pytest.mark.proves("D.945")
async def test_outcomes_are_reported_and_tokens_counted(
    plane: Client, world: World, new_driver: Callable[[], Driver]
) -> None:
    def refund(order: str, cents: int) -> str:
        if order == "A-2":
            raise ToolError("There is no such order.")
        if order == "A-3":
            raise OSError("The line broke.")
        return f"{order}: {cents}"

    driver = new_driver()
    assert "A-1: 500" in (await driver.run(plane, refund, "Refund A-1")).text
    for order in ("A-2", "A-3"):
        # Some frameworks raise it, and some give it to the model.
        with suppress(ToolError, OSError):
            await new_driver().run(plane, refund, f"Refund {order}")
    assert [call.status for call in await ledger(world)] == ["completed", "failed", "uncertain"]
    assert [session.outside_id async for session in plane.sessions.list()] == [driver.session]
    (usage,) = [row async for row in plane.usage.list()]
    assert usage.prompt_tokens > 0


@pytest.mark.proves("D.945")
async def test_without_a_plane_nothing_runs_and_the_model_reads_why(new_driver: Callable[[], Driver]) -> None:
    def refund(order: str, cents: int) -> str:
        raise AssertionError(f"{order} {cents}")

    async with Client("http://127.0.0.1:9", "key") as client:
        async with asyncio.timeout(20):
            done = await new_driver().run(client, refund, "Refund A-1")
    assert "cannot be reached" in done.text or "does not answer" in done.text
    assert done.waits == []


@pytest.mark.proves("D.945")
async def test_adapter_opens_no_session_in_place_of_one_that_somebody_ended(plane: Client, world: World) -> None:
    adapter = Adapter(plane=plane, agent="deployer")
    first = await adapter.calls(THREAD).authorize("refund", {"order": "A-1"}, key="1")
    await adapter.calls(THREAD).completed(first, "paid")
    (session,) = [session async for session in plane.sessions.list(outside_id=THREAD)]
    await session_lifecycle.terminate(world.db, world.admin.actor, session.id, Termination())
    second = await adapter.calls(THREAD).authorize("refund", {"order": "A-2"}, key="2")
    assert (first.next, second.next) == (Advice.RUN, Advice.STOP)
    assert len([session async for session in plane.sessions.list(outside_id=THREAD)]) == 1
