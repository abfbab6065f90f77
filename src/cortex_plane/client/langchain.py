"""LangChain and LangGraph: each call of a tool asks the plane first, and pauses with `interrupt` while a person decides.

    agent = create_agent(model, tools, checkpointer=saver, middleware=[PlaneMiddleware(plane, agent="support")])

The session is the thread (`thread_id`) and the key is the id of the tool call, so a resume in any process asks about the same call.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

from cortex_plane.agents.model.tool_names import ToolNames
from cortex_plane.calls.model import ReportedUsage
from cortex_plane.client.adapter import Adapter, as_text, describe_stop, describe_wait, key_of
from cortex_plane.client.authorization import PATIENCE_SECONDS, Advice, PlaneAnswer, PlaneCalls, ToolOptions
from cortex_plane.client.client import Client
from cortex_plane.kernel.errors import InvalidInput, extra

with extra("langchain"):
    from langchain.agents.middleware import AgentMiddleware, AgentState, ModelRequest, ModelResponse, ToolCallRequest
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.messages.ai import UsageMetadata
    from langchain_core.tools import BaseTool
    from langgraph.config import get_config
    from langgraph.errors import GraphInterrupt, ParentCommand
    from langgraph.types import Command, interrupt
    from pydantic import BaseModel, ValidationError

if TYPE_CHECKING:
    from cortex_plane.client.guarding import Answers

ToolResult = ToolMessage | Command[Any]
_PAUSES = (Advice.WAIT, Advice.DOUBT)


class ToolWrappers(TypedDict):
    """Arguments of `ToolNode`."""

    wrap_tool_call: Callable[[ToolCallRequest, Callable[[ToolCallRequest], ToolResult]], ToolResult]
    awrap_tool_call: Callable[
        [ToolCallRequest, Callable[[ToolCallRequest], Awaitable[ToolResult]]], Awaitable[ToolResult]
    ]


class PlaneMiddleware(AgentMiddleware[AgentState[Any], Any, Any]):
    """Puts every tool of an agent behind the plane. Give it as the last middleware, so that each retry of another one asks again.

    Without a ``plane`` it is the one that `Client()` finds. ``tools`` has options by the name of the tool, ``names`` maps the names of tools, ``answers`` answers gates, and ``patience`` is how many
    seconds a plane that does not answer is asked again. With ``report_usage`` the plane counts the tokens of each answer of the model.
    ``on_behalf_of`` is the person for whom a service works.
    """

    def __init__(
        self,
        plane: Client | None = None,
        *,
        agent: str,
        tools: Mapping[str, ToolOptions] | None = None,
        names: ToolNames | None = None,
        answers: Answers | None = None,
        patience: float = PATIENCE_SECONDS,
        report_usage: bool = True,
        on_behalf_of: str | None = None,
    ) -> None:
        super().__init__()
        self._adapter = Adapter(
            plane=plane or Client(),
            agent=agent,
            tools=tools or {},
            names=names or ToolNames(),
            answers=answers,
            patience=patience,
            on_behalf_of=on_behalf_of,
        )
        self._report_usage = report_usage

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolResult]) -> ToolResult:
        fault = _find_fault(request)
        if fault is not None:
            return _error(request, fault)
        call = self._call(request)
        calls = call.calls.sync
        while (answer := calls.authorize(call.name, call.arguments, call.key, call.options)).next in _PAUSES:
            interrupt(describe_wait(answer))
        if answer.next is not Advice.RUN:
            return _instead(request, answer)
        try:
            with answer.running():
                result = handler(_approved(request, answer))
        except GraphInterrupt:
            calls.parked(answer)
            raise
        except ParentCommand as error:
            calls.completed(answer, _outcome(error.args[0]).content)
            raise
        except BaseException as error:
            calls.raised(answer, error)
            raise
        outcome = _outcome(result)
        if outcome.is_error:
            calls.unknown(answer, as_text(outcome.content))
        else:
            calls.completed(answer, outcome.content)
        return _with_note(result, answer)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolResult]]
    ) -> ToolResult:
        fault = _find_fault(request)
        if fault is not None:
            return _error(request, fault)
        call = self._call(request)
        calls = call.calls
        while (answer := await calls.authorize(call.name, call.arguments, call.key, call.options)).next in _PAUSES:
            interrupt(describe_wait(answer))
        if answer.next is not Advice.RUN:
            return _instead(request, answer)
        try:
            with answer.running():
                result = await handler(_approved(request, answer))
        except GraphInterrupt:
            await calls.parked(answer)
            raise
        except ParentCommand as error:
            await calls.completed(answer, _outcome(error.args[0]).content)
            raise
        except BaseException as error:
            await calls.raised(answer, error)
            raise
        outcome = _outcome(result)
        if outcome.is_error:
            await calls.unknown(answer, as_text(outcome.content))
        else:
            await calls.completed(answer, outcome.content)
        return _with_note(result, answer)

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        begun = time.monotonic()
        response = handler(request)
        for calls, usage, key in self._usage(response, time.monotonic() - begun):
            calls.sync.report_usage(usage, key=key)
        return response

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        begun = time.monotonic()
        response = await handler(request)
        for calls, usage, key in self._usage(response, time.monotonic() - begun):
            await calls.report_usage(usage, key=key)
        return response

    def _call(self, request: ToolCallRequest) -> _Call:
        thread = _thread_of(request.runtime.config)
        call_id = request.tool_call["id"]
        if thread is None or not call_id:
            raise InvalidInput(
                "The plane cannot tell calls apart without a `thread_id` in the config and an id of each tool call.",
                code="no_thread",
                hint='Give the agent a checkpointer, and call it with config={"configurable": {"thread_id": "..."}}.',
            )
        name = request.tool_call["name"]
        options = self._adapter.options(name, _parameters(request.tool))
        key = key_of(call_id, _count_results(request.state, call_id))
        return _Call(self._adapter.calls(thread), name, request.tool_call["args"], key, options)

    def _usage(
        self, response: ModelResponse[Any], seconds: float
    ) -> list[tuple[PlaneCalls, ReportedUsage, str | None]]:
        thread = _thread_of(get_config())
        if not self._report_usage or thread is None:
            return []
        calls = self._adapter.usage_calls(thread)
        return [
            (calls, _usage_of(message, message.usage_metadata, seconds), message.id)
            for message in response.result
            if isinstance(message, AIMessage) and message.usage_metadata is not None
        ]


def tool_wrappers(plane: Client, *, agent: str, **options: Any) -> ToolWrappers:
    """For graphs written by hand: `ToolNode(tools, **tool_wrappers(plane, agent="support"))`. ``options`` are those of `PlaneMiddleware`."""
    middleware = PlaneMiddleware(plane, agent=agent, **options)
    return {"wrap_tool_call": middleware.wrap_tool_call, "awrap_tool_call": middleware.awrap_tool_call}


@dataclass(frozen=True, slots=True)
class _Call:
    """What the plane is asked about."""

    calls: PlaneCalls
    name: str
    arguments: dict[str, Any]
    key: str
    options: ToolOptions


@dataclass(frozen=True, slots=True)
class _Outcome:
    content: Any
    is_error: bool


def _thread_of(config: Mapping[str, Any]) -> str | None:
    thread = config.get("configurable", {}).get("thread_id")
    return None if thread is None else str(thread)


def _count_results(state: Any, call_id: str) -> int:
    messages = state.get("messages", []) if isinstance(state, Mapping) else getattr(state, "messages", state)
    if not isinstance(messages, list):
        return 0
    return sum(isinstance(message, ToolMessage) and message.tool_call_id == call_id for message in messages)


def _find_fault(request: ToolCallRequest) -> str | None:
    """What is wrong with the call itself. Nobody is asked about a call that cannot run."""
    if request.tool is None:
        return f"There is no tool `{request.tool_call['name']}`. If a middleware brings it, PlaneMiddleware comes after that one."
    schema = request.tool.tool_call_schema
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        try:
            schema.model_validate(request.tool_call["args"])
        except ValidationError as error:
            faults = error.errors(include_url=False, include_input=False, include_context=False)
            text = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults)
            return f"The arguments are not valid. Correct them and call it again: {text}"
    return None


def _parameters(tool: BaseTool | None) -> dict[str, Any] | None:
    if tool is None:
        return None
    schema = tool.tool_call_schema
    if isinstance(schema, dict):
        return schema
    return schema.model_json_schema() if issubclass(schema, BaseModel) else None


def _approved(request: ToolCallRequest, answer: PlaneAnswer) -> ToolCallRequest:
    return request.override(tool_call={**request.tool_call, "args": answer.arguments}) if answer.edited else request


def _error(request: ToolCallRequest, text: str) -> ToolMessage:
    call = request.tool_call
    return ToolMessage(text, name=call["name"], tool_call_id=call["id"] or "", status="error")


def _instead(request: ToolCallRequest, answer: PlaneAnswer) -> ToolMessage:
    """For the model, of a call that does not run now."""
    if answer.next is not Advice.USE:
        return _error(request, describe_stop(answer))
    call = request.tool_call
    content = as_text(answer.result) if answer.reason is None else answer.reason
    message = ToolMessage(content, name=call["name"], tool_call_id=call["id"] or "")
    return _noted(message, answer)


def _outcome(result: Any) -> _Outcome:
    """What the plane stores of a result. A `Command` is no JSON: only that it happened is stored."""
    if isinstance(result, ToolMessage):
        # The framework made a message of an exception, which does not say whether anything happened.
        return _Outcome(result.content, result.status == "error")
    return _Outcome(result, False)


def _with_note(result: ToolResult, answer: PlaneAnswer) -> ToolResult:
    """The history of the model has its own arguments, so the result says which ones ran."""
    if not answer.edited:
        return result
    if isinstance(result, ToolMessage):
        return _noted(result, answer)
    if isinstance(result, Command) and isinstance(result.update, dict):
        messages = [
            _noted(message, answer) if isinstance(message, ToolMessage) else message
            for message in result.update.get("messages", [])
        ]
        return Command(
            graph=result.graph, update={**result.update, "messages": messages}, resume=result.resume, goto=result.goto
        )
    return result


def _noted(message: ToolMessage, answer: PlaneAnswer) -> ToolMessage:
    note = answer.edit_note
    if note is None:
        return message
    content: Any = message.content
    text = f"{content}\n{note}" if isinstance(content, str) else [*content, {"type": "text", "text": note}]
    return message.model_copy(update={"content": text})


def _usage_of(message: AIMessage, usage: UsageMetadata, seconds: float) -> ReportedUsage:
    details = usage.get("input_token_details", {})
    metadata = message.response_metadata
    name = metadata.get("model_name") or metadata.get("model") or "unknown"
    provider = metadata.get("model_provider")
    return ReportedUsage(
        model=f"{provider}:{name}" if provider else str(name),
        prompt_tokens=usage["input_tokens"],
        completion_tokens=usage["output_tokens"],
        cache_read_tokens=details.get("cache_read") or 0,
        cache_write_tokens=details.get("cache_creation") or 0,
        seconds=seconds,
    )
