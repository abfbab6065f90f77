"""Google ADK: each call of a tool asks the plane first, and waits as a request for confirmation while a person decides.

    plane = PlanePlugin(agent="support")
    runner = Runner(app=App(name="support", root_agent=agent, plugins=[plane]), session_service=sessions)
    async for event in plane.run(runner, user_id=user, session_id=session, new_message=message): ...

The session is the one of ADK and the key is the id of the function call, so a resume in any process asks about the same call. ADK uses a
confirmation up with the first answer, so `run` answers those alone that the plane has settled.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import UUID, uuid4
from weakref import WeakKeyDictionary

from cortex_plane.agents.model.tool_names import ToolNames
from cortex_plane.calls.model import ExternalCall, Next, ReportedUsage
from cortex_plane.client.adapter import Adapter, as_json, describe_stop, describe_wait, find_faults, key_of
from cortex_plane.client.authorization import PATIENCE_SECONDS, Advice, PlaneAnswer, PlaneCalls
from cortex_plane.client.client import Client
from cortex_plane.client.dialogue import approval_link
from cortex_plane.jobs.model.effects import IN_DOUBT
from cortex_plane.kernel.errors import CortexError, InvalidInput, NotFound, extra

with extra("google-adk"):
    from google.adk.agents.callback_context import CallbackContext
    from google.adk.events.event import Event
    from google.adk.models.llm_response import LlmResponse
    from google.adk.plugins.base_plugin import BasePlugin
    from google.adk.runners import Runner
    from google.adk.sessions.session import Session
    from google.adk.tools.base_tool import BaseTool
    from google.adk.tools.tool_context import ToolContext
    from google.genai import types

if TYPE_CHECKING:
    from cortex_plane.client.authorization import ToolOptions
    from cortex_plane.client.guarding import Answers

CONFIRMATION = "adk_request_confirmation"
"""What ADK calls the function with which it asks for a confirmation."""
_ASKED_BY = "asked_by"
_PLANE = "cortex-plane"
_WAITS = "It has not run yet: a person decides. The conversation goes on with its result."


class PlanePlugin(BasePlugin):
    """Puts every tool of an app behind the plane. Give it as the last plugin, so that it authorizes what runs.

    Without a ``plane`` it is the one that `Client()` finds. ``tools`` has options by the name of the tool, ``names`` maps the names of tools, ``answers`` answers gates, and ``patience`` is how many
    seconds a plane that does not answer is asked again. With ``report_usage`` the plane counts the tokens of each answer of the model.
    ``on_behalf_of`` is the person for whom a service works, or a function that returns them for ADK's id of the user.
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
        on_behalf_of: str | Callable[[str], str] | None = None,
    ) -> None:
        super().__init__(name="cortex_plane")
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
        self._running: WeakKeyDictionary[ToolContext, _Run] = WeakKeyDictionary()

    async def run(
        self, runner: Runner, *, user_id: str, session_id: str, new_message: types.Content | None = None, **options: Any
    ) -> AsyncGenerator[Event]:
        """`runner.run_async`, with the ``options`` that it takes. Where calls wait it goes on with those that are settled, and yields nothing
        where none is; it sends the message only where no call waits."""
        for event in await _repeat_requests(runner, user_id, session_id):
            yield event
        requests = [request for request in await _load_requests(runner, user_id, session_id) if request.is_ours]
        parts = [request.answer() for request in requests if (await self._look_at(request)).is_settled]
        parts += [part for part in (new_message and new_message.parts) or () if part.function_response is not None]
        if parts:
            new_message = types.Content(role="user", parts=parts)
        elif requests or new_message is None:
            return
        turn = runner.run_async(user_id=user_id, session_id=session_id, new_message=new_message, **options)
        async with aclosing(turn) as events:
            async for event in events:
                yield event
        for event in await _repeat_requests(runner, user_id, session_id):
            yield event

    async def pending(self, runner: Runner, *, user_id: str, session_id: str) -> list[dict[str, Any]]:
        """The calls of a session that wait, as the plane has them now: `tool`, `arguments`, `link`, `deadline`, `reason`, `in_doubt`."""
        requests = await _load_requests(runner, user_id, session_id)
        states = [await self._look_at(request) for request in requests if request.is_ours]
        return [state.details for state in states if not state.is_settled or state.details["call_id"] is None]

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> dict[str, Any] | None:
        if type(tool) is BaseTool:
            return None  # There is none of that name. ADK says so to the model, and nothing runs.
        call_id = tool_context.function_call_id
        if call_id is None:
            raise InvalidInput("The call of a tool has no id.", hint="Call tools through an agent of ADK.")
        options = self._adapter.options(tool.name, _parameters(tool))
        faults = find_faults(options.parameters, tool_args)
        if faults is not None:
            return {"error": faults}
        calls = self._adapter.calls(_outside_id(tool_context.session), tool_context.session.user_id)
        key = key_of(call_id, _count_earlier_calls(tool_context.session.events, call_id))
        answer = await calls.authorize(tool.name, tool_args, key, options)
        match answer.next:
            case Advice.WAIT | Advice.DOUBT:
                payload = {_ASKED_BY: _PLANE, **describe_wait(answer)}
                tool_context.request_confirmation(hint=answer.reason or _WAITS, payload=payload)
                tool_context.actions.skip_summarization = True
                return {"error": _WAITS}
            case Advice.USE:
                self._hold_model_back(tool_context)
                return _with_note(answer.result if answer.reason is None else answer.reason, answer)
            case Advice.STOP:
                self._hold_model_back(tool_context)
                return {"error": describe_stop(answer)}
        if _is_answer_to_plane(tool_context):
            # The plane's own request is no confirmation that the tool itself may ask for.
            tool_context.tool_confirmation = None
        if answer.edited:
            tool_args.clear()
            tool_args.update(answer.arguments)
        scope = ExitStack()
        # ADK runs the tool and the callbacks around it in one task, so the tool has its `current_call()`.
        scope.enter_context(answer.running())
        self._running[tool_context] = _Run(calls, answer, scope)
        return None

    async def after_tool_callback(
        self, *, tool_args: dict[str, Any], tool_context: ToolContext, result: Any, **_: Any
    ) -> dict[str, Any] | None:
        run = self._running.pop(tool_context, None)
        if run is None:
            return None
        run.scope.close()
        self._hold_model_back(tool_context)
        if tool_context.function_call_id in tool_context.actions.requested_tool_confirmations or (
            tool_context.function_call_id in tool_context.actions.requested_auth_configs
        ):
            tool_context.actions.skip_summarization = True
            await run.calls.parked(run.answer)
            return None
        if as_json(tool_args) != as_json(run.answer.arguments):
            await run.calls.unknown(run.answer, f"Another callback changed its arguments: it ran with {tool_args}.")
            return None
        await run.calls.completed(run.answer, as_json(result))
        return _with_note(result, run.answer) if run.answer.edited else None

    async def on_tool_error_callback(
        self, *, tool_context: ToolContext, error: BaseException, **_: Any
    ) -> dict[str, Any] | None:
        run = self._running.pop(tool_context, None)
        if run is not None:
            run.scope.close()
            await run.calls.raised(run.answer, error)
        return None

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        usage = llm_response.usage_metadata
        if self._report_usage and usage is not None and not llm_response.partial:
            session = callback_context.session
            calls = self._adapter.usage_calls(_outside_id(session), session.user_id)
            await calls.report_usage(_usage_of(llm_response.model_version, usage))
        return None

    def _hold_model_back(self, tool_context: ToolContext) -> None:
        """Other calls of the same answer may still wait. The model is asked when all of them have a result."""
        events = tool_context.session.events
        siblings = _find_siblings(events, tool_context.function_call_id)
        requests = [request for request in _find_requests(events) if request.call["id"] in siblings]
        answers = _last_answers(events)
        if any(request.id not in answers or request.is_used_up for request in requests):
            tool_context.actions.skip_summarization = True

    async def _look_at(self, request: _Request) -> _State:
        """It begins nothing, unlike the question before the tool runs."""
        details = {key: value for key, value in request.payload.items() if key != _ASKED_BY}
        try:
            call = await self._adapter.plane.calls.get(UUID(str(details["call_id"])))
        except NotFound:
            return _State(True, details)  # The tool's own question says what became of it.
        except (CortexError, ValueError) as error:
            return _State(details["call_id"] is None, details | {"reason": str(error)})
        return _state_of(call, details, self._adapter.plane.lines.url)


@dataclass(frozen=True, slots=True)
class _Run:
    """A call that runs."""

    calls: PlaneCalls
    answer: PlaneAnswer
    scope: ExitStack


@dataclass(frozen=True, slots=True)
class _State:
    """What the plane says about a call that waits."""

    is_settled: bool
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Request:
    """A request for confirmation whose call has no result yet."""

    id: str
    event: Event
    """In which it was asked."""
    call: dict[str, Any]
    """The call that waits."""
    confirmation: dict[str, Any]
    is_used_up: bool = False
    """It was answered, and the call waits again: ADK takes no second answer to it."""

    @property
    def payload(self) -> dict[str, Any]:
        payload = self.confirmation.get("payload")
        return payload if isinstance(payload, dict) else {}

    @property
    def is_ours(self) -> bool:
        return self.payload.get(_ASKED_BY) == _PLANE

    def answer(self) -> types.Part:
        """It decides nothing: it makes ADK call the tool again, and the plane is asked before that."""
        response = types.FunctionResponse(id=self.id, name=CONFIRMATION, response={"confirmed": True})
        return types.Part(function_response=response)

    def repeat(self) -> Event:
        args = {"originalFunctionCall": self.call, "toolConfirmation": self.confirmation}
        call = types.FunctionCall(id=f"adk-{uuid4()}", name=CONFIRMATION, args=args)
        return Event(
            invocation_id=self.event.invocation_id, author=self.event.author, branch=self.event.branch,
            content=types.Content(role="model", parts=[types.Part(function_call=call)]), long_running_tool_ids={str(call.id)},
        )  # fmt: skip


def _outside_id(session: Session) -> str:
    """ADK's ids of sessions are unique for one user of one app."""
    return f"{session.app_name}/{session.user_id}/{session.id}"


async def _load_session(runner: Runner, user_id: str, session_id: str) -> Session | None:
    return await runner.session_service.get_session(app_name=runner.app_name, user_id=user_id, session_id=session_id)


async def _load_requests(runner: Runner, user_id: str, session_id: str) -> list[_Request]:
    session = await _load_session(runner, user_id, session_id)
    return [] if session is None else _find_requests(session.events)


async def _repeat_requests(runner: Runner, user_id: str, session_id: str) -> list[Event]:
    """ADK does not ask again where a call that went on waits once more, so this does."""
    session = await _load_session(runner, user_id, session_id)
    requests = [] if session is None else _find_requests(session.events)
    events = [request.repeat() for request in requests if request.is_used_up]
    return [await runner.session_service.append_event(session, event) for event in events if session is not None]


def _find_requests(events: list[Event]) -> list[_Request]:
    requests: dict[str, _Request] = {}
    """By the id of the call that waits."""
    answers: set[str] = set()
    for event in events:
        for call in event.get_function_calls():
            if call.name == CONFIRMATION and call.id and call.args:
                original, confirmation = call.args["originalFunctionCall"], call.args["toolConfirmation"]
                requests[original["id"]] = _Request(call.id, event, original, confirmation)
        for response in event.get_function_responses():
            request = requests.get(response.id or "")
            if event.author == "user":
                answers.add(response.id or "")
            elif request is not None and request.id in answers:
                again = event.actions.requested_tool_confirmations.get(response.id or "")
                del requests[request.call["id"]]
                if again is not None:
                    confirmation = again.model_dump(by_alias=True, exclude_none=True)
                    requests[request.call["id"]] = replace(request, confirmation=confirmation, is_used_up=True)
    return list(requests.values())


def _find_siblings(events: list[Event], call_id: str | None) -> set[str | None]:
    """The ids of all calls of one answer of the model."""
    for event in reversed(events):
        ids = {call.id for call in event.get_function_calls()}
        if call_id in ids:
            return ids
    return set()


def _count_earlier_calls(events: list[Event], call_id: str) -> int:
    """With this id, before the last one. A call that waits has responses too, so only a call after a response is another one."""
    count, has_response = 0, False
    for event in events:
        if has_response and any(call.id == call_id for call in event.get_function_calls()):
            count, has_response = count + 1, False
        has_response = has_response or any(response.id == call_id for response in event.get_function_responses())
    return count


def _last_answers(events: list[Event]) -> set[str]:
    """The requests that the last message of the user answers."""
    for event in reversed(events):
        if event.author == "user":
            return {response.id or "" for response in event.get_function_responses()}
    return set()


def _is_answer_to_plane(context: ToolContext) -> bool:
    if context.tool_confirmation is None:
        return False
    requests = _find_requests(context.session.events)
    return any(request.is_ours for request in requests if request.call["id"] == context.function_call_id)


def _state_of(call: ExternalCall, details: dict[str, Any], plane_url: str) -> _State:
    approval_id = None if call.approval_id is None else str(call.approval_id)
    return _State(
        call.next not in (Next.WAIT, Next.PROBE),
        details | {
            "tool": call.tool, "arguments": call.arguments, "in_doubt": call.status in IN_DOUBT, "reason": call.reason,
            "approval_id": approval_id, "link": approval_link(plane_url, approval_id),
            "deadline": None if call.deadline is None else call.deadline.isoformat(),
        },
    )  # fmt: skip


def _parameters(tool: BaseTool) -> dict[str, Any] | None:
    declaration = tool._get_declaration()
    if declaration is None:
        return None
    if isinstance(declaration.parameters_json_schema, dict):
        return declaration.parameters_json_schema
    if declaration.parameters is None:
        return None
    schema: dict[str, Any] = declaration.parameters.json_schema.model_dump(
        mode="json", exclude_none=True, by_alias=True
    )
    return schema


def _with_note(result: Any, answer: PlaneAnswer) -> dict[str, Any]:
    """The history of the model has its own arguments, so the result says which ones ran."""
    response = result if isinstance(result, dict) else {"result": result}
    return response if answer.edit_note is None else {**response, "note": answer.edit_note}


def _usage_of(model: str | None, usage: types.GenerateContentResponseUsageMetadata) -> ReportedUsage:
    return ReportedUsage(
        model=model or "unknown",
        prompt_tokens=usage.prompt_token_count or 0,
        completion_tokens=(usage.candidates_token_count or 0) + (usage.thoughts_token_count or 0),
        cache_read_tokens=usage.cached_content_token_count or 0,
    )
