"""Our turns as the provider library wants them, and its answers as ours.

Providers are strict about order: each call of the model is answered in the turn that follows, ids are used once, and no
text is empty. What was said before may come from another model, or from one that was cut off, so all of that is seen to here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from cortex_plane.agents.model.completions import (
    AssistantTurn,
    CallRequest,
    CallResult,
    Request,
    Response,
    StopReason,
    ToolTurn,
    Turn,
    Usage,
    UserTurn,
)

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.usage import RequestUsage

_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
EMPTY = "(nothing)"
EARLIER = "(The conversation began earlier.)"
NO_RESULT = '{"error":"No result of this call was recorded."}'
_STOPS = {
    "stop": StopReason.END,
    "tool_call": StopReason.TOOL_CALLS,
    "length": StopReason.MAX_TOKENS,
    "content_filter": StopReason.REFUSAL,
}


def messages_of(request: Request, *, marks_errors: bool) -> list[ModelMessage]:
    """``marks_errors``: the protocol has a mark for a result that is an error; elsewhere its words must do."""
    from pydantic_ai.messages import (
        ModelRequest,
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    instructions = request.system_prompt
    sent: list[ModelMessage] = []
    notice = [UserTurn(request.notice)] if request.notice else []
    for turn in _orderly([*request.turns, *notice]):
        match turn:
            case UserTurn():
                sent.append(ModelRequest([UserPromptPart(turn.text)], instructions=instructions))
            case AssistantTurn():
                said = [TextPart(turn.text)] if turn.text else []
                called = [ToolCallPart(call.name, call.arguments, call.id) for call in turn.calls]
                sent.append(ModelResponse([*said, *called]))
            case ToolTurn():
                results = [
                    ToolReturnPart(
                        each.name,
                        each.content,
                        each.call_id,
                        outcome="failed" if each.is_error and marks_errors else "success",
                    )
                    for each in turn.results
                ]
                sent.append(ModelRequest(results, instructions=instructions))
    return sent


def parameters_of(request: Request) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(
                name=tool.name,
                description=tool.description,
                parameters_json_schema=tool.parameters,
                strict=False,
            )
            for tool in request.tools
        ]
    )


def response_of(model: str, answered: ModelResponse) -> Response:
    from pydantic_ai.messages import TextPart, ToolCallPart

    text = "".join(part.content for part in answered.parts if isinstance(part, TextPart)) or None
    stop = _STOPS.get(answered.finish_reason or "stop", StopReason.END)
    cut = stop is StopReason.MAX_TOKENS
    calls = tuple(_call(part, cut) for part in answered.parts if isinstance(part, ToolCallPart))
    said = (answered.provider_details or {}).get("refusal")
    return Response(
        text=text,
        # Nobody knows what a filter left of them.
        calls=() if stop is StopReason.REFUSAL else calls,
        usage=usage_of(answered.usage),
        stop_reason=stop,
        model=model,
        refusal=said if isinstance(said, str) else None,
    )


def _call(part: ToolCallPart, cut: bool) -> CallRequest:
    """The vendors' clients take what comes: a name that is no text would get as far as the tools."""
    arguments = part.args if part.args is not None else {}
    if not isinstance(part.tool_name, str) or not isinstance(part.tool_call_id, str):
        raise TypeError(f"a tool call without a name or an id: {part.tool_name!r}")
    if not isinstance(arguments, str | dict):
        raise TypeError(f"tool arguments that are neither an object nor a text: {type(arguments).__name__}")
    return CallRequest(id=part.tool_call_id, name=part.tool_name, arguments=arguments or {}, truncated=cut)


def usage_of(counted: RequestUsage) -> Usage:
    return Usage(
        prompt_tokens=counted.input_tokens,
        completion_tokens=counted.output_tokens,
        cache_read_tokens=counted.cache_read_tokens,
        cache_write_tokens=counted.cache_write_tokens,
    )


def _orderly(turns: Sequence[Turn]) -> Iterator[Turn]:
    """A person speaks first, every call has its one result right after it, and no id is used twice."""
    seen: set[str] = set()
    if turns and not isinstance(turns[0], UserTurn):
        yield UserTurn(EARLIER)
    due: dict[str, CallRequest] = {}
    for turn in turns:
        match turn:
            case UserTurn():
                yield from _unanswered(due)
                yield UserTurn(turn.text if turn.text.strip() else EMPTY)
            case AssistantTurn():
                yield from _unanswered(due)
                due = {call.id: _sendable(call, seen) for call in turn.calls}
                text = turn.text if (turn.text or "").strip() else None
                if text or due:
                    yield AssistantTurn(text=text, calls=tuple(due.values()))
            case ToolTurn():
                given = {each.call_id: each for each in turn.results}
                results = [_result(call, given.get(id)) for id, call in due.items()]
                due = {}
                if results:
                    yield ToolTurn(tuple(results))
    yield from _unanswered(due)


def _unanswered(due: dict[str, CallRequest]) -> Iterator[Turn]:
    if due:
        yield ToolTurn(tuple(_result(call, None) for call in due.values()))
        due.clear()


def _result(call: CallRequest, given: CallResult | None) -> CallResult:
    if given is None:
        return CallResult(call_id=call.id, name=call.name, content=NO_RESULT, is_error=True)
    return CallResult(call_id=call.id, name=call.name, content=given.content, is_error=given.is_error)


def _sendable(call: CallRequest, seen: set[str]) -> CallRequest:
    id = call.id if _ID.fullmatch(call.id) and call.id not in seen else f"call_{len(seen) + 1}_again"
    seen.add(id)
    return CallRequest(id=id, name=call.name, arguments=_object(call.arguments))


def _object(arguments: dict[str, Any] | str) -> dict[str, Any]:
    """What is no JSON object is not taken back by any provider; the model is told what it wrote."""
    if isinstance(arguments, dict):
        return arguments
    try:
        parsed = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        parsed = None
    return parsed if isinstance(parsed, dict) else {"INVALID_JSON": arguments}
