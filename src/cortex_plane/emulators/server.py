"""What the emulators share: a server on a free port of this machine, requests in all forms that SDKs send, and faults on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import email.parser
import email.policy
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib.util import find_spec
from typing import Any, Literal
from urllib.parse import parse_qsl

import orjson
import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp


class EmulatorFault(StrEnum):
    """What an emulator does to the next requests that it would have taken."""

    FLOOD = "flood"
    """Too many requests: later."""
    DOWN = "down"
    """An error of the vendor; nothing happened."""
    HANG = "hang"
    """It takes the request and never answers."""
    LOST_ANSWER = "lost_answer"
    """It does what it was asked to, and its answer is lost."""
    NO_ANSWER = "no_answer"
    """It does what it was asked to, and never answers."""
    REFUSAL = "refusal"
    """It takes nothing from this person's or workspace's connection any more."""
    REVOKED = "revoked"
    """It does not know the token any more."""


@dataclass
class FaultPlan:
    """The faults that come next, in order."""

    faults: list[EmulatorFault | None] = field(default_factory=list)
    """None: this one arrives."""
    flood_seconds: int = 7
    """How long a flooded client is to wait."""

    def add(self, how: EmulatorFault | str, times: int, after: int = 0) -> None:
        self.faults += [None] * after + [EmulatorFault(how)] * times

    def take(self) -> EmulatorFault | None:
        return self.faults.pop(0) if self.faults else None


async def read_parameters(request: Request) -> dict[str, Any]:
    """The parameters of the query and of the body: a form, a form with parts, or JSON. Values of forms are strings."""
    parameters: dict[str, Any] = dict(request.query_params)
    body = await request.body()
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" and body:
        content = orjson.loads(body)
        if not isinstance(content, dict):
            raise ValueError("the body is no JSON object")
        parameters |= content
    elif kind == "application/x-www-form-urlencoded":
        parameters |= dict(parse_qsl(body.decode(), keep_blank_values=True))
    elif kind == "multipart/form-data":
        parameters |= _parts(request.headers["content-type"], body)
    return parameters


def _parts(content_type: str, body: bytes) -> Iterator[tuple[str, str]]:
    """Of a form with parts, those that are text. Files are ignored."""
    head = f"Content-Type: {content_type}\r\n\r\n".encode()
    message = email.parser.BytesParser(policy=email.policy.HTTP).parsebytes(head + body)
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if isinstance(name, str) and part.get_filename() is None and isinstance(content, bytes):
            yield name, content.decode()


def read_json(value: Any) -> Any:
    """A parameter that is JSON, or text of JSON as forms carry it."""
    return orjson.loads(value) if isinstance(value, str | bytes) else value


def read_bool(parameters: Mapping[str, Any], name: str) -> bool:
    return str(parameters.get(name, "")).lower() in ("true", "1", "yes")


class _Server(uvicorn.Server):
    """It leaves the signals of the process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    """Serve on loopback, on a free port where none is named; yields the base address."""
    # The protocol is named, because the event loop turns off Nagle's delay only where it is: 40 ms for each answer.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(128)
    ws: Literal["websockets-sansio", "none"] = "websockets-sansio" if find_spec("websockets") else "none"
    config = uvicorn.Config(app, log_config=None, access_log=False, lifespan="off", ws=ws, timeout_graceful_shutdown=1)
    server = _Server(config)
    task = asyncio.create_task(server.serve([listener]))
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


class DeliveryQueue:
    """Sends what happened to the client's address, one after the other, again and again until it is taken."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def idle(self) -> None:
        """Wait until everything is delivered."""
        while self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await self.idle()
