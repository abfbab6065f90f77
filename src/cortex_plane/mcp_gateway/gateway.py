"""What the gateway answers to an MCP client: merged lists, and each `tools/call` taken through the plane before it reaches a server.

A call is authorised by `PlaneCalls`: gates, policy, approval and intent are the plane's. Where it may run, the server gets it with the
plane's call id as idempotency key, and the outcome is reported before the client has the answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import mcp_types as types
import structlog
from mcp.server.lowlevel import Server
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ResourcesListChanged, ToolsListChanged
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cortex_plane import __version__
from cortex_plane.agents.model.tools import ToolError, UncertainOutcome
from cortex_plane.client.adapter import as_text
from cortex_plane.client.authorization import Advice, PlaneAnswer, PlaneCalls, ToolOptions
from cortex_plane.kernel.canonical import check_json
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.fields import MAX_OBJECT_BYTES
from cortex_plane.mcp_client.servers import map_texts
from cortex_plane.mcp_gateway.call_keys import CallKeys, CallTurn
from cortex_plane.mcp_gateway.gateway_file import GatewayConfig, risk_of
from cortex_plane.mcp_gateway.lasting_sessions import LastingSessions
from cortex_plane.mcp_gateway.policy_view import PolicyView
from cortex_plane.mcp_gateway.upstreams import GatewayTool, Upstream, Upstreams, client_name

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.session import ServerSession

    from cortex_plane.client import Client

log = structlog.get_logger()

CALL_ID = "claudecode/toolUseId"
"""Where Claude Code puts the id of a tool call of the model."""
META = "cortex-plane/call"
PROGRESS_SECONDS = 5.0
STEP = 1e-6
"""How far a call comes by waiting: progress must increase."""
FIRST_WAIT_SECONDS = 1.0
"""A request that policy or a standing approval answers at once needs no page for people."""
MAX_TURNS = 1000
MAX_URI = 2000
MAX_SESSIONS = 10_000
APPROVAL = "approval"
_EVENTS: dict[str, ToolsListChanged | ResourcesListChanged | PromptsListChanged] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GatewayCaller:
    """Who calls, as their key or token proved, and how the gateway asks the plane for them."""

    id: str
    plane: Client


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
        self._background: set[asyncio.Task[Any]] = set()
        self.server = self._new_server()
        upstreams.on_change = self._announce

    def _new_server(self) -> Server[Any]:
        server = Server[Any](
            "cortex-plane",
            version=__version__,
            instructions=(
                "Calls of tools are checked by policy and may need the approval of a person. A result that says it is pending is no"
                " failure: make the same call with the same arguments later."
            ),
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_resources=self.list_resources,
            on_list_resource_templates=self.list_templates,
            on_read_resource=self.read_resource,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
            on_subscriptions_listen=ListenHandler(self._bus),
        )
        security = RequestStateSecurity.ephemeral(ttl=3600, audience="cortex-plane")
        server.middleware.append(RequestStateBoundary(security, default_audience="cortex-plane"))
        return server

    @property
    def options(self) -> Any:
        changes = NotificationOptions(tools_changed=True, resources_changed=True, prompts_changed=True)
        return self.server.create_initialization_options(changes)

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

    async def call_tool(
        self, ctx: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
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
            return _refusal("invalid_arguments", f"{error.message} Nothing ran.")
        if problems := tool.argument_faults(arguments):
            return _refusal("invalid_arguments", f"The arguments are not valid: {'; '.join(problems)} Nothing ran.")
        session = f"{self._config.session}-{tool.upstream.label}"
        try:
            session_id = await self._plane_sessions.open(caller.id, caller.plane, session)
        except CortexError as error:
            return _refusal("stopped", f"{error.message} {error.hint or ''}".strip())
        call = _Call(
            ctx=ctx,
            params=params,
            tool=tool,
            arguments=arguments,
            progress=_Progress(ctx),
            calls=PlaneCalls(caller.plane, agent=self._config.agent, session=session, runner=self._process),
        )
        async with call.progress.running():
            call_id = (ctx.meta or {}).get(CALL_ID)
            if isinstance(call_id, str) and call_id:
                return await self._answer(call, call_id, CallTurn("", 0))
            return await self._take_turns(call, session_id)

    async def _take_turns(self, call: _Call, session: str) -> types.CallToolResult | types.InputRequiredResult:
        """A call that ended before this process began is not this one; one that ended after its client had gone away is."""
        for _ in range(MAX_TURNS):
            with self._keys.turn(session, call.tool.digest, call.arguments) as turn:
                result = await self._answer(call, turn.key, turn)
                if turn.is_known or not call.is_repeat:
                    return result
        raise MCPError(types.INTERNAL_ERROR, "The same call was made too often in this session.")

    async def _answer(self, call: _Call, key: str, turn: CallTurn) -> types.CallToolResult | types.InputRequiredResult:
        answer = await self._authorize(call, key)
        if isinstance(answer, types.InputRequiredResult):
            return answer
        call.is_repeat = answer.next is Advice.USE and not answer.is_new
        turn.is_over = answer.next in (Advice.USE, Advice.STOP)
        match answer.next:
            case Advice.RUN:
                running = asyncio.ensure_future(self._run(call, answer))
                self._background.add(running)
                running.add_done_callback(self._background.discard)
                # A client that goes away does not leave the call in doubt: its result waits for the next identical call.
                result = await asyncio.shield(running)
                turn.is_over = True
                return result
            case Advice.USE:
                return _stored(answer)
            case Advice.STOP:
                return _refusal("stopped", answer.reason or "It does not run.", answer)
            case Advice.WAIT:
                where = f" A person decides here: {answer.link}" if answer.link else ""
                text = f"Pending: `{answer.tool}` has not run. {answer.reason or ''}{where}"
                return _refusal("pending", f"{text} Make the same call again to use the decision.", answer)
            case _:
                reason = answer.reason or "Nobody knows whether it ran."
                return _refusal("in_doubt", f"`{answer.tool}` was not run now: {reason}", answer)

    async def _authorize(self, call: _Call, key: str) -> PlaneAnswer | types.InputRequiredResult:
        has_progress = "progress_token" in (call.ctx.meta or {}) or "progressToken" in (call.ctx.meta or {})
        wait = self._config.wait_with_progress if has_progress else self._config.wait
        if call.params.input_responses is not None or not self._can_show_page(call):
            return await call.authorize(key, wait)
        answer = await call.authorize(key, min(wait, FIRST_WAIT_SECONDS))
        if answer.next is not Advice.WAIT or answer.link is None or wait <= FIRST_WAIT_SECONDS:
            return answer
        message = f"`{answer.tool}` needs the approval of a person."
        if call.ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            page = types.ElicitRequest(params=types.ElicitRequestURLParams(message=message, url=answer.link))
            return types.InputRequiredResult(input_requests={APPROVAL: page}, request_state=key)
        showing = asyncio.ensure_future(
            call.ctx.session.elicit_url(message, answer.link, answer.approval_id or key, call.ctx.request_id)
        )
        try:
            return await call.authorize(key, wait - FIRST_WAIT_SECONDS)
        finally:
            showing.cancel()
            await asyncio.gather(showing, return_exceptions=True)

    def _can_show_page(self, call: _Call) -> bool:
        capabilities = call.ctx.session.client_capabilities
        elicitation = capabilities.elicitation if capabilities else None
        return self._config.elicitation and elicitation is not None and elicitation.url is not None

    async def _run(self, call: _Call, answer: PlaneAnswer) -> types.CallToolResult:
        try:
            async with asyncio.timeout(call.tool.timeout):
                result = await call.tool.call(answer.arguments, answer.call_id or "", call.progress.report)
        except ToolError as error:
            await call.calls.failed(answer, error)
            return _refusal("failed", f"{error.message} {error.hint or ''}".strip(), answer)
        except (UncertainOutcome, TimeoutError) as error:
            reason = error if isinstance(error, UncertainOutcome) else f"no answer within {call.tool.timeout:g} s"
            await call.calls.unknown(answer, reason)
            text = (
                f"Nobody knows whether `{answer.tool}` happened: {reason}. Do not repeat it before a person has looked."
            )
            return _refusal("in_doubt", text, answer)
        except BaseException as error:
            await call.calls.unknown(answer, error)
            raise
        if result.is_error:
            # What it did before it failed is its own business: the protocol promises nothing.
            texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
            await call.calls.failed(answer, " ".join(texts)[:2000] or "it says no more")
        else:
            await call.calls.completed(answer, result.model_dump(mode="json", by_alias=True, exclude_none=True))
        return _noted(result, answer)

    # Sessions -------------------------------------------------------------------------------------------------------------------

    async def _begin(self, ctx: ServerRequestContext[Any, Any]) -> GatewayCaller:
        client = ctx.request.headers.get("mcp-session-id", "") if ctx.request is not None else ""
        self._sessions[client] = ctx.session
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return await self._find_caller(ctx.request)

    def _announce(self, kind: str) -> None:
        for work in (
            self._bus.publish(_EVENTS[kind]),
            *(_notify(session, kind) for session in self._sessions.values()),
        ):
            task = asyncio.ensure_future(work)
            self._background.add(task)
            task.add_done_callback(self._background.discard)


@dataclass(kw_only=True, slots=True)
class _Call:
    ctx: ServerRequestContext[Any, Any]
    params: types.CallToolRequestParams
    tool: GatewayTool
    arguments: dict[str, Any]
    calls: PlaneCalls
    progress: _Progress
    is_repeat: bool = False

    async def authorize(self, key: str, wait: float) -> PlaneAnswer:
        override = self.tool.override
        declaration = ToolOptions(
            read_only=override.read_only,
            risk=risk_of(override),
            on_uncertain=self.tool.on_uncertain,
            timeout=self.tool.timeout,
            parameters=self.tool.declaration,
            wait=wait,
        )
        return await self.calls.authorize(self.tool.plane_name, self.arguments, key, declaration)


async def _notify(session: ServerSession, kind: str) -> None:
    if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
        return  # its client listens, or asks again
    send = {
        "tools": session.send_tool_list_changed,
        "resources": session.send_resource_list_changed,
        "prompts": session.send_prompt_list_changed,
    }[kind]
    with contextlib.suppress(Exception):  # a client that is gone misses nothing
        await send()


class _Progress:
    """Tells now and then that a call is under way: some clients wait on for as long as they hear it. What the tool's own server reports is
    passed on, and never goes back."""

    def __init__(self, ctx: ServerRequestContext[Any, Any]) -> None:
        self._ctx, self._last = ctx, 0.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self._repeat())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS_SECONDS)
            await self.report(self._last + STEP, None, "waiting for the plane, a person, or the tool")

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        self._last = progress if progress > self._last else self._last + STEP
        await self._ctx.session.report_progress(self._last, total, message)


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


def _meta(status: str, answer: PlaneAnswer | None) -> dict[str, Any]:
    fields: dict[str, Any] = {"status": status}
    if answer is not None:
        others = {
            "id": answer.call_id,
            "approvalId": answer.approval_id,
            "link": answer.link,
            "deadline": answer.deadline,
        }
        fields |= {name: value for name, value in others.items() if value is not None}
    return {META: fields}


def _refusal(status: str, text: str, answer: PlaneAnswer | None = None) -> types.CallToolResult:
    content = types.TextContent(type="text", text=text)
    return types.CallToolResult(content=[content], is_error=True, _meta=_meta(status, answer))


def _stored(answer: PlaneAnswer) -> types.CallToolResult:
    try:
        return _noted(types.CallToolResult.model_validate(answer.result), answer)
    except ValueError:
        text = answer.reason or f"It ran before, and a person or the plane settled it: {as_text(answer.result)}"
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], _meta=_meta("completed", answer)
        )


def _noted(result: types.CallToolResult, answer: PlaneAnswer) -> types.CallToolResult:
    """With a word about arguments that an approver changed: the model's own history has the old ones."""
    note = answer.edit_note
    content = [*result.content, types.TextContent(type="text", text=note)] if note else result.content
    meta = {**(result.meta or {}), **_meta("failed" if result.is_error else "completed", answer)}
    return result.model_copy(update={"content": content, "meta": meta})
