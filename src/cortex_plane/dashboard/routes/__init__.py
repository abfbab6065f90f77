"""The pages, and how they are put into the application."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cortex_plane.dashboard import pages
from cortex_plane.dashboard.routes import (
    absences,
    access,
    approvals,
    atlases,
    callback,
    deliveries,
    files,
    inbox,
    jobs,
    live,
    login,
    mail,
    standing,
    verify,
)
from cortex_plane.dashboard.visits import Endpoint

PAGES = (
    inbox, approvals, callback, jobs, atlases, standing, absences, access, deliveries, login, verify, mail, live, files,
)  # fmt: skip


def mount(
    app: Starlette, add_page: Callable[[str, Sequence[str], Endpoint, int], None], stream: live.Stream
) -> None:
    """Add the dashboard. Its routes are for people: the API document does not list them. ``stream`` makes an answer of
    hints."""
    for module in PAGES:
        for route in module.router.routes:
            add_page(route.path, route.methods, route.endpoint, route.max_body)
    app.state.hint_stream = stream
    answer_programs = app.exception_handlers[HTTPException]

    async def answer(request: Request, error: Exception) -> Response:
        """An address that does not exist: a page for a browser, a problem for a program."""
        asks_for_a_page = "text/html" in request.headers.get("accept", "")
        if not isinstance(error, HTTPException) or not asks_for_a_page or request.url.path.startswith("/v1/"):
            answered: Response = await answer_programs(request, error)
            return answered
        said = "This address does not lead anywhere." if error.status_code == 404 else str(error.detail)
        return pages.message_page(error.status_code, said, "Go back to the inbox.")

    app.add_exception_handler(HTTPException, answer)
