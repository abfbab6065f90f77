"""Styles and scripts."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cortex_plane.dashboard.assets import ASSETS

router = APIRouter()


@router.get("/assets/{name}")
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


@router.get("/favicon.ico")
async def favicon(request: Request) -> Response:
    return await asset(request, "icon.svg")
