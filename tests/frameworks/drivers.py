"""Agents of each framework, as the same few steps: start a conversation, and resume it with nothing but its saved state."""

from __future__ import annotations

import asyncio
import json
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
from agents import SQLiteSession, UserError, function_tool
from cortex_plane import Client
from cortex_plane.client.langchain import PlaneMiddleware
from cortex_plane.client.openai_agents import behind, run, waits
from cortex_plane.client.pydantic_ai import PlaneCapability, next_turn
from cortex_plane.kernel.errors import Unavailable

Refund = Callable[[str, int], str]
THREAD = "thread 1"


@dataclass(frozen=True, slots=True)
class Turn:
    text: str
    waits: list[dict[str, Any]]


class Driver(Protocol):
    session: str
    """Its outside id."""

    async def run(self, plane: Client, tool: Refund, prompt: str | None = None) -> Turn: ...


class LangChainDriver:
    session = THREAD

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
    session = THREAD

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


class GoogleAdkDriver:
    session = f"shop/customer-7/{THREAD}"

    def __init__(self) -> None:
        # These take a second to import, which other tests need not wait for.
        from google.adk.sessions import InMemorySessionService

        self._sessions = InMemorySessionService()

    async def run(self, plane: Client, tool: Refund, prompt: str | None = None) -> Turn:
        from examples.frameworks.google_adk_parts import ScriptedModel
        from google.adk.agents import Agent as AdkAgent
        from google.adk.apps import App
        from google.adk.runners import Runner
        from google.adk.tools.function_tool import FunctionTool
        from google.genai import types

        from cortex_plane.client.google_adk import PlanePlugin

        plugin = PlanePlugin(plane, agent="deployer", patience=0.2)
        refund = FunctionTool(tool)
        refund.name = "refund"
        agent = AdkAgent(name="support", model=ScriptedModel(), tools=[refund])
        app = App(name="shop", root_agent=agent, plugins=[plugin])
        runner = Runner(app=app, session_service=self._sessions, auto_create_session=True)
        message = None if prompt is None else types.UserContent(prompt)
        turn = plugin.run(runner, user_id="customer-7", session_id=THREAD, new_message=message)
        events = [event async for event in turn]
        parts = [part for event in events if event.content for part in event.content.parts or []]
        waits = await plugin.pending(runner, user_id="customer-7", session_id=THREAD)
        return Turn(" ".join(part.text for part in parts if part.text), waits)


class AgentFrameworkDriver:
    session = THREAD

    def __init__(self) -> None:
        self._saved = ""

    async def run(self, plane: Client, tool: Refund, prompt: str | None = None) -> Turn:
        from agent_framework import Agent as MicrosoftAgent
        from agent_framework import AgentSession, FunctionTool
        from examples.frameworks.agent_framework_parts import ScriptedModel as MicrosoftModel

        from cortex_plane.client import agent_framework as adapter

        middleware = adapter.plane_middleware(plane, agent="deployer", patience=0.2)
        refund = FunctionTool(name="refund", description="Pay back.", func=tool)
        agent = MicrosoftAgent(MicrosoftModel(), name="support", tools=[refund], middleware=middleware)
        session = AgentSession(session_id=THREAD)
        if self._saved:
            session = AgentSession.from_dict(json.loads(self._saved))
        response = await agent.run(adapter.next_turn(session, prompt), session=session)
        self._saved = json.dumps(session.to_dict())
        return Turn(response.text, adapter.pending(session))


class OpenAiAgentsDriver:
    session = THREAD

    def __init__(self) -> None:
        self._history = SQLiteSession(THREAD)

    async def run(self, plane: Client, tool: Refund, prompt: str | None = None) -> Turn:
        refund = function_tool(tool, name_override="refund", failure_error_function=None)
        plain = OpenAiAgent("Support", model=scripted_model, tools=[refund])
        agent = behind(plane, plain, "deployer", session=THREAD, patience=0.2)
        try:
            result = await run(agent, prompt or "", session=self._history)
        except UserError as error:
            raise error.__cause__ or error from None
        except Unavailable as error:
            # Whether a run waits is not known, so none begins.
            return Turn(str(error), [])
        return Turn(result.final_output or "", waits(result))


def drivers() -> dict[str, Callable[[], Driver]]:
    return {
        "langchain": lambda: LangChainDriver(is_sync=False),
        "langchain-sync": lambda: LangChainDriver(is_sync=True),
        "pydantic-ai": PydanticAiDriver,
        "openai-agents": OpenAiAgentsDriver,
        "google-adk": GoogleAdkDriver,
        "agent-framework": AgentFrameworkDriver,
    }
