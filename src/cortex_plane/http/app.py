"""The HTTP application: routes found by their path, what they share in this process, and what is around every request.

The middleware is plain ASGI: a middleware class of the framework would cost more than the request itself.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import orjson
import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cortex_plane.db.database import Database
from cortex_plane.http import problems
from cortex_plane.http.metrics import Metrics
from cortex_plane.http.routes import BINDINGS, openapi_document
from cortex_plane.kernel.errors import TooLarge
from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.routes import SMALL_BODY_BYTES, PageRoute
from cortex_plane.kernel.shares import Throttle
from cortex_plane.notify.verbs.inbound import InboundDoor
from cortex_plane.notify.verbs.webhooks import Webhooks
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs.frame import (
    DEFAULT_LIMITS,
    InFlight,
    OpenStreams,
    RequestLimits,
    RequestRates,
    SharedReads,
    leave,
)
from cortex_plane.tenancy.verbs.served_channels import ServedChannels

log = structlog.get_logger()

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")
SAFE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
)


@dataclass(frozen=True, slots=True)
class PathEntry:
    """A path of the application."""

    path: str
    methods: Sequence[str]
    app: ASGIApp
    in_document: bool


class PathTable(BaseRoute):
    """Finds the entry of a request by the length of its path and its first two parts."""

    def __init__(self) -> None:
        self.entries: list[PathEntry] = []
        self._by_start: defaultdict[tuple[int, str, str], list[tuple[PathEntry, list[str]]]] = defaultdict(list)

    def add(self, entry: PathEntry) -> None:
        self.entries.append(entry)
        parts = entry.path.split("/")[1:]
        second = parts[1] if len(parts) > 1 and not parts[1].startswith("{") else ""
        self._by_start[len(parts), parts[0], second].append((entry, parts))

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or not scope["path"].startswith("/"):  # `OPTIONS *`
            return Match.NONE, {}
        parts = scope["path"].split("/")[1:]
        count, first, second = len(parts), parts[0], parts[1] if len(parts) > 1 else ""
        candidates = self._by_start.get((count, first, second), ())
        if second:
            candidates = [*candidates, *self._by_start.get((count, first, ""), ())]
        other: Scope | None = None
        for entry, template in candidates:
            values = {}
            for part, place in zip(parts, template, strict=True):
                if place.startswith("{") and part:
                    values[place[1:-1]] = part
                elif part != place:
                    break
            else:
                match = {"route": entry, "path_params": values}
                if scope["method"] in entry.methods:
                    return Match.FULL, match
                other = other or match
        return (Match.NONE, {}) if other is None else (Match.PARTIAL, other)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        entry: PathEntry = scope["route"]
        if scope["method"] not in entry.methods:
            raise HTTPException(405, headers={"Allow": ", ".join(entry.methods)})
        await entry.app(scope, receive, send)


class Api(Starlette):
    """The API. Pages are added to it."""

    def __init__(self) -> None:
        self._table = PathTable()
        super().__init__(routes=[self._table], exception_handlers=dict(problems.HANDLERS))
        self.router.redirect_slashes = False  # a redirect would be an answer that the document does not have
        self._document: bytes | None = None
        for binding in BINDINGS:
            route = binding.route
            self._table.add(PathEntry(route.path, [route.method], binding, route.in_document))
            if route.also_at is not None:
                path = route.also_at + route.path.removeprefix("/v1")
                self._table.add(PathEntry(path, [route.method], binding, in_document=False))
        self.add_route("/openapi.json", self._send_document)

    @property
    def entries(self) -> Sequence[PathEntry]:
        return self._table.entries

    def add_page(self, page: PageRoute) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope["state"]["max_body_bytes"] = page.max_body
            response: Response = await page.endpoint(Request(scope, receive, send), **scope["path_params"])
            await response(scope, receive, send)

        self._table.add(PathEntry(page.path, page.methods, app, in_document=False))

    async def _send_document(self, _: Request) -> Response:
        if self._document is None:
            self._document = orjson.dumps(openapi_document())
        return Response(self._document, media_type="application/json")


def create_api(
    db: Database,
    metrics: Metrics,
    feed: EventFeed,
    webhooks: Webhooks,
    rates: RequestRates | None = None,
    limits: RequestLimits = DEFAULT_LIMITS,
) -> Api:
    """The API, without pages. ``webhooks`` tries webhooks out. Without ``rates`` there is no limit."""
    app = Api()
    app.state.db = db
    app.state.document = openapi_document
    app.state.metrics = metrics
    app.state.feed = feed
    app.state.streams = OpenStreams(limits.streams_of_org)
    app.state.in_flight = InFlight(limits)
    app.state.throttle = Throttle()
    app.state.callers = SharedReads[tuple[str, str | None], Actor]()
    app.state.rates = rates or RequestRates(0)
    app.state.webhooks = webhooks
    app.state.inbound = InboundDoor()
    app.state.channels = ServedChannels(allowed=webhooks.allowed)
    return app


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
            request_id = new_id().hex
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
                headers = {name.lower(): value for name, value in message.setdefault("headers", [])}
                # A page has a policy of its own.
                message["headers"] += [header for header in SAFE_HEADERS if header[0] not in headers]
                message["headers"].append((b"x-request-id", request_id.encode()))
                is_stream = headers.get(b"content-type", b"").startswith(b"text/event-stream")
                if is_stream:
                    # It is answered now. How long somebody goes on listening says nothing about the plane.
                    self._record(scope, request.method, status, time.perf_counter() - start)
            await send(message)

        try:
            await self._app(scope, receive_limited, send_framed)
        except BodyTooLarge as error:
            if not has_begun:
                refusal = problems.problem(request, 413, TooLarge.code, error.detail, TooLarge.default_hint)
                await refusal(scope, receive, send_framed)
        finally:
            leave(scope["state"])
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


def _route(scope: Scope) -> str:
    """The path as it is declared."""
    path: str = getattr(scope.get("route"), "path", "unmatched")
    return path


def _declared_size(request: Request) -> int:
    length = request.headers.get("content-length", "0")
    return int(length) if length.isascii() and length.isdigit() else 0


def framed(app: Api) -> ASGIApp:
    """What a server runs: the application inside its middleware."""
    return RequestMiddleware(app, app.state.metrics)
