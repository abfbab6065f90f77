from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from cortex_plane.http.exchange import Caller, Db, Listing, reply_all, route
from cortex_plane.jobs.model.jobs import Worker
from cortex_plane.jobs.verbs import workers

router = APIRouter(tags=["workers"])


@router.get("/workers", response_model=Listing[Worker], **route(workers.list_workers))
async def list_workers(db: Db, actor: Caller) -> Response:
    """The processes that run jobs, newest first; for platform keys, because they serve every org."""
    return reply_all(await workers.list_workers(db, actor))
