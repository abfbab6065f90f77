"""What stewards and admins look after: standing approvals, deliveries, atlases, and mails that `cortex up` keeps."""

from __future__ import annotations

import asyncio
import email
import itertools
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import EmailMessage
from email.parser import BytesHeaderParser
from email.policy import default
from pathlib import Path
from uuid import UUID

from starlette.responses import HTMLResponse, Response

from cortex_plane.approvals.model.approvals import Revocation
from cortex_plane.approvals.rules.authority import revocation_refusal
from cortex_plane.approvals.verbs import standing_approvals
from cortex_plane.dashboard import pages
from cortex_plane.dashboard.visits import Visit, parse_filter, parse_form, parse_id, signed_in
from cortex_plane.gates.verbs import atlas_queries, atlases
from cortex_plane.kernel.errors import InvalidInput, NotFound
from cortex_plane.kernel.fields import ATLAS_ID_PATTERN, ATLAS_VERSION_PATTERN
from cortex_plane.kernel.pages import encode_position
from cortex_plane.kernel.routes import PageRoutes
from cortex_plane.notify.verbs import deliveries
from cortex_plane.tenancy.model.access import Permission
from cortex_plane.tenancy.model.identities import DeliveryStatus

router = PageRoutes()

PAGE = 50
"""Rows on the page of a list."""
ATLAS_VERSIONS = 100
ATLAS_GATES = 200
"""How many of each a page shows; `cortex atlas get --source` prints a whole file."""
DELIVERY_FILTERS = {
    "dead": DeliveryStatus.DEAD,
    "pending": DeliveryStatus.PENDING,
    "delivered": DeliveryStatus.DELIVERED,
}


def _atlas_id(visit: Visit) -> str:
    id: str = visit.request.path_params["atlas_id"]
    if re.fullmatch(ATLAS_ID_PATTERN, id) is None:
        raise NotFound("There is no such atlas.", code="atlas_not_found")
    return id


def _atlas_version(text: str) -> str:
    if re.fullmatch(ATLAS_VERSION_PATTERN, text) is None:
        raise NotFound("There is no such version of this atlas.", code="atlas_version_not_found")
    return text


async def list_atlases(visit: Visit) -> Response:
    above = visit.request.query_params.get("above") or None
    if above is not None and re.fullmatch(ATLAS_ID_PATTERN, above) is None:
        raise InvalidInput("There is no such page.", hint="Begin at the first one: /atlases.")
    items = await atlases.list_atlases(visit.db, visit.actor, above, PAGE + 1)
    more = items[PAGE - 1].atlas_id if len(items) > PAGE else None
    return visit.page("atlases.html", items=items[:PAGE], above=more)


async def show_atlas(visit: Visit) -> Response:
    """The version that new sessions are bound to, unless another one is asked for."""
    id = _atlas_id(visit)
    summary = await atlases.get_atlas(visit.db, visit.actor, id)
    chosen = _atlas_version(visit.request.query_params.get("version") or summary.holds or summary.newest)
    version = await atlases.get_atlas_version(visit.db, visit.actor, id, chosen)
    versions = await atlases.list_atlas_versions(visit.db, visit.actor, id, None, ATLAS_VERSIONS)
    atlas = await atlas_queries.atlas_contents(visit.db, visit.actor, id, chosen)
    return visit.page(
        "atlas.html", summary=summary, version=version, versions=versions, atlas=atlas, at_most=ATLAS_GATES
    )


async def show_atlas_diff(visit: Visit) -> Response:
    id, query = _atlas_id(visit), visit.request.query_params
    summary = await atlases.get_atlas(visit.db, visit.actor, id)
    before, after = _atlas_version(query.get("from", "")), _atlas_version(query.get("to", ""))
    diff = await atlases.diff_atlases(visit.db, visit.actor, id, before, after)
    versions = await atlases.list_atlas_versions(visit.db, visit.actor, id, None, ATLAS_VERSIONS)
    return visit.page("atlas_diff.html", summary=summary, diff=diff, versions=versions)


router.add("/atlases", signed_in(list_atlases), "GET")
router.add("/atlases/{atlas_id}", signed_in(show_atlas), "GET")
router.add("/atlases/{atlas_id}/diff", signed_in(show_atlas_diff), "GET")


async def list_standing(visit: Visit) -> Response:
    every = visit.request.query_params.get("all") == "yes"
    page = await standing_approvals.list_page(visit.db, visit.actor, visit.position("standing"), PAGE, active=not every)
    return visit.page(
        "standing.html",
        items=page.items,
        revocable={item.id for item in page.items if revocation_refusal(item, visit.actor) is None},
        every=every,
        next_cursor=encode_position("standing", page.next),
    )


async def revoke_standing(visit: Visit) -> Response:
    id = visit.path_id("standing_id", "standing approval")
    revocation = parse_form(Revocation, {"reason": visit.text("reason")}, too_long=True)
    await standing_approvals.revoke(visit.db, visit.actor, id, revocation)
    return pages.redirect("/standing")


router.add("/standing", signed_in(list_standing), "GET")
router.add("/standing/{standing_id}/revoke", signed_in(revoke_standing), "POST")


async def list_deliveries(visit: Visit) -> Response:
    chosen = visit.request.query_params.get("status") or "dead"
    status = parse_filter(DELIVERY_FILTERS, chosen)
    page = await deliveries.list_deliveries(visit.db, visit.actor, visit.position("deliveries"), PAGE, status=status)
    return visit.page(
        "deliveries.html",
        items=page.items,
        chosen=chosen,
        may_resend=visit.actor.may(Permission.DELIVERY_WRITE),
        next_cursor=encode_position("deliveries", page.next),
    )


async def resend_delivery(visit: Visit) -> Response:
    await deliveries.resend_delivery(visit.db, visit.actor, visit.path_id("delivery_id", "delivery"))
    card = visit.form.get("approval")
    return pages.redirect(f"/approvals/{parse_id(card, 'approval')}" if card else "/deliveries")


router.add("/deliveries", signed_in(list_deliveries), "GET")
router.add("/deliveries/{delivery_id}/resend", signed_in(resend_delivery), "POST")


ORG_HEADER = "X-Cortex-Org"
MAILS_SHOWN = 200
"""So many are listed, the newest first,"""
MAILS_READ = 5000
"""of so many that may be other orgs'."""
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
    mails = ((path, _headers(path)) for path in _newest(folder)[:MAILS_READ])
    own = (_heading(path, mail) for path, mail in mails if mail is not None and mail.get(ORG_HEADER) == str(org_id))
    return list(itertools.islice(own, MAILS_SHOWN))


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
    page = pages.render("mail.html", **visit.context(), letter=await _require_mail(visit))
    return HTMLResponse(page, 200, _FRAMING)


async def show_mail_html(visit: Visit) -> Response:
    """What a mail program would show, in a frame of its own."""
    letter = await _require_mail(visit)
    # A link without a target would open inside the frame.
    return HTMLResponse(letter.html.replace("<head>", '<head><base target="_blank">', 1), 200, _FRAMED)


router.add("/mail", signed_in(show_mails), "GET")
router.add("/mail/{id}", signed_in(show_mail), "GET")
router.add("/mail/{id}/html", signed_in(show_mail_html), "GET")
