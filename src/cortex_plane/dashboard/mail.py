"""The mails that `cortex up` keeps instead of sending: for admins, and only those of their own org."""

from __future__ import annotations

import asyncio
import email
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.parser import BytesHeaderParser
from email.policy import default
from pathlib import Path
from uuid import UUID

from starlette.responses import HTMLResponse, Response

from cortex_plane.dashboard import pages
from cortex_plane.dashboard.visits import Visit, signed_in
from cortex_plane.kernel.errors import NotFound
from cortex_plane.kernel.routes import PageRoutes
from cortex_plane.tenancy.model.access import Permission

ORG_HEADER = "X-Cortex-Org"
MAILS_SHOWN = 200
"""So many are listed, the newest first,"""
MAILS_READ = 5000
"""of so many that may be other orgs'."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MailHeading:
    id: str
    subject: str
    to: str
    at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class KeptMail:
    heading: MailHeading
    text: str
    html: str


def list_headings(folder: Path, org_id: UUID) -> list[MailHeading]:
    mails: list[MailHeading] = []
    for path in _newest(folder)[:MAILS_READ]:
        headers = _headers(path)
        if headers is not None and headers.get(ORG_HEADER) == str(org_id):
            mails.append(_heading(path, headers))
            if len(mails) == MAILS_SHOWN:
                break
    return mails


def read_mail(folder: Path, org_id: UUID, id: str) -> KeptMail | None:
    """None where there is none of this name, or it is another org's."""
    path = next((mail for mail in _newest(folder) if mail.name == id), None)
    if path is None:
        return None
    try:
        message = email.message_from_bytes(path.read_bytes(), policy=default)
    except OSError:
        return None
    if not isinstance(message, EmailMessage) or message.get(ORG_HEADER) != str(org_id):
        return None
    return KeptMail(heading=_heading(path, message), text=_part(message, "plain"), html=_part(message, "html"))


def _newest(folder: Path) -> list[Path]:
    files: list[tuple[float, Path]] = []
    for part in ("new", "cur"):
        try:
            with os.scandir(folder / part) as entries:
                files += [(entry.stat().st_mtime, Path(entry.path)) for entry in entries if entry.is_file()]
        except OSError:
            continue
    return [path for _, path in sorted(files, key=lambda file: (file[0], file[1].name), reverse=True)]


def _headers(path: Path) -> EmailMessage | None:
    try:
        with path.open("rb") as file:
            headers = BytesHeaderParser(policy=default).parse(file)
    except OSError:
        return None
    return headers if isinstance(headers, EmailMessage) else None


def _heading(path: Path, headers: EmailMessage) -> MailHeading:
    return MailHeading(
        id=path.name,
        subject=str(headers.get("Subject", "")),
        to=str(headers.get("To", "")),
        at=datetime.fromtimestamp(path.stat().st_mtime, UTC),
    )


def _part(message: EmailMessage, kind: str) -> str:
    body = message.get_body((kind,))
    return "" if body is None else str(body.get_content())


router = PageRoutes()

_FRAMING = {**pages.HEADERS, "Content-Security-Policy": pages.HEADERS["Content-Security-Policy"] + "; frame-src 'self'"}
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


async def _require_mail(visit: Visit) -> KeptMail:
    mail = await asyncio.to_thread(read_mail, _folder(visit), visit.actor.org_id, visit.request.path_params["id"])
    if mail is None:
        raise NotFound("There is no such mail.")
    return mail


async def show_mails(visit: Visit) -> Response:
    mails = await asyncio.to_thread(list_headings, _folder(visit), visit.actor.org_id)
    return visit.page("mails.html", mails=mails, most=MAILS_SHOWN)


async def show_mail(visit: Visit) -> Response:
    letter = await _require_mail(visit)
    page = pages.render("mail.html", **visit.context(), letter=letter)
    return HTMLResponse(page, 200, _FRAMING)


async def show_mail_html(visit: Visit) -> Response:
    """What a mail program would show, in a frame of its own."""
    letter = await _require_mail(visit)
    # A link without a target would open inside the frame.
    return HTMLResponse(letter.html.replace("<head>", '<head><base target="_blank">', 1), 200, _FRAMED)


router.add("/mail", signed_in(show_mails), "GET")
router.add("/mail/{id}", signed_in(show_mail), "GET")
router.add("/mail/{id}/html", signed_in(show_mail_html), "GET")
