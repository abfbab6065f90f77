"""OpenAI Agents SDK: each call of a tool asks the plane first, and the run ends with interruptions while a person decides.

    agent = behind(plane, agent, "support", session="customer-7")
    result = await run(agent, prompt)

`run` is `Runner.run` with the state of a run that waits kept by the plane. The key is the id of the tool call, so a resume in any process asks about the same call. That the framework calls a call approved decides
nothing: the plane is asked again before the tool runs.
"""

from __future__ import annotations

import copy
import dataclasses
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from cortex_plane.agents.model.tool_names import ToolNames
from cortex_plane.calls.model import ReportedUsage
from cortex_plane.client.adapter import Adapter, describe_stop, describe_wait, key_of
from cortex_plane.client.authorization import PATIENCE_SECONDS, Advice, PlaneAnswer, PlaneCalls, ToolOptions
from cortex_plane.client.client import Client
from cortex_plane.client.dialogue import ApprovalPending, InDoubt, encoded
from cortex_plane.kernel.errors import InvalidInput, extra

with extra("openai-agents"):
    from agents.agent_tool_state import get_agent_tool_state_scope, peek_agent_tool_run_result
    from agents.items import ToolApprovalItem
    from agents.models import get_default_model
    from agents.tool import (
        invoke_function_tool,
        maybe_invoke_function_tool_failure_error_function,
        set_function_tool_failure_error_function,
    )
    from agents.tool_context import ToolContext
    from pydantic import BaseModel

    from agents import (
        Agent,
        AgentHooks,
        FunctionTool,
        Handoff,
        ModelResponse,
        RunContextWrapper,
        Runner,
        RunResult,
        RunResultStreaming,
        RunState,
        Tool,
        ToolOutputFileContent,
        ToolOutputImage,
        ToolOutputText,
        TResponseInputItem,
    )

if TYPE_CHECKING:
    from cortex_plane.client.guarding import Answers

_PAUSES = (Advice.WAIT, Advice.DOUBT)
_STRUCTURED = (ToolOutputText, ToolOutputImage, ToolOutputFileContent)


def behind(
    plane: Client | None,
    agent: Agent[Any],
    name: str,
    *,
    session: str,
    tools: Mapping[str, ToolOptions] | None = None,
    names: ToolNames | None = None,
    answers: Answers | None = None,
    patience: float = PATIENCE_SECONDS,
    report_usage: bool = True,
    on_behalf_of: str | None = None,
    unguarded: Sequence[str] = (),
) -> GuardedAgent:
    """A copy of the agent, and of those that it hands over to, whose function tools ask the plane. ``name`` is the agent in the plane,
    and ``session`` what the conversation is called: every process that gives the same one goes on in the same session.

    Without a ``plane`` it is the one that `Client()` finds. ``tools`` has options by the name of the tool, ``names`` maps the names of tools, ``answers`` answers gates, and ``patience`` is how many
    seconds a plane that does not answer is asked again. With ``report_usage`` the plane counts the tokens of each answer of the model.
    Tools that run elsewhere, such as hosted ones, are an error unless ``unguarded`` names them.
    """
    adapter = Adapter(
        plane=plane or Client(),
        agent=name,
        tools=tools or {},
        names=names or ToolNames(),
        answers=answers,
        patience=patience,
        on_behalf_of=on_behalf_of,
    )
    return AgentGuard(adapter, session, report_usage, frozenset(unguarded)).put_behind(agent)


async def run(agent: GuardedAgent, prompt: str | list[TResponseInputItem], **options: Any) -> RunResult:
    """`Runner.run`, whose options it takes. A run of this session that waits goes on with what people decided, in whatever process it began;
    the prompt is sent only where none waits. What waits afterwards is kept by the plane.

    Raises `Conflict` (`state_changed`) where another process went on with the same run meanwhile: its state stands."""
    if agent.guard is None:
        raise InvalidInput("This agent is not behind the plane.", hint="Give what `behind` returns.")
    calls = agent.guard.calls
    saved = await calls.load_state()
    result = await Runner.run(agent, prompt if saved.text is None else await resumed(agent, saved.text), **options)
    text = state_of(result) or None
    if text is not None or saved.text is not None:
        await calls.save_state(text, replaces=saved)
    return result


async def resumed(agent: GuardedAgent, run: str | RunState[Any, Agent[Any]]) -> RunState[Any, Agent[Any]]:
    """A saved run with the plane's answers to the calls that wait; those that still wait stay interruptions."""
    state = await RunState.from_string(agent, run) if isinstance(run, str) else run
    for item in state.get_interruptions():
        if isinstance(item.agent, GuardedAgent) and item.agent.guard is not None:
            await item.agent.guard.decide(item.agent, state, item)
    return state


def state_of(result: RunResult | RunResultStreaming) -> str:
    """What to save of a run that waits; empty where none does."""
    return result.to_state().to_string() if result.interruptions else ""


def waits(result: RunResult | RunResultStreaming) -> list[dict[str, Any]]:
    """The calls that wait: `tool`, `arguments`, `link`, `deadline`, `reason` and `in_doubt` of each."""
    return [
        item.agent.guard.waits[item.call_id]
        for item in result.interruptions
        if isinstance(item.agent, GuardedAgent) and item.agent.guard is not None and item.call_id in item.agent.guard.waits
    ]  # fmt: skip


@dataclass
class GuardedAgent(Agent[Any]):
    """What `behind` makes of an agent. Its copies stay behind the plane, and so does what is added to it later."""

    guard: AgentGuard | None = None

    # mypy refuses a property in place of a field of a dataclass; lists that were appended to show it only when they are read.
    @property  # type: ignore[misc]
    def tools(self) -> list[Tool]:
        """Those that were added since the last look are guarded now, in place: the runner compares tools by identity."""
        tools: list[Tool] = self.__dict__.setdefault("_tools", [])
        if self.guard is not None:
            tools[:] = [self.guard.guarded(tool, self.name) for tool in tools]
        return tools

    @tools.setter
    def tools(self, tools: list[Tool]) -> None:
        self.__dict__["_tools"] = list(tools)

    @property  # type: ignore[misc]
    def handoffs(self) -> list[Agent[Any] | Handoff[Any, Any]]:
        handoffs: list[Agent[Any] | Handoff[Any, Any]] = self.__dict__.setdefault("_handoffs", [])
        if self.guard is not None:
            handoffs[:] = [self.guard.guarded_handoff(target) for target in handoffs]
        return handoffs

    @handoffs.setter
    def handoffs(self, handoffs: list[Agent[Any] | Handoff[Any, Any]]) -> None:
        self.__dict__["_handoffs"] = list(handoffs)

    async def get_mcp_tools(self, run_context: RunContextWrapper[Any]) -> list[Tool]:
        """They are known only now."""
        tools = await super().get_mcp_tools(run_context)
        return tools if self.guard is None else [self.guard.guarded(tool, self.name) for tool in tools]


@dataclass(frozen=True, slots=True, eq=False)
class AgentGuard:
    """What all agents of one conversation share."""

    adapter: Adapter
    session: str
    reports_usage: bool
    unguarded: frozenset[str]
    waits: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What the plane said last, by the call that waits."""
    _guarded: weakref.WeakValueDictionary[int, Any] = field(default_factory=weakref.WeakValueDictionary)
    """Tools and handoffs that this made, by their id."""
    _agents: dict[int, tuple[Agent[Any], GuardedAgent]] = field(default_factory=dict)
    """By the agent that a copy was made of, which is held so that its id stays its own."""

    @property
    def calls(self) -> PlaneCalls:
        return self.adapter.calls(self.session)

    def put_behind(self, agent: Agent[Any]) -> GuardedAgent:
        if isinstance(agent, GuardedAgent) and agent.guard is not None:
            return agent
        if type(agent) is not Agent:
            raise InvalidInput(
                f"`{agent.name}` is a {type(agent).__name__}, which may bring tools that the plane does not see.",
                code="unguarded_agent",
                hint="Put an agent of the class `Agent` behind the plane.",
            )
        if id(agent) in self._agents:
            return self._agents[id(agent)][1]
        values = {field.name: getattr(agent, field.name) for field in dataclasses.fields(agent) if field.init}
        clone = GuardedAgent(**{**values, "handoffs": []}, guard=self)
        self._agents[id(agent)] = agent, clone
        clone.handoffs = [self.guarded_handoff(target) for target in agent.handoffs]
        if self.reports_usage:
            clone.hooks = _UsageHooks(self, agent.hooks)
        return clone

    def guarded_handoff(self, target: Agent[Any] | Handoff[Any, Any]) -> Agent[Any] | Handoff[Any, Any]:
        if not isinstance(target, Handoff):
            return self.put_behind(target)
        return target if self._is_guarded(target) else self._handoff(target)

    def _handoff(self, handoff: Handoff[Any, Any]) -> Handoff[Any, Any]:
        async def hand_over(context: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
            return self.put_behind(await handoff.on_invoke_handoff(context, arguments))

        clone = copy.copy(handoff)
        clone.on_invoke_handoff = hand_over
        target = handoff._agent_ref() if handoff._agent_ref is not None else None
        if isinstance(target, Agent):
            clone._agent_ref = weakref.ref(self.put_behind(target))
        self._guarded[id(clone)] = clone
        return clone

    def _is_guarded(self, entry: Tool | Handoff[Any, Any]) -> bool:
        return self._guarded.get(id(entry)) is entry

    def guarded(self, tool: Tool, owner: str) -> Tool:
        if tool.name in self.unguarded or self._is_guarded(tool):
            return tool
        if not isinstance(tool, FunctionTool):
            raise InvalidInput(
                f"The tool `{tool.name}` of `{owner}` is a {type(tool).__name__}: the plane does not see its calls.",
                code="unguarded_tool",
                hint=f'Leave it out, or name it: behind(..., unguarded=["{tool.name}"]). It then runs without the plane.',
            )
        if tool.needs_approval is not False:
            raise InvalidInput(
                f"The tool `{tool.qualified_name}` of `{owner}` has a `needs_approval` of its own.",
                code="two_approvals",
                hint="Leave it out: a policy of the plane says who is asked.",
            )
        if tool._is_agent_tool and not isinstance(tool._agent_instance, GuardedAgent):
            raise InvalidInput(
                f"The tool `{tool.qualified_name}` of `{owner}` is an agent that is not behind the plane.",
                code="unguarded_agent",
                hint="Make the tool of it afterwards: behind(plane, subagent, ...).as_tool(...).",
            )
        options = self._options(tool)
        clone = copy.copy(tool)
        clone.needs_approval = self._asking(tool, options)
        clone.on_invoke_tool = self._invoking(tool, options)
        self._guarded[id(clone)] = clone
        return clone

    def _options(self, tool: FunctionTool) -> ToolOptions:
        return self.adapter.options(tool.qualified_name, tool.params_json_schema)

    async def _find_tool(self, agent: GuardedAgent, name: str) -> FunctionTool | None:
        for tools in agent.tools, await agent.get_mcp_tools(RunContextWrapper(None)):
            for tool in tools:
                if isinstance(tool, FunctionTool) and tool.qualified_name == name and self._is_guarded(tool):
                    return tool
        return None

    def _asking(self, tool: FunctionTool, options: ToolOptions) -> Callable[..., Any]:
        async def ask(context: RunContextWrapper[Any], arguments: dict[str, Any], call_id: str) -> bool:
            earlier = _count_earlier(context.turn_input, call_id)
            return await self._waits(tool.qualified_name, arguments, call_id, earlier, options) is None

        return ask

    async def _waits(
        self, name: str, arguments: Any, call_id: str, earlier: int, options: ToolOptions
    ) -> PlaneAnswer | None:
        """None where the call waits."""
        answer = await self.calls.look(name, arguments, key_of(call_id, earlier), options)
        if answer.next in _PAUSES:
            self.waits[call_id] = describe_wait(answer)
            return None
        self.waits.pop(call_id, None)
        return answer

    async def decide(self, agent: GuardedAgent, state: RunState[Any, Agent[Any]], item: ToolApprovalItem) -> None:
        """Takes the plane's answer over into the state of the run."""
        tool = await self._find_tool(agent, item.qualified_name or "")
        if tool is None or item.call_id is None:
            return  # A tool that is gone, or one that is not guarded.
        try:
            arguments = _read_arguments(item.arguments)
        except ValueError as error:
            state.reject(
                item, rejection_message=f"The arguments are no JSON object. Correct them and call it again: {error}"
            )
            return
        # The run of an agent that is a tool began with its input alone.
        inputs = state._original_input if agent is state._current_agent else []
        earlier = _count_earlier(inputs, item.call_id)
        answer = await self._waits(tool.qualified_name, arguments, item.call_id, earlier, self._options(tool))
        if answer is None:
            return
        if answer.next is Advice.STOP:
            state.reject(item, rejection_message=describe_stop(answer))
        else:
            state.approve(item)

    def _invoking(self, tool: FunctionTool, options: ToolOptions) -> Callable[[ToolContext[Any], str], Any]:
        # Its errors come out as they are, and its time is the guarded tool's.
        body = set_function_tool_failure_error_function(copy.copy(tool), None)
        body.timeout_seconds = None

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            calls = self.calls
            key = key_of(context.tool_call_id, _count_earlier(context.turn_input, context.tool_call_id))
            answer = await calls.authorize(tool.qualified_name, _read_arguments(arguments), key, options)
            match answer.next:
                case Advice.WAIT:
                    raise ApprovalPending(f"`{answer.tool}` was not run: {answer.reason}")
                case Advice.DOUBT:
                    raise InDoubt(f"`{answer.tool}` was not run: {answer.reason}")
                case Advice.USE:
                    return _with_note(answer.result if answer.reason is None else answer.reason, tool, answer)
                case Advice.STOP:
                    return describe_stop(answer)
            text = orjson.dumps(answer.arguments).decode() if answer.edited else arguments
            try:
                with answer.running():
                    result = await invoke_function_tool(function_tool=body, context=context, arguments=text)
            except BaseException as error:
                await calls.raised(answer, error)
                if not isinstance(error, Exception):
                    raise
                # As the framework tells it to the model, where the tool says so.
                message = await maybe_invoke_function_tool_failure_error_function(
                    function_tool=tool, context=context, error=error
                )
                if message is None:
                    raise
                return message
            if tool._is_agent_tool and _subagent_waits(context):
                await calls.parked(answer)
                return result
            await calls.completed(answer, _as_json(result))
            return _with_note(result, tool, answer)

        return invoke


class _UsageHooks(AgentHooks):
    """Those of the user, and the tokens go to the plane."""

    def __init__(self, guard: AgentGuard, hooks: Any) -> None:
        self._guard, self._hooks = guard, hooks
        if hooks is not None:
            for name in ("on_start", "on_end", "on_handoff", "on_tool_start", "on_tool_end", "on_llm_start"):
                setattr(self, name, getattr(hooks, name))

    async def on_llm_end(self, context: RunContextWrapper[Any], agent: Agent[Any], response: ModelResponse) -> None:
        calls = self._guard.adapter.usage_calls(self._guard.session)
        await calls.report_usage(_usage_of(agent, response))
        if self._hooks is not None:
            await self._hooks.on_llm_end(context, agent, response)


def _read_arguments(arguments: str | None) -> dict[str, Any]:
    """Raises `ValueError`."""
    value = orjson.loads(arguments) if arguments and arguments.strip() else {}
    if not isinstance(value, dict):
        raise ValueError(f"it is a {type(value).__name__}")
    return value


def _count_earlier(inputs: str | Sequence[Any], call_id: str) -> int:
    """How long the conversation was when this run began, if the id has a result in it. Of results with one id the framework keeps the last
    alone, so they cannot be counted. In one run it takes an id once."""
    has_result = any(
        isinstance(item, Mapping) and item.get("type") == "function_call_output" and item.get("call_id") == call_id
        for item in inputs
    )
    return len(inputs) if has_result else 0


def _subagent_waits(context: ToolContext[Any]) -> bool:
    if context.tool_call is None:
        return False
    result = peek_agent_tool_run_result(context.tool_call, scope_id=get_agent_tool_state_scope(context))
    return bool(getattr(result, "interruptions", None))


def _as_json(result: Any) -> Any:
    """As the plane keeps it; what is no JSON as the model reads it."""
    if isinstance(result, BaseModel):
        return result.model_dump(mode="json", exclude_none=True)
    if isinstance(result, list):
        return [_as_json(part) for part in result]
    return result if encoded(result)[1] else str(result)


def _with_note(result: Any, tool: FunctionTool, answer: PlaneAnswer) -> Any:
    """The history of the model has its own arguments, so the result says which ones ran."""
    note = answer.edit_note
    if note is None or tool.output_json_schema is not None:
        return result
    parts = result if isinstance(result, list) else [result]
    if parts and all(_is_structured(part) for part in parts):
        return [*parts, ToolOutputText(text=note)]
    return f"{result}\n{note}"


def _is_structured(part: Any) -> bool:
    return isinstance(part, _STRUCTURED) or (isinstance(part, dict) and part.get("type") in ("text", "image", "file"))


def _usage_of(agent: Agent[Any], response: ModelResponse) -> ReportedUsage:
    model = agent.model or get_default_model()
    usage = response.usage
    return ReportedUsage(
        model=model if isinstance(model, str) else str(getattr(model, "model", type(model).__name__)),
        prompt_tokens=usage.input_tokens,
        completion_tokens=usage.output_tokens,
        cache_read_tokens=usage.input_tokens_details.cached_tokens or 0,
    )
