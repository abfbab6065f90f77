"""The application behind a real socket, in the loop of the test: for what only a network does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from cortex_plane.db.database import Database
from cortex_plane.http.app import framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.http.read_deadlines import DeadlineProtocol
from cortex_plane.main.api_process import KEEP_ALIVE_SECONDS, create_app
from cortex_plane.sessions.verbs.events import EventFeed
from tests.listeners import listen


@asynccontextmanager
async def served(db: Database, **more: Any) -> AsyncIterator[tuple[str, uvicorn.Server, asyncio.Task[None]]]:
    """A server as `cortex api` runs it, on a free port."""
    metrics = Metrics()
    app = framed(create_app(db, metrics, EventFeed(db, poll_seconds=0.05)))
    config = {"timeout_keep_alive": KEEP_ALIVE_SECONDS, "http": DeadlineProtocol, "lifespan": "off", **more}
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, **config))
    with listen() as listener:
        # Not `serve`, which would take the signals of the tests.
        running = asyncio.create_task(server._serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", server, running
        finally:
            server.should_exit = True
            await running
            metrics.close()
