"""The MCP servers of a worker: started with it, connected, restarted after their death, called, announced, and stopped with it.

A call ends in one of three ways. The server answered: the outcome is known, also where it is an error. Nothing was sent: that
is known too. Everything else, a death, a flood, a broken answer, is uncertain: it may have happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID
from weakref import WeakKeyDictionary

import structlog

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.tools import ToolError, UncertainOutcome, trouble
from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import CortexError
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.mcp import transports
from cortex_plane.worker.mcp.remote_tool import RemoteTool, as_json, error_text, recall_tools, usable_tools
from cortex_plane.worker.mcp.servers import McpServer, Redaction
from cortex_plane.worker.mcp.transports import KEY, Changes, Line, bounded, http, stdio
from cortex_plane.worker.scheduler import in_background
from cortex_plane.worker.tools.app import App

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool as Listed


log = structlog.get_logger()

START_SECONDS = 30.0
"""Until it has answered and named its tools."""
LOOK_SECONDS = 300.0
"""How often its tools are read again, where it does not tell of changes itself."""
ANSWER_SECONDS = 10.0
WAIT_SECONDS = 5.0
"""How long a call waits for a server that is on its way back."""
FIRST_PAUSE, LONGEST_PAUSE, STEADY_SECONDS = 0.2, 30.0, 60.0
MAX_TOOLS, MAX_PAGES = 500, 100
MAX_REASON = 500
SETTLE_SECONDS = 10.0
"""A worker waits so long for its servers before it begins without those that are not up."""
TELL_AGAIN_SECONDS = 5.0
STARTING, UP, DOWN = "starting", "up", "down"

Offer = Callable[[Sequence[RemoteTool]], Awaitable[None]]


class Broken(Exception):
    """A server that does not do as the protocol says."""


class SessionOver(UncertainOutcome):
    """The server does not know this session any more, and answered with the status that says so."""

    code = "mcp_session_over"


class McpConnection:
    """``start`` and ``stop`` any number of times; it runs while anybody needs it."""

    def __init__(self, server: McpServer) -> None:
        self.server = server
        self.state, self.reason = DOWN, "no worker runs it"
        self.settled = asyncio.Event()
        """The first try is over: it is up, or it is known why not."""
        self._users: list[tuple[Offer, Callable[[], None]]] = []
        self._redaction = Redaction(())
        self._client: Client | None = None
        self._line = Line()
        self._up = asyncio.Event()
        self._again = asyncio.Event()
        self._doubted = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._digests: dict[str, str] | None = None
        self._changes = Changes()
        self._read_at = 0.0

    def start(self, offer: Offer, on_change: Callable[[], None]) -> None:
        """Raises ``SetupError`` where a secret is missing."""
        redaction = self.server.redaction()
        self._users.append((offer, on_change))
        if len(self._users) > 1:
            return
        self._redaction = redaction
        self.settled, self._up = asyncio.Event(), asyncio.Event()
        self._again, self._doubted, self._stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"mcp server {self.server.name}")

    async def stop(self, on_change: Callable[[], None]) -> None:
        """``on_change``: as it was started with."""
        self._users = [user for user in self._users if user[1] != on_change]
        if self._users or self._task is None:
            return
        self._stopping.set()
        self._line.end("the worker stops")
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    async def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            self._become(STARTING, "")
            start = ticks()
            try:
                reason = await self._serve()
            except asyncio.CancelledError:
                raise
            except (Exception, BaseExceptionGroup) as error:
                # A server may break in any way; it must not break the worker.
                reason = self._line.reason or describe_error(error)
            self._client = None
            self._up.clear()
            self._become(DOWN, self._redaction.text(reason)[:MAX_REASON])
            self.settled.set()
            if self._stopping.is_set():
                return
            failures = 0 if ticks() - start > STEADY_SECONDS else failures + 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0)  # noqa: S311
            log.warning("mcp server down", server=self.server.name, reason=self.reason, again_in=round(pause, 1))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    def _become(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason
        self._tell()

    def _tell(self) -> None:
        for _, on_change in self._users:
            on_change()

    async def _serve(self) -> str:
        """From the start of the server to its end: the reason of it."""
        line = self._line = Line(self._up.clear)
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(START_SECONDS):
                client = await stack.enter_async_context(self._new_client(line))
                await self._read(client)
            capability = client.server_capabilities.tools
            if capability and capability.list_changed:
                await stack.enter_async_context(in_background(self._listen(client)))
            self._client = client
            line.begun = True
            self._become(UP, "")
            self._up.set()
            self.settled.set()
            log.info("mcp server up", server=self.server.name, tools=len(self._digests or ()))
            return await self._watch(client, line)

    def _new_client(self, line: Line) -> Client:
        from mcp import Client
        from mcp_types import Implementation

        server = self.server
        transport = http(server, line) if server.url is not None else stdio(server, line, self._redaction)
        return Client(
            bounded(transport, line),
            cache=None,
            message_handler=self._on_message,
            client_info=Implementation(name="cortex-plane", version="1"),
        )

    async def _on_message(self, message: Any) -> None:
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            self._again.set()

    async def _listen(self, client: Client) -> None:
        """Newer servers announce changes only to subscribers. Without a subscription the tools are read now and then."""
        with contextlib.suppress(Exception):
            async with client.listen(tools_list_changed=True) as changes:
                # Whatever changed before the subscription is read now.
                self._again.set()
                async for _ in changes:
                    self._again.set()

    async def _watch(self, client: Client, line: Line) -> str:
        while True:
            await _first(line.over, self._again, self._doubted, within=LOOK_SECONDS)
            await self._rest(line)
            if line.over.is_set():
                return line.reason
            self._again.clear()
            self._doubted.clear()
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await self._read(client)
            except TimeoutError:
                return f"it did not answer within {ANSWER_SECONDS:g} s"
            except CortexError as error:
                # It is the database that does not answer: the tools on offer stay as they are.
                log.warning("mcp tools not published", server=self.server.name, error=str(error))
                await _first(line.over, within=ANSWER_SECONDS)
                self._again.set()

    async def _rest(self, line: Line) -> None:
        """Whoever announces changes without end is heard ever more seldom. Whether it still lives is asked sooner."""
        if not self._doubted.is_set():
            pause = self._read_at + self._changes.pause(ticks()) - ticks()
            await _first(line.over, self._doubted, within=max(0.0, pause))
        await _first(line.over, within=max(0.0, self._read_at + transports.READ_SECONDS - ticks()))

    async def _read(self, client: Client) -> None:
        self._read_at = ticks()
        info = client.server_info
        implementation = f"{info.name} {info.version}"[:200] if info is not None else ""
        try:
            definitions = await _list_tools(client)
        except Broken as error:
            self._line.end(str(error))
            raise
        tools, reasons = usable_tools(self, self.server, implementation, definitions, self._redaction)
        for why in reasons[:20]:
            log.warning("mcp tool skipped", server=self.server.name, tool=self._redaction.text(why))
        digests = {tool.remote_name: tool.digest for tool in tools}
        if self._digests is not None and digests != self._digests and not self._changes.add(ticks()):
            # Said before it is ended: the first reason counts.
            self._line.end(f"it changed its list of tools more than {transports.MAX_CHANGES} times within an hour")
            raise Broken(self._line.reason)
        if digests != self._digests or not self._up.is_set():
            # Known to the database before anybody may call them.
            for offer, _ in list(self._users):
                await offer(tools)
            self._digests = digests
            self._tell()

    async def call(self, tool: RemoteTool, values: Mapping[str, Any], key: str) -> Any:
        try:
            result = await self._send(tool, values, key)
        except SessionOver:
            # It was restarted elsewhere and began nothing: the same call goes to the new session, once.
            result = await self._send(tool, values, key)
        if not hasattr(result, "content"):
            raise _known_failure(tool, "did not finish", "it asks its caller for more, which nobody here answers.")
        if result.is_error:
            raise _known_failure(tool, "failed", error_text(result, self._redaction))
        return as_json(result, self._redaction)

    async def _send(self, tool: RemoteTool, values: Mapping[str, Any], key: str) -> Any:
        # A server on its way back is waited for, within the time of the call, so that its end is never mistaken.
        is_up = await self._wait_until_up(min(WAIT_SECONDS, tool.timeout_seconds / 2))
        client, line = self._client, self._line
        if client is None or not is_up:
            why = f" ({trouble(self.reason)})" if self.reason else ""
            raise ToolError(
                f"`{tool.name}` was not sent: its server `{self.server.name}` is {self.state}{why}.",
                hint="Try again later, or go another way.",
            )
        if not self._offers(tool):
            raise ToolError(
                f"`{tool.name}` was changed by its server since this call was made; it was not sent.",
                hint="Call it again: it is looked at as it is now.",
            )
        try:
            return await _request(client, tool.remote_name, dict(values), key)
        except asyncio.CancelledError:
            # Too slow, or not wanted any more. A server that hangs is found out by asking it something else.
            self._doubted.set()
            raise
        except Exception as error:
            raise self._failure(tool, error, line, key) from None

    def _offers(self, tool: RemoteTool) -> bool:
        return (self._digests or {}).get(tool.remote_name) == tool.digest

    async def obstacle(self, tool: RemoteTool) -> str | None:
        """Why this cannot be sent to it, after it was waited for."""
        if not await self._wait_until_up(WAIT_SECONDS):
            return f"the MCP server `{self.server.name}` is {self.state}: {trouble(self.reason) or 'not ready yet'}"
        return None if self._offers(tool) else f"`{tool.name}` has just been changed by its server"

    async def _wait_until_up(self, seconds: float) -> bool:
        if not self._up.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._up.wait()
        return self._client is not None and not self._line.over.is_set()

    def _failure(self, tool: RemoteTool, error: Exception, line: Line, key: str) -> CortexError:
        from mcp.shared.exceptions import MCPError
        from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

        unknown = f"Nobody knows whether `{tool.name}` happened"
        reason = "its answer was lost, or cannot be read"
        if isinstance(error, MCPError):
            reason = self._redaction.text(describe_error(error))[:MAX_REASON]
            # With these the server did not even begin. Others may come from halfway through, or from a proxy.
            if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):
                return ToolError(f"`{tool.name}` was refused: {reason}.", hint="Correct the call, or go another way.")
        if key in line.turned_away:
            line.end("it does not know its session any more")
            return SessionOver(f"{unknown}: its server does not know the session any more.")
        if line.over.is_set():
            return UncertainOutcome(f"{unknown}: its server is gone, {trouble(line.reason)}.")
        # An answer to one call, or the end of a server elsewhere, which nothing else tells: asking it finds out, and
        # the calls of everybody else go on.
        self._doubted.set()
        return UncertainOutcome(f"{unknown}: {reason}.")


def _known_failure(tool: RemoteTool, how: str, reason: str) -> ToolError:
    """The end of the call is known. What it did before is not: the protocol promises nothing about it."""
    if tool.read_only:
        return ToolError(f"`{tool.name}` {how}: {reason}", hint="Correct the call, or go another way.")
    message = f"`{tool.name}` {how}; it may have acted in part: {reason}"
    return ToolError(message, hint="Look at what it did before you call it again.")


async def _request(client: Client, name: str, arguments: dict[str, Any], key: str) -> Any:
    """Not ``call_tool``, which raises where a result does not fit the server's own schema: it happened all the same."""
    import mcp_types as types
    from pydantic import TypeAdapter

    params = types.CallToolRequestParams(name=name, arguments=arguments, _meta={KEY: key})
    either: TypeAdapter[Any] = TypeAdapter(types.CallToolResult | types.InputRequiredResult)
    return await client.session.send_request(types.CallToolRequest(params=params), either)


async def _list_tools(client: Client) -> list[Listed]:
    tools: list[Listed] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if len(tools) > MAX_TOOLS:
            raise Broken(f"it offers more than {MAX_TOOLS} tools")
        if not cursor:
            return tools
    raise Broken(f"the list of its tools has more than {MAX_PAGES} pages")


async def _first(*events: asyncio.Event, within: float) -> None:
    waiting = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, timeout=within, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def describe_error(error: BaseException) -> str:
    """The innermost reason: task groups wrap what they pass on."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, TimeoutError):
        return f"it did not answer within {START_SECONDS:g} s"
    if isinstance(error, CortexError):
        return error.message
    if isinstance(error, Broken):
        return str(error)
    text = str(error).partition("\n")[0][:MAX_REASON]
    return f"{type(error).__name__}: {text}".removesuffix(": ")


_connections: WeakKeyDictionary[App, dict[str, McpConnection]] = WeakKeyDictionary()
"""One for each server and process, whatever runs in it."""


class Servers:
    def __init__(self, db: Database, worker_id: UUID, apps: Sequence[App]) -> None:
        self._db, self._worker_id = db, worker_id
        self._apps = [app for app in apps if app.mcp_servers]
        self._started: list[tuple[App, McpConnection]] = []
        self._changed = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """For as long as the worker runs, and no longer, however it ends. Raises ``SetupError`` where a secret is missing. A server
        that does not come up is tried on, in the background."""
        try:
            for app in self._apps:
                connections = _connections.setdefault(app, {})
                for server in app.mcp_servers.values():
                    connection = connections.setdefault(server.name, McpConnection(server))
                    await self._recall(app, connection)
                    connection.start(partial(self._offer, app, connection), self._changed.set)
                    self._started.append((app, connection))
            if waiting := [asyncio.create_task(connection.settled.wait()) for _, connection in self._started]:
                _, late = await asyncio.wait(waiting, timeout=SETTLE_SECONDS)
                for task in late:
                    task.cancel()
            yield
        finally:
            await self._stop()

    def tell(self) -> None:
        """From now on, how they are is written down. The worker is registered."""
        if self._started:
            self._changed.set()
            self._telling = asyncio.create_task(self._tell())

    async def _stop(self) -> None:
        connections, self._started = self._started, []
        await asyncio.gather(*(connection.stop(self._changed.set) for _, connection in connections))
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
            self._telling = None
            with contextlib.suppress(CortexError):
                await agents_store.forget_tool_servers(self._db, self._worker_id)

    async def _recall(self, app: App, connection: McpConnection) -> None:
        """What waits for its tools waits on while the server is down, and is not mistaken for changed code."""
        server = connection.server
        if not _tools_of(app, server):
            versions = await agents_store.list_server_tools(self._db, app.name, server.name)
            app.offer(server.name, recall_tools(connection, server, versions))

    async def _offer(self, app: App, connection: McpConnection, tools: Sequence[RemoteTool]) -> None:
        """Published first: whoever is asked about a call can look its tool up."""
        server = connection.server
        for version in await agents_store.publish_tools(self._db, [tool.version(app.name) for tool in tools]):
            log.warning("tool_changed", app=app.name, tool=version.name, digest=version.digest, server=server.name)
        for name in sorted(_tools_of(app, server) - {tool.name for tool in tools}):
            log.warning("tool_gone", app=app.name, tool=name, server=server.name)
        app.offer(server.name, tools)

    async def _tell(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                for app, connection in self._started:
                    server, reason = connection.server, connection.reason or None
                    tools = len(_tools_of(app, server))
                    await agents_store.record_tool_server(
                        self._db, app.name, server.name, self._worker_id, connection.state, reason, tools
                    )
            except CortexError as error:
                log.warning("mcp servers not told about", error=str(error))
                self._changed.set()
                await asyncio.sleep(TELL_AGAIN_SECONDS)


def _tools_of(app: App, server: McpServer) -> set[str]:
    return {tool.name for tool in app.tools.values() if isinstance(tool, RemoteTool) and tool.server is server}
