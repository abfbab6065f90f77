"""Links that prove an address: GET and HEAD show what would happen, POST does it.

Whoever fetches links ahead of a person, a mail scanner or a chat, changes nothing with it; and what sends a form blindly does
not have the nonce of a page that was shown.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from cortex_plane.dashboard import pages
from cortex_plane.dashboard.visits import (
    PageRouter,
    form_fields,
    require_same_origin,
    session_cookie,
    set_cookie,
)
from cortex_plane.kernel.errors import CortexError, Forbidden, Unauthenticated
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.identities import Verification, is_nonce, nonce
from cortex_plane.tenancy.verbs import invitations, logins
from cortex_plane.tenancy.verbs.access import new_mark

router = PageRouter()

HEADERS = {
    **pages.HEADERS,
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "X-Robots-Tag": "noindex, nofollow",
}


@router.at("/verify/{code}", "GET", "HEAD")
async def show_verification(request: Request, code: str) -> Response:
    try:
        asked = await invitations.shown(request.app.state.db, code)
        return await _asking(request, code, asked)
    except CortexError as error:
        return pages.error_page(error)


@router.at("/verify/{code}", "POST")
async def confirm_verification(request: Request, code: str) -> Response:
    db = request.app.state.db
    try:
        require_same_origin(request)
        fields = await form_fields(request)
        asked = await invitations.shown(db, code)
        if asked is None or not is_nonce(code, fields.get("nonce", ""), datetime.now(UTC)):
            return await _asking(request, code, asked, 403)
        secret = await invitations.verify(db, code, await _visitor(request))
        if secret is not None:
            await logins.end_sessions(db, session_cookie(request))
    except Unauthenticated:
        return _page("verify_refused.html", 401)
    except CortexError as error:
        if isinstance(error, Forbidden):
            request.app.state.metrics.rejected_logins.add(1, {"reason": error.code})
        return pages.error_page(error)
    answer = RedirectResponse("/", 303, HEADERS)
    if secret is not None:
        set_cookie(answer, request, secret)
    return answer


async def _asking(request: Request, code: str, asked: Verification | None, status: int = 200) -> Response:
    """The page with its button; ``status`` 403: it was pressed on a page that is too old, or on none."""
    if asked is None:
        return _page("verify_refused.html", 401)
    visitor = await _visitor(request) if asked.needs_login else None
    known = visitor is not None and visitor.user_account_id == asked.user_account_id
    return _page(
        "verify.html",
        status,
        asked=asked,
        code=code,
        ready=known or not asked.needs_login,
        stale=status != 200,
        nonce=nonce(code, datetime.now(UTC), new_mark()),
    )


async def _visitor(request: Request) -> Actor | None:
    """Whoever is logged in here; looking does not count as a visit."""
    try:
        return await logins.authenticate_session(request.app.state.db, session_cookie(request), touch=False)
    except Unauthenticated:
        return None


def _page(name: str, status: int, **context: Any) -> Response:
    return HTMLResponse(pages.render(name, **context), status, HEADERS)
