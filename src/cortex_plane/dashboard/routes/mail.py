"""The mails that `cortex up` keeps instead of sending: for admins, and only those of their own org."""

from __future__ import annotations

import asyncio
from pathlib import Path

from starlette.responses import HTMLResponse, Response

from cortex_plane.dashboard import mailboxes, pages
from cortex_plane.dashboard.visits import PageRouter, Visit, signed_in
from cortex_plane.kernel.errors import NotFound
from cortex_plane.tenancy.model.access import Permission

router = PageRouter()

_FRAMING = {
    **pages.HEADERS,
    "Content-Security-Policy": pages.HEADERS["Content-Security-Policy"] + "; frame-src 'self'",
}
_FRAMED = {
    # Nothing in it runs, loads or is sent. Its links open beside it, as from a mail program.
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'self';"
        " sandbox allow-popups allow-popups-to-escape-sandbox"
    ),
    "Referrer-Policy": "no-referrer",
    "Vary": "Cookie",
}


def _folder(visit: Visit) -> Path:
    visit.actor.require(Permission.MEMBER_WRITE)
    folder: Path | None = getattr(visit.request.app.state, "mail_folder", None)
    if folder is None:
        raise NotFound("This plane keeps no mails: it sends them.")
    return folder


async def _letter(visit: Visit) -> mailboxes.Letter:
    found = await asyncio.to_thread(
        mailboxes.letter, _folder(visit), visit.actor.org_id, visit.request.path_params["id"]
    )
    if found is None:
        raise NotFound("There is no such mail.")
    return found


async def show_mails(visit: Visit) -> Response:
    found = await asyncio.to_thread(mailboxes.headings, _folder(visit), visit.actor.org_id)
    return visit.page("mails.html", mails=found, most=mailboxes.MOST)


async def show_mail(visit: Visit) -> Response:
    letter = await _letter(visit)
    page = pages.render("mail.html", **visit.context(), letter=letter)
    return HTMLResponse(page, 200, _FRAMING)


async def show_mail_html(visit: Visit) -> Response:
    """What a mail program would show, in a frame of its own."""
    letter = await _letter(visit)
    # A link without a target would open inside the frame.
    return HTMLResponse(letter.html.replace("<head>", '<head><base target="_blank">', 1), 200, _FRAMED)


router.add("/mail", signed_in(show_mails), "GET")
router.add("/mail/{id}", signed_in(show_mail), "GET")
router.add("/mail/{id}/html", signed_in(show_mail_html), "GET")
