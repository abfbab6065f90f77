"""A server elsewhere: streamable HTTP, with headers of its own and answers of a bounded size."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import orjson

from cortex_plane.worker.tools.mcp.bounds import MAX_MESSAGE_BYTES, Line
from cortex_plane.worker.tools.mcp.servers import McpServer

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

KEY = "cortex-plane/idempotency-key"
CONNECT_SECONDS = 15.0
QUIET_SECONDS = 300.0


@contextlib.asynccontextmanager
async def http(server: McpServer, line: Line) -> AsyncIterator[TransportStreams]:
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    class Counted(httpx2.AsyncByteStream):
        """One body. An event stream lasts, and its events are bounded one by one."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        async def __aiter__(self) -> AsyncIterator[bytes]:
            seen = 0
            async for chunk in self._inner:
                seen += len(chunk)
                if seen > MAX_MESSAGE_BYTES:
                    line.end(f"it answered with more than {MAX_MESSAGE_BYTES} bytes")
                    raise httpx2.StreamError(line.reason)
                yield chunk

        async def aclose(self) -> None:
            await self._inner.aclose()

    async def look(response: Any) -> None:
        if response.status_code in (401, 403) and not line.begun:
            line.end(f"it refuses this worker with status {response.status_code}: look at its headers")
        if response.status_code == 404:
            line.turned_away |= _sent_to_a_session(response.request)
        if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
            response.stream = Counted(response.stream)

    timeout = httpx2.Timeout(CONNECT_SECONDS, read=max(QUIET_SECONDS, server.timeout_seconds + 30))
    async with (
        httpx2.AsyncClient(
            headers=server.sent_headers(), timeout=timeout, event_hooks={"response": [look]}
        ) as client,
        streamable_http_client(
            server.url or "", http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
        ) as streams,
    ):
        yield streams


def _sent_to_a_session(request: Any) -> set[str]:
    """The key of the call that this request is. The status alone says that its session is over, never an answer's text."""
    if request.method != "POST" or "mcp-session-id" not in request.headers:
        return set()
    try:
        return {orjson.loads(request.content)["params"]["_meta"][KEY]}
    except (ValueError, KeyError, TypeError):
        return set()  # no call of a tool
