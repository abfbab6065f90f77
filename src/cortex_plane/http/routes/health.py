from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel
from starlette.responses import Response

from cortex_plane.db import schema
from cortex_plane.http.exchange import Caller, Db, metrics
from cortex_plane.http.metrics import Metrics
from cortex_plane.http.problems import documented, problem
from cortex_plane.kernel.errors import CortexError
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.access import Permission

router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: str = "ok"


@router.get("/healthz")
async def healthz() -> Health:
    """The process answers."""
    return Health()


@router.get("/readyz", response_model=Health, responses=documented(503))
async def readyz(request: Request, db: Db) -> Health | Response:
    """The database answers and has this release's schema."""
    try:
        await schema.require_ready(db)
    except CortexError as error:
        return problem(request, 503, error.code, error.message, error.hint)
    return Health()


@router.get(
    "/metrics",
    response_class=Response,
    openapi_extra={"x-permission": Permission.METRICS_READ.value, "security": [{"key": []}]},
    responses={
        200: {"content": {"text/plain": {"schema": {"type": "string"}}}},
        **documented(401, 403, 404, 422, 503),
    },
)
async def exposition(db: Db, actor: Caller, measured: Annotated[Metrics, Depends(metrics)]) -> Response:
    """For Prometheus, with a platform key: the figures name every tenant."""
    actor.require(Permission.METRICS_READ)
    measured.meters.count_suspended(await sessions.suspended_sessions(db))
    return Response(measured.exposition(), media_type="text/plain")
