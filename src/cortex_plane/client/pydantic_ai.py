"""Pydantic AI: each call of a tool asks the plane first, and the run ends with `DeferredToolRequests` while a person decides.

    agent = Agent(model, output_type=[str, DeferredToolRequests], capabilities=[PlaneCapability(plane, agent="support")])
    run = await agent.run(prompt)
    save(run.all_messages_json())
    run = await agent.run(message_history=load(), deferred_tool_results=pending(load()))

The session is the conversation (`conversation_id`, which saved messages keep) and the key is the id of the tool call, so a resume in any
process asks about the same call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict

from cortex_plane.agents.model.tool_names import ToolNames
from cortex_plane.calls.model import ReportedUsage
from cortex_plane.client.adapter import Adapter, as_json, describe_stop, describe_wait
from cortex_plane.client.authorization import PATIENCE_SECONDS, Advice, PlaneAnswer, ToolOptions
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
    from pydantic_ai.exceptions import ApprovalRequired, CallDeferred, ModelRetry, ToolFailed
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

if TYPE_CHECKING:
    from cortex_plane.client.guarding import Answers


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
        self,
        ctx: RunContext[Any],
        *,
        call: ToolCallPart,
        tool_def: ToolDefinition,
        args: ValidatedToolArgs,
        handler: WrapToolExecuteHandler,
    ) -> Any:
        calls = self._adapter.calls(_conversation(ctx))
        options = self._adapter.options(call.tool_name, tool_def.parameters_json_schema)
        answer = await calls.authorize(call.tool_name, call.args_as_dict(), call.tool_call_id, options)
        match answer.next:
            case Advice.WAIT | Advice.DOUBT:
                raise ApprovalRequired(metadata=describe_wait(answer))
            case Advice.USE:
                return _with_note(answer.result if answer.reason is None else answer.reason, answer)
            case Advice.STOP:
                raise ToolFailed(describe_stop(answer))
        try:
            approved = await _validated(ctx, call, answer) if answer.edited else args
            with answer.running():
                result = await handler(approved)
        except (ApprovalRequired, CallDeferred):
            await calls.parked(answer)
            raise
        except (ModelRetry, ToolFailed) as error:
            # The tool itself says so, to the model.
            await calls.failed(answer, error)
            raise
        except BaseException as error:
            await calls.raised(answer, error)
            raise
        await calls.completed(answer, as_json(result.return_value if isinstance(result, ToolReturn) else result))
        return _with_note(result, answer)

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

    It approves nothing: the plane decides. A tool that waits for something else, such as an external one, needs its own result in `calls`.
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


async def _validated(ctx: RunContext[Any], call: ToolCallPart, answer: PlaneAnswer) -> dict[str, Any]:
    """The edited arguments as the tool gets them. Without a validation they would reach it as plain JSON."""
    if ctx.tool_manager is not None:
        replacement = dataclasses.replace(call, args=answer.arguments)
        outcome = await ctx.tool_manager.validate_tool_call(replacement, approved=True)
        if outcome.validated_args is not None:
            return outcome.validated_args
    raise ToolFailed(f"An approver changed the arguments to some that the tool does not take: {answer.arguments}")


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
