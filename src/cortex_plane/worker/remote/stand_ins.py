"""What stands in the plane for the functions of a remote worker: tools with the declarations that it published, whose calls are sent to it.

An attempt does not know the difference. It judges a call and writes its intent as for any tool; the call itself is one `Invoke`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID

import orjson
import structlog

from cortex_plane.agents.model.tools import (
    DidNotHappen,
    Happened,
    InvalidApp,
    InvalidArguments,
    OnUncertain,
    ToolError,
    is_tool_name,
)
from cortex_plane.jobs.model.remote_work import (
    Cancel,
    Failed,
    FailureKind,
    FromPlane,
    Invoke,
    InvokeTarget,
    JobContext,
    LinkClosed,
    OfferedApp,
    OfferedTool,
    Returned,
)
from cortex_plane.kernel import schemas
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.worker.limits import CallStopped, CallTimeout, CallTooLate, ticks
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import Parsed, Tool, ToolContext, exact_bytes, invalid_arguments

log = structlog.get_logger()

LAST_WORD_SECONDS = 1.0
"""How long a call that is cut off waits for the worker to say that it is over."""
GATE_CODE_SECONDS = 2.0
OWN_TOOLS = "-"
"""In the place of an MCP server, none of which has such a name: what the code of the app declares."""
Send = Callable[[FromPlane], Awaitable[None]]


class RemoteCalls:
    """The calls that one worker was sent, and their answers."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._waiting: dict[UUID, asyncio.Future[Returned | Failed]] = {}
        self._adrift: dict[UUID, UUID] = {}
        """The invocation of each sending that ended here without a word of the worker."""
        self._tick: tuple[float, float] = (0.0, 0.0)
        """What the worker's clock showed last, and what ours showed when that arrived."""

    def set_tick(self, tick: float) -> None:
        self._tick = (tick, ticks())

    def worker_tick(self, last_moment: float) -> float:
        """What the worker's clock shows at a moment of ours, or later."""
        theirs, ours = self._tick
        return theirs + (last_moment - ours)

    @property
    def expects_answers(self) -> bool:
        return bool(self._waiting or self._adrift)

    def settle(self, answer: Returned | Failed) -> bool:
        """An answer arrived. What was not asked over this link, or was answered before, changes nothing: False."""
        waiter = self._waiting.pop(answer.id, None)
        if waiter is None:
            return self._adrift.pop(answer.id, None) is not None
        if not waiter.done():
            waiter.set_result(answer)
        return True

    def is_under_way(self, invocation_id: UUID) -> bool:
        return invocation_id in self._adrift.values()

    async def run(self, invoke: Invoke, invocation_id: UUID) -> Returned | Failed:
        """Where the link is lost nobody answers: the attempt is cancelled then, or its time ends it."""
        waiter = self._waiting[invoke.id] = asyncio.get_running_loop().create_future()
        try:
            try:
                await self._send(invoke)
            except LinkClosed:
                log.warning("a call found no worker", function=invoke.name)
            answer: Returned | Failed = await waiter
            return answer
        except asyncio.CancelledError:
            if not await self._last_word(invoke.id, waiter):
                self._adrift[invoke.id] = invocation_id
            raise
        finally:
            self._waiting.pop(invoke.id, None)

    async def _last_word(self, id: UUID, waiter: asyncio.Future[Returned | Failed]) -> bool:
        """Whether the worker says that the call is over there."""
        if waiter.cancelled():  # by whoever cancelled us
            waiter = self._waiting[id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(LAST_WORD_SECONDS):
                await self._send(Cancel(id=id))
                await waiter
        except (LinkClosed, TimeoutError, asyncio.CancelledError):
            return False
        return True


class StandInTool(Tool):
    """A tool of a remote worker."""

    def __init__(self, calls: RemoteCalls, app: str, offer: OfferedTool) -> None:
        if not is_tool_name(offer.name) or (offer.on_uncertain is None) is not offer.read_only:
            raise InvalidApp(f"The worker declares the tool `{offer.name}` in a way that no app can.")
        self.name, self.description, self.parameters = offer.name, offer.description, offer.parameters
        self.read_only, self.risk, self.declares_risk = offer.read_only, offer.risk, offer.declares_risk
        self.timeout_seconds, self.on_uncertain = offer.timeout_seconds, offer.on_uncertain
        self.is_async = offer.is_async
        self._takes_context, self._app, self._calls = offer.takes_context, app, calls
        try:
            canonical(offer.parameters)
            schemas.check_strangers(offer.parameters)
            self._validator = schemas.compiled(offer.parameters)
        except (schemas.Unusable, CortexError) as error:
            raise InvalidApp(f"The parameters of the tool `{offer.name}` have no usable schema: {error}") from None

    @property
    def takes_context(self) -> bool:
        return self._takes_context

    def parse(self, arguments: dict[str, Any] | str) -> Parsed:
        exact = exact_bytes(arguments)
        values: dict[str, Any] = orjson.loads(exact)
        try:
            problems = schemas.faults(self._validator, values)
        except schemas.Unusable as error:
            raise InvalidArguments(f"It cannot be called: {error}.") from None
        if problems:
            raise invalid_arguments(problems)
        return Parsed.of(values, exact)

    def is_under_way(self, invocation_id: UUID) -> bool:
        return self._calls.is_under_way(invocation_id)

    async def call(self, values: Mapping[str, Any], context: ToolContext) -> Any:
        return self._value(await self._invoke(InvokeTarget.TOOL, values, context, None), context)

    async def send(self, values: Mapping[str, Any], context: ToolContext, last_moment: float) -> Any:
        return self._value(await self._invoke(InvokeTarget.TOOL, values, context, last_moment), context)

    async def ask_probe(self, values: Mapping[str, Any], context: ToolContext) -> Happened | DidNotHappen | None:
        if self.on_uncertain is not OnUncertain.PROBE:
            raise InvalidApp(f"The tool `{self.name}` has no probe.")
        answer = await self._invoke(InvokeTarget.PROBE, values, context, None)
        content = orjson.loads(answer.result)
        if not isinstance(content, dict) or "happened" not in content:
            return None
        return Happened(content.get("result")) if content["happened"] is True else DidNotHappen()

    async def _invoke(
        self, target: InvokeTarget, values: Mapping[str, Any], context: ToolContext, last_moment: float | None
    ) -> Returned:
        begin_before = None if last_moment is None else self._calls.worker_tick(last_moment)
        invoke = Invoke(
            id=new_id(), target=target, app=self._app, name=self.name, arguments=canonical(values).decode(),
            timeout_seconds=self.timeout_seconds, begin_before=begin_before,
            context=_job_context(context) if self._takes_context else None,
        )  # fmt: skip
        return require_returned(await self._calls.run(invoke, context.invocation_id))

    def _value(self, answer: Returned, context: ToolContext) -> Any:
        """The result, with what the call changed beside it."""
        value = read_result(answer)
        try:
            if self._takes_context:
                for key, change in (answer.state or {}).items():
                    if change is None:
                        context.state.delete(key)
                    else:
                        context.state.set(key, orjson.loads(change))
                if answer.end_reason is not None:
                    context.end_session(answer.end_reason[:1000])
        except (ValueError, CortexError) as error:
            raise CallStopped(f"what cannot be recorded: {error}") from error
        return value


def read_result(answer: Returned) -> Any:
    try:
        return orjson.loads(answer.result)
    except ValueError as error:
        raise CallStopped(f"what cannot be recorded: {error}") from error


def require_returned(answer: Returned | Failed) -> Returned:
    if isinstance(answer, Returned):
        return answer
    match answer.failure:
        case FailureKind.REFUSED:
            raise ToolError(answer.message, hint=answer.hint)
        case FailureKind.TIMED_OUT:
            raise CallTimeout
        case FailureKind.LATE:
            raise CallTooLate
    raise CallStopped(answer.message)


def _job_context(context: ToolContext) -> JobContext:
    return JobContext(
        org_id=context.org_id, session_id=context.session_id, job_id=context.job_id, agent_id=context.agent_id,
        invocation_id=context.invocation_id, step=context.step, attempt=context.attempt,
        state={key: value.decode() for key, value in context.state.entries.items()},
        config=dict(context.config), session_context=dict(context.session_context),
    )  # fmt: skip


def stand_in_app(calls: RemoteCalls, offer: OfferedApp) -> App:
    """An app of a remote worker, as attempts in the plane see it. Raises `CortexError` for what no app could declare."""
    app = App(offer.name, instructions=offer.instructions)
    tools = [StandInTool(calls, app.name, tool) for tool in offer.tools]
    app.offer(OWN_TOOLS, tools)
    missing = {tool.name for tool in tools} - set(app.tools)
    if missing or len(tools) != len(app.tools):
        raise InvalidApp(
            f"The app `{app.name}` has tools whose names no app may have, or twice: {sorted(missing)[:5]}."
        )
    for name in offer.triggers:
        app.trigger(name)(_gate_function(calls, app.name, InvokeTarget.TRIGGER, name))
    for name in offer.validators:
        app.validator(name)(_gate_function(calls, app.name, InvokeTarget.VALIDATOR, name))
    return app


def _gate_function(calls: RemoteCalls, app: str, target: InvokeTarget, name: str) -> Callable[..., Awaitable[Any]]:
    async def ask(*arguments: Any) -> Any:
        invoke = Invoke(
            id=new_id(), target=target, app=app, name=name, arguments=canonical(list(arguments)).decode(),
            timeout_seconds=GATE_CODE_SECONDS, begin_before=None, context=None,
        )  # fmt: skip
        return orjson.loads(require_returned(await calls.run(invoke, invoke.id)).result)

    return ask
