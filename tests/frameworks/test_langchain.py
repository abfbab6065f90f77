"""What only LangChain and LangGraph have: a bare `ToolNode`, tools that pause by themselves, and results that are not text."""

from __future__ import annotations

from typing import Any

import pytest
from examples.frameworks.langchain_parts import ScriptedModel, refund
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, interrupt

from cortex_plane import Client
from cortex_plane.client.langchain import PlaneMiddleware, tool_wrappers
from cortex_plane.kernel.errors import InvalidInput
from tests.client.test_authorization import careful, plane, server
from tests.client.test_guard import decide_soon, ledger
from tests.fixtures.people import World, apply_policies

__all__ = ["careful", "plane", "server"]

CONFIG: Any = {"configurable": {"thread_id": "thread 1"}}
ONE_ASKS = """
policies:
  - {name: ask, target: "second", effect: requires_approval}
  - {name: rest, target: "*", effect: allow}
"""


def graph_of(plane: Client, *tools: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_node("tools", ToolNode(tools, **tool_wrappers(plane, agent="deployer")))
    graph.add_edge(START, "tools")
    graph.add_edge("tools", END)
    return graph.compile(checkpointer=InMemorySaver())


def asks(*calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    listed: Any = [{"name": name, "args": args, "id": f"call-{name}"} for name, args in calls]
    return {"messages": [AIMessage("", tool_calls=listed)]}


@pytest.mark.proves("D.945")
async def test_a_bare_tool_node_uses_what_ran_before_the_pause(plane: Client, world: World) -> None:
    await apply_policies(world.db, world.admin.actor, ONE_ASKS)
    ran: list[str] = []

    @tool
    def first() -> str:
        """Act."""
        ran.append("first")
        return "first done"

    @tool
    def second(n: int) -> Command[Any]:
        """Act and change the state."""
        ran.append(f"second {n}")
        return Command(update={"messages": [ToolMessage("second done", tool_call_id="call-second")]})

    graph = graph_of(plane, first, second)
    state = await graph.ainvoke(asks(("first", {}), ("second", {"n": 1})), CONFIG)
    assert [waiting.value["tool"] for waiting in state["__interrupt__"]] == ["second"]
    await decide_soon(world, arguments={"n": 2})
    state = await graph.ainvoke(None, CONFIG)
    assert ran == ["first", "second 2"]
    assert [message.text for message in state["messages"][1:]] == [
        "first done", 'second done\nAn approver changed the arguments: it ran with {"n":2}.',
    ]  # fmt: skip


@pytest.mark.proves("D.945")
async def test_a_tool_that_pauses_by_itself_is_parked_and_begins_again(plane: Client, world: World) -> None:
    @tool
    def ask() -> str:
        """Ask the user."""
        return f"They said {interrupt('Which one?')}."

    graph = graph_of(plane, ask)
    state = await graph.ainvoke(asks(("ask", {})), CONFIG)
    assert [waiting.value for waiting in state["__interrupt__"]] == ["Which one?"]
    assert [call.status for call in await ledger(world)] == ["parked"]
    state = await graph.ainvoke(Command(resume="blue"), CONFIG)
    assert state["messages"][-1].text == "They said blue."
    assert [(call.status, call.attempt) for call in await ledger(world)] == [("completed", 2)]


@pytest.mark.proves("D.1091")
async def test_a_tool_whose_graph_hands_over_to_its_parent_is_completed(plane: Client, world: World) -> None:
    acted: list[int] = []

    def act(_: MessagesState) -> Command[Any]:
        acted.append(1)
        return Command(graph=Command.PARENT, goto=END)

    inner: Any = StateGraph(MessagesState)
    inner.add_node("act", act)
    inner.add_edge(START, "act")
    inner = inner.compile()

    @tool
    async def hand_over() -> str:
        """Act, and end the graph around it."""
        await inner.ainvoke({"messages": []})
        return "never reached"

    await graph_of(plane, hand_over).ainvoke(asks(("hand_over", {})), CONFIG)
    assert [(call.status, call.attempt) for call in await ledger(world)] == [("completed", 1)]
    assert acted == [1]


@pytest.mark.proves("D.945")
async def test_nobody_is_asked_about_a_call_that_cannot_run(careful: Client, strict: World) -> None:
    graph = graph_of(careful, refund)
    state = await graph.ainvoke(asks(("refund", {"order": "A-1", "cents": "many"}), ("refnud", {})), CONFIG)
    invalid, unknown = state["messages"][1:]
    assert (invalid.status, unknown.status) == ("error", "error")
    assert "cents" in invalid.text
    assert "There is no tool `refnud`" in unknown.text
    assert await ledger(strict) == []


@pytest.mark.proves("D.945")
async def test_an_agent_without_threads_is_an_error(plane: Client) -> None:
    agent: Any = create_agent(ScriptedModel(), [refund], middleware=[PlaneMiddleware(plane, agent="deployer")])
    with pytest.raises(InvalidInput, match="thread_id"):
        await agent.ainvoke({"messages": [HumanMessage("Refund A-1")]})
