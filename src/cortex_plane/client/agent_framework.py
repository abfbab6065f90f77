"""Microsoft Agent Framework: each call of a tool asks the plane first, and waits as a request for approval while a person decides.

    agent = Agent(client, tools=tools, middleware=plane_middleware(plane, agent="support"))
    response = await agent.run(next_turn(session, prompt), session=session)
    save(session.to_dict())

The session is the `AgentSession` and the key is the framework's id of the call, so a resume in any process asks about the same call. A resume answers
each request of the plane, which decides nothing: the plane is asked again before the tool runs.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cortex_plane.agents.model.tool_names import ToolNames
from cortex_plane.calls.model import ReportedUsage
from cortex_plane.client.adapter import Adapter, as_json, as_text, describe_stop, describe_wait, find_faults
from cortex_plane.client.authorization import PATIENCE_SECONDS, Advice, PlaneAnswer
from cortex_plane.client.client import Client
from cortex_plane.kernel.errors import InvalidInput, extra

with extra("agent-framework"):
    from agent_framework import (
        AgentContext,
        AgentMiddleware,
        AgentSession,
        ChatContext,
        ChatMiddleware,
        ChatResponse,
        Content,
        FunctionInvocationContext,
        FunctionMiddleware,
        Message,
        MiddlewareFailure,
        UserInputRequiredException,
    )

if TYPE_CHECKING:
    from cortex_plane.client.authorization import ToolOptions
    from cortex_plane.client.guarding import Answers

CallNext = Callable[[], Awaitable[None]]
_ASKED_BY = "asked_by"
_PLANE = "cortex-plane"


def plane_middleware(
    plane: Client | None = None,
    *,
    agent: str,
    tools: Mapping[str, ToolOptions] | None = None,
    names: ToolNames | None = None,
    answers: Answers | None = None,
    patience: float = PATIENCE_SECONDS,
    report_usage: bool = True,
    on_behalf_of: str | Callable[[AgentSession], str] | None = None,
) -> list[AgentMiddleware | FunctionMiddleware | ChatMiddleware]:
    """Puts every function tool of an agent behind the plane. Give these as the last middleware, so that they authorize what runs.

    Without a ``plane`` it is the one that `Client()` finds. ``tools`` has options by the name of the tool, ``names`` maps the names of tools, ``answers`` answers gates, and ``patience`` is how many
    seconds a plane that does not answer is asked again. With ``report_usage`` the plane counts the tokens of each answer of the model.
    ``on_behalf_of`` is the person for whom a service works, or a function that returns them for a session.
    """
    adapter = Adapter(
        plane=plane or Client(),
        agent=agent,
        tools=tools or {},
        names=names or ToolNames(),
        answers=answers,
        patience=patience,
        on_behalf_of=on_behalf_of,
    )
    usage = [_UsageReport(adapter)] if report_usage else []
    return [_SessionCheck(), _Authorization(adapter), *usage]


def next_turn(session: AgentSession, prompt: str | None = None) -> list[Message]:
    """Messages for `agent.run(...)`: go on with the calls that wait for the plane, and send the prompt only where none does."""
    answers = [request.to_function_approval_response(True) for request in _find_requests(session)]
    if answers:
        return [Message("user", answers)]
    return [] if prompt is None else [Message("user", [prompt])]


def pending(session: AgentSession) -> list[dict[str, Any]]:
    """The calls that wait, as of the last run: `tool`, `arguments`, `link`, `deadline`, `reason`, `in_doubt`."""
    requests = [request.additional_properties for request in _find_requests(session)]
    return [{key: value for key, value in request.items() if key != _ASKED_BY} for request in requests]


class _SessionCheck(AgentMiddleware):
    async def process(self, context: AgentContext, call_next: CallNext) -> None:
        if context.session is None:
            raise InvalidInput(
                "A call that waits for a person goes on from its session, and this run has none.",
                code="no_session",
                hint="Give the run a session: agent.run(..., session=AgentSession(session_id=...)).",
            )
        await call_next()


class _Authorization(FunctionMiddleware):
    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    async def process(self, context: FunctionInvocationContext, call_next: CallNext) -> None:
        function, session, key = context.function, context.session, _key(context)
        if session is None or key is None:
            raise MiddlewareFailure(f"The plane cannot tell calls of `{function.name}` apart without session and id.")
        options = self._adapter.options(function.name, function.parameters())
        arguments = _arguments(context)
        faults = find_faults(options.parameters, arguments)
        if faults is not None:
            context.result = faults
            return
        calls = self._adapter.calls(session.session_id, session)
        answer = await calls.authorize(function.name, arguments, key, options)
        match answer.next:
            case Advice.WAIT | Advice.DOUBT:
                context.result = _request(context, answer, key)
            case Advice.USE:
                result = answer.result if answer.reason is None else answer.reason
                context.result = _with_note(_contents(result), answer)
            case Advice.STOP:
                context.result = f"Error: {describe_stop(answer)}"
            case Advice.RUN:
                try:
                    with answer.running():
                        await _invoke(context, call_next, answer)
                except UserInputRequiredException:
                    await calls.parked(answer)
                    raise
                except BaseException as error:
                    await calls.raised(answer, error)
                    raise
                if _is_request(context.result):
                    await calls.parked(answer)
                elif not answer.edited and _arguments(context) != answer.arguments:
                    text = as_text(_arguments(context))
                    await calls.unknown(answer, f"Another middleware changed its arguments: it ran with {text}.")
                else:
                    await calls.completed(answer, _as_stored(context.result))
                    context.result = _with_note(context.result, answer)


class _UsageReport(ChatMiddleware):
    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    async def process(self, context: ChatContext, call_next: CallNext) -> None:
        report = functools.partial(self._report, context, time.monotonic())
        if context.stream:
            context.stream_result_hooks.append(report)
        await call_next()
        if isinstance(context.result, ChatResponse):
            await report(context.result)

    async def _report(self, context: ChatContext, start: float, response: ChatResponse[Any]) -> None:
        if context.session is None or not response.usage_details:
            return
        calls = self._adapter.usage_calls(context.session.session_id, context.session)
        await calls.report_usage(_usage_of(response, time.monotonic() - start))


async def _invoke(context: FunctionInvocationContext, call_next: CallNext, answer: PlaneAnswer) -> None:
    response = context.metadata.get("approval_response")
    if isinstance(response, Content) and response.additional_properties.get(_ASKED_BY) == _PLANE:
        # An answer to the plane's request approves nothing that the tool itself may ask.
        del context.metadata["approval_response"]
    if not answer.edited:
        await call_next()
        return
    # The framework binds an approval to the arguments of its request, so the edited ones go to the function directly.
    direct = FunctionInvocationContext(
        context.function, answer.arguments, context.session, kwargs=context.kwargs, tools=context.tools,
        metadata={key: value for key, value in context.metadata.items() if not key.startswith("_")},
        parent_service_session_state_keys=context.parent_service_session_state_keys,
    )  # fmt: skip
    context.result = await context.function.invoke(
        arguments=answer.arguments, context=direct, tool_call_id=context.metadata["call_id"]
    )


def _arguments(context: FunctionInvocationContext) -> dict[str, Any]:
    arguments = as_json(context.arguments)
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def _key(context: FunctionInvocationContext) -> str | None:
    """The framework's own id, where it has one: some providers begin to count their ids of calls anew with each answer."""
    metadata = context.metadata
    key: str | None = metadata.get("function_call_occurrence_id", metadata.get("call_id"))
    return key


def _request(context: FunctionInvocationContext, answer: PlaneAnswer, key: str) -> Content:
    """It keeps the arguments of the model, to which the framework compares those of the answer."""
    name, call_id = context.function.name, context.metadata["call_id"]
    call = Content.from_function_call(call_id, name, arguments=_arguments(context), id=key)
    properties = {_ASKED_BY: _PLANE, **describe_wait(answer)}
    return Content.from_function_approval_request(key, call, additional_properties=properties)


def _is_request(value: Any) -> bool:
    return isinstance(value, Content) and value.type == "function_approval_request"


def _find_requests(session: AgentSession) -> list[Content]:
    """The plane's requests that the framework keeps in the session until they are answered."""
    state = session.state.get("tool_approval")
    values = state.get("pending_approval_requests", []) if isinstance(state, Mapping) else []
    requests = [request if isinstance(request, Content) else Content.from_dict(request) for request in values]
    return [request for request in requests if request.additional_properties.get(_ASKED_BY) == _PLANE]


def _as_stored(result: Any) -> Any:
    if not isinstance(result, list) or not all(isinstance(item, Content) for item in result):
        return as_json(result)
    if len(result) == 1 and result[0].type == "text":
        return result[0].text
    return [item.to_dict() for item in result]


def _contents(result: Any) -> Sequence[Content]:
    try:
        if isinstance(result, list):
            return [Content.from_dict(item) for item in result]
    except (AttributeError, KeyError, TypeError, ValueError):
        pass  # Of a function whose results the framework does not parse.
    return [Content.from_text(as_text(result))]


def _with_note(result: Any, answer: PlaneAnswer) -> Any:
    """The history of the model has its own arguments, so the result says which ones ran."""
    if answer.edit_note is None:
        return result
    items = result if isinstance(result, list) else [Content.from_text(as_text(as_json(result)))]
    return [*items, Content.from_text(answer.edit_note)]


def _usage_of(response: ChatResponse[Any], seconds: float) -> ReportedUsage:
    usage = response.usage_details or {}
    return ReportedUsage(
        model=response.model or "unknown",
        prompt_tokens=usage.get("input_token_count") or 0,
        completion_tokens=usage.get("output_token_count") or 0,
        cache_read_tokens=usage.get("cache_read_input_token_count") or 0,
        cache_write_tokens=usage.get("cache_creation_input_token_count") or 0,
        seconds=seconds,
    )
