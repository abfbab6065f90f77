"""Pages from templates, errors as pages, and the files that pages load."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cortex_plane.approvals.model.approvals import UNMARKED, Excerpt
from cortex_plane.dashboard import labels, text
from cortex_plane.kernel import text as kernel_text
from cortex_plane.kernel.errors import CortexError, NotFound
from cortex_plane.kernel.routes import PageRoutes
from cortex_plane.policies.model.policies import ONE_HUMAN

# Files: read once, named by their content, and cached by browsers for good.
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


HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
        " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    # Not `no-referrer`: with it a browser would send `Origin: null` with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Cookie",
}

LINK_HEADERS = {
    **HEADERS,
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Robots-Tag": "noindex, nofollow",
}
"""For pages whose address is a secret: no script, and no other site or cache learns the address."""

_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.globals.update(
    asset=address,
    ABSENT=text.ABSENT,
    UNMARKED=UNMARKED,
    ONE_HUMAN=ONE_HUMAN,
    visitor=None,
    form_token="",
    waiting=None,
    keeps_mail=False,
    has_phone=False,
)
_templates.filters.update(
    reveal=text.reveal,
    marked=kernel_text.marked,
    tree=text.tree,
    cut=text.cut,
    leaf=text.leaf,
    brief=text.brief,
    escaped_json=text.escaped_json,
    stamp=kernel_text.stamp,
    span=kernel_text.short_span,
    **labels.FILTERS,
)
_templates.tests.update(hidden=text.hidden_in, excerpt=lambda value: isinstance(value, Excerpt))


def render(name: str, **context: Any) -> str:
    now = context.setdefault("now", datetime.now(UTC))
    return _templates.get_template(name).render(
        ago=lambda at: labels.ago(at, now),
        until=lambda at: labels.until(at, now),
        is_soon=lambda at: labels.is_soon(at, now),
        **context,
    )


def page(name: str, status: int = 200, **context: Any) -> Response:
    return HTMLResponse(render(name, **context), status, HEADERS)


def link_page(name: str, status: int, **context: Any) -> Response:
    return HTMLResponse(render(name, **context), status, LINK_HEADERS)


def redirect(path: str) -> Response:
    return RedirectResponse(path, 303, HEADERS)


def unchanged() -> Response:
    return Response(status_code=204, headers=HEADERS)


def fingerprint(*parts: Any) -> str:
    """Identifies the state that a fragment shows: the next request names it, and gets nothing if it still holds."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


_HEADLINES = {
    400: "That request cannot be read",
    403: "You may not do this",
    404: "There is nothing here",
    405: "This address does not take that",
    409: "Somebody was faster",
    412: "It has changed in the meantime",
    413: "That is too large",
    422: "Something is not right",
    429: "Too many requests at once",
    503: "The plane does not answer",
}


def error_page(error: CortexError, **context: Any) -> Response:
    # The hint of a NotFound is about keys, which a visitor does not use.
    hint = "It may belong to another org, or to somebody else." if isinstance(error, NotFound) else error.hint
    return message_page(error.http_status, error.message, hint, **context)


def message_page(status: int, message: str, hint: str, **context: Any) -> Response:
    headline = _HEADLINES.get(status, "Something went wrong")
    return page("error.html", status, status_code=status, headline=headline, message=message, hint=hint, **context)
