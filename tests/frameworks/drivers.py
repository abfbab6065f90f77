"""Agents of each framework, as the same few steps: start a conversation, and resume it with nothing but its saved state."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from examples.frameworks.langchain_parts import ScriptedModel
from examples.frameworks.openai_agents_parts import scripted_model
from examples.frameworks.pydantic_ai_parts import answer
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.memory import InMemorySaver
from pydantic_ai import Agent, DeferredToolRequests, ModelMessagesTypeAdapter
from pydantic_ai.models.function import FunctionModel

from agents import Agent as OpenAiAgent
from agents import Runner, UserError, function_tool
from cortex_plane import Client
from cortex_plane.client.langchain import PlaneMiddleware
from cortex_plane.client.openai_agents import behind, next_input, state_of, waits
from cortex_plane.client.pydantic_ai import PlaneCapability, next_turn

Refund = Callable[[str, int], str]
THREAD = "thread 1"


@dataclass(frozen=True, slots=True)
class Turn:
    text: str
    waits: list[dict[str, Any]]


class Driver(Protocol):
    async def run(self, plane: Client, tool: Refund, prompt: str | None = None) -> Turn: ...


class LangChainDriver:
    def __init__(self, *, is_sync: bool) -> None:
        self._is_sync, self._saver = is_sync, InMemorySaver()

    async def run(self, plane: Client, tool: Refund, prompt: str | None = None) -> Turn:
        middleware = PlaneMiddleware(plane, agent="deployer", patience=0.2)
        agent: Any = create_agent(
            ScriptedModel(), [StructuredTool.from_function(tool, name="refund", description="Pay back.")],
            checkpointer=self._saver, middleware=[middleware],
        )  # fmt: skip
        config = {"configurable": {"thread_id": THREAD}}
        inputs = None if prompt is None else {"messages": [("user", prompt)]}
        if self._is_sync:
            state = await asyncio.to_thread(agent.invoke, inputs, config)
        else:
            state = await agent.ainvoke(inputs, config)
        return Turn(state["messages"][-1].text, [waiting.value for waiting in state.get("__interrupt__", ())])


class PydanticAiDriver:
    def __init__(self) -> None:
        self._saved = b"[]"

    async def run(self, plane: Client, tool: Refund, prompt: str | None = None) -> Turn:
        capability = PlaneCapability(plane, agent="deployer", patience=0.2)
        agent = Agent(
            FunctionModel(answer, model_name="scripted"),
            output_type=[str, DeferredToolRequests],
            capabilities=[capability],
        )
        agent.tool_plain(name="refund")(tool)
        history = ModelMessagesTypeAdapter.validate_json(self._saved)
        run = await agent.run(**next_turn(history, prompt), conversation_id=THREAD)
        self._saved = run.all_messages_json()
        if isinstance(run.output, DeferredToolRequests):
            return Turn("", list(run.output.metadata.values()))
        return Turn(run.output, [])


class OpenAiAgentsDriver:
    def __init__(self) -> None:
        self._state = ""

    async def run(self, plane: Client, tool: Refund, prompt: str | None = None) -> Turn:
        refund = function_tool(tool, name_override="refund", failure_error_function=None)
        plain = OpenAiAgent("Support", model=scripted_model, tools=[refund])
        agent = behind(plane, plain, "deployer", session=THREAD, patience=0.2)
        try:
            result = await Runner.run(agent, await next_input(agent, self._state, prompt or ""))
        except UserError as error:
            raise error.__cause__ or error from None
        self._state = state_of(result)
        return Turn(result.final_output or "", waits(result))


def drivers() -> dict[str, Callable[[], Driver]]:
    return {
        "langchain": lambda: LangChainDriver(is_sync=False),
        "langchain-sync": lambda: LangChainDriver(is_sync=True),
        "pydantic-ai": PydanticAiDriver,
        "openai-agents": OpenAiAgentsDriver,
    }
