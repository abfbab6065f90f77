"""Styles and scripts."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cortex_plane.dashboard.assets import ASSETS
from cortex_plane.dashboard.visits import PageRouter

router = PageRouter()


@router.at("/assets/{name}", "GET")
async def asset(request: Request, name: str) -> Response:
    found = ASSETS.get(name)
    if found is None:
        raise HTTPException(404)
    headers = {"ETag": f'"{found.digest}"', "Cache-Control": "no-cache"}
    if request.query_params.get("v") == found.digest:
        headers["Cache-Control"] = "public, max-age=31536000, immutable"
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(found.content, headers=headers, media_type=found.media_type)


@router.at("/favicon.ico", "GET")
async def favicon(request: Request) -> Response:
    return await asset(request, "icon.svg")
