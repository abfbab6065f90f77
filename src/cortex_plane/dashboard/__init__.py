"""The dashboard: the inbox, the card of an approval, and the page of a job, rendered on the server."""

from __future__ import annotations

from collections.abc import Callable

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cortex_plane.dashboard import (
    accounts,
    approvals,
    callback,
    channels,
    inbox,
    jobs,
    pages,
    people,
    phone,
    reference,
    settings,
)
from cortex_plane.kernel.routes import PageRoute

PAGES = (inbox, approvals, callback, jobs, settings, people, channels, accounts, phone, reference, pages)


def mount(app: Starlette, add_page: Callable[[PageRoute], None], stream: inbox.Stream) -> None:
    """Add the dashboard. ``stream`` makes an answer of hints."""
    for module in PAGES:
        for page in module.router:
            add_page(page)
    app.state.hint_stream = stream
    answer_programs = app.exception_handlers[HTTPException]

    async def answer(request: Request, error: Exception) -> Response:
        """An address that does not exist: a page for a browser, a problem for a program."""
        asks_for_a_page = "text/html" in request.headers.get("accept", "")
        if not isinstance(error, HTTPException) or not asks_for_a_page or request.url.path.startswith("/v1/"):
            response: Response = await answer_programs(request, error)
            return response
        message = "This address does not lead anywhere." if error.status_code == 404 else str(error.detail)
        return pages.message_page(error.status_code, message, "Go back to the inbox.")

    app.add_exception_handler(HTTPException, answer)
