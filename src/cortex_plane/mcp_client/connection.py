"""A connection to an MCP server: started, restarted after the server's death, asked, and stopped.

A call ends in one of three ways. The server answered: the outcome is known, also where it is an error. Nothing was sent: that
is known too. Everything else, a death, a flood, a broken answer, is uncertain: it may have happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
from collections.abc import Awaitable, Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from cortex_plane.agents.model.tools import ToolError, UncertainOutcome, trouble
from cortex_plane.kernel.errors import CortexError
from cortex_plane.mcp_client import transports
from cortex_plane.mcp_client.servers import McpServer, Redaction
from cortex_plane.mcp_client.transports import KEY, Line, bounded, http, stdio

if TYPE_CHECKING:
    from mcp import Client
    from mcp_types import Tool as Listed
    from pydantic import TypeAdapter


log = structlog.get_logger()

START_SECONDS = 30.0
"""Until it has answered and named its tools."""
LOOK_SECONDS = 300.0
"""How often its tools are read again, where it does not tell of changes itself."""
ANSWER_SECONDS = 10.0
FIRST_PAUSE, LONGEST_PAUSE, STEADY_SECONDS = 0.2, 30.0, 60.0
MAX_TOOLS, MAX_PAGES = 500, 100
MAX_REASON = 500
STARTING, UP, DOWN = "starting", "up", "down"


class OnProgress(Protocol):
    """Hears what a server says about a call that is under way: how far it is, of how much, and in words."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


class Broken(Exception):
    """A server that does not do as the protocol says."""


class SessionOver(UncertainOutcome):
    """The server does not know this session any more, and answered with the status that says so."""

    code = "mcp_session_over"


class McpLink:
    """Keeps one server connected for as long as it is started. ``read`` reads what the server offers, first before the server counts as
    up, then after each change; `Broken` ends the connection. ``on_change`` is called when the state changes."""

    def __init__(
        self, server: McpServer, read: Callable[[Client], Awaitable[None]], on_change: Callable[[], None]
    ) -> None:
        self.server = server
        self.state, self.reason = DOWN, "nothing runs it"
        self.settled = asyncio.Event()
        """The first try is over: it is up, or it is known why not."""
        self.redaction = Redaction(())
        self.client: Client | None = None
        self.line = Line()
        self._read_offer, self._on_change = read, on_change
        self._up = asyncio.Event()
        self._again = asyncio.Event()
        self._doubted = asyncio.Event()
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._changes = transports.Changes()
        self._read_at = 0.0

    @property
    def is_up(self) -> bool:
        return self._up.is_set()

    def start(self) -> None:
        """Raises ``SetupError`` where a secret is missing."""
        self.redaction = self.server.redaction()
        self.settled, self._up = asyncio.Event(), asyncio.Event()
        self._again, self._doubted, self._stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._run(), name=f"mcp server {self.server.name}")

    async def stop(self, reason: str) -> None:
        if self._task is None:
            return
        self._stopping.set()
        self.line.end(reason)
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None

    def doubt(self) -> None:
        """A server that hangs is found out by asking it something else."""
        self._doubted.set()

    async def _run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            self._become(STARTING, "")
            start = monotonic()
            try:
                reason = await self._serve()
            except asyncio.CancelledError:
                raise
            except (Exception, BaseExceptionGroup) as error:
                # A server may break in any way; it must not break what it is connected to.
                reason = self.line.reason or describe_error(error)
            self.client = None
            self._up.clear()
            self._become(DOWN, self.redaction.text(reason)[:MAX_REASON])
            self.settled.set()
            if self._stopping.is_set():
                return
            failures = 0 if monotonic() - start > STEADY_SECONDS else failures + 1
            pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0)  # noqa: S311
            log.warning("mcp server down", server=self.server.name, reason=self.reason, again_in=round(pause, 1))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._stopping.wait()

    def _become(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason
        self._on_change()

    async def _serve(self) -> str:
        """From the start of the server to its end: the reason of it."""
        line = self.line = Line(self._up.clear)
        async with contextlib.AsyncExitStack() as stack:
            async with asyncio.timeout(START_SECONDS):
                client = await stack.enter_async_context(self._new_client(line))
                await self._read(client)
            if any(announced := _announced_lists(client)):
                listening = asyncio.create_task(self._listen(client, *announced))
                stack.push_async_callback(_cancel, listening)
            self.client = client
            line.begun = True
            self._become(UP, "")
            self._up.set()
            self.settled.set()
            log.info("mcp server up", server=self.server.name)
            return await self._watch(client, line)

    def _new_client(self, line: Line) -> Client:
        from mcp import Client
        from mcp_types import Implementation

        server = self.server
        transport = http(server, line) if server.url is not None else stdio(server, line, self.redaction)
        return Client(
            bounded(transport, line),
            cache=None,
            message_handler=self._on_message,
            client_info=Implementation(name="cortex-plane", version="1"),
        )

    async def _on_message(self, message: Any) -> None:
        if getattr(message, "method", None) in _CHANGES:
            self._again.set()

    async def _listen(self, client: Client, tools: bool, resources: bool, prompts: bool) -> None:
        """Newer servers announce changes only to subscribers. Without a subscription the tools are read now and then."""
        with contextlib.suppress(Exception):
            async with client.listen(
                tools_list_changed=tools, resources_list_changed=resources, prompts_list_changed=prompts
            ) as changes:
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
            pause = self._read_at + self._changes.pause(monotonic()) - monotonic()
            await _first(line.over, self._doubted, within=max(0.0, pause))
        await _first(line.over, within=max(0.0, self._read_at + transports.READ_SECONDS - monotonic()))

    async def _read(self, client: Client) -> None:
        self._read_at = monotonic()
        try:
            await self._read_offer(client)
        except Broken as error:
            self.line.end(str(error))
            raise

    def count_change(self) -> None:
        """What the server offers has changed. Raises where that happens too often."""
        if not self._changes.add(monotonic()):
            raise Broken(f"it changed its list of tools more than {transports.MAX_CHANGES} times within an hour")

    async def request(
        self, tool: str, remote_name: str, values: Mapping[str, Any], key: str, on_progress: OnProgress | None = None
    ) -> Any:
        """The answer of the server to one call of a tool, whatever it is. ``tool``: as people know it. Raises ``ToolError`` where nothing
        was begun, and ``UncertainOutcome`` where nobody knows."""
        client, line = self.client, self.line
        if client is None or line.over.is_set():
            why = f" ({trouble(self.reason)})" if self.reason else ""
            raise ToolError(
                f"`{tool}` was not sent: its server `{self.server.name}` is {self.state}{why}.",
                hint="Try again later, or go another way.",
            )
        try:
            return await _request(client, remote_name, dict(values), key, on_progress)
        except asyncio.CancelledError:
            # Too slow, or not wanted any more.
            self.doubt()
            raise
        except Exception as error:
            raise self._failure(tool, error, line, key) from None

    async def wait_until_up(self, seconds: float) -> bool:
        """Whether it is up, after at most so long."""
        if not self._up.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._up.wait()
        return self.client is not None and not self.line.over.is_set()

    def _failure(self, tool: str, error: Exception, line: Line, key: str) -> CortexError:
        from mcp.shared.exceptions import MCPError
        from mcp_types import INVALID_PARAMS, METHOD_NOT_FOUND

        unknown = f"Nobody knows whether `{tool}` happened"
        reason = "its answer was lost, or cannot be read"
        if isinstance(error, MCPError):
            reason = self.redaction.text(describe_error(error))[:MAX_REASON]
            # With these the server did not even begin. Others may come from halfway through, or from a proxy.
            if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):
                return ToolError(f"`{tool}` was refused: {reason}.", hint="Correct the call, or go another way.")
        if key in line.turned_away:
            line.end("it does not know its session any more")
            return SessionOver(f"{unknown}: its server does not know the session any more.")
        if line.over.is_set():
            return UncertainOutcome(f"{unknown}: its server is gone, {trouble(line.reason)}.")
        # An answer to one call, or the end of a server elsewhere, which nothing else tells: asking it finds out, and
        # the calls of everybody else go on.
        self._doubted.set()
        return UncertainOutcome(f"{unknown}: {reason}.")


async def _request(
    client: Client, name: str, arguments: dict[str, Any], key: str, on_progress: OnProgress | None
) -> Any:
    """Not ``call_tool``, which raises where a result does not fit the server's own schema: it happened all the same."""
    import mcp_types as types

    params = types.CallToolRequestParams(name=name, arguments=arguments, _meta={KEY: key})
    request = types.CallToolRequest(params=params)
    return await client.session.send_request(request, _call_answer(), progress_callback=on_progress)


@functools.cache
def _call_answer() -> TypeAdapter[Any]:
    """Building it takes longer than a call."""
    import mcp_types as types
    from pydantic import TypeAdapter

    return TypeAdapter(types.CallToolResult | types.InputRequiredResult)


async def list_tools(client: Client) -> list[Listed]:
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


_CHANGES = frozenset(f"notifications/{kind}/list_changed" for kind in ("tools", "resources", "prompts"))


def _announced_lists(client: Client) -> tuple[bool, bool, bool]:
    """Of tools, resources and prompts: whose changes the server announces."""
    offer = client.server_capabilities
    tools, resources, prompts = (
        bool(capability and capability.list_changed) for capability in (offer.tools, offer.resources, offer.prompts)
    )
    return tools, resources, prompts


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


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
