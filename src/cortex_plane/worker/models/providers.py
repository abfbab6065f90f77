"""Real models, through the provider library: one streamed request each, its messages, and its failures.

Providers are strict about order: each call of the model is answered in the turn that follows, ids are used once, and no
text is empty. Earlier turns may come from another model, or from one that was cut off; `messages_of` corrects them.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

import orjson

from cortex_plane.agents.model import completions
from cortex_plane.tenancy.model.access import Provider
from cortex_plane.worker.calls import storable
from cortex_plane.worker.models.credentials import VARIABLES, Clients, Credential, ProviderKeys, missing

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage, ModelResponse, ToolCallPart
    from pydantic_ai.models import Model, ModelRequestParameters
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.usage import RequestUsage


_CACHED = {
    # The prompt and the tools are the same in every step, and the conversation only grows: each step reads what the one
    # before it wrote. The other provider caches by itself.
    Provider.ANTHROPIC: {f"anthropic_cache_{part}": True for part in ("instructions", "tool_definitions", "messages")},
    Provider.OPENAI: {},
}


class ProviderModel:
    """Every model of one provider: ``anthropic:…`` or ``openai:…``."""

    def __init__(self, provider: Provider, keys: ProviderKeys, clients: Clients) -> None:
        self.provider = provider
        self._keys, self._clients = keys, clients

    async def has_key(self, org_id: UUID | None) -> bool:
        return await self._keys.find(self.provider, org_id) is not None

    async def prepare(self, model: str) -> None:
        """Import what is needed, before anybody waits for words: it takes seconds the first time."""
        try:
            await self._clients.load(self.provider)
        except ImportError as error:
            raise completions.ModelError(
                f"This worker cannot ask `{model}`: {error}",
                code="no_provider",
                hint="Install it on the worker: `pip install 'pydantic-ai-slim[anthropic,openai]'`.",
            ) from error

    async def stream(
        self, request: completions.ModelRequest
    ) -> AsyncIterator[completions.TextChunk | completions.ModelUsage | completions.Response]:
        """A `Usage` says what was counted so far, for whoever does not hear the answer out."""
        credential = await self._keys.find(self.provider, request.org_id)
        if credential is None:
            raise missing(self.provider, request.model)
        name = request.model.partition(":")[2]
        if not name:
            raise completions.ModelError(
                f"`{request.model}` names no model.",
                code="unknown_model",
                hint=f"Name one in the agent's `model_config`, as in `{self.provider}:MODEL`.",
            )
        try:
            async with self._clients.model(credential, name) as model:
                async for piece in _stream_pieces(model, request, credential):
                    yield piece
        except completions.ModelError:
            raise
        except Exception as error:
            # Whatever the library or the vendor's client makes of a broken answer.
            raise as_model_error(error, request.model, credential) from error


async def _stream_pieces(
    model: Model[Any], request: completions.ModelRequest, credential: Credential
) -> AsyncIterator[completions.TextChunk | completions.ModelUsage | completions.Response]:
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.messages import PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta

    usage: completions.ModelUsage | None = None
    async with model_request_stream(
        model,
        messages_of(request, marks_errors=credential.provider is Provider.ANTHROPIC),
        model_settings=_settings(request, credential.provider),
        model_request_parameters=parameters_of(request),
        instrument=False,
    ) as stream:
        async for event in stream:
            if usage is None and stream.usage.input_tokens:
                usage = usage_of(stream.usage)
                yield usage
            text = ""
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                text = event.part.content
            elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                text = event.delta.content_delta
            if text:
                yield completions.TextChunk(text)
        # Anthropic's stream may break off without an error; for OpenAI the library itself looks for the last word.
        if credential.provider is Provider.ANTHROPIC and not (stream.provider_details or {}).get("finish_reason"):
            raise completions.ModelError(
                f"The answer of {credential.provider} for `{request.model}` ended before it was complete.",
                hint="Try again; if it stays, look at the provider's status, or at what lies between it and the worker.",
            )
        yield response_of(request.model, stream.get())


def _settings(request: completions.ModelRequest, provider: Provider) -> ModelSettings:
    settings: dict[str, Any] = dict(_CACHED[provider])
    if request.temperature is not None:
        settings["temperature"] = request.temperature
    if request.max_tokens is not None:
        settings["max_tokens"] = request.max_tokens
    return cast("ModelSettings", settings)


_ID = re.compile(r"[A-Za-z0-9_-]{1,40}")
EMPTY = "(nothing)"
EARLIER = "(The conversation began earlier.)"
NO_RESULT = '{"error":"No result of this call was recorded."}'
_STOPS = {
    "stop": completions.StopReason.END,
    "tool_call": completions.StopReason.TOOL_CALLS,
    "length": completions.StopReason.MAX_TOKENS,
    "content_filter": completions.StopReason.REFUSAL,
}


def messages_of(request: completions.ModelRequest, *, marks_errors: bool) -> list[ModelMessage]:
    """``marks_errors``: the protocol has a mark for a result that is an error; elsewhere its words must do."""
    from pydantic_ai.messages import ModelRequest, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart

    instructions = request.system_prompt
    messages: list[ModelMessage] = []
    notice = [completions.UserTurn(request.notice)] if request.notice else []
    for turn in _in_order([*request.turns, *notice]):
        match turn:
            case completions.UserTurn():
                messages.append(ModelRequest([UserPromptPart(turn.text)], instructions=instructions))
            case completions.AssistantTurn():
                text_parts = [TextPart(turn.text)] if turn.text else []
                call_parts = [ToolCallPart(call.name, call.arguments, call.id) for call in turn.calls]
                messages.append(ModelResponse([*text_parts, *call_parts]))
            case completions.ToolTurn():
                results = []
                for result in turn.results:
                    outcome: Any = "failed" if result.is_error and marks_errors else "success"
                    results.append(ToolReturnPart(result.name, result.content, result.call_id, outcome=outcome))
                messages.append(ModelRequest(results, instructions=instructions))
    return messages


def parameters_of(request: completions.ModelRequest) -> ModelRequestParameters:
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.tools import ToolDefinition

    tools = [
        ToolDefinition(name=t.name, description=t.description, parameters_json_schema=t.parameters, strict=False)
        for t in request.tools
    ]
    return ModelRequestParameters(function_tools=tools)


def response_of(model: str, message: ModelResponse) -> completions.Response:
    from pydantic_ai.messages import TextPart, ToolCallPart

    text = "".join(part.content for part in message.parts if isinstance(part, TextPart)) or None
    stop = _STOPS.get(message.finish_reason or "stop", completions.StopReason.END)
    cut = stop is completions.StopReason.MAX_TOKENS
    calls = tuple(_call(part, cut) for part in message.parts if isinstance(part, ToolCallPart))
    refusal = (message.provider_details or {}).get("refusal")
    return completions.Response(
        text=text,
        # Nobody knows what a filter left of them.
        calls=() if stop is completions.StopReason.REFUSAL else calls,
        usage=usage_of(message.usage),
        stop_reason=stop,
        model=model,
        refusal=refusal if isinstance(refusal, str) else None,
    )


def _call(part: ToolCallPart, cut: bool) -> completions.CallRequest:
    """The vendors' clients take what comes: a name that is no text would get as far as the tools."""
    arguments = part.args if part.args is not None else {}
    if not isinstance(part.tool_name, str) or not isinstance(part.tool_call_id, str):
        raise TypeError(f"a tool call without a name or an id: {part.tool_name!r}")
    if not isinstance(arguments, str | dict):
        raise TypeError(f"tool arguments that are neither an object nor a text: {type(arguments).__name__}")
    return completions.CallRequest(id=part.tool_call_id, name=part.tool_name, arguments=arguments or {}, truncated=cut)


def usage_of(usage: RequestUsage) -> completions.ModelUsage:
    return completions.ModelUsage(
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        cache_read_tokens=usage.cache_read_tokens,
        cache_write_tokens=usage.cache_write_tokens,
    )


def _in_order(turns: Sequence[completions.Turn]) -> Iterator[completions.Turn]:
    """A person speaks first, every call has its one result right after it, and no id is used twice."""
    seen: set[str] = set()
    if turns and not isinstance(turns[0], completions.UserTurn):
        yield completions.UserTurn(EARLIER)
    due: dict[str, completions.CallRequest] = {}
    for turn in turns:
        match turn:
            case completions.UserTurn():
                yield from _missing_results(due)
                yield completions.UserTurn(turn.text if turn.text.strip() else EMPTY)
            case completions.AssistantTurn():
                yield from _missing_results(due)
                due = {call.id: _sendable(call, seen) for call in turn.calls}
                text = turn.text if (turn.text or "").strip() else None
                if text or due:
                    yield completions.AssistantTurn(text=text, calls=tuple(due.values()))
            case completions.ToolTurn():
                results_by_id = {result.call_id: result for result in turn.results}
                results = [_result(call, results_by_id.get(id)) for id, call in due.items()]
                due = {}
                if results:
                    yield completions.ToolTurn(tuple(results))
    yield from _missing_results(due)


def _missing_results(due: dict[str, completions.CallRequest]) -> Iterator[completions.Turn]:
    if due:
        yield completions.ToolTurn(tuple(_result(call, None) for call in due.values()))
        due.clear()


def _result(call: completions.CallRequest, result: completions.CallResult | None) -> completions.CallResult:
    content, is_error = (NO_RESULT, True) if result is None else (result.content, result.is_error)
    return completions.CallResult(call_id=call.id, name=call.name, content=content, is_error=is_error)


def _sendable(call: completions.CallRequest, seen: set[str]) -> completions.CallRequest:
    id = call.id if _ID.fullmatch(call.id) and call.id not in seen else f"call_{len(seen) + 1}_again"
    seen.add(id)
    return completions.CallRequest(id=id, name=call.name, arguments=_object(call.arguments))


def _object(arguments: dict[str, Any] | str) -> dict[str, Any]:
    """What is no JSON object is not taken back by any provider; the model is told what it wrote."""
    value: Any = arguments
    if isinstance(arguments, str):
        with contextlib.suppress(orjson.JSONDecodeError):
            value = orjson.loads(arguments)
    return value if isinstance(value, dict) else {"INVALID_JSON": arguments}


MOST = 500
TOO_LONG = (
    "context_length_exceeded", "context length", "context window", "context size", "context limit", "prompt is too long",
    "input is too long",
)  # fmt: skip
"""How servers word it; those that speak OpenAI's protocol rarely send its code."""


def as_model_error(error: Exception, model: str, credential: Credential) -> completions.ModelError:
    """Whatever a provider's library raises."""
    from pydantic_ai import exceptions as of

    provider = credential.provider
    text = _provider_message(error)
    reason = storable(credential.without(text))[:MOST]
    is_too_long = any(words in text.lower() for words in TOO_LONG)
    status = error.status_code if isinstance(error, of.ModelHTTPError) else None
    wait = _retry_after(error)
    if isinstance(error, of.ModelQuotaExceededError):
        return completions.ModelError(
            f"{provider} asks for money before it answers for `{model}`: {reason}",
            status=status,
            code="model_quota",
            hint="Look at the account's balance and limits, then `cortex job resubmit` the job.",
        )
    if isinstance(error, of.ModelContextWindowExceededError) or (status in (400, 413) and is_too_long):
        return completions.ModelError(
            f"The prompt is too long for `{model}`: {reason}",
            status=status or 400,
            code="prompt_too_long",
            hint="Lower `context_tokens` in the agent's `model_config` below what the model takes, give it fewer tools,"
            " or name a model with a larger window; then `cortex job resubmit` the job.",
        )
    if status is not None:
        message = f"{provider} answered {status} for `{model}`: {reason}"
        return completions.ModelError(
            message, status=status, hint=_hint(status, provider, credential), retry_after=wait
        )
    variable = VARIABLES[provider][1]
    where = f"{provider} ({credential.base_url or 'its own address'})"
    if isinstance(error, of.ModelConnectionError):
        message = f"The connection to {where} failed while it was asked for `{model}`: {reason}"
        hint = f"Check that the worker reaches it, and {variable} if it is set."
    elif isinstance(error, of.ModelAPIError):
        message = f"{where} gave no answer for `{model}`: {reason}"
        hint = "Try again; if it stays, look at the provider's status."
    else:
        message = f"{where} answered for `{model}` with something that its own protocol does not have: {reason}"
        hint = (
            "If it stays, the provider, or whatever answers at its base URL, does not speak its own protocol: look at"
            f" `{variable}`."
        )
    return completions.ModelError(message, hint=hint, retry_after=wait)


def _hint(status: int, provider: Provider, credential: Credential) -> str:
    variable = VARIABLES[provider][0]
    match status:
        case 401 | 403:
            return (
                f"It refused {credential.description}. Correct {variable} where the workers are started, or use"
                f" `cortex model-key set {provider}` for the org's own."
            )
        case 404:
            return "Check the model's name in the agent's `model_config`, and that the key may use it."
        case 413:
            return "The request is too large: lower `context_tokens` in the agent's `model_config`, or give it fewer tools."
        case 429:
            return "It limits how much is asked: the job waits and tries again. Raise the limit there if it stays."
        case 503 | 529:
            return "It is overloaded: the job waits and tries again."
    if status >= 500:
        return "Its own fault: the job tries again. Look at the provider's status if it stays."
    return "Correct the agent's `model_config` or its tools, then `cortex job resubmit` the job."


def _provider_message(error: Exception) -> str:
    """The provider's own words, where there are any."""
    body: Any = getattr(error, "body", None)
    if isinstance(body, dict):
        inner = body.get("error", body)
        message = inner.get("message") if isinstance(inner, dict) else inner
        if isinstance(message, str) and message:
            return message
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    text = str(error) or type(error).__name__
    return text if cause is error or str(cause) in ("", text) else f"{text} ({cause})"


def _retry_after(error: Exception) -> float | None:
    """Seconds, also where they are a fraction, or come as a date."""
    seconds: float | None = getattr(error, "retry_after", None)
    if seconds is None:
        raw = (getattr(error, "headers", None) or {}).get("retry-after", "")
        try:
            seconds = float(raw)
        except ValueError:
            return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
