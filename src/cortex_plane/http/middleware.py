"""Around every request: an id, a size limit, safe headers, one log line, two measurements.

Plain ASGI: a middleware class of the framework would cost more than the request itself.
"""

from __future__ import annotations

import re
import time
import uuid

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cortex_plane.http.in_flight import leave
from cortex_plane.http.metrics import Metrics
from cortex_plane.http.problems import problem
from cortex_plane.kernel.errors import TooLarge
from cortex_plane.kernel.routes import SMALL_BODY_BYTES

log = structlog.get_logger()

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


class BodyTooLarge(HTTPException):
    """One of the framework's own, because it answers any other that is raised while it reads a body with 400."""

    def __init__(self, limit: int) -> None:
        super().__init__(413, f"The body is larger than {limit} bytes.")


class RequestMiddleware:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)
        request_id = request.headers.get("x-request-id", "")
        if not _REQUEST_ID.fullmatch(request_id):
            request_id = uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(request_id=request_id)
        start = time.perf_counter()
        status = 500
        size, declared_size = 0, _declared_size(request)
        state["max_body_bytes"] = SMALL_BODY_BYTES  # until the route says how much it takes
        has_begun = is_stream = False

        async def receive_limited() -> Message:
            nonlocal size
            _require_within(state["max_body_bytes"], declared_size)
            message = await receive()
            size += len(message.get("body", b""))
            _require_within(state["max_body_bytes"], size)
            return message

        async def send_framed(message: Message) -> None:
            nonlocal status, has_begun, is_stream
            if message["type"] == "http.response.start":
                has_begun = True
                status = message["status"]
                message.setdefault("headers", [])
                message["headers"] += [*_missing_headers(message), (b"x-request-id", request_id.encode())]
                is_stream = _is_stream(message)
                if is_stream:
                    # It is answered now. How long somebody goes on listening says nothing about the plane.
                    self._record(scope, request.method, status, time.perf_counter() - start)
            await send(message)

        try:
            await self._app(scope, receive_limited, send_framed)
        except BodyTooLarge as error:
            if not has_begun:
                refusal = problem(request, 413, TooLarge.code, error.detail, TooLarge.default_hint)
                await refusal(scope, receive, send_framed)
        finally:
            leave(scope)
            seconds = time.perf_counter() - start
            if is_stream:
                log.info("stream ended", route=_route(scope), seconds=round(seconds, 1))
            else:
                self._record(scope, request.method, status, seconds)

    def _record(self, scope: Scope, method: str, status: int, seconds: float) -> None:
        path = _route(scope)
        labels: dict[str, str | int] = {"method": method, "route": path, "status": status}
        self._metrics.requests.add(1, labels)
        self._metrics.request_seconds.record(seconds, {"method": method, "route": path})
        actor = scope["state"].get("actor")
        log.info(
            "request",
            method=method,
            route=path,
            status=status,
            ms=round(seconds * 1000, 1),
            org=str(actor.org_id) if actor else None,
            key=str(actor.key_id) if actor else None,
        )


def _require_within(limit: int, size: int) -> None:
    if size > limit:
        raise BodyTooLarge(limit)


def _missing_headers(message: Message) -> list[tuple[bytes, bytes]]:
    """The safe headers, except those that the response has set itself: a page needs a policy of its own."""
    names = {name.lower() for name, _ in message["headers"]}
    return [header for header in SAFE_HEADERS if header[0] not in names]


def _route(scope: Scope) -> str:
    """The path as it is declared."""
    path: str = getattr(scope.get("route"), "path", "unmatched")
    return path


def _is_stream(start: Message) -> bool:
    return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in start["headers"])


def _declared_size(request: Request) -> int:
    length = request.headers.get("content-length", "0")
    return int(length) if length.isascii() and length.isdigit() else 0
