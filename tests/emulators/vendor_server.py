"""What the emulators of vendors share: a server on a free port, and failures that a test asks for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.fixtures.listeners import listen


@asynccontextmanager
async def served_on_loopback(app: ASGIApp) -> AsyncIterator[str]:
    """The address of a server in the loop of the test."""
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    with listen() as listener:
        running = asyncio.create_task(server._serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await running


@dataclass(frozen=True, kw_only=True)
class VendorFault:
    """What a vendor does to one request."""

    status: int = 503
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    hangs: bool = False
    """Nothing is answered until the client leaves."""
    is_late: bool = False
    """The request takes effect first."""


class VendorFaults:
    """Faults of the next requests, in order."""

    def __init__(self) -> None:
        self._faults: deque[VendorFault | None] = deque()

    def add(self, fault: VendorFault, times: int = 1, after: int = 0) -> None:
        """Of the next requests, after so many that succeed; of none where ``times`` is 0, also of those that were meant to fail
        before."""
        if times == 0:
            self._faults.clear()
        self._faults.extend([None] * after + [fault] * times)

    def clear(self) -> None:
        self._faults.clear()

    async def around(self, act: Callable[[], Awaitable[Response]]) -> Response:
        if not self._faults:
            return await act()
        fault = self._faults.popleft()
        if fault is None:
            return await act()
        if fault.is_late:
            await act()
        if fault.hangs:
            return SilentResponse()
        return JSONResponse(fault.body, fault.status, fault.headers)


class SilentResponse(Response):
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
