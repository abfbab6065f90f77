"""The files that pages load: read once, named by their content, and cached by browsers for good."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cortex_plane.kernel.routes import PageRoutes

FOLDER = Path(__file__).parent / "static"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True, slots=True)
class Asset:
    content: bytes
    media_type: str
    digest: str


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    return Asset(content, _TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:16])


ASSETS = {path.name: _read(path) for path in sorted(FOLDER.rglob("*")) if path.suffix in _TYPES}


def address(name: str) -> str:
    """Where a page finds it. The digest makes a new address of every new content."""
    return f"/assets/{name}?v={ASSETS[name].digest}"


router = PageRoutes()


@router.at("/assets/{name}", "GET")
async def get_asset(request: Request, name: str) -> Response:
    asset = ASSETS.get(name)
    if asset is None:
        raise HTTPException(404)
    headers = {"ETag": f'"{asset.digest}"', "Cache-Control": "no-cache"}
    if request.query_params.get("v") == asset.digest:
        headers["Cache-Control"] = "public, max-age=31536000, immutable"
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, headers=headers, media_type=asset.media_type)


@router.at("/favicon.ico", "GET")
async def favicon(request: Request) -> Response:
    return await get_asset(request, "icon.svg")
