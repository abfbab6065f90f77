"""The lines of guarded functions to the plane: kept alive, one pool per process for threads, one per event loop."""

from __future__ import annotations

import asyncio
import atexit
import os
import time
import weakref
from typing import Any
from uuid import uuid4

import httpx
import orjson

from cortex_plane.client.dialogue import Dialogue, Insist, Send
from cortex_plane.client.transport import certificates, problem
from cortex_plane.kernel.errors import Unavailable


class Lines:
    """Connections to the plane: one pool per process for threads, one per event loop. A forked child makes its own."""

    def __init__(self, url: str, headers: dict[str, str], transport: httpx.AsyncBaseTransport | None) -> None:
        self._url, self._headers, self._transport = url, headers, transport
        self._pools: dict[int, httpx.Client] = {}
        self._loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient]
        self._loops = weakref.WeakKeyDictionary()
        self._sessions: dict[tuple[int, str], str] = {}
        self._names: dict[tuple[int, str], str] = {}
        atexit.register(_at_exit, weakref.ref(self))

    def _settings(self) -> dict[str, Any]:
        return {
            "base_url": self._url,
            "headers": self._headers,
            "verify": certificates(self._url),
            "trust_env": False,
        }

    def send(self, step: Send) -> Any:
        pid = os.getpid()
        pool = self._pools.get(pid) or self._pools.setdefault(pid, httpx.Client(**self._settings()))
        try:
            answer = pool.request(
                step.method, step.path, content=_content(step), headers=_headers(step), timeout=step.seconds
            )
        except httpx.HTTPError as error:
            raise self._silent(error) from error
        return _decoded(answer)

    async def send_async(self, step: Send) -> Any:
        loop = asyncio.get_running_loop()
        line = self._loops.get(loop)
        if line is None:
            line = self._loops[loop] = httpx.AsyncClient(transport=self._transport, **self._settings())
        try:
            answer = await line.request(
                step.method, step.path, content=_content(step), headers=_headers(step), timeout=step.seconds
            )
        except httpx.HTTPError as error:
            raise self._silent(error) from error
        return _decoded(answer)

    def session(self, agent: str, insist: Insist) -> Dialogue:
        """The session of this process for an agent. Threads that open it at the same moment get the same one."""
        at = (os.getpid(), agent)
        if at not in self._sessions:
            name = self._names.setdefault(at, f"guard-{uuid4().hex}")
            body = {"agent": agent, "kind": "external", "title": f"guarded functions, process {at[0]}"}
            made = yield from insist(Send("POST", "/v1/sessions", body, headers={"Idempotency-Key": name}))
            self._sessions[at] = made["id"]
        return self._sessions[at]

    def end_sessions(self, seconds: float) -> None:
        """Those of this process that have nothing open. The plane refuses the others: a person decides, or their yes waits."""
        ends = time.monotonic() + seconds
        for at in [at for at in self._sessions if at[0] == os.getpid()]:
            left = ends - time.monotonic()
            id = self._sessions.pop(at)
            if left > 0:
                try:
                    self.send(Send("POST", f"/v1/sessions/{id}/complete", {}, left))
                except Exception:  # noqa: S112 -- it is the end of the process, and nothing depends on it
                    continue

    def close(self) -> None:
        self.end_sessions(2.0)
        pool = self._pools.pop(os.getpid(), None)
        if pool is not None:
            pool.close()

    async def aclose(self) -> None:
        if self._transport is None:
            await asyncio.to_thread(self.close)
        line = self._loops.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.aclose()

    def _silent(self, error: httpx.HTTPError) -> Unavailable:
        return Unavailable(
            f"The plane at {self._url} does not answer: {error or type(error).__name__}. Nothing is run without it.",
            hint="Start it, or set CORTEX_URL; then call the function again.",
        )


def _at_exit(lines: weakref.ref[Lines]) -> None:
    alive = lines()
    if alive is not None:
        alive.end_sessions(2.0)


def _content(step: Send) -> bytes | None:
    return None if step.body is None else orjson.dumps(step.body)


def _headers(step: Send) -> dict[str, str]:
    return step.headers if step.body is None else {"Content-Type": "application/json", **step.headers}


def _decoded(answer: httpx.Response) -> Any:
    if answer.status_code >= 400:
        raise problem(answer)
    return orjson.loads(answer.content)
