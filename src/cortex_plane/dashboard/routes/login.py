"""Logging in by a link or with an enrolment code, and out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from cortex_plane.dashboard import pages
from cortex_plane.dashboard.visits import (
    PageRouter,
    Visit,
    clear_cookie,
    require_same_origin,
    session_cookie,
    set_cookie,
    signed_in,
)
from cortex_plane.kernel.errors import CortexError, Forbidden, Unauthenticated
from cortex_plane.tenancy.verbs import logins

router = PageRouter()


@router.at("/login", "GET")
async def how_to_log_in(_: Request) -> Response:
    return pages.login_page(200)


@router.at("/login/{token}", "GET")
async def show_link(request: Request, token: str) -> Response:
    """Whoever fetches links ahead of a person, a chat or a mail scanner, must not use it up: this only shows a button."""
    try:
        holder = await logins.link_holder(request.app.state.db, token)
    except CortexError as error:
        return pages.error_page(error)
    if holder is None:
        return pages.page("link_refused.html", 401)
    return pages.page("link.html", token=token, holder=holder)


@router.at("/login/{token}", "POST")
async def use_link(request: Request, token: str) -> Response:
    try:
        require_same_origin(request)
        secret = await logins.log_in(request.app.state.db, token)
        await logins.end_sessions(request.app.state.db, session_cookie(request))
    except Unauthenticated as error:
        request.app.state.metrics.rejected_logins.add(1, {"reason": error.code})
        return pages.page("link_refused.html", 401)
    except CortexError as error:
        if isinstance(error, Forbidden):
            request.app.state.metrics.rejected_logins.add(1, {"reason": error.code})
        return pages.error_page(error)
    answer = RedirectResponse("/", 303, pages.HEADERS)
    set_cookie(answer, request, secret)
    return answer


@router.at("/enrol/{code}", "GET")
async def show_enrolment(request: Request, code: str) -> Response:
    """Only shows a button: whoever fetches links ahead of a person uses nothing up."""
    try:
        enrolment = await logins.show_enrolment_code(request.app.state.db, code)
    except CortexError as error:
        return pages.error_page(error)
    if enrolment is None:
        return pages.page("enrol_refused.html", 401)
    return pages.page("enrol.html", code=code, enrolment=enrolment)


@router.at("/enrol/{code}", "POST")
async def redeem_enrolment(request: Request, code: str) -> Response:
    try:
        require_same_origin(request)
        secret = await logins.redeem_for_session(request.app.state.db, code)
        await logins.end_sessions(request.app.state.db, session_cookie(request))
    except Unauthenticated as error:
        request.app.state.metrics.rejected_logins.add(1, {"reason": error.code})
        return pages.page("enrol_refused.html", 401)
    except CortexError as error:
        if isinstance(error, Forbidden):
            request.app.state.metrics.rejected_logins.add(1, {"reason": error.code})
        return pages.error_page(error)
    answer = RedirectResponse("/access", 303, pages.HEADERS)
    set_cookie(answer, request, secret)
    return answer


async def log_out(visit: Visit) -> Response:
    await logins.log_out(visit.db, visit.actor)
    answer = RedirectResponse("/login", 303, pages.HEADERS)
    clear_cookie(answer, visit.request)
    return answer


router.add("/logout", signed_in(log_out), "POST")
