"""A process that has imported everything and forks workers and deciders on demand: an import takes far longer than a worker's life.

    python -m tests.crash.fork_server SOCKET WORLD

Each connection is one worker. The client sends its order as a line of JSON and is told the pid, then how it ended.
Whoever closes the connection kills the worker; the server ends with its standard input, and its workers with it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from benchmarks.world import World

from cortex_plane.agents.model.agents import ResourceLimits
from cortex_plane.agents.model.completions import Script
from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.approvals.model.credentials import Token
from cortex_plane.approvals.rules.decisions import LockedApproval
from cortex_plane.db import crash_points
from cortex_plane.db.database import Database
from cortex_plane.db.pool import listen_for_hints
from cortex_plane.gates.model.gates import GateState
from cortex_plane.jobs.model.effects import ToolCall
from cortex_plane.jobs.model.journal import JournalEntry
from cortex_plane.jobs.rules import Leased
from cortex_plane.kernel.fields import adapter
from cortex_plane.policies.model.policies import PolicyRow, Terms
from cortex_plane.proof.rules.receipts import ReceiptFacts
from cortex_plane.sessions.rules import SessionMessage
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.worker import JobRunner
from tests.crash import deciders
from tests.crash.tools import SHORT, TOOL_SECONDS, crash_app, renamed
from tests.fixtures.servers import VAULT
from tests.fixtures.workers import KEY
from tests.mcp_servers.apps import mortal

_PR_SET_PDEATHSIG = 1
PROVIDER_MODULES = (
    "pydantic_ai.direct", "pydantic_ai.models.anthropic", "pydantic_ai.providers.anthropic", "genai_prices",
)  # fmt: skip
MCP_MODULES = ("mcp", "mcp.client.subscriptions", "jsonschema")
LATE_MODULES = ("cel", "jsonschema_rs")
LATE_ADAPTERS: tuple[Any, ...] = (
    Approval, ReceiptFacts, JournalEntry, GateState, Leased, LockedApproval, PolicyRow, ResourceLimits, SessionMessage, Script, Terms, Token, ToolCall,
)  # fmt: skip
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What a worker is to be."""

    url: str
    app: str
    name: str
    output: str
    """A file for whatever it says."""
    at: str | None = None
    """The point at which it dies, or stops."""
    how: int = signal.SIGKILL
    points: str | None = None
    """A file for the points that it passes."""
    tool_seconds: float = TOOL_SECONDS
    pool: int = 1
    """A second connection would cost more than all that a victim does with it."""
    listens: bool = False
    settings: dict[str, Any] | None = None
    verb: str | None = None
    """Not a worker: a process that does this to an approval, once, and ends."""
    arguments: dict[str, Any] | None = None
    environment: dict[str, str] | None = None
    """Keys and addresses of model providers."""
    folder: str | None = None
    """Not the app of all others: the one with MCP servers, which write what they did into this folder."""


async def _work(order: Order, app: App) -> None:
    crash_points.arm(order.at, order.points, signal.Signals(order.how))
    db = await Database.open(_named(order.url, order.name), max_size=order.pool, vault=VAULT)
    if order.verb is not None:
        await getattr(deciders, order.verb)(db, order.arguments)
        await db.close()
        return
    mine = renamed(app, order.app) if order.folder is None else mortal(Path(order.folder))
    worker = JobRunner(db, [mine], KEY, replace(SHORT, **order.settings or {}), name=order.name)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    async with AsyncExitStack() as stack:
        if order.listens:
            await stack.enter_async_context(listen_for_hints(order.url, worker.work))
        await worker.run()
    await db.close()


def _named(url: str, name: str) -> str:
    """So that a test can tell whose connection it is."""
    return f"{url}{'&' if '?' in url else '?'}application_name={name}"


def _child(order: Order, app: App, parent: int) -> None:
    """Never returns. No handler, descriptor or buffer of the server is used again."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.update(order.environment or {})
    output = os.open(order.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 256)
    try:
        asyncio.run(_work(order, app))
    except BaseException:
        import traceback

        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)


class _Server:
    def __init__(self, path: str, world: World) -> None:
        self._world = world
        self._apps: dict[float, App] = {}
        self._watch = selectors.DefaultSelector()
        self._by_pid: dict[int, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(64)
        bell, ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(ring)
        self._watch.register(0, selectors.EVENT_READ, self._parent_gone)
        self._watch.register(bell, selectors.EVENT_READ, lambda: self._reap(bell))
        self._watch.register(self._listener, selectors.EVENT_READ, self._accept)

    def serve(self) -> None:
        while True:
            for key, _ in self._watch.select():
                key.data()

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        with client.makefile("rb") as lines:
            said = lines.readline()
        if not said:
            client.close()
            return
        order = Order(**json.loads(said))
        # Once, and not by every worker: it takes longer than a worker's life.
        for module in (*(PROVIDER_MODULES if order.environment else ()), *(MCP_MODULES if order.folder else ())):
            importlib.import_module(module)
        if order.tool_seconds not in self._apps:
            self._apps[order.tool_seconds] = crash_app(self._world, order.tool_seconds)
        app, parent = self._apps[order.tool_seconds], os.getpid()
        pid = os.fork()
        if pid == 0:
            _child(order, app, parent)
        self._by_pid[pid] = client
        self._tell(client, {"pid": pid})
        self._watch.register(client, selectors.EVENT_READ, lambda: self._abandon(client))

    def _abandon(self, client: socket.socket) -> None:
        """Whoever ordered it has gone, or has said something, which is the same."""
        self._watch.unregister(client)
        for pid, owner in self._by_pid.items():
            if owner is client:
                os.kill(pid, signal.SIGKILL)
                return
        client.close()

    def _reap(self, bell: int) -> None:
        with suppress(BlockingIOError):
            os.read(bell, 4096)
        while self._by_pid:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            client = self._by_pid.pop(pid)
            self._tell(client, {"status": os.waitstatus_to_exitcode(status)})
            with suppress(KeyError):
                self._watch.unregister(client)
            client.close()

    def _tell(self, client: socket.socket, news: dict[str, int]) -> None:
        with suppress(OSError):
            client.sendall(json.dumps(news).encode() + b"\n")

    def _parent_gone(self) -> None:
        os._exit(0)


if __name__ == "__main__":
    # structlog's default draws every variable of a traceback, which takes longer than a lease.
    structlog.configure(processors=[structlog.processors.format_exc_info, structlog.processors.LogfmtRenderer()])
    # What is imported and made with a first job or a first decision takes longer than a victim's life.
    for module in LATE_MODULES:
        importlib.import_module(module)
    for kind in LATE_ADAPTERS:
        adapter(kind)
    server = _Server(sys.argv[1], World(sys.argv[2]))
    gc.collect()
    gc.freeze()
    gc.disable()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    server.serve()
