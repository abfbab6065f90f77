"""An agent that runs elsewhere, and the plane's API, as processes that may be killed anywhere.

    python -m tests.crash.elsewhere

reads one task per line: `api` starts the API (again), `agent` runs the guarded function once and tells how it ended. Everything
is imported once, and forked: a run costs milliseconds. An API that dies is started again, as whatever watches over it would.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import logging
import os
import socket
import subprocess
import sys
import traceback
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import httpx
import structlog
import uvicorn
from benchmarks.world import World as Outside

from cortex_plane import Client, CortexError, DidNotHappen, Happened
from cortex_plane.client.dialogue import Send
from cortex_plane.client.guarding import Lines, current_call
from cortex_plane.db import crash_points
from cortex_plane.db.crash_points import reached
from cortex_plane.db.database import Database
from cortex_plane.http.app import Api, framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.main.api_process import create_app
from cortex_plane.sessions.verbs.events import EventFeed
from tests.fixtures.servers import VAULT

REPOSITORY = Path(__file__).parents[2]
LATE_MODULES = ("cel", "jsonschema_rs", "httptools", "uvicorn.protocols.http.auto", "uvicorn.lifespan.off")


# The agent --------------------------------------------------------------------------------------------------------


class Watched(Lines):
    """Says where it is before and after each request."""

    def send(self, step: Send) -> Any:
        reached("http:before")
        answer = super().send(step)
        reached("http:after")
        return answer


def _world(url: str, wish: dict[str, Any] | None = None) -> dict[str, Any]:
    body = None if wish is None else json.dumps(wish).encode()
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=30) as answer:
        told: dict[str, Any] = json.loads(answer.read())
    return told


def agent(task: dict[str, Any]) -> dict[str, Any]:
    crash_points.arm(task["at"], task["log"])
    plane = Client(task["url"], task["secret"])
    plane.__dict__["lines"] = Watched(plane._address)
    outside, kind = task["outside"], task["kind"]

    def probe(name: str) -> Happened | DidNotHappen:
        count = _world(f"{outside}/acts/{name}")["count"]
        return Happened({"number": "found"}) if count else DidNotHappen()

    @plane.guard(
        "world.act", agent="deployer", on_uncertain=kind, key=task["key"], wait=task["wait"], patience=30,
        timeout=300, probe=probe if kind == "probe" else None, answers=task.get("answers"),
    )  # fmt: skip
    def act(name: str) -> dict[str, Any]:
        call = current_call()
        assert call is not None
        reached("act:before")
        key = call.id if kind == "retry_with_key" else None
        payload = {"act": name, "kind": "elsewhere", "attempt": call.attempt}
        done = _world(f"{outside}/act", {"key": name, "idempotency_key": key, "payload": payload})
        reached("act:after")
        return {"number": done["number"]}

    try:
        return {"returned": act(task["name"])}
    except CortexError as error:
        return {"raised": error.code, "message": str(error)}


# The API ----------------------------------------------------------------------------------------------------------


def api(task: dict[str, Any], listener: socket.socket, app: Api) -> None:
    crash_points.arm(task["at"], task["log"])
    asyncio.run(_serve(task["database"], listener, app))


async def _serve(database: str, listener: socket.socket, app: Api) -> None:
    app.state.db = db = await Database.open(database, max_size=4, vault=VAULT)
    app.state.feed = EventFeed(db)
    server = uvicorn.Server(uvicorn.Config(framed(app), log_config=None, access_log=False, lifespan="off"))
    await server._serve([listener])


async def _match_routes(app: Api) -> None:
    """Send the requests of an agent without a key: they are refused, but their routes are made."""
    transport = httpx.ASGITransport(framed(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://plane") as client:
        for path in ("sessions", "sessions/0/calls", "sessions/0/answers", "calls/0/intent", "calls/0/outcome"):
            assert (await client.post(f"/v1/{path}")).status_code == 401


# The one that forks -----------------------------------------------------------------------------------------------


def _forked(work: Any, *args: Any) -> int:
    return os.fork() or _lived(work, *args)


def _lived(work: Any, *args: Any) -> NoReturn:
    """The whole life of a child."""
    status = 1
    os.dup2(2, 1)  # what is logged must not be taken for an answer
    try:
        work(*args)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _run_agent(task: dict[str, Any], write: int) -> None:
    os.write(write, json.dumps(agent(task)).encode())


class Parent:
    def __init__(self) -> None:
        # Made once, and not by every API: routes, and what is made or imported with a first request, take longer than its life.
        self.app = create_app(Database(None), Metrics())
        for late in LATE_MODULES:
            importlib.import_module(late)
        asyncio.run(_match_routes(self.app))
        gc.collect()
        gc.freeze()
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.api: int | None = None
        self.served: dict[str, Any] = {}
        self.deaths = 0

    def serve(self, task: dict[str, Any]) -> dict[str, Any]:
        self.end()
        self.deaths, self.served = 0, task
        self.api = _forked(api, task, self.listener, self.app)
        return {"port": self.listener.getsockname()[1]}

    def agent(self, task: dict[str, Any]) -> dict[str, Any]:
        read, write = os.pipe()
        child = _forked(_run_agent, task, write)
        os.close(write)
        while True:
            pid, status = os.wait()
            if pid == child:
                with os.fdopen(read) as file:
                    said = file.read()
                told = json.loads(said) if said else {}
                return {**told, "status": os.waitstatus_to_exitcode(status), "api_deaths": self.deaths}
            self.deaths += 1
            self.api = _forked(api, {**self.served, "at": None}, self.listener, self.app)

    def end(self, task: dict[str, Any] | None = None) -> dict[str, Any]:
        if self.api is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.api, 9)
            os.waitpid(self.api, 0)
            self.api = None
        return {}


def main() -> None:
    # A line for each request is neither an answer nor worth its time.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    # Nobody speaks TLS here: an agent would load all certificates twice, which takes longer than everything else it does.
    os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
    parent = Parent()
    for line in sys.stdin:
        task = json.loads(line)
        work = {"api": parent.serve, "agent": parent.agent, "end": parent.end}[task.pop("do")]
        sys.stdout.write(json.dumps(work(task)) + "\n")
        sys.stdout.flush()
    parent.end()


# For tests --------------------------------------------------------------------------------------------------------


class Elsewhere:
    """The process above, as a test speaks to it."""

    def __init__(self, process: subprocess.Popen[str], outside: Outside) -> None:
        self._process, self.outside = process, outside

    async def do(self, what: str, **task: Any) -> dict[str, Any]:
        return await asyncio.to_thread(self._ask, {"do": what, "at": None, "log": None, **task})

    def _ask(self, task: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(task) + "\n")
        stdin.flush()
        answer: dict[str, Any] = json.loads(stdout.readline())
        return answer


@contextlib.contextmanager
def elsewhere(outside: Outside) -> Iterator[Elsewhere]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.elsewhere"],
        cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield Elsewhere(process, outside)
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


if __name__ == "__main__":
    main()
