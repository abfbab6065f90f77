"""What only Pydantic AI has: typed arguments, tools that defer by themselves, and an output type for waiting."""

from __future__ import annotations

from datetime import date
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import BaseModel, Field
from pydantic_ai import (
    Agent,
    ApprovalRequired,
    CallDeferred,
    DeferredToolRequests,
    ModelResponse,
    RunContext,
    TextPart,
    ToolCallPart,
)
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from cortex_plane import Client
from cortex_plane.client.pydantic_ai import PlaneCapability, pending
from cortex_plane.kernel.errors import InvalidInput
from tests.client.test_authorization import careful, plane, server
from tests.client.test_guard import decide_soon, ledger
from tests.fixtures.people import World

__all__ = ["careful", "plane", "server"]


def book_once(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    results = [part for part in messages[-1].parts if isinstance(part, ToolReturnPart)]
    if results:
        return ModelResponse([TextPart(results[0].model_response_str())])
    return ModelResponse([ToolCallPart("book", {"day": "2026-11-20"}, "call-1")])


def agent_of(plane: Client, output_type: Any) -> Agent[None, Any]:
    capability = PlaneCapability(plane, agent="deployer")
    return Agent(FunctionModel(book_once), output_type=output_type, capabilities=[capability])


@pytest.mark.proves("D.945")
async def test_edited_arguments_are_validated_again(careful: Client, strict: World) -> None:
    agent = agent_of(careful, [str, DeferredToolRequests])
    days: list[date] = []

    @agent.tool_plain
    def book(day: date) -> dict[str, str]:
        days.append(day)
        return {"booked": day.isoformat()}

    first = await agent.run("Book tomorrow")
    assert isinstance(first.output, DeferredToolRequests)
    await decide_soon(strict, arguments={"day": "2026-11-21"})
    saved = first.all_messages_json()
    second = await agent.run(message_history=first.all_messages(), deferred_tool_results=pending(saved))
    assert days == [date(2026, 11, 21)]
    assert '"booked":"2026-11-21"' in second.output
    assert "An approver changed the arguments" in second.output
    # The state from before the run, as after a crash: what ran is used.
    third = await agent.run(message_history=first.all_messages(), deferred_tool_results=pending(saved))
    assert days == [date(2026, 11, 21)]
    assert '"booked":"2026-11-21"' in third.output
    assert pending(third.all_messages()) is None


@pytest.mark.proves("D.945")
async def test_a_tool_that_defers_by_itself_is_parked_and_begins_again(plane: Client, world: World) -> None:
    agent = agent_of(plane, [str, DeferredToolRequests])

    @agent.tool
    def book(ctx: RunContext[None], day: date) -> str:
        if not ctx.tool_call_approved:
            raise ApprovalRequired
        return f"booked {day}"

    first = await agent.run("Book tomorrow")
    assert [call.status for call in await ledger(world)] == ["parked"]
    history = first.all_messages()
    second = await agent.run(message_history=history, deferred_tool_results=pending(history))
    assert second.output == "booked 2026-11-20"
    assert [(call.status, call.attempt) for call in await ledger(world)] == [("completed", 2)]


@pytest.mark.proves("D.945")
async def test_an_agent_without_an_output_for_waiting_is_an_error_at_the_start(plane: Client, world: World) -> None:
    with pytest.raises(InvalidInput, match="output") as caught:
        await agent_of(plane, str).run("Book tomorrow")
    assert "DeferredToolRequests" in str(caught.value.hint)
    assert await ledger(world) == []


class Later(AbstractCapability[Any]):
    """Books another day than the model wanted, at one point of a call."""

    def __init__(self, point: str) -> None:
        self._point = point

    def _changed(self, point: str, args: Any) -> Any:
        return (
            {"day": date(2027, 1, 1) if point.endswith("execute") else "2027-01-01"} if point == self._point else args
        )

    async def before_tool_validate(self, ctx: Any, *, args: Any, **_: Any) -> Any:
        return self._changed("before_tool_validate", args)

    async def before_tool_execute(self, ctx: Any, *, args: Any, **_: Any) -> Any:
        return self._changed("before_tool_execute", args)

    async def wrap_tool_execute(self, ctx: Any, *, args: Any, handler: Any, **_: Any) -> Any:
        return await handler(self._changed("wrap_tool_execute", args))


@pytest.mark.proves("D.1091")
@pytest.mark.parametrize("point", ["before_tool_validate", "before_tool_execute", "wrap_tool_execute"])
async def test_people_are_shown_what_runs(careful: Client, strict: World, point: str) -> None:
    capabilities = [PlaneCapability(careful, agent="deployer"), Later(point)]
    agent = Agent(FunctionModel(book_once), output_type=[str, DeferredToolRequests], capabilities=capabilities)
    days: list[date] = []

    @agent.tool_plain
    def book(day: date) -> str:
        days.append(day)
        return f"booked {day}"

    first = await agent.run("Book tomorrow")
    assert isinstance(first.output, DeferredToolRequests)
    (waits,) = first.output.metadata.values()
    assert waits["arguments"] == {"day": "2027-01-01"}
    await decide_soon(strict)
    history = first.all_messages()
    second = await agent.run(message_history=history, deferred_tool_results=pending(history))
    assert (second.output, days) == ("booked 2027-01-01", [date(2027, 1, 1)])


class Trip(BaseModel):
    day: date
    id: UUID = Field(default_factory=uuid4)


@pytest.mark.proves("D.1091")
async def test_a_default_that_is_new_each_time_is_no_change(careful: Client, strict: World) -> None:
    agent = agent_of(careful, [str, DeferredToolRequests])

    @agent.tool_plain
    def book(trip: Trip) -> str:
        return f"booked {trip.day}"

    first = await agent.run("Book tomorrow")
    assert isinstance(first.output, DeferredToolRequests)
    await decide_soon(strict)
    history = first.all_messages()
    second = await agent.run(message_history=history, deferred_tool_results=pending(history))
    assert second.output == "booked 2026-11-20"


@pytest.mark.proves("D.1091")
async def test_a_tool_that_hands_its_call_over_does_not_begin_again(plane: Client, world: World) -> None:
    agent = agent_of(plane, [str, DeferredToolRequests])
    started: list[date] = []

    @agent.tool_plain
    def book(day: date) -> str:
        started.append(day)
        raise CallDeferred

    first = await agent.run("Book tomorrow")
    history = first.all_messages()
    for _ in range(2):
        again = await agent.run(message_history=history, deferred_tool_results=pending(history))
        assert isinstance(again.output, DeferredToolRequests)
        assert [call.tool_call_id for call in again.output.calls] == ["call-1"]
    results = pending(history)
    assert results is not None
    results.calls["call-1"] = "booked by the agency"
    last = await agent.run(message_history=history, deferred_tool_results=results)
    assert (last.output, len(started)) == ("booked by the agency", 1)
    assert [(call.status, call.attempt) for call in await ledger(world)] == [("completed", 1)]
