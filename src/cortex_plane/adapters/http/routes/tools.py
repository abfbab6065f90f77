from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from cortex_plane.adapters.http.exchange import Caller, Db, Listing, reply_all, route
from cortex_plane.domain.tools import ToolVersion
from cortex_plane.operations import workers

router = APIRouter(tags=["tools"])


@router.get("/tools", response_model=Listing[ToolVersion], **route(workers.list_tools))
async def list_tools(db: Db, actor: Caller) -> Response:
    """The newest version of every tool that a worker has published, by app and name."""
    return reply_all(await workers.list_tools(db, actor))
