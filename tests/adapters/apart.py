"""The plane's HTTP side in a thread of its own, for programs that block while they wait for it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from cortex_plane.db.database import Database
from cortex_plane.http.app import framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.main.api_process import create_app
from cortex_plane.sessions.verbs.events import EventFeed
from tests.listeners import listen
from tests.servers import VAULT


class Apart:
    """A server that runs beside the test, with its own event loop and its own connections."""

    def __init__(self, url: str) -> None:
        self._database = url
        self._listener = listen()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.requests: list[str] = []
        self.connections: set[tuple[str, int]] = set()
        self._ready = threading.Event()
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    async def _serve(self) -> None:
        db = await Database.open(self._database, max_size=8, vault=VAULT)
        metrics = Metrics()
        app = create_app(db, metrics, EventFeed(db, poll_seconds=0.05))
        inner = framed(app)

        async def counted(scope, receive, send):  # type: ignore[no-untyped-def]
            if scope["type"] == "http":
                self.requests.append(f"{scope['method']} {scope['path']}")
                self.connections.add(tuple(scope["client"]))
            await inner(scope, receive, send)

        config = uvicorn.Config(counted, log_config=None, access_log=False, lifespan="off", http="httptools")
        self._server = uvicorn.Server(config)
        self._server.capture_signals = _no_signals  # type: ignore[method-assign]
        self._ready.set()
        await self._server._serve([self._listener])
        app.state.feed.close()
        metrics.close()
        await db.close()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(30)

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(30)
        self._listener.close()

    def made(self, path: str) -> int:
        """How many requests went to paths that end so."""
        return sum(request.endswith(path) for request in self.requests)


@contextmanager
def _no_signals() -> Iterator[None]:
    yield


@contextmanager
def beside(url: str) -> Iterator[Apart]:
    server = Apart(url)
    server.start()
    try:
        yield server
    finally:
        server.stop()
