"""Pydantic AI: each call of a tool asks the plane first, and the run ends with `DeferredToolRequests` while a person decides.

    agent = Agent(model, output_type=[str, DeferredToolRequests], capabilities=[PlaneCapability(plane, agent="support")])
    run = await agent.run(prompt)
    save(run.all_messages_json())
    run = await agent.run(message_history=load(), deferred_tool_results=pending(load()))

The session is the conversation (`conversation_id`, which saved messages keep) and the key is the id of the tool call, so a resume in any
process asks about the same call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypedDict

from cortex_plane.agents.model.tool_names import ToolNames
from cortex_plane.calls.model import ReportedUsage
from cortex_plane.client.adapter import Adapter, as_json, describe_stop, describe_wait, key_of
from cortex_plane.client.authorization import PATIENCE_SECONDS, Advice, PlaneAnswer, PlaneCalls, ToolOptions
from cortex_plane.client.client import Client
from cortex_plane.kernel.errors import InvalidInput, extra

with extra("pydantic-ai"):
    from pydantic_ai import (
        DeferredToolRequests,
        DeferredToolResults,
        RunContext,
        ToolApproved,
        ToolDefinition,
        ToolReturn,
    )
    from pydantic_ai.capabilities import (
        AbstractCapability,
        CapabilityOrdering,
        ValidatedToolArgs,
        WrapToolExecuteHandler,
    )
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, SkipToolExecution, ToolFailed
    from pydantic_ai.messages import (
        ModelMessage,
        ModelMessagesTypeAdapter,
        ModelRequest,
        ModelResponse,
        RetryPromptPart,
        ToolCallPart,
        ToolReturnPart,
    )
    from pydantic_ai.models import ModelRequestContext
    from pydantic_ai.toolsets import ToolsetTool
    from pydantic_core import PydanticSerializationError, ValidationError, to_json, to_jsonable_python

if TYPE_CHECKING:
    from cortex_plane.client.guarding import Answers


_HANDED_OVER = {"deferred": "its result comes from elsewhere"}
"""Kept as the result of a tool that raised `CallDeferred`."""


@dataclasses.dataclass(slots=True)
class _Run:
    """A tool that runs here."""

    scope: contextlib.ExitStack
    answer: PlaneAnswer | None = None
    """Of the plane, that let it begin."""


_run: ContextVar[_Run] = ContextVar("run")


class PlaneCapability(AbstractCapability[Any]):
    """Puts every function tool of an agent behind the plane.

    Without a ``plane`` it is the one that `Client()` finds. ``tools`` has options by the name of the tool, ``names`` maps the names of tools, ``answers`` answers gates, and ``patience`` is how many
    seconds a plane that does not answer is asked again. With ``report_usage`` the plane counts the tokens of each answer of the model.
    ``on_behalf_of`` is the person for whom a service works.
    ``save_messages`` gets the messages as JSON when the model asks for tools, before one runs: from them a run goes on after a crash, with
    the same ids of calls. Without it a crash loses the model's answer, and what the tools did is known to nobody but the plane.
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
        save_messages: Callable[[bytes], Awaitable[None] | None] | None = None,
    ) -> None:
        self._adapter = Adapter(
            plane=plane or Client(),
            agent=agent,
            tools=tools or {},
            names=names or ToolNames(),
            answers=answers,
            patience=patience,
            on_behalf_of=on_behalf_of,
        )
        self._report_usage, self._save_messages = report_usage, save_messages

    def get_ordering(self) -> CapabilityOrdering:
        """Next to the tool, so that each retry of another capability asks again."""
        return CapabilityOrdering(position="innermost")

    async def before_run(self, ctx: RunContext[Any]) -> None:
        outputs = ctx.agent.output_type if ctx.agent is not None else None
        if DeferredToolRequests not in (outputs if isinstance(outputs, Sequence) else [outputs]):
            raise InvalidInput(
                "A call that waits for a person ends the run, and this agent has no output for that.",
                code="no_deferred_output",
                hint="Give the agent output_type=[str, DeferredToolRequests].",
            )

    async def wrap_tool_execute(
        self, ctx: RunContext[Any], *, args: ValidatedToolArgs, handler: WrapToolExecuteHandler, **_: Any
    ) -> Any:
        calls = self._adapter.calls(_conversation(ctx))
        with contextlib.ExitStack() as scope:
            run = _Run(scope)
            token = _run.set(run)
            try:
                result = await handler(args)
            except _RanBefore as earlier:
                return earlier.result
            except BaseException as error:
                if run.answer is not None:
                    await _report(calls, run.answer, error)
                raise
            finally:
                _run.reset(token)
        if run.answer is None:
            return result  # It did not run: another capability gave a result in its place.
        await calls.completed(run.answer, as_json(result.return_value if isinstance(result, ToolReturn) else result))
        return _with_note(result, run.answer)

    async def before_tool_execute(
        self, ctx: RunContext[Any], *, call: ToolCallPart, tool_def: ToolDefinition, args: ValidatedToolArgs
    ) -> ValidatedToolArgs:
        """After the hooks of all other capabilities: what is asked about is what runs."""
        calls = self._adapter.calls(_conversation(ctx))
        options = self._adapter.options(call.tool_name, tool_def.parameters_json_schema)
        arguments = _shown_arguments(ctx, call, args)
        key = key_of(call.tool_call_id, _count_results(ctx.messages, call.tool_call_id))
        answer = await calls.authorize(call.tool_name, arguments, key, options)
        match answer.next:
            case Advice.WAIT | Advice.DOUBT:
                raise ApprovalRequired(metadata=describe_wait(answer))
            case Advice.USE if answer.result == _HANDED_OVER:
                raise CallDeferred
            case Advice.USE:
                raise _RanBefore(_with_note(answer.result if answer.reason is None else answer.reason, answer))
            case Advice.STOP:
                raise ToolFailed(describe_stop(answer))
        run = _run.get()
        run.answer = answer
        approved = await _edited_arguments(ctx, call, answer) if answer.edited else args
        run.scope.enter_context(answer.running())
        return approved

    async def after_model_request(
        self, ctx: RunContext[Any], *, request_context: ModelRequestContext, response: ModelResponse
    ) -> ModelResponse:
        if self._report_usage and response.usage.has_values():
            key = f"{ctx.run_id}:{ctx.run_step}:{request_context.attempt}"
            await self._adapter.usage_calls(_conversation(ctx)).report_usage(_usage_of(response), key=key)
        if self._save_messages is not None and response.tool_calls:
            saving = self._save_messages(ModelMessagesTypeAdapter.dump_json([*ctx.messages, response]))
            if saving is not None:
                await saving
        return response


def pending(messages: bytes | str | Sequence[ModelMessage]) -> DeferredToolResults | None:
    """What a run needs to ask the plane again about each call that waits, from saved messages; None where no call waits.

    It approves nothing: the plane decides. A tool that raised `CallDeferred` waits for its own result: put it into `calls` of what
    this returns, which goes before an approval. Until it is there the tool defers again, and does not run again.
    """
    history = ModelMessagesTypeAdapter.validate_json(messages) if isinstance(messages, bytes | str) else messages
    calls: dict[str, ToolApproved | bool] = {}
    for message in history:
        if isinstance(message, ModelResponse):
            calls = {part.tool_call_id: ToolApproved() for part in message.parts if isinstance(part, ToolCallPart)}
        elif isinstance(message, ModelRequest):
            for part in message.parts:
                if isinstance(part, ToolReturnPart | RetryPromptPart):
                    calls.pop(part.tool_call_id, None)
    return DeferredToolResults(approvals={**calls}) if calls else None


class Turn(TypedDict):
    """Arguments of `Agent.run`."""

    user_prompt: str | None
    message_history: Sequence[ModelMessage]
    deferred_tool_results: DeferredToolResults | None


def next_turn(history: Sequence[ModelMessage], prompt: str | None) -> Turn:
    """`agent.run(**next_turn(history, prompt))`: goes on with the calls that wait, and sends the prompt only where none does."""
    results = pending(history)
    return {
        "user_prompt": None if results else prompt, "message_history": history, "deferred_tool_results": results,
    }  # fmt: skip


def _conversation(ctx: RunContext[Any]) -> str:
    if ctx.conversation_id is None:
        raise InvalidInput("The run has no `conversation_id`.", hint="Give `conversation_id` to the run.")
    return ctx.conversation_id


def _count_results(messages: Sequence[ModelMessage], call_id: str) -> int:
    results = (
        part for message in messages for part in message.parts if isinstance(part, ToolReturnPart | RetryPromptPart)
    )
    return sum(part.tool_call_id == call_id for part in results)


class _RanBefore(SkipToolExecution):
    """The result of a call that is not run again."""


async def _report(calls: PlaneCalls, answer: PlaneAnswer, error: BaseException) -> None:
    match error:
        case CallDeferred() if not answer.parks:
            # The tool did its part, such as starting a job, and its result comes from elsewhere: it does not begin again.
            await calls.completed(answer, _HANDED_OVER)
        case ApprovalRequired() | CallDeferred():
            await calls.parked(answer)
        case ModelRetry() | ToolFailed():
            # The tool itself says so, to the model.
            await calls.failed(answer, error)
        case _:
            await calls.raised(answer, error)


def _shown_arguments(ctx: RunContext[Any], call: ToolCallPart, args: ValidatedToolArgs) -> dict[str, Any]:
    """The model's arguments, unless other capabilities made others of them: then those that run."""
    own = call.args_as_dict()
    if _is_made_of(ctx, call, own, args):
        return own
    try:
        return dict(to_jsonable_python(args))
    except PydanticSerializationError as error:
        raise ToolFailed(
            f"Another capability changed the arguments to some that nobody can be shown: {error}"
        ) from None


def _is_made_of(ctx: RunContext[Any], call: ToolCallPart, own: dict[str, Any], args: ValidatedToolArgs) -> bool:
    """Whether they are what validation alone makes of the model's. What a default makes anew each time, such as an id, is no difference."""
    try:
        first, second = (to_jsonable_python(_validate(ctx, call, own), fallback=repr) for _ in range(2))
    except ValidationError:
        return False  # Another capability mended them.
    values = to_jsonable_python(args, fallback=repr)
    return values.keys() == first.keys() and all(
        values[name] == first[name] or first[name] != second[name] for name in first
    )


async def _edited_arguments(ctx: RunContext[Any], call: ToolCallPart, answer: PlaneAnswer) -> ValidatedToolArgs:
    """As the tool gets them: without a validation they would reach it as plain JSON."""
    try:
        arguments = _validate(ctx, call, answer.arguments)
        check = _tool_of(ctx, call).args_validator_func
        outcome = check(dataclasses.replace(ctx, tool_call_approved=True), **arguments) if check is not None else None
        if inspect.isawaitable(outcome):
            await outcome
        return arguments
    except (ValidationError, ModelRetry) as error:
        text = f"An approver changed the arguments to some that the tool does not take: {answer.arguments}"
        raise ToolFailed(text) from error


def _validate(ctx: RunContext[Any], call: ToolCallPart, arguments: dict[str, Any]) -> ValidatedToolArgs:
    """Without the hooks of capabilities, which might change them."""
    content = to_json(arguments)
    validator = _tool_of(ctx, call).args_validator
    result: ValidatedToolArgs = validator.validate_json(content, context=ctx.validation_context)
    return result


def _tool_of(ctx: RunContext[Any], call: ToolCallPart) -> ToolsetTool[Any]:
    tools = None if ctx.tool_manager is None else ctx.tool_manager.tools
    if tools is None or call.tool_name not in tools:
        raise ToolFailed(f"`{call.tool_name}` is not among the tools of this step, so its arguments cannot be checked.")
    return tools[call.tool_name]


def _with_note(result: Any, answer: PlaneAnswer) -> Any:
    """The history of the model has its own arguments, so the result says which ones ran."""
    note = answer.edit_note
    if note is None:
        return result
    if isinstance(result, ToolReturn):
        return dataclasses.replace(result, return_value=_with_note(result.return_value, answer))
    return f"{result}\n{note}" if isinstance(result, str) else {"result": result, "note": note}


def _usage_of(response: ModelResponse) -> ReportedUsage:
    name = response.model_name or "unknown"
    return ReportedUsage(
        model=f"{response.provider_name}:{name}" if response.provider_name else name,
        prompt_tokens=response.usage.input_tokens,
        completion_tokens=response.usage.output_tokens,
        cache_read_tokens=response.usage.cache_read_tokens,
        cache_write_tokens=response.usage.cache_write_tokens,
    )
