"""Out of office: one's own absences, and for admins everybody's."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any
from uuid import UUID

import pydantic
from starlette.responses import RedirectResponse, Response

from cortex_plane.approvals.model.approvals import AT_MOST
from cortex_plane.approvals.verbs import approvals
from cortex_plane.dashboard import pages
from cortex_plane.dashboard.people import chosen
from cortex_plane.dashboard.visits import PageRouter, Visit, signed_in
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.pages import decode_position, encode_position
from cortex_plane.tenancy.model.access import Permission
from cortex_plane.tenancy.model.orgs import AbsenceDraft
from cortex_plane.tenancy.verbs import orgs

router = PageRouter()

PAGE = 50
FIELDS = ("to", "starts", "ends", "reason", "member")


async def list_absences(visit: Visit) -> Response:
    return await _page(visit, 200, None)


async def _page(visit: Visit, status: int, error: CortexError | None) -> Response:
    return visit.page("absences.html", status, **await _listing(visit), error=error, draft=_draft(visit))


def _draft(visit: Visit) -> dict[str, str]:
    """What somebody had filled in stays in the form."""
    return {name: visit.form.get(name, "") for name in FIELDS}


async def _listing(visit: Visit) -> dict[str, Any]:
    cursor = visit.request.query_params.get("cursor") or None
    position = decode_position("absences", cursor)
    found = await orgs.list_absences(visit.db, visit.actor, position, PAGE)
    colleagues = await approvals.list_delegates(visit.db, visit.actor)
    return {
        "absences": found.items,
        "next_cursor": encode_position("absences", found.next),
        "colleagues": colleagues,
        "too_many": len(colleagues) == AT_MOST,
        "for_others": visit.actor.may(Permission.MEMBER_WRITE),
        "today": datetime.now(UTC).date().isoformat(),
    }


async def add_absence(visit: Visit) -> Response:
    form = visit.form
    try:
        given = {
            "delegate_id": await chosen(visit, form.get("to", "")),
            "member_id": await chosen(visit, form["member"]) if form.get("member") else None,
            "starts_at": _moment(form.get("starts", ""), "starts"),
            "ends_at": _moment(form.get("ends", ""), "ends"),
            "reason": form.get("reason", "").replace("\r\n", "\n").strip() or None,
        }
        if given["ends_at"] is None:
            raise InvalidInput("Say when you are back.", hint="Choose a day.", field="ends")
        await orgs.create_absence(visit.db, visit.actor, parse(AbsenceDraft, given))
    except pydantic.ValidationError:
        too_long = InvalidInput("The reason is too long.", hint="Use at most 2000 characters.")
        return await _page(visit, 422, too_long)
    except (InvalidInput, Conflict, Forbidden, NotFound) as error:
        return await _page(visit, error.http_status, error)
    return RedirectResponse("/absences", 303, pages.HEADERS)


def _moment(text: str, field: str) -> datetime | None:
    """The first moment of a day; None where none was chosen."""
    if not text:
        return None
    try:
        return datetime.combine(date.fromisoformat(text), time(), UTC)
    except ValueError:
        raise InvalidInput("That is no day.", hint="Write it as 2026-12-01.", field=field) from None


async def cancel_absence(visit: Visit) -> Response:
    try:
        id = UUID(visit.request.path_params["absence_id"])
    except ValueError:
        raise NotFound("There is no such absence.", code="absence_not_found") from None
    await orgs.cancel_absence(visit.db, visit.actor, id)
    return RedirectResponse("/absences", 303, pages.HEADERS)


router.add("/absences", signed_in(list_absences), "GET")
router.add("/absences", signed_in(add_absence), "POST")
router.add("/absences/{absence_id}/cancel", signed_in(cancel_absence), "POST")
