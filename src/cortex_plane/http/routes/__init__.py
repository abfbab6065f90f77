"""Every route of the API, bound to its verb. Those of no noun (health, metrics, schemas) are bound here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import Response

from cortex_plane.db import schema
from cortex_plane.gates.model import atlases
from cortex_plane.http.exchange import Binding, Exchange, handle, reply
from cortex_plane.http.problems import problem
from cortex_plane.http.routes import agents, approvals, sessions, tenancy
from cortex_plane.jobs.model import checkpoints
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.routes import Route
from cortex_plane.sessions.verbs.sessions import suspended_sessions
from cortex_plane.tenancy.model.access import Permission


@dataclass(frozen=True)
class Health:
    status: str = "ok"
    """`ok` where the process answers."""


HEALTHZ = Route("GET /healthz", Health, tag="health", needs_key=False, errors=())
"""The process answers."""
READYZ = Route("GET /readyz", Health, tag="health", needs_key=False, errors=(503,))
"""The database answers and has this release's schema."""
EXPOSITION = Route("GET /metrics", bytes, tag="health", media_type="text/plain", errors=(401, 403, 404, 422, 503))
"""For Prometheus, with a platform key: the figures name every tenant."""
CHECKPOINT_SCHEMA = Route(
    f"GET /schemas/checkpoint/v{checkpoints.SCHEMA_VERSION}.json", dict[str, Any], needs_key=False, errors=()
)
"""The JSON Schema of a checkpoint, for everybody, as this document is."""
ATLAS_SCHEMA = Route(f"GET /schemas/atlas/v{atlases.SCHEMA_VERSION}.json", dict[str, Any], needs_key=False, errors=())
"""The JSON Schema of atlas files, for everybody."""


async def readyz(exchange: Exchange) -> Response:
    try:
        await schema.require_ready(exchange.db)
    except CortexError as error:
        return problem(exchange.request, 503, error.code, error.message, error.hint)
    return reply(Health())


async def exposition(exchange: Exchange) -> Response:
    exchange.actor.require(Permission.METRICS_READ)
    metrics = exchange.state.metrics
    metrics.meters.count_suspended(await suspended_sessions(exchange.db))
    return Response(metrics.exposition(), media_type="text/plain")


def _constant(route: Route[Any], make: Callable[[], Any]) -> Binding:
    async def answer(_: Exchange) -> Response:
        return reply(make())

    return handle(route, None, answer)


NOUNS = (tenancy, agents, sessions, approvals)
BINDINGS: tuple[Binding, ...] = (
    *(binding for noun in NOUNS for binding in noun.BINDINGS),
    _constant(HEALTHZ, Health),
    handle(READYZ, None, readyz),
    handle(EXPOSITION, Permission.METRICS_READ, exposition),
    _constant(CHECKPOINT_SCHEMA, checkpoints.schema),
    _constant(ATLAS_SCHEMA, atlases.schema),
)


def openapi_document() -> dict[str, Any]:
    from cortex_plane.http.openapi import document

    return document(BINDINGS, [*(routes for noun in NOUNS for routes in noun.DECLARATIONS), sys.modules[__name__]])
