"""The HTTP application: the bound routes, found by their path, and what they share in this process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from cortex_plane.db.database import Database
from cortex_plane.http import problems
from cortex_plane.http.exchange import Binding
from cortex_plane.http.in_flight import DEFAULT_LIMITS, InFlight, RequestLimits
from cortex_plane.http.metrics import Metrics
from cortex_plane.http.middleware import RequestMiddleware
from cortex_plane.http.routes import (
    agents,
    approvals,
    calls,
    gates,
    health,
    jobs,
    notify,
    policies,
    proof,
    sessions,
    tenancy,
)
from cortex_plane.http.streams import OpenStreams
from cortex_plane.kernel.routes import PageRoute, Route
from cortex_plane.kernel.shares import Throttle
from cortex_plane.notify.verbs.webhooks import Webhooks
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.tenancy.verbs.keys import RequestRates

NOUNS = (tenancy, proof, agents, policies, sessions, jobs, gates, approvals, calls, notify)
BINDINGS: tuple[Binding, ...] = (*(binding for noun in NOUNS for binding in noun.BINDINGS), *health.BINDINGS)


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

    def openapi(self) -> dict[str, Any]:
        return openapi_document()

    async def _send_document(self, _: Request) -> Response:
        if self._document is None:
            self._document = orjson.dumps(self.openapi())
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
    app.state.metrics = metrics
    app.state.feed = feed
    app.state.streams = OpenStreams(limits.streams_of_org)
    app.state.in_flight = InFlight(limits)
    app.state.throttle = Throttle()
    app.state.rates = rates or RequestRates(0)
    app.state.webhooks = webhooks
    return app


def openapi_document() -> dict[str, Any]:
    from cortex_plane.http.openapi import document

    modules = [*(noun.routes for noun in NOUNS), health]
    names = {
        route: name.lower() for module in modules for name, route in vars(module).items() if isinstance(route, Route)
    }
    return document(BINDINGS, names)


def framed(app: Api) -> ASGIApp:
    """What a server runs: the application inside its middleware."""
    return RequestMiddleware(app, app.state.metrics)
