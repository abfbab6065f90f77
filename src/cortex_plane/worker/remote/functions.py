"""The functions of a remote worker's apps: what is offered of them, and how one is called for the plane.

Nothing here knows a database. What a function may see of its job came with the call.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.agents.model.tools import DidNotHappen, Happened, InvalidApp, InvalidArguments, ToolError
from cortex_plane.jobs.model.remote_work import (
    MAX_CONCURRENCY,
    MAX_MESSAGE_BYTES,
    MAX_RESULT_BYTES,
    MAX_STATE_CHANGES,
    Failed,
    FailureKind,
    Invoke,
    InvokeTarget,
    JobContext,
    OfferedApp,
    OfferedServer,
    OfferedTool,
    Returned,
    encode_message,
)
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import CortexError
from cortex_plane.worker.limits import CallStopped, CallTimeout, ticks, within
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import Tool, ToolContext, ToolState, encode_result, run_function

log = logging.getLogger("cortex_plane.worker")

MAX_MESSAGE = 8000
"""Characters of an error that are sent."""
MAX_END_REASON = 1000
PREVIEW_BYTES = 2000


def check_concurrency(concurrency: int) -> int:
    if not 1 <= concurrency <= MAX_CONCURRENCY:
        raise InvalidApp(
            f"A remote worker cannot run {concurrency} jobs at a time.", hint=f"Give 1 to {MAX_CONCURRENCY}."
        )
    return concurrency


def check_app(app: App) -> None:
    """Raises `InvalidApp` for what a worker without a database does not run."""
    if app.agents:
        names = ", ".join(f"`{name}`" for name in [*app.agents][:5])
        raise InvalidApp(
            f"The app `{app.name}` has code agents ({names}), which a worker without a database does not run.",
            hint="Move them to an app of their own, and load that one in a worker with DATABASE_URL.",
        )


def offered_app(app: App, servers: Sequence[OfferedServer] = ()) -> OfferedApp:
    """``servers``: its MCP servers as they are now."""
    tools = [_offered_tool(tool) for tool in app.own_tools]
    return OfferedApp(
        name=app.name, instructions=app.instructions, tools=tools, triggers=list(app.triggers),
        validators=list(app.validators), servers=list(servers),
    )  # fmt: skip


def _offered_tool(tool: Tool) -> OfferedTool:
    return OfferedTool(
        name=tool.name, description=tool.description, parameters=tool.parameters, read_only=tool.read_only, risk=tool.risk,
        declares_risk=tool.declares_risk, timeout_seconds=tool.timeout_seconds, on_uncertain=tool.on_uncertain,
        is_async=tool.is_async, takes_context=tool.takes_context,
    )  # fmt: skip


def encode_answer(answer: Returned | Failed) -> bytes:
    """Whatever the function did, something arrives: else its call would be in doubt for no reason."""
    try:
        content = encode_message(answer)
        if isinstance(answer, Returned) and len(content) > MAX_MESSAGE_BYTES:
            # Quotes within quotes: it grew when it was encoded.
            content = encode_message(replace(answer, result=_preview(answer.result.encode())))
        reason = f"It is larger than {MAX_MESSAGE_BYTES} bytes." if len(content) > MAX_MESSAGE_BYTES else None
    except Exception as error:
        content, reason = b"", f"{type(error).__name__}: {error}"
    if reason is None:
        return content
    message = _sendable(f"its answer cannot be sent: {reason}")
    return encode_message(Failed(id=answer.id, failure=FailureKind.RAISED, message=message))


def _sendable(text: str, size: int = MAX_MESSAGE) -> str:
    """As much of it as is sent, without what cannot be encoded or stored."""
    return text[:size].encode("utf-8", "replace").decode().replace("\x00", "�")


_NOBODY = UUID(int=0)
_NO_CONTEXT = ToolContext(
    org_id=_NOBODY, session_id=_NOBODY, job_id=_NOBODY, agent_id=_NOBODY, invocation_id=_NOBODY, step=0, attempt=0
)


class AppFunctions:
    """Calls functions of the apps that this worker loaded."""

    def __init__(self, apps: Sequence[App]) -> None:
        self._apps = {app.name: app for app in apps}
        self._limits: set[asyncio.Timeout] = set()

    async def call(self, invoke: Invoke) -> Returned | Failed:
        """Whatever the function does, there is an answer."""
        try:
            return await self._call(invoke)
        except CallTimeout:
            return Failed(id=invoke.id, failure=FailureKind.TIMED_OUT)
        except CallStopped as error:
            return Failed(id=invoke.id, failure=FailureKind.RAISED, message=_sendable(str(error)))
        except ToolError as error:
            return Failed(
                id=invoke.id, failure=FailureKind.REFUSED, message=_sendable(error.message), hint=_sendable(error.hint)
            )
        except Exception as error:
            message = _sendable(f"{type(error).__name__}: {error}")
            log.warning("%s `%s` raised %s", invoke.target.value, invoke.name, message[:500])
            return Failed(id=invoke.id, failure=FailureKind.RAISED, message=message)

    async def _call(self, invoke: Invoke) -> Returned | Failed:
        app = self._apps.get(invoke.app)
        if app is None:
            raise ToolError(f"This worker did not load the app `{invoke.app}`.")
        arguments = orjson.loads(invoke.arguments)
        if invoke.target in (InvokeTarget.TOOL, InvokeTarget.PROBE):
            return await self._call_tool(app, invoke, arguments)
        functions = app.triggers if invoke.target is InvokeTarget.TRIGGER else app.validators
        if (function := functions.get(invoke.name)) is None:
            raise ToolError(f"The app `{invoke.app}` has no {invoke.target.value} `{invoke.name}`.")
        value = await self._begin(invoke, run_function(functools.partial(function, *arguments), {}))
        return Returned(id=invoke.id, result=encode_result(value).decode())

    async def _call_tool(self, app: App, invoke: Invoke, arguments: dict[str, Any]) -> Returned | Failed:
        tool = app.tools.get(invoke.name)
        if tool is None:
            raise ToolError(f"The app `{invoke.app}` has no tool `{invoke.name}`.")
        try:
            values = tool.parse(arguments).values
        except InvalidArguments as error:
            # The plane checked them against the schema; a validator of the tool's author sees more.
            raise ToolError(error.message, hint=error.hint) from None
        context = _tool_context(invoke.context)
        if (server_call := invoke.server_call) is not None:
            from cortex_plane.worker.mcp.remote_tool import judged_tool  # most workers have no MCP servers

            tool, context = judged_tool(tool, server_call.digest, server_call.read_only), _context_of(server_call.key)
        if invoke.begin_before is not None and ticks() >= invoke.begin_before:
            return Failed(id=invoke.id, failure=FailureKind.LATE)
        if invoke.target is InvokeTarget.PROBE:
            answer = await self._begin(invoke, tool.ask_probe(values, context))
            return Returned(id=invoke.id, result=canonical(_probe_answer(answer)).decode())
        try:
            value = await self._begin(invoke, tool.call(values, context))
        finally:
            context.state.is_closed = True
        changes, end_reason = context.state.changes, context.state.end_reason
        if changes is not None and len(changes) > MAX_STATE_CHANGES:
            message = (
                f"it changed {len(changes)} entries of the state; a remote worker sends {MAX_STATE_CHANGES} at most"
            )
            return Failed(id=invoke.id, failure=FailureKind.RAISED, message=message)
        return Returned(
            id=invoke.id, result=_result(value), end_reason=None if end_reason is None else _sendable(end_reason, MAX_END_REASON),
            state=None if changes is None else {key: None if each is None else each.decode() for key, each in changes.items()},
        )  # fmt: skip

    async def _begin(self, invoke: Invoke, call: Coroutine[Any, Any, Any]) -> Any:
        return await within(invoke.timeout_seconds, call, self._limits)


def _context_of(key: UUID) -> ToolContext:
    """For a tool of an MCP server, which sees no more of its job than the key of the call."""
    return replace(_NO_CONTEXT, invocation_id=key, state=ToolState())


def _tool_context(context: JobContext | None) -> ToolContext:
    if context is None:
        # The tool takes none: nobody looks at it.
        return _NO_CONTEXT
    state = ToolState()
    state.entries = {key: value.encode() for key, value in context.state.items()}
    return ToolContext(
        org_id=context.org_id, session_id=context.session_id, job_id=context.job_id, agent_id=context.agent_id,
        invocation_id=context.invocation_id, step=context.step, attempt=context.attempt, state=state,
        config=context.config, session_context=context.session_context,
    )  # fmt: skip


def _probe_answer(answer: Happened | DidNotHappen | None) -> Mapping[str, Any] | None:
    if isinstance(answer, Happened):
        return {"happened": True, "result": orjson.loads(_result(answer.result))}
    return None if answer is None else {"happened": False}


def _result(value: Any) -> str:
    """It happened, whatever it returned: a result that cannot be stored does not undo it."""
    try:
        content = encode_result(value)
    except CortexError as error:
        return canonical({"unstorable": error.message}).decode()
    if len(content) <= MAX_RESULT_BYTES:
        return content.decode()
    return _preview(content)


def _preview(content: bytes) -> str:
    preview = content[:PREVIEW_BYTES].decode(errors="ignore")
    dropped = f"larger than {MAX_RESULT_BYTES} bytes, so it was not kept"
    return canonical({"bytes": len(content), "preview": preview, "dropped": dropped}).decode()
