"""Agents of each framework as a user writes them, in processes that are killed: each saves its state in a folder and goes on from there.

A victim runs until its answer is there (its text) or until something waits (None). Another framework is one more function and its line in
`VICTIMS`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from examples.frameworks.langchain_parts import ScriptedModel
from examples.frameworks.openai_agents_parts import scripted_model
from examples.frameworks.pydantic_ai_parts import answer
from langchain.agents import create_agent
from langchain_core.tools import StructuredTool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from mcp import Client as McpClient
from pydantic_ai import Agent, DeferredToolRequests, ModelMessagesTypeAdapter, ModelResponse
from pydantic_ai.models.function import FunctionModel

from agents import Agent as OpenAiAgent
from agents import function_tool
from cortex_plane import Client, DidNotHappen, Happened
from cortex_plane.calls import routes
from cortex_plane.cli.hooks import hook_app
from cortex_plane.client.authorization import ToolOptions
from cortex_plane.client.dialogue import Send, current_call
from cortex_plane.client.guarding import Lines
from cortex_plane.client.langchain import PlaneMiddleware, tool_wrappers
from cortex_plane.client.openai_agents import behind
from cortex_plane.client.openai_agents import run as run_openai_agent
from cortex_plane.client.pydantic_ai import PlaneCapability, next_turn
from cortex_plane.db.crash_points import reached
from cortex_plane.mcp_gateway.gateway import CALL_ID, Gateway
from cortex_plane.mcp_gateway.gateway_calls import META, GatewayCaller
from cortex_plane.mcp_gateway.gateway_file import parse_gateway_file
from cortex_plane.mcp_gateway.upstreams import Upstreams
from tests.frameworks.office_server import acts_of, pay

PATIENCE = 5.0
_POINTS = {
    routes.AUTHORIZE_CALL: "ask", routes.INTEND_CALL: "begin", routes.SETTLE_CALL: "report", routes.REPORT_USAGE: "usage",
    routes.GET_CALL: "wait",
}  # fmt: skip


class WatchedLines(Lines):
    """Say where they are before and after each request."""

    def send(self, step: Send) -> Any:
        point = _POINTS.get(step.route, "other")
        reached(f"{point}:before")
        result = super().send(step)
        reached(f"{point}:after")
        return result

    async def send_async(self, step: Send) -> Any:
        point = _POINTS.get(step.route, "other")
        reached(f"{point}:before")
        result = await super().send_async(step)
        reached(f"{point}:after")
        return result


@dataclass(frozen=True, kw_only=True)
class Errand:
    """What one conversation is to do, and where it keeps its state."""

    url: str
    secret: str
    folder: Path
    orders: list[str]
    on_uncertain: str
    agent: str = "deployer"
    wait: float = 0
    """Seconds that a process waits for a person."""
    patience: float = PATIENCE
    """Seconds that it asks a plane that does not answer."""

    @property
    def thread(self) -> str:
        return self.folder.name

    @property
    def prompt(self) -> str:
        return f"Refund {' '.join(self.orders)}"

    @cached_property
    def plane(self) -> Client:
        client = Client(self.url, self.secret)
        client.__dict__["lines"] = WatchedLines(client._address)
        return client

    @property
    def adapter(self) -> dict[str, Any]:
        """Options of every adapter."""
        probe = self._probe if self.on_uncertain == "probe" else None
        options = ToolOptions(on_uncertain=self.on_uncertain, probe=probe, timeout=300, wait=self.wait)
        return {"agent": self.agent, "tools": {"refund": options}, "patience": self.patience}

    def refund(self, order: str, cents: int) -> str:
        """Pay money back."""
        reached("act:before")
        call = current_call()
        key = call.id if call is not None and self.on_uncertain == "retry_with_key" else None
        result = pay(self.folder, order, key)
        reached("act:after")
        return result

    def _probe(self, order: str, cents: int) -> Happened | DidNotHappen:
        return Happened(f"{order} is paid back.") if order in acts_of(self.folder) else DidNotHappen()

    def load(self, name: str) -> bytes | None:
        path = self.folder / name
        return path.read_bytes() if path.exists() else None

    def save(self, name: str, content: bytes) -> None:
        """Whole or not at all."""
        path = self.folder / f"{name}.new"
        path.write_bytes(content)
        path.rename(self.folder / name)


Run = Callable[[Errand], str | None]


@dataclass(frozen=True, slots=True)
class Victim:
    run: Run
    on_uncertain: tuple[str, ...] = ("ask_human", "retry_with_key", "probe")
    """What its tools can be declared to be settled by."""
    saves: bool = True
    """Whether the model's answer is saved before a tool runs. Where it is not, the next process makes the call under a new id, and
    only a doubt is found again: a call whose outcome was reported is over."""


# LangChain and LangGraph ------------------------------------------------------------------------------------------


def _langchain_agent(errand: Errand, saver: Any) -> Any:
    tool = StructuredTool.from_function(errand.refund, name="refund")
    middleware = PlaneMiddleware(errand.plane, **errand.adapter)
    return create_agent(ScriptedModel(), [tool], checkpointer=saver, middleware=[middleware])


def _tool_node_graph(errand: Errand, saver: Any) -> Any:
    tool = StructuredTool.from_function(errand.refund, name="refund")
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [ScriptedModel().invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([tool], **tool_wrappers(errand.plane, **errand.adapter)))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=saver)


def _graph(new_agent: Callable[[Errand, Any], Any], durability: str = "sync") -> Run:
    def run(errand: Errand) -> str | None:
        config = {"configurable": {"thread_id": errand.thread}}
        with SqliteSaver.from_conn_string(str(errand.folder / "threads.sqlite")) as saver:
            agent = new_agent(errand, saver)
            state = agent.get_state(config)
            if state.next or not state.values:
                inputs = None if state.next else {"messages": [("user", errand.prompt)]}
                values = agent.invoke(inputs, config, durability=durability)
                return None if values.get("__interrupt__") else str(values["messages"][-1].text)
            return str(state.values["messages"][-1].text)

    return run


def _run_langchain_async(errand: Errand) -> str | None:
    async def run() -> str | None:
        config = {"configurable": {"thread_id": errand.thread}}
        async with AsyncSqliteSaver.from_conn_string(str(errand.folder / "threads.sqlite")) as saver:
            agent = _langchain_agent(errand, saver)
            state = await agent.aget_state(config)
            if state.next or not state.values:
                inputs = None if state.next else {"messages": [("user", errand.prompt)]}
                values = await agent.ainvoke(inputs, config, durability="sync")
                return None if values.get("__interrupt__") else str(values["messages"][-1].text)
            return str(state.values["messages"][-1].text)

    return asyncio.run(run())


# Pydantic AI ------------------------------------------------------------------------------------------------------


def _pydantic_ai(*, saves: bool) -> Run:
    def run(errand: Errand) -> str | None:
        name = "messages.json"
        saving = (lambda messages: errand.save(name, messages)) if saves else None
        capability = PlaneCapability(errand.plane, **errand.adapter, save_messages=saving)
        agent = Agent(
            FunctionModel(answer, model_name="scripted"),
            output_type=[str, DeferredToolRequests],
            capabilities=[capability],
        )
        agent.tool_plain(name="refund")(errand.refund)
        history = ModelMessagesTypeAdapter.validate_json(errand.load(name) or b"[]")
        if history and isinstance(history[-1], ModelResponse) and not history[-1].tool_calls:
            return str(history[-1].text)
        result = asyncio.run(agent.run(**next_turn(history, errand.prompt), conversation_id=errand.thread))
        errand.save(name, result.all_messages_json())
        return None if isinstance(result.output, DeferredToolRequests) else str(result.output)

    return run


# OpenAI Agents ----------------------------------------------------------------------------------------------------


def _run_openai_agents(errand: Errand) -> str | None:
    async def run() -> str | None:
        refund = function_tool(errand.refund, name_override="refund", failure_error_function=None)
        plain = OpenAiAgent("Support", model=scripted_model, tools=[refund])
        options = {name: value for name, value in errand.adapter.items() if name != "agent"}
        agent = behind(errand.plane, plain, errand.agent, session=errand.thread, **options)
        result = await run_openai_agent(agent, errand.prompt)
        return None if result.interruptions else str(result.final_output)

    return asyncio.run(run())


# Google ADK and Microsoft Agent Framework -------------------------------------------------------------------------


def _run_google_adk(errand: Errand) -> str | None:
    from examples.frameworks.google_adk_parts import ScriptedModel as AdkModel
    from google.adk.agents import Agent as AdkAgent
    from google.adk.apps import App
    from google.adk.runners import Runner as AdkRunner
    from google.adk.sessions.sqlite_session_service import SqliteSessionService
    from google.adk.tools.function_tool import FunctionTool
    from google.genai import types

    from cortex_plane.client.google_adk import PlanePlugin

    async def run() -> str | None:
        plugin = PlanePlugin(errand.plane, **errand.adapter)
        refund = FunctionTool(errand.refund)
        refund.name = "refund"
        app = App(name="shop", root_agent=AdkAgent(name="support", model=AdkModel(), tools=[refund]), plugins=[plugin])
        sessions = SqliteSessionService(str(errand.folder / "sessions.sqlite"))
        runner = AdkRunner(app=app, session_service=sessions, auto_create_session=True)
        at = {"user_id": "customer-7", "session_id": errand.thread}
        texts: list[str] = []
        async for event in plugin.run(runner, **at, new_message=types.UserContent(errand.prompt)):
            texts += [part.text for part in (event.content.parts if event.content else None) or [] if part.text]
        return None if await plugin.pending(runner, **at) else " ".join(texts)

    return asyncio.run(run())


def _run_agent_framework(errand: Errand) -> str | None:
    from agent_framework import Agent as MicrosoftAgent
    from agent_framework import AgentSession
    from agent_framework import FunctionTool as MicrosoftTool
    from examples.frameworks.agent_framework_parts import ScriptedModel as MicrosoftModel

    from cortex_plane.client import agent_framework as adapter

    async def run() -> str | None:
        refund = MicrosoftTool(name="refund", description="Pay back.", func=errand.refund)
        middleware = adapter.plane_middleware(errand.plane, **errand.adapter)
        agent = MicrosoftAgent(MicrosoftModel(), name="support", tools=[refund], middleware=middleware)
        saved = errand.load("session.json")
        session = AgentSession.from_dict(json.loads(saved)) if saved else AgentSession(session_id=errand.thread)
        response = await agent.run(adapter.next_turn(session, errand.prompt), session=session)
        errand.save("session.json", json.dumps(session.to_dict()).encode())
        return None if adapter.pending(session) else str(response.text)

    return asyncio.run(run())


# Claude Code's hooks ----------------------------------------------------------------------------------------------


def _send_event(errand: Errand, event: dict[str, Any]) -> dict[str, Any]:
    response = httpx.post(
        f"{errand.url}/v1/hooks/claude-code",
        params={"agent": errand.agent},
        json=event,
        headers={"Authorization": f"Bearer {errand.secret}", "Cortex-Entrypoint": "sdk-cli"},
        timeout=30,
    )
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def _run_hook_command(errand: Errand, event: dict[str, Any]) -> dict[str, Any]:
    """`cortex hook`, as a process below the coding agent's."""
    (to_hook, stdin), (stdout, from_hook) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(to_hook, 0)
        os.dup2(from_hook, 1)
        for end in (to_hook, stdin, stdout, from_hook):
            os.close(end)
        sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
        os.environ.update(CORTEX_KEY=errand.secret, CLAUDE_CODE_ENTRYPOINT="sdk-cli")
        try:
            hook_app(["--dialect", "claude", "--agent", errand.agent, "--url", errand.url], standalone_mode=False)
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.close(to_hook)
    os.close(from_hook)
    with os.fdopen(stdin, "w") as file:
        file.write(json.dumps(event))
    with os.fdopen(stdout) as file:
        answer: dict[str, Any] = json.loads(file.read())
    os.waitpid(child, 0)
    return answer


_COMES_AGAIN = re.compile(r"Make (exactly )?this call again|It was begun before")


def _hooks(ask: Callable[[Errand, dict[str, Any]], dict[str, Any]], *, saves: bool = True) -> Run:
    """A coding agent that keeps a transcript, and comes back to what waits. Without ``saves`` a crash loses the model's answer."""

    def run(errand: Errand) -> str | None:
        transcript: dict[str, Any] = json.loads(errand.load("transcript.json") or "{}")
        ids = transcript.setdefault("ids", {order: f"toolu_{uuid4().hex}" for order in errand.orders})
        results: dict[str, str] = transcript.setdefault("results", {})

        def save() -> None:
            errand.save("transcript.json", json.dumps(transcript).encode())

        reached("model:after")
        if saves:
            save()
        turn = uuid4().hex
        for order in (order for order in errand.orders if order not in results):
            event = {
                "session_id": errand.thread, "cwd": str(errand.folder), "prompt_id": turn, "hook_event_name": "PreToolUse",
                "tool_name": "mcp__office__refund", "tool_input": {"order": order, "cents": 500}, "tool_use_id": ids[order],
            }  # fmt: skip
            reached("ask:before")
            decision = ask(errand, event)["hookSpecificOutput"]
            reached("ask:after")
            if decision["permissionDecision"] == "allow":
                results[order] = errand.refund(**decision.get("updatedInput", event["tool_input"]))
                after = event | {"hook_event_name": "PostToolUse", "tool_response": results[order]}
                reached("report:before")
                ask(errand, after)
                reached("report:after")
                save()
            elif decision["permissionDecision"] == "deny" and not _COMES_AGAIN.search(
                decision["permissionDecisionReason"]
            ):
                results[order] = decision["permissionDecisionReason"]
        save()
        return " ".join(results.values()) if len(results) == len(errand.orders) else None

    return run


# The MCP gateway --------------------------------------------------------------------------------------------------


def _gateway(*, has_ids: bool = True) -> Run:
    """An agent and the gateway that it started, which die together; the server behind it is another process."""

    def run(errand: Errand) -> str | None:
        return asyncio.run(_call_gateway(errand, has_ids))

    return run


async def _call_gateway(errand: Errand, has_ids: bool) -> str | None:
    text = f"""
agent = "{errand.agent}"
session = "{errand.thread}"
wait = 0
[servers.office]
command = [{sys.executable!r}, "-I", "-S", {str(Path(__file__).with_name("office_server.py"))!r}, {str(errand.folder)!r}]
[servers.office.tools.refund]
on_uncertain = "{errand.on_uncertain}"
"""
    config = parse_gateway_file(text, "gateway.toml")

    async def find_caller(_: Any) -> GatewayCaller:
        return GatewayCaller("stdio", errand.plane)

    transcript: dict[str, Any] = json.loads(errand.load("transcript.json") or "{}")
    ids = transcript.setdefault("ids", {order: uuid4().hex for order in errand.orders})
    results: dict[str, str] = transcript.setdefault("results", {})
    errand.save("transcript.json", json.dumps(transcript).encode())
    gateway = Gateway(config, Upstreams(config.servers), find_caller)
    async with gateway.running(), McpClient(gateway.server, mode="legacy", cache=None) as client:
        for order in (order for order in errand.orders if order not in results):
            meta: Any = {CALL_ID: ids[order]} if has_ids else None
            result = await client.call_tool("office__refund", {"order": order, "cents": 500}, meta=meta)
            assert result.meta is not None
            if result.meta[META]["status"] in ("completed", "stopped"):
                results[order] = " ".join(str(getattr(block, "text", "")) for block in result.content)
                errand.save("transcript.json", json.dumps(transcript).encode())
    return " ".join(results.values()) if len(results) == len(errand.orders) else None


_ASKS = ("ask_human",)
VICTIMS: dict[str, Victim] = {
    "langchain": Victim(_run_langchain_async),
    "langchain-sync": Victim(_graph(_langchain_agent)),
    "langchain-unsaved": Victim(_graph(_langchain_agent, "exit"), saves=False),
    "tool-node": Victim(_graph(_tool_node_graph)),
    "pydantic-ai": Victim(_pydantic_ai(saves=True)),
    "pydantic-ai-unsaved": Victim(_pydantic_ai(saves=False), saves=False),
    "openai-agents": Victim(_run_openai_agents, saves=False),
    "hooks": Victim(_hooks(_send_event), _ASKS),
    "hooks-unsaved": Victim(_hooks(_send_event, saves=False), _ASKS, saves=False),
    "hook-command": Victim(_hooks(_run_hook_command), _ASKS),
    "gateway": Victim(_gateway(), ("ask_human", "retry_with_key")),
    "gateway-without-ids": Victim(_gateway(has_ids=False), ("ask_human", "retry_with_key"), saves=False),
    "google-adk": Victim(_run_google_adk, saves=False),
    "agent-framework": Victim(_run_agent_framework, saves=False),
}
