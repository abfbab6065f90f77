"""The HTTP application, made from a database and a set of metrics."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi
from starlette.responses import Response
from starlette.types import ASGIApp

from cortex_plane.db.database import Database
from cortex_plane.http import problems
from cortex_plane.http.frame import Frame
from cortex_plane.http.in_flight import DEFAULT_LIMITS, InFlight, RequestLimits
from cortex_plane.http.metrics import Metrics
from cortex_plane.http.mounts import mount
from cortex_plane.http.routes import (
    absences,
    agents,
    approvals,
    atlases,
    audit,
    calls,
    connections,
    credentials,
    deliveries,
    events,
    health,
    identities,
    jobs,
    keys,
    me,
    members,
    memories,
    model_keys,
    orgs,
    policies,
    receipts,
    requests,
    resolutions,
    schemas,
    sessions,
    signals,
    standing_approvals,
    teams,
    tools,
    usage,
    webhooks,
    workers,
)
from cortex_plane.http.streams import OpenStreams
from cortex_plane.kernel.shares import Throttle
from cortex_plane.notify.verbs.webhooks import Webhooks
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.tenancy.verbs.request_rates import RequestRates

# Routes are tried in this order: the ones that programs call all day come first.
NOUNS = (
    connections,
    sessions,
    memories,
    calls,
    resolutions,
    jobs,
    signals,
    approvals,
    credentials,
    webhooks,
    standing_approvals,
    receipts,
    deliveries,
    events,
    agents,
    me,
    orgs,
    teams,
    members,
    identities,
    absences,
    keys,
    model_keys,
    usage,
    audit,
    policies,
    atlases,
    tools,
    workers,
    requests,
)


def create_api(
    db: Database,
    metrics: Metrics,
    feed: EventFeed,
    webhooks: Webhooks,
    rates: RequestRates | None = None,
    limits: RequestLimits = DEFAULT_LIMITS,
) -> FastAPI:
    """The API, without pages. ``webhooks`` tries webhooks out. Without ``rates`` there is no limit."""
    app = FastAPI(
        title="Cortex Plane",
        version=version("cortex-plane"),
        docs_url=None,
        redoc_url=None,
        openapi_url=None,  # the framework would render the document anew for everybody who asks
        redirect_slashes=False,  # a redirect would be an answer that the document does not have
    )
    app.state.db = db
    app.state.metrics = metrics
    app.state.feed = feed
    app.state.streams = OpenStreams(limits.streams_of_org)
    app.state.in_flight = InFlight(limits)
    app.state.throttle = Throttle()
    app.state.rates = rates or RequestRates(0)
    app.state.webhooks = webhooks
    _mount(app)
    app.add_route("/openapi.json", _document, include_in_schema=False)
    return app


def openapi_document() -> dict[str, Any]:
    """The document without a plane behind it, for the docs."""
    app = FastAPI(title="Cortex Plane", version=version("cortex-plane"))
    _mount(app)
    return app.openapi()


def _mount(app: FastAPI) -> None:
    for noun in NOUNS:
        mount(app, noun.router, "/v1")
    mount(app, agents.router, in_document=False)  # spec 2's path: /agents/{slug}
    mount(app, requests.router, "/api", in_document=False)  # spec 3's paths
    mount(app, credentials.spec_paths, "/api", in_document=False)  # spec 1's paths
    mount(app, schemas.router)
    mount(app, health.router)
    problems.install(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]


def framed(app: FastAPI) -> ASGIApp:
    """What a server runs: the application inside its frame."""
    return Frame(app, app.state.metrics)


async def _document(request: Request) -> Response:
    """For everybody, so it is rendered once."""
    state = request.app.state
    if not hasattr(state, "document"):
        state.document = orjson.dumps(request.app.openapi())
    return Response(state.document, media_type="application/json")


def _openapi(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        schema = get_openapi(
            title=app.title,
            version=app.version,
            openapi_version="3.1.0",
            routes=app.routes,
            description="Agents that never lose their place and never act without permission.",
        )
        problem = problems.Problem.model_json_schema(ref_template="#/components/schemas/{model}")
        schema["components"]["securitySchemes"] = {
            "key": {"type": "http", "scheme": "bearer", "description": "An API key: `cortex_key_…`."}
        }
        schema["components"]["schemas"] |= problem.pop("$defs") | {"Problem": problem}
        app.openapi_schema = schema
    return app.openapi_schema
