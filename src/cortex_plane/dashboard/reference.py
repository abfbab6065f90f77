"""The page of the API: its routes and what they take and answer, from the document of the API. For everybody, as the document is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cache
from itertools import groupby
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from cortex_plane.dashboard.pages import LINK_HEADERS, render
from cortex_plane.kernel.routes import PageRoutes

router = PageRoutes()


@router.at("/docs", "GET")
async def show_reference(request: Request) -> Response:
    return HTMLResponse(await asyncio.to_thread(_render, request.app.state.document), headers=LINK_HEADERS)


@cache
def _render(document: Callable[[], dict[str, Any]]) -> str:
    """Rendered once per process: it is the same for everybody."""
    content = document()
    operations = [
        {"method": method.upper(), "path": path, **operation}
        for path, methods in content["paths"].items()
        for method, operation in methods.items()
    ]
    operations.sort(key=lambda operation: operation["tags"][0])
    sections = [(tag, list(entries)) for tag, entries in groupby(operations, lambda operation: operation["tags"][0])]
    return render("reference.html", info=content["info"], sections=sections, schemas=content["components"]["schemas"])
