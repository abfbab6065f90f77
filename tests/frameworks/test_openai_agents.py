"""What only the OpenAI Agents SDK has: handoffs, agents as tools, errors as text, and an approval of its own."""

from __future__ import annotations

from typing import Any

import pytest
from agents.mcp import MCPServer
from agents.sandbox import SandboxAgent
from agents.testing import ScriptedModel, assistant_message, function_call
from mcp import types

from agents import (
    Agent,
    AgentHooks,
    Runner,
    RunState,
    UserError,
    WebSearchTool,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from cortex_plane import Client, ToolError
from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.client.authorization import PlaneCalls
from cortex_plane.client.dialogue import ApprovalPending
from cortex_plane.client.openai_agents import GuardedAgent, behind, resumed, run, state_of, waits
from cortex_plane.kernel.errors import Conflict, InvalidInput, Unavailable
from tests.client.test_authorization import careful, plane, server
from tests.client.test_guard import decide_soon, ledger
from tests.fixtures.people import World, apply_policies

__all__ = ["careful", "plane", "server"]

# Traces go to OpenAI by default, in a thread of their own.
set_tracing_disabled(disabled=True)

REFUND_ASKS = """
policies:
  - {name: ask, target: "refund", effect: requires_approval}
  - {name: rest, target: "*", effect: allow}
"""
DONE = [assistant_message("Done.")]


def guarded(plane: Client, agent: Agent[Any]) -> GuardedAgent:
    return behind(plane, agent, "deployer", session="thread 1")


def scripted(*steps: Any) -> ScriptedModel:
    return ScriptedModel([*steps, DONE])


def called(name: str, arguments: Any, call_id: str = "call-1") -> list[Any]:
    return [function_call(name, arguments, call_id=call_id)]


def outputs(result: Any) -> list[Any]:
    return [item.output for item in result.new_items if item.type == "tool_call_output_item"]


@pytest.mark.proves("D.1000")
async def test_a_failure_that_the_model_reads_as_text_is_no_completion(plane: Client, world: World) -> None:
    @function_tool
    def refund(order: str) -> str:
        """Pay money back."""
        raise ToolError("There is no such order.") if order == "A-1" else OSError("The line broke.")

    model = scripted(called("refund", {"order": "A-1"}), called("refund", {"order": "A-2"}, "call-2"))
    result = await Runner.run(guarded(plane, Agent("Support", model=model, tools=[refund])), "Refund")
    assert all(text.startswith("An error occurred") for text in outputs(result))
    assert [call.status for call in await ledger(world)] == ["failed", "uncertain"]


@pytest.mark.proves("D.1000")
async def test_edited_arguments_are_validated_and_the_framework_approves_nothing(
    careful: Client, strict: World
) -> None:
    ran: list[int] = []

    @function_tool
    def refund(order: str, cents: int = 500) -> str:
        """Pay money back."""
        ran.append(cents)
        return order

    def agent() -> GuardedAgent:
        model = scripted(called("refund", {"order": "A-1"}))
        return guarded(careful, Agent("Support", model=model, tools=[refund]))

    first = await Runner.run(agent(), "Refund")
    assert [wait["arguments"] for wait in waits(first)] == [{"order": "A-1"}]
    # Approved by hand, in the framework: the plane says no, and the saved run is as it was.
    state = await RunState.from_string(agent(), state_of(first))
    state.approve(state.get_interruptions()[0])
    with pytest.raises(UserError) as caught:
        await Runner.run(agent(), state)
    assert isinstance(caught.value.__cause__, ApprovalPending)
    assert ran == []
    await decide_soon(strict, arguments={"order": "A-1", "cents": 400})
    again = agent()
    again.model = scripted()
    result = await Runner.run(again, await resumed(again, state_of(first)))
    assert ran == [400]
    assert outputs(result) == ['A-1\nAn approver changed the arguments: it ran with {"cents":400,"order":"A-1"}.']
    # The state from before, as after a crash: what ran is used.
    again.model = scripted()
    result = await Runner.run(again, await resumed(again, state_of(first)))
    assert ran == [400]
    assert "A-1" in outputs(result)[0]


@pytest.mark.proves("D.1001")
async def test_a_subagent_that_waits_parks_the_call_that_is_it(plane: Client, world: World) -> None:
    await apply_policies(world.db, world.admin.actor, REFUND_ASKS)
    ran: list[str] = []

    @function_tool
    def refund(order: str) -> str:
        """Pay money back."""
        ran.append(order)
        return "paid"

    def agent(inner: ScriptedModel, outer: ScriptedModel) -> GuardedAgent:
        clerk = guarded(plane, Agent("Clerk", model=inner, tools=[refund]))
        return guarded(plane, Agent("Support", model=outer, tools=[clerk.as_tool("clerk", "Pays money back.")]))

    support = agent(
        scripted(called("refund", {"order": "A-1"}, "inner")), scripted(called("clerk", {"input": "Refund A-1"}))
    )
    first = await Runner.run(support, "Refund")
    assert [wait["tool"] for wait in waits(first)] == ["refund"]
    assert {call.tool: call.status for call in await ledger(world)} == {"clerk": "parked", "refund": "awaiting"}
    # Undecided: the same calls wait, in another process too.
    support = agent(scripted(), scripted())
    second = await Runner.run(support, await resumed(support, state_of(first)))
    assert [wait["tool"] for wait in waits(second)] == ["refund"]
    await decide_soon(world)
    support = agent(scripted(), scripted())
    third = await Runner.run(support, await resumed(support, state_of(second)))
    assert (third.final_output, ran) == ("Done.", ["A-1"])
    assert {call.tool: call.status for call in await ledger(world)} == {"clerk": "completed", "refund": "completed"}


@pytest.mark.proves("D.1001")
@pytest.mark.parametrize("is_object", [False, True])
async def test_agents_that_are_handed_over_to_ask_too_and_go_on_elsewhere(
    careful: Client, strict: World, is_object: bool
) -> None:
    ran: list[str] = []

    @function_tool
    def refund(order: str) -> str:
        """Pay money back."""
        ran.append(order)
        return "paid"

    def agent(*steps: Any) -> tuple[GuardedAgent, Agent[Any]]:
        clerk = Agent("Clerk", model=scripted(*steps), tools=[refund])
        front = Agent("Front", model=scripted(called("transfer_to_clerk", {})))
        front.handoffs, clerk.handoffs = [handoff(clerk) if is_object else clerk], [front]
        return guarded(careful, front), clerk

    front, clerk = agent(called("refund", {"order": "A-1"}, "call-2"))
    first = await Runner.run(front, "Refund")
    assert ([wait["tool"] for wait in waits(first)], clerk.tools) == (["refund"], [refund])
    await decide_soon(strict, Choice.DENIED, reason="no more today")
    front, _ = agent()
    second = await Runner.run(front, await resumed(front, state_of(first)))
    assert (second.final_output, second.last_agent.name, ran) == ("Done.", "Clerk", [])
    assert "no more today" in outputs(second)[-1]


@pytest.mark.proves("D.1002")
def test_what_the_plane_would_not_see_is_an_error_at_the_start() -> None:
    @function_tool(needs_approval=True)
    def asks() -> None:
        """Ask."""

    def refusal(tool: Any, **more: Any) -> str:
        with pytest.raises(InvalidInput) as caught:
            behind(Client("http://127.0.0.1:9", "key"), Agent("A", tools=[tool]), "deployer", session="1", **more)
        assert caught.value.hint
        return caught.value.code

    search = WebSearchTool()
    assert refusal(search) == "unguarded_tool"
    assert refusal(asks) == "two_approvals"
    assert refusal(Agent("B").as_tool("b", "B")) == "unguarded_agent"
    agent = Agent("A", tools=[search], handoffs=[SandboxAgent("S")])
    with pytest.raises(InvalidInput, match="SandboxAgent"):
        behind(Client("http://127.0.0.1:9", "key"), agent, "deployer", session="1", unguarded=[search.name])
    agent.handoffs = []
    agent = behind(Client("http://127.0.0.1:9", "key"), agent, "deployer", session="1", unguarded=[search.name])
    assert agent.tools == [search]


class Shop(MCPServer):
    """A server of MCP in this process."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.orders: list[Any] = []

    @property
    def name(self) -> str:
        return "shop"

    async def connect(self) -> None: ...

    async def cleanup(self) -> None: ...

    async def list_tools(self, *_: Any) -> list[Any]:
        return [types.Tool(name="refund", input_schema={"type": "object", "properties": {"order": {"type": "string"}}})]

    async def call_tool(self, tool_name: str, arguments: Any, *_: Any) -> Any:
        self.orders.append(arguments["order"])
        return types.CallToolResult(content=[types.TextContent(type="text", text=f"{tool_name} done")])

    async def list_prompts(self) -> Any: ...

    async def get_prompt(self, *_: Any) -> Any: ...


@pytest.mark.proves("D.1002")
async def test_tools_of_mcp_servers_ask_too_and_copies_stay_behind_the_plane(careful: Client, strict: World) -> None:
    shop = Shop()

    def agent(*steps: Any) -> GuardedAgent:
        clone = guarded(careful, Agent("Support", mcp_servers=[shop])).clone(model=scripted(*steps))
        assert isinstance(clone, GuardedAgent)
        return clone

    first = await Runner.run(agent(called("refund", {"order": "A-1"})), "Refund")
    assert ([wait["tool"] for wait in waits(first)], shop.orders) == (["refund"], [])
    await decide_soon(strict, arguments={"order": "A-2"})
    again = agent()
    second = await Runner.run(again, await resumed(again, state_of(first)))
    assert (shop.orders, second.final_output) == (["A-2"], "Done.")
    assert "refund done" in str(outputs(second)[0])
    assert "An approver changed the arguments" in str(outputs(second)[0])
    asking = guarded(careful, Agent("Support", model=scripted(), mcp_servers=[Shop(require_approval="always")]))
    with pytest.raises(InvalidInput, match="needs_approval"):
        await Runner.run(asking, "Refund")


@pytest.mark.proves("D.1002")
async def test_hooks_of_the_user_are_called_and_arguments_that_are_no_object_ask_nobody(
    careful: Client, strict: World
) -> None:
    seen: list[str] = []

    class Hooks(AgentHooks):
        async def on_llm_end(self, *_: Any) -> None:
            seen.append("llm")

        async def on_start(self, *_: Any) -> None:
            seen.append("start")

    @function_tool
    def refund(order: str) -> str:
        """Pay money back."""
        raise AssertionError(order)

    def agent(*steps: Any) -> GuardedAgent:
        return guarded(careful, Agent("Support", model=scripted(*steps), tools=[refund], hooks=Hooks()))

    first = await Runner.run(agent(called("refund", "[1]")), "Refund")
    again = agent()
    second = await Runner.run(again, await resumed(again, state_of(first)))
    assert "no JSON object" in outputs(second)[0]
    assert (seen, await ledger(strict)) == (["start", "llm", "start", "llm"], [])


@pytest.mark.proves("D.1005")
async def test_the_plane_keeps_the_run_and_of_two_that_go_on_one_is_first(careful: Client, strict: World) -> None:
    ran: list[str] = []

    @function_tool
    async def refund(order: str) -> str:
        """Pay money back."""
        ran.append(order)
        # Meanwhile another process goes on with the same run, and is done first.
        await calls.save_state(None, replaces=await calls.load_state())
        return "paid"

    def agent(*steps: Any) -> GuardedAgent:
        return guarded(careful, Agent("Support", model=scripted(*steps), tools=[refund]))

    calls = PlaneCalls(careful, agent="deployer", session="thread 1")
    first = await run(agent(called("refund", {"order": "A-1"})), "Refund A-1")
    saved = await calls.load_state()
    assert (saved.version, saved.text) == (1, state_of(first))
    # Undecided: it waits on, and the prompt is not sent.
    second = await run(agent(), "Refund A-2")
    assert [wait["arguments"] for wait in waits(second)] == [{"order": "A-1"}]
    await decide_soon(strict)
    with pytest.raises(Conflict) as caught:
        await run(agent(), "Refund A-3")
    assert (caught.value.code, ran) == ("state_changed", ["A-1"])
    assert (await calls.load_state()).text is None
    third = await run(agent(), "Hello")
    assert third.final_output == "Done."
    assert (await calls.load_state()).version == 3


@pytest.mark.proves("D.1005")
async def test_without_a_plane_a_run_that_may_wait_is_not_begun_anew() -> None:
    @function_tool
    def refund(order: str) -> str:
        """Pay money back."""
        raise AssertionError(order)

    async with Client("http://127.0.0.1:9", "key") as client:
        plain = Agent("Support", model=scripted(called("refund", {"order": "A-1"})), tools=[refund])
        agent = behind(client, plain, "deployer", session="thread 1", patience=0.2)
        with pytest.raises(Unavailable):
            await run(agent, "Refund")
        # The framework's own runner: the tool does not run, and the model reads why.
        result = await Runner.run(agent, "Refund")
    assert "does not answer" in outputs(result)[0]


@pytest.mark.proves("D.1000")
async def test_a_streamed_run_waits_and_is_denied_like_any_other(careful: Client, strict: World) -> None:
    @function_tool
    def refund(order: str) -> str:
        """Pay money back."""
        raise AssertionError(order)

    agent = guarded(careful, Agent("Support", model=scripted(called("refund", {"order": "A-1"})), tools=[refund]))
    first = Runner.run_streamed(agent, "Refund")
    assert [event async for event in first.stream_events()]
    assert [wait["tool"] for wait in waits(first)] == ["refund"]
    await decide_soon(strict, Choice.DENIED, reason="no more today")
    second = Runner.run_streamed(agent, await resumed(agent, state_of(first)))
    assert [event async for event in second.stream_events()]
    assert "no more today" in outputs(second)[0]


@pytest.mark.proves("D.1105")
@pytest.mark.parametrize("way", ["copy", "append", "assign", "handoff", "handoff of a copy", "handoff object"])
async def test_what_is_added_to_a_guarded_agent_asks_too(careful: Client, strict: World, way: str) -> None:
    ran: list[str] = []

    @function_tool
    def refund(order: str) -> str:
        """Pay money back."""
        ran.append(order)
        return "paid"

    def agent(*steps: Any) -> GuardedAgent:
        agent = guarded(careful, Agent("Support", model=scripted(*steps)))
        if "handoff" in way:
            agent.model = scripted(called("transfer_to_clerk", {}, "call-0"))
            clerk = Agent("Clerk", model=scripted(*steps), tools=[refund])
            if way == "handoff":
                agent.handoffs.append(clerk)
                return agent
            copied = agent.clone(handoffs=[handoff(clerk) if way == "handoff object" else clerk])
            assert isinstance(copied, GuardedAgent)
            return copied
        match way:
            case "copy":
                copied = agent.clone(name="Another name", tools=[refund])
                assert isinstance(copied, GuardedAgent)
                return copied
            case "append":
                agent.tools.append(refund)
            case _:
                agent.tools = [refund]
        return agent

    first = await Runner.run(agent(called("refund", {"order": "A-1"})), "Refund")
    assert ([wait["tool"] for wait in waits(first)], ran) == (["refund"], [])
    await decide_soon(strict)
    again = agent()
    second = await Runner.run(again, await resumed(again, state_of(first)))
    assert (second.final_output, ran) == ("Done.", ["A-1"])
    assert [call.status for call in await ledger(strict)] == ["completed"]


@pytest.mark.proves("D.1105")
async def test_what_the_plane_would_not_see_is_refused_also_later(careful: Client) -> None:
    agent = guarded(careful, Agent("Support", model=scripted()))
    with pytest.raises(InvalidInput, match="WebSearchTool"):
        await Runner.run(agent.clone(tools=[WebSearchTool()]), "Search")
    with pytest.raises(InvalidInput, match="SandboxAgent"):
        await Runner.run(agent.clone(handoffs=[SandboxAgent("S")]), "Search")
    with pytest.raises(InvalidInput, match="GuardedAgent"):
        await Runner.run(agent.clone(handoffs=[GuardedAgent("No guard")]), "Search")
    plain: list[Any] = []
    copied = agent.clone(tools=plain)
    copied.tools.append(WebSearchTool())
    with pytest.raises(InvalidInput, match="WebSearchTool"):
        await Runner.run(copied, "Search")
    assert plain == [], "the list of the user is left alone"
