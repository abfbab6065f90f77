"""What the gateway answers to an MCP client: merged lists, and each `tools/call` taken through the plane before it reaches a server.

A call is authorised by `PlaneCalls`: gates, policy, approval and intent are the plane's. Where it may run, the server gets it with the
plane's call id as idempotency key, and the outcome is reported before the client has the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID, uuid4

import mcp_types as types
import structlog
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cortex_plane import __version__
from cortex_plane.client.authorization import Advice, PlaneAnswer
from cortex_plane.kernel.canonical import check_json
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.fields import MAX_OBJECT_BYTES
from cortex_plane.mcp_client.servers import map_texts
from cortex_plane.mcp_gateway.call_keys import CallKeys, CallTurn
from cortex_plane.mcp_gateway.gateway_calls import CallProgress, GatewayCall, GatewayCaller, refusal, stored_result
from cortex_plane.mcp_gateway.gateway_file import GatewayConfig
from cortex_plane.mcp_gateway.lasting_sessions import LastingSessions
from cortex_plane.mcp_gateway.policy_view import PolicyView
from cortex_plane.mcp_gateway.tasks import (
    TASKS,
    TaskParams,
    Tasks,
    TaskUpdate,
    approval_page,
    require_tasks,
    shows_pages,
    takes_tasks,
)
from cortex_plane.mcp_gateway.upstreams import Upstream, Upstreams, client_name

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.session import ServerSession

log = structlog.get_logger()

CALL_ID = "claudecode/toolUseId"
"""Where Claude Code puts the id of a tool call of the model."""
FIRST_WAIT_SECONDS = 1.0
"""A request that policy or a standing approval answers at once needs no page for people."""
MAX_TURNS = 1000
MAX_URI = 2000
MAX_SESSIONS = 10_000
MAX_STREAMS, STREAMS_OF_A_CALLER = 1000, 100
APPROVAL = "approval"
_EVENTS: dict[str, ToolsListChanged | ResourcesListChanged | PromptsListChanged] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}
ToolAnswer = types.CallToolResult | types.InputRequiredResult | dict[str, Any]
"""The dictionary is a task."""
T = TypeVar("T")


FindCaller = Callable[[Any], Awaitable[GatewayCaller]]
"""From the HTTP request that is being handled; None over stdio."""


class Gateway:
    def __init__(
        self,
        config: GatewayConfig,
        upstreams: Upstreams,
        find_caller: FindCaller,
        policy_view: PolicyView | None = None,
    ) -> None:
        self._config, self._upstreams, self._find_caller = config, upstreams, find_caller
        self._policy_view = policy_view or PolicyView(config.agent)
        self._process = uuid4().hex
        self._keys = CallKeys(self._process)
        self._plane_sessions = LastingSessions(config.agent)
        self._sessions: OrderedDict[str, ServerSession] = OrderedDict()
        """The last request of each session: notifications go to its client."""
        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus, max_subscriptions=MAX_STREAMS)
        self._tasks = Tasks(config, upstreams, self._plane_sessions, self._keys, self._process, self._spawn)
        self._streams: Counter[str] = Counter()
        """Streams of changes that each caller has open."""
        self._background: set[asyncio.Task[Any]] = set()
        self.server = self._new_server()
        upstreams.on_change = self._announce

    def _new_server(self) -> Server[Any]:
        server = _Server(
            "cortex-plane",
            version=__version__,
            instructions=(
                "Calls of tools are checked by policy and may need the approval of a person. A result that says it is pending is no"
                " failure: make the same call with the same arguments later."
            ),
            on_list_tools=self.list_tools,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
            on_subscriptions_listen=self.listen,
        )
        server.add_request_handler("tools/call", types.CallToolRequestParams, self.call_tool)
        server.extensions[TASKS] = {}
        server.add_request_handler("tasks/get", TaskParams, self.get_task)
        server.add_request_handler("tasks/update", TaskUpdate, self.update_task)
        server.add_request_handler("tasks/cancel", TaskParams, self.cancel_task)
        return server

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._upstreams.running():
            try:
                yield
            finally:
                await asyncio.gather(*self._background, return_exceptions=True)

    # Lists ----------------------------------------------------------------------------------------------------------------------

    async def list_tools(self, ctx: ServerRequestContext[Any, Any], _: Any) -> types.ListToolsResult:
        caller = await self._begin(ctx)
        await self._upstreams.settle()
        tools = list(self._upstreams.tools.values())
        names = await self._policy_view.denied(caller.id, caller.plane, tools)
        return types.ListToolsResult(tools=[tool.listed for tool in tools if tool.plane_name not in names])

    async def list_resources(self, ctx: ServerRequestContext[Any, Any], _: Any) -> types.ListResourcesResult:
        await self._begin(ctx)
        await self._upstreams.settle()
        return types.ListResourcesResult(
            resources=[item for upstream in self._upstreams.all for item in upstream.resources]
        )

    async def list_templates(self, ctx: ServerRequestContext[Any, Any], _: Any) -> types.ListResourceTemplatesResult:
        await self._begin(ctx)
        await self._upstreams.settle()
        templates = [item for upstream in self._upstreams.all for item in upstream.templates]
        return types.ListResourceTemplatesResult(resource_templates=templates)

    async def read_resource(
        self, ctx: ServerRequestContext[Any, Any], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        await self._begin(ctx)
        uri = str(params.uri)
        upstream = self._upstreams.resource_owner(uri) if len(uri) <= MAX_URI else None
        if upstream is None:
            raise MCPError(types.INVALID_PARAMS, "No server of this gateway has this resource.", {"uri": uri[:MAX_URI]})
        result: types.ReadResourceResult = await _ask(upstream, lambda client: client.read_resource(uri))
        return upstream.redacted(result)

    async def list_prompts(self, ctx: ServerRequestContext[Any, Any], _: Any) -> types.ListPromptsResult:
        await self._begin(ctx)
        await self._upstreams.settle()
        prompts = [
            prompt.model_copy(update={"name": client_name(upstream.config.prefix, prompt.name)})
            for upstream in self._upstreams.all
            for prompt in upstream.prompts
        ]
        return types.ListPromptsResult(prompts=prompts)

    async def get_prompt(
        self, ctx: ServerRequestContext[Any, Any], params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        await self._begin(ctx)
        prompt = self._upstreams.prompt(params.name)
        if prompt is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name[:100]}")
        upstream, listed = prompt
        result: types.GetPromptResult = await _ask(
            upstream, lambda client: client.get_prompt(listed.name, params.arguments)
        )
        return upstream.redacted(result)

    # Calls ----------------------------------------------------------------------------------------------------------------------

    async def call_tool(self, ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams) -> ToolAnswer:
        caller = await self._begin(ctx)
        tool = self._upstreams.tools.get(params.name)
        if tool is None:
            await self._upstreams.settle()
            tool = self._upstreams.tools.get(params.name)
        if tool is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {params.name[:100]}")
        arguments = params.arguments or {}
        try:
            check_json(arguments, "arguments", MAX_OBJECT_BYTES)
        except CortexError as error:
            return refusal("invalid_arguments", f"{error.message} Nothing ran.")
        if problems := tool.argument_faults(arguments):
            return refusal("invalid_arguments", f"The arguments are not valid: {'; '.join(problems)} Nothing ran.")
        session = f"{self._config.session}-{tool.upstream.label}"
        try:
            session_id = await self._plane_sessions.open(caller.id, caller.plane, session)
        except CortexError as error:
            return refusal("stopped", f"{error.message} {error.hint or ''}".strip())
        progress = CallProgress(ctx)
        calls = self._plane_sessions.calls(caller, session, session_id, self._process)
        request = _Request(
            ctx=ctx,
            params=params,
            arguments=arguments,
            caller=caller,
            session_id=session_id,
            call=GatewayCall(tool=tool, calls=calls, progress=progress),
        )
        async with progress.running():
            call_id = (ctx.meta or {}).get(CALL_ID)
            if isinstance(call_id, str) and call_id:
                return await self._answer(request, call_id, CallTurn("", 0))
            return await self._take_turns(request)

    async def _take_turns(self, request: _Request) -> ToolAnswer:
        """A call that ended before this process began is not this one; one that ended after its client had gone away is."""
        for _ in range(MAX_TURNS):
            with self._keys.turn(request.session_id, request.call.tool.digest, request.arguments) as turn:
                result = await self._answer(request, turn.key, turn)
                if turn.is_known or not request.is_repeat:
                    return result
        raise MCPError(types.INTERNAL_ERROR, "The same call was made too often in this session.")

    async def _answer(self, request: _Request, key: str, turn: CallTurn) -> ToolAnswer:
        answer = await self._authorize(request, key)
        if isinstance(answer, types.InputRequiredResult):
            return answer
        request.is_repeat = answer.next is Advice.USE
        turn.is_over = answer.next in (Advice.USE, Advice.STOP)
        match answer.next:
            case Advice.RUN:
                running = self._spawn(request.call.run(answer))
                # A client that goes away does not leave the call in doubt: its result waits for the next identical call.
                result = await asyncio.shield(running)
                turn.is_over = True
                return result
            case Advice.USE:
                return stored_result(answer)
            case Advice.STOP:
                return refusal("stopped", answer.reason or "It does not run.", answer)
            case Advice.WAIT:
                if takes_tasks(request.ctx) and answer.call_id is not None:
                    task = await self._tasks.create(request.caller, request.session_id, UUID(answer.call_id))
                    if task is not None:
                        return task
                where = f" A person decides here: {answer.link}" if answer.link else ""
                text = f"Pending: `{answer.tool}` has not run. {answer.reason or ''}{where}"
                return refusal("pending", f"{text} Make the same call again to use the decision.", answer)
            case _:
                reason = answer.reason or "Nobody knows whether it ran."
                return refusal("in_doubt", f"`{answer.tool}` was not run now: {reason}", answer)

    async def _authorize(self, request: _Request, key: str) -> PlaneAnswer | types.InputRequiredResult:
        ctx, call, arguments = request.ctx, request.call, request.arguments
        has_progress = "progress_token" in (ctx.meta or {}) or "progressToken" in (ctx.meta or {})
        wait = self._config.wait_with_progress if has_progress else self._config.wait
        if takes_tasks(ctx):
            return await call.authorize(arguments, key, 0)
        if request.params.input_responses is not None or not shows_pages(self._config, ctx):
            return await call.authorize(arguments, key, wait)
        answer = await call.authorize(arguments, key, min(wait, FIRST_WAIT_SECONDS))
        if answer.next is not Advice.WAIT or answer.link is None or wait <= FIRST_WAIT_SECONDS:
            return answer
        page = approval_page(answer.tool, answer.link)
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            # The plane knows where the call stands: without state at the client the answer also counts after a restart of the gateway.
            return types.InputRequiredResult(input_requests={APPROVAL: page})
        showing = asyncio.ensure_future(
            ctx.session.elicit_url(page.params.message, answer.link, answer.approval_id or key, ctx.request_id)
        )
        try:
            return await call.authorize(arguments, key, wait - FIRST_WAIT_SECONDS)
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    # Tasks ----------------------------------------------------------------------------------------------------------------------

    async def get_task(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> dict[str, Any]:
        require_tasks(ctx)
        return await self._tasks.get(await self._begin(ctx), params.task_id, has_pages=shows_pages(self._config, ctx))

    async def update_task(self, ctx: ServerRequestContext[Any, Any], params: TaskUpdate) -> dict[str, Any]:
        require_tasks(ctx)
        return await self._tasks.update(await self._begin(ctx), params.task_id, params.input_responses)

    async def cancel_task(self, ctx: ServerRequestContext[Any, Any], params: TaskParams) -> dict[str, Any]:
        require_tasks(ctx)
        return await self._tasks.cancel(await self._begin(ctx), params.task_id)

    # Sessions -------------------------------------------------------------------------------------------------------------------

    async def _begin(self, ctx: ServerRequestContext[Any, Any]) -> GatewayCaller:
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:  # newer clients listen
            client = ctx.request.headers.get("mcp-session-id", "") if ctx.request is not None else ""
            self._sessions[client] = ctx.session
            self._sessions.move_to_end(client)
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return await self._find_caller(ctx.request)

    async def listen(
        self, ctx: ServerRequestContext[Any, Any], params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        caller = await self._begin(ctx)
        if self._streams[caller.id] >= STREAMS_OF_A_CALLER:
            message = f"Your key has {STREAMS_OF_A_CALLER} subscriptions open, as many as one key may have: end some."
            raise MCPError(types.INTERNAL_ERROR, message)
        self._streams[caller.id] += 1
        try:
            return await self._listen(ctx, params)
        finally:
            self._streams[caller.id] -= 1
            self._streams += Counter()  # without those who have none

    def _announce(self, kind: str) -> None:
        self._spawn(self._bus.publish(_EVENTS[kind]))
        for session in self._sessions.values():
            self._spawn(_notify(session, kind))

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """What goes on when its client is gone, and is waited for when the gateway stops."""
        task = asyncio.ensure_future(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


@dataclass(kw_only=True, slots=True)
class _Request:
    ctx: ServerRequestContext[Any, Any]
    params: types.CallToolRequestParams
    arguments: dict[str, Any]
    caller: GatewayCaller
    session_id: str
    call: GatewayCall
    is_repeat: bool = False


class _Server(Server[Any]):
    """Says the same over HTTP as over stdio about what it announces. Tasks are for newer clients, which do not ask with `initialize`."""

    def create_initialization_options(self, *_: Any, **__: Any) -> InitializationOptions:
        changes = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)
        return super().create_initialization_options(changes, extensions={})


async def _notify(session: ServerSession, kind: str) -> None:
    send = {
        "tools": session.send_tool_list_changed,
        "resources": session.send_resource_list_changed,
        "prompts": session.send_prompt_list_changed,
    }[kind]
    with contextlib.suppress(Exception):  # a client that is gone misses nothing
        await send()


async def _ask(upstream: Upstream, send: Callable[[Any], Awaitable[T]]) -> T:
    await upstream.link.wait_until_up(5.0)
    client = upstream.link.client
    if client is None:
        raise MCPError(
            types.INTERNAL_ERROR, f"The MCP server `{upstream.name}` is {upstream.link.state}. Try again later."
        )
    try:
        async with asyncio.timeout(upstream.config.server.timeout_seconds):
            return await send(client)
    except MCPError as error:
        redact = upstream.link.redaction.text
        raise MCPError(error.code, redact(error.message), map_texts(error.data, redact)) from None
    except Exception as error:
        upstream.link.doubt()
        log.warning("mcp request failed", server=upstream.name, error=upstream.link.redaction.text(repr(error))[:500])
        raise MCPError(
            types.INTERNAL_ERROR, f"The MCP server `{upstream.name}` did not answer. Try again later."
        ) from None
