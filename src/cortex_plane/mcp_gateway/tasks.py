"""Tasks of the extension `io.modelcontextprotocol/tasks`: the answer to a call that waits for a person, for clients that declare it.

A task is a call of the plane, and its id leads there. Nothing that a client needs is kept here: a task outlives the gateway, and every gateway with
the same file answers for it. Once the call may run, the next look of its client at the task runs it.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import mcp_types as types
import structlog
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cortex_plane.calls.model import CallDraft, ExternalCall, Next, OutcomeStatus
from cortex_plane.client.authorization import Advice, PlaneAnswer
from cortex_plane.client.dialogue import approval_link
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.errors import Conflict, CortexError, NotFound
from cortex_plane.mcp_gateway.gateway_calls import META, GatewayCall, GatewayCaller, Silence, refusal, stored_result
from cortex_plane.mcp_gateway.gateway_file import risk_of

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from cortex_plane.mcp_gateway.call_keys import CallKeys
    from cortex_plane.mcp_gateway.gateway_file import GatewayConfig
    from cortex_plane.mcp_gateway.lasting_sessions import LastingSessions
    from cortex_plane.mcp_gateway.upstreams import GatewayTool, Upstreams

log = structlog.get_logger()

TASKS = "io.modelcontextprotocol/tasks"
POLL_SECONDS = 2.0
LIFETIME = timedelta(days=7)
GRACE = timedelta(days=1)
"""So long a task lasts at least after the last moment at which somebody may decide."""
OPEN_TASKS = 100
"""Of one caller at one server. What waits besides is answered as for clients without tasks."""
RUN_SECONDS = 1.0
"""How long the look that begins a call waits for its result."""
MAX_PAGES = 10_000


class TaskParams(types.RequestParams):
    task_id: str


class TaskUpdate(TaskParams):
    input_responses: dict[str, Any]


def takes_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether the client declared it with this request."""
    capabilities = ctx.session.client_capabilities
    extensions = (capabilities.extensions if capabilities else None) or {}
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS in extensions


def require_tasks(ctx: ServerRequestContext[Any, Any]) -> None:
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(types.METHOD_NOT_FOUND, "Method not found", ctx.method)
    if not takes_tasks(ctx):
        required: dict[str, Any] = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
        raise MCPError(types.MISSING_REQUIRED_CLIENT_CAPABILITY, f"Declare the extension {TASKS}.", required)


def shows_pages(config: GatewayConfig, ctx: ServerRequestContext[Any, Any]) -> bool:
    capabilities = ctx.session.client_capabilities
    elicitation = capabilities.elicitation if capabilities else None
    return config.elicitation and elicitation is not None and elicitation.url is not None


def approval_page(tool: str, link: str) -> types.ElicitRequest:
    message = f"`{tool}` needs the approval of a person."
    return types.ElicitRequest(params=types.ElicitRequestURLParams(message=message, url=link))


class Tasks:
    def __init__(
        self,
        config: GatewayConfig,
        upstreams: Upstreams,
        sessions: LastingSessions,
        keys: CallKeys,
        process: str,
        spawn: Callable[[Coroutine[Any, Any, Any]], asyncio.Task[Any]],
    ) -> None:
        self._config, self._upstreams, self._sessions, self._keys = config, upstreams, sessions, keys
        self._process, self._spawn = process, spawn
        self._running: dict[UUID, asyncio.Task[types.CallToolResult | None]] = {}
        self._page = f"approval-{process[:12]}"
        """Another name in each process: no name may come again once its page was shown."""
        self._shown: OrderedDict[UUID, None] = OrderedDict()
        """Of which calls the client showed the page."""

    async def create(self, caller: GatewayCaller, session_id: str, call_id: UUID) -> dict[str, Any] | None:
        """None where too many calls wait already."""
        waiting = caller.plane.calls.list(OPEN_TASKS + 1, session_id=UUID(session_id), status=CallStatus.AWAITING)
        ids = [call.id async for call in waiting]
        if len(ids) > OPEN_TASKS:
            return None
        call = await self._read(caller, call_id)
        return {"resultType": "task", **self._shape(caller, call, "working", _waiting_text(caller, call))}

    async def get(self, caller: GatewayCaller, task_id: str, *, has_pages: bool) -> dict[str, Any]:
        call = await self._find(caller, task_id)
        if call.next in (Next.BEGIN, Next.RUN) or call.id in self._running:
            try:
                result = await self._advance(caller, call)
            except _Gone as error:
                fault = {"code": types.INVALID_PARAMS, "message": str(error)}
                return {**self._shape(caller, call, "failed", str(error)), "error": fault}
            if result is not None:
                return self._completed(caller, call, result)
            call = await self._find(caller, task_id)
        await self._take_answer(caller, call)
        return self._described(caller, call, has_pages=has_pages)

    async def update(self, caller: GatewayCaller, task_id: str, responses: Mapping[str, Any]) -> dict[str, Any]:
        """The page says nothing: people decide in the plane. A client that showed it is not asked to show it again."""
        call = await self._find(caller, task_id)
        if self._page in responses:
            self._shown[call.id] = None
            while len(self._shown) > MAX_PAGES:
                self._shown.popitem(last=False)
        return {}

    async def cancel(self, caller: GatewayCaller, task_id: str) -> dict[str, Any]:
        """What has begun is not stopped: nobody could know what became of it."""
        call = await self._find(caller, task_id)
        try:
            await caller.plane.calls.outcome(call, OutcomeStatus.WITHDRAWN, error="its client cancelled the task")
        except Conflict as error:
            log.info("mcp task not cancelled", call=str(call.id), reason=error.message)
        except CortexError as error:
            raise MCPError(types.INTERNAL_ERROR, f"The task was not cancelled: {error.message}") from None
        else:
            self._end(call)
        return {}

    # Calls ----------------------------------------------------------------------------------------------------------------------

    async def _find(self, caller: GatewayCaller, task_id: str) -> ExternalCall:
        """Only who has the caller's key makes the second half of the id: a task belongs to the caller who made it."""
        unknown = MCPError(types.INVALID_PARAMS, "There is no such task.")
        first, _, seal = task_id[:200].partition(".")
        try:
            id = UUID(hex=first)
        except ValueError:
            raise unknown from None
        if not hmac.compare_digest(task_id.encode(), _task_id(caller, id).encode()) or not seal:
            raise unknown
        call = await self._read(caller, id)
        if call.now > call.created_at + _lifetime(call):
            raise MCPError(types.INVALID_PARAMS, "The task has expired.")
        return call

    async def _read(self, caller: GatewayCaller, id: UUID) -> ExternalCall:
        try:
            return await caller.plane.calls.get(id)
        except NotFound:
            raise MCPError(types.INVALID_PARAMS, "There is no such task.") from None
        except CortexError as error:
            raise MCPError(types.INTERNAL_ERROR, f"The plane does not tell about the task: {error.message}") from None

    async def _advance(self, caller: GatewayCaller, call: ExternalCall) -> types.CallToolResult | None:
        """Run it, or wait a little for the look that does; None where there is no result yet."""
        running = self._running.get(call.id)
        if running is None:
            running = self._running[call.id] = self._spawn(self._run(caller, call))
            running.add_done_callback(lambda done: self._forget(call.id, done))
        await asyncio.wait([running], timeout=RUN_SECONDS)
        return running.result() if running.done() else None

    def _forget(self, id: UUID, done: asyncio.Task[Any]) -> None:
        del self._running[id]
        if not done.cancelled() and (error := done.exception()) is not None:
            log.info("mcp task did not go on", call=str(id), reason=str(error)[:500])

    async def _run(self, caller: GatewayCaller, call: ExternalCall) -> types.CallToolResult | None:
        tool = await self._tool(call.tool)
        if tool is None:
            return None  # its server may be on its way back
        session = f"{self._config.session}-{tool.upstream.label}"
        try:
            is_same = await self._sessions.open(caller.id, caller.plane, session) == str(call.session_id)
        except CortexError as error:
            raise MCPError(types.INTERNAL_ERROR, f"The plane does not answer: {error.message}") from None
        if not is_same or _declared_digest(tool) != call.tool_digest:
            raise _Gone(f"`{call.tool}` is another tool than the one that was asked about. Make the call again.")
        calls = self._sessions.calls(caller, session, str(call.session_id), self._process)
        answer = await calls.resume(call.tool, str(call.id))
        if answer.next is Advice.RUN:
            result = await GatewayCall(tool=tool, calls=calls, progress=Silence()).run(answer)
            # A doubt is not the end of a task: it is settled as declared, and then there is an answer.
            return None if (result.meta or {})[META]["status"] == "in_doubt" else result
        if answer.call_id is None:
            raise MCPError(types.INTERNAL_ERROR, f"It does not run now: {answer.reason}")
        return None

    async def _take_answer(self, caller: GatewayCaller, call: ExternalCall) -> None:
        """The plane must know that the client has what people answered about its call: to the same call under another key, it would
        answer the same. Reporting what it knows says so."""
        status = {CallStatus.COMPLETED: OutcomeStatus.COMPLETED, CallStatus.FAILED: OutcomeStatus.FAILED}.get(
            call.status
        )
        if call.settled_by is None or status is None:
            return
        try:
            await caller.plane.calls.outcome(call, status, result=call.result, error=call.error)
        except Conflict as error:
            log.info("mcp task not settled", call=str(call.id), reason=error.message)
        except CortexError as error:
            raise MCPError(types.INTERNAL_ERROR, f"The plane does not answer: {error.message}") from None

    async def _tool(self, name: str) -> GatewayTool | None:
        for settled in (False, True):
            if settled:
                await self._upstreams.settle()
            for tool in self._upstreams.tools.values():
                if tool.plane_name == name:
                    return tool
        return None

    def _end(self, call: ExternalCall) -> None:
        if call.key is not None:
            self._keys.end(call.key)

    # Shapes ---------------------------------------------------------------------------------------------------------------------

    def _described(self, caller: GatewayCaller, call: ExternalCall, *, has_pages: bool) -> dict[str, Any]:
        answer = PlaneAnswer(
            next=Advice.WAIT,
            tool=call.tool,
            arguments=call.arguments,
            edited=call.edited,
            reason=call.reason,
            result=call.result,
            call_id=str(call.id),
            approval_id=None if call.approval_id is None else str(call.approval_id),
            link=_link(caller, call),
        )
        if call.next is Next.USE:
            return self._completed(caller, call, stored_result(answer))
        if call.is_withdrawn:
            self._end(call)
            return self._shape(caller, call, "cancelled", call.error)
        if call.next is Next.STOP:
            status = "failed" if call.status is CallStatus.FAILED else "stopped"
            return self._completed(caller, call, refusal(status, call.reason or "It does not run.", answer))
        if call.status is not CallStatus.AWAITING:
            return self._shape(caller, call, "working", call.reason or "It is about to run.")
        shape = self._shape(caller, call, "working", _waiting_text(caller, call))
        if not has_pages or answer.link is None or call.id in self._shown:
            return shape
        page = approval_page(call.tool, answer.link).model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**shape, "status": "input_required", "inputRequests": {self._page: page}}

    def _completed(self, caller: GatewayCaller, call: ExternalCall, result: types.CallToolResult) -> dict[str, Any]:
        self._end(call)
        text = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        return {**self._shape(caller, call, "completed", None), "result": text}

    def _shape(self, caller: GatewayCaller, call: ExternalCall, status: str, text: str | None) -> dict[str, Any]:
        shape = {
            "taskId": _task_id(caller, call.id),
            "status": status,
            "createdAt": call.created_at.isoformat(),
            "lastUpdatedAt": (call.finished_at or call.now).isoformat(),
            "ttlMs": int(_lifetime(call).total_seconds() * 1000),
            "pollIntervalMs": int(POLL_SECONDS * 1000),
        }
        return shape if text is None else {**shape, "statusMessage": text}


class _Gone(Exception):
    """What was asked about is not there any more."""


def _task_id(caller: GatewayCaller, call_id: UUID) -> str:
    return f"{call_id.hex}.{caller.plane.sign(f'mcp task {call_id.hex}')[:32]}"


def _lifetime(call: ExternalCall) -> timedelta:
    deadline: datetime = call.deadline or call.created_at
    return max(LIFETIME, deadline + GRACE - call.created_at)


def _declared_digest(tool: GatewayTool) -> str:
    """As the plane made it of what `GatewayCall` declares."""
    return CallDraft(
        tool=tool.plane_name,
        read_only=tool.override.read_only,
        risk=risk_of(tool.override),
        on_uncertain=tool.on_uncertain,
        timeout_seconds=tool.timeout,
        parameters=tool.declaration,
    ).tool_digest


def _link(caller: GatewayCaller, call: ExternalCall) -> str | None:
    return approval_link(caller.plane.url, None if call.approval_id is None else str(call.approval_id))


def _waiting_text(caller: GatewayCaller, call: ExternalCall) -> str:
    where = _link(caller, call)
    return f"`{call.tool}` waits for a person." + (f" They decide here: {where}" if where else "")
