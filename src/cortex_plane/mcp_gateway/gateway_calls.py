"""One call of a tool: authorised by the plane, run by its server, and answered in the words of MCP."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import mcp_types as types

from cortex_plane.agents.model.tools import ToolError, UncertainOutcome
from cortex_plane.client.authorization import PlaneAnswer, PlaneCalls, ToolOptions
from cortex_plane.mcp_gateway.gateway_file import risk_of
from cortex_plane.mcp_gateway.upstreams import GatewayTool

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

    from cortex_plane.client import Client

META = "cortex-plane/call"
PROGRESS_SECONDS = 5.0
STEP = 1e-6
"""How far a call comes by waiting: progress must increase."""


@dataclass(frozen=True, slots=True)
class GatewayCaller:
    """Who calls, as their key or token proved, and how the gateway asks the plane for them."""

    id: str
    plane: Client


class Silence:
    """Hears what a server says about a call that nobody listens to, such as one of a task."""

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        pass


class CallProgress(Silence):
    """Tells now and then that a call is under way: some clients wait on for as long as they hear it. What the tool's own server reports is
    passed on, and never goes back."""

    def __init__(self, ctx: ServerRequestContext[Any, Any]) -> None:
        self._ctx, self._last = ctx, 0.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Most calls are over before anything is to be told, and start no task for it."""
        repeating: list[asyncio.Task[None]] = []
        timer = asyncio.get_running_loop().call_later(
            PROGRESS_SECONDS, lambda: repeating.append(asyncio.ensure_future(self._repeat()))
        )
        try:
            yield
        finally:
            timer.cancel()
            for task in repeating:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async def _repeat(self) -> None:
        while True:
            await self.report(self._last + STEP, None, "waiting for the plane, a person, or the tool")
            await asyncio.sleep(PROGRESS_SECONDS)

    async def report(self, progress: float, total: float | None, message: str | None) -> None:
        self._last = progress if progress > self._last else self._last + STEP
        await self._ctx.session.report_progress(self._last, total, message)


@dataclass(kw_only=True, slots=True)
class GatewayCall:
    tool: GatewayTool
    calls: PlaneCalls
    progress: Silence

    async def authorize(self, arguments: dict[str, Any], key: str, wait: float) -> PlaneAnswer:
        override = self.tool.override
        declaration = ToolOptions(
            read_only=override.read_only,
            risk=risk_of(override),
            on_uncertain=self.tool.on_uncertain,
            timeout=self.tool.timeout,
            parameters=self.tool.declaration,
            wait=wait,
        )
        return await self.calls.authorize(self.tool.plane_name, arguments, key, declaration)

    async def run(self, answer: PlaneAnswer) -> types.CallToolResult:
        """Its outcome is reported before anybody has the answer."""
        try:
            async with asyncio.timeout(self.tool.timeout):
                result = await self.tool.call(answer.arguments, answer.call_id or "", self.progress.report)
        except ToolError as error:
            await self.calls.failed(answer, error)
            return refusal("failed", f"{error.message} {error.hint or ''}".strip(), answer)
        except (UncertainOutcome, TimeoutError) as error:
            reason = error if isinstance(error, UncertainOutcome) else f"no answer within {self.tool.timeout:g} s"
            await self.calls.unknown(answer, reason)
            text = (
                f"Nobody knows whether `{answer.tool}` happened: {reason}. Do not repeat it before a person has looked."
            )
            return refusal("in_doubt", text, answer)
        except BaseException as error:
            await self.calls.unknown(answer, error)
            raise
        if result.is_error:
            # What it did before it failed is its own business: the protocol promises nothing.
            texts = [block.text for block in result.content if isinstance(block, types.TextContent)]
            await self.calls.failed(answer, " ".join(texts)[:2000] or "it says no more")
        else:
            await self.calls.completed(answer, result.model_dump(mode="json", by_alias=True, exclude_none=True))
        return _noted(result, answer)


def _meta_of(status: str, answer: PlaneAnswer | None) -> dict[str, Any]:
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


def refusal(status: str, text: str, answer: PlaneAnswer | None = None) -> types.CallToolResult:
    content = types.TextContent(type="text", text=text)
    return types.CallToolResult(content=[content], is_error=True, _meta=_meta_of(status, answer))


def stored_result(answer: PlaneAnswer) -> types.CallToolResult:
    try:
        return _noted(types.CallToolResult.model_validate(answer.result), answer)
    except ValueError:
        text = answer.reason or "It ran before, and a person or the plane settled it without a result."
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], _meta=_meta_of("completed", answer)
        )


def _noted(result: types.CallToolResult, answer: PlaneAnswer) -> types.CallToolResult:
    """With a word about arguments that an approver changed: the model's own history has the old ones."""
    note = answer.edit_note
    content = [*result.content, types.TextContent(type="text", text=note)] if note else result.content
    meta = {**(result.meta or {}), **_meta_of("failed" if result.is_error else "completed", answer)}
    return result.model_copy(update={"content": content, "meta": meta})
