"""Guarded functions behind gates: answered from what is written down or by a function, and raised to whoever calls otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from cortex_plane import Client
from cortex_plane.calls.verbs import calls
from cortex_plane.client.dialogue import Denied
from cortex_plane.kernel.errors import GateClosed
from tests.conftest import Urls
from tests.fixtures.apart import Apart, beside
from tests.fixtures.external_gates import DELETE_CONFIRM, DESK, ONBOARDING, desk, gate, governed, question
from tests.fixtures.people import World

YES: dict[str, dict[str, Any]] = {"onboarding": {"agree": True}, f"{DESK}/delete-confirm": {"sure": "understood"}}


@pytest.fixture
def server(urls: Urls) -> Iterator[Apart]:
    with beside(urls.app) as running:
        yield running


@pytest_asyncio.fixture
async def plane(server: Apart, world: World) -> AsyncIterator[Client]:
    await governed(world, desk(gates=[ONBOARDING, DELETE_CONFIRM]))
    async with Client(server.url, world.service.secret) as client:
        yield client


async def ran(world: World) -> list[tuple[str, str]]:
    page = await calls.list_calls(world.db, world.admin.actor, None, 100)
    return [(each.tool, each.status) for each in page.items[::-1]]


@pytest.mark.proves("D.393")
async def test_gates_are_answered_from_what_is_written_down(plane: Client, server: Apart, world: World) -> None:
    deleted: list[str] = []

    @plane.guard("ticket.delete", agent="deployer", answers=YES)
    def delete(ticket_id: str) -> str:
        deleted.append(ticket_id)
        return "gone"

    assert delete("T-1") == "gone"
    assert await asyncio.to_thread(delete, "T-1") == "gone", "each call is asked about anew"
    assert deleted == ["T-1", "T-1"]
    assert await ran(world) == [("ticket.delete", "completed")] * 2
    assert server.made("/answers") == 3, "the session's question once, the call's for each call"


@pytest.mark.proves("D.393")
async def test_a_function_answers_and_hears_what_was_wrong(plane: Client, world: World) -> None:
    heard: list[tuple[str, str | None]] = []

    async def answer(asked: dict[str, Any]) -> dict[str, Any] | None:
        heard.append((asked["gate"], asked["fault"]))
        if asked["gate"] == "onboarding":
            return {"agree": True}
        return {"sure": "understood" if asked["fault"] else "perhaps"}

    @plane.guard("ticket.delete", agent="deployer", on_gate=answer)
    async def delete(ticket_id: str) -> str:
        return ticket_id

    assert await delete("T-1") == "T-1"
    assert [gate for gate, _ in heard] == ["onboarding", "delete-confirm", "delete-confirm"]
    assert [bool(fault) for _, fault in heard] == [False, False, True]
    assert await ran(world) == [("ticket.delete", "completed")]


@pytest.mark.proves("D.393")
async def test_a_function_is_asked_what_it_can_read_also_where_gates_ask_a_lot_at_once(
    plane: Client, world: World
) -> None:
    options = [f"{'o' * 190}{number}" for number in range(20)]
    questions = [question(f"q{number}", "choice", options=options) for number in range(20)]
    before = {"type": "action_pre", "patterns": ["*.delete"]}
    gates = [gate(f"g{number}", before, questions=questions) for number in range(4)]
    await governed(world, desk("2.0.0", gates=gates))
    heard: list[tuple[str, int]] = []

    def answer(asked: dict[str, Any]) -> dict[str, Any]:
        heard.append((asked["gate"], len(asked["questions"])))
        return {each["question_id"]: each["options"][0] for each in asked["questions"]}

    @plane.guard("ticket.delete", agent="deployer", on_gate=answer)
    def delete(ticket_id: str) -> str:
        return ticket_id

    assert await asyncio.to_thread(delete, "T-1") == "T-1"
    assert sorted(heard) == [(f"g{number}", 20) for number in range(4)]


@pytest.mark.proves("D.393")
async def test_whoever_calls_hears_the_questions_and_nothing_ran(plane: Client, world: World) -> None:
    def nothing() -> None:
        raise AssertionError("it must not run")

    @plane.guard("ticket.delete", agent="deployer", answers={"onboarding": {"agree": True}}, key="k")
    def delete(ticket_id: str) -> None:
        nothing()

    with pytest.raises(GateClosed) as closed:
        delete("T-1")
    assert closed.value.gate == "delete-confirm"
    assert [each["question_id"] for each in closed.value.questions[0]["questions"]] == ["sure"]
    assert await ran(world) == [], "its key is not used up"

    refusing: dict[str, dict[str, Any]] = {"onboarding": {"agree": True}, "delete-confirm": {"sure": "never"}}

    @plane.guard("ticket.delete", agent="deployer", answers=refusing, on_gate=lambda asked: None)
    def stubborn(ticket_id: str) -> None:
        nothing()

    for _ in range(3):
        with pytest.raises(GateClosed, match="did not accept"):
            stubborn("T-2")
    with pytest.raises(Denied, match="shut"):
        stubborn("T-2")
    assert await ran(world) == [("ticket.delete", "rejected")]
