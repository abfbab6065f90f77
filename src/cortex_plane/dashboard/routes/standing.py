"""Standing approvals: what agents may do without being asked each time, and who allowed it."""

from __future__ import annotations

from uuid import UUID

import pydantic
from starlette.responses import RedirectResponse, Response

from cortex_plane.approvals.model.approvals import Revocation
from cortex_plane.approvals.rules.standing_match import may_revoke
from cortex_plane.approvals.verbs import standing_approvals
from cortex_plane.dashboard import pages
from cortex_plane.dashboard.visits import PageRouter, Visit, signed_in
from cortex_plane.kernel.errors import InvalidInput, NotFound
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.pages import decode_position, encode_position

router = PageRouter()

PAGE = 50


async def list_standing(visit: Visit) -> Response:
    query = visit.request.query_params
    every = query.get("all") == "yes"
    position = decode_position("standing", query.get("cursor") or None)
    found = await standing_approvals.list_page(visit.db, visit.actor, position, PAGE, active=not every)
    return visit.page(
        "standing.html",
        items=found.items,
        revocable={each.id for each in found.items if may_revoke(each, visit.actor) is None},
        every=every,
        next_cursor=encode_position("standing", found.next),
    )


async def revoke(visit: Visit) -> Response:
    try:
        id = UUID(visit.request.path_params["standing_id"])
    except ValueError:
        raise NotFound("There is no such standing approval.", code="standing_approval_not_found") from None
    reason = visit.form.get("reason", "").replace("\r\n", "\n").strip() or None
    try:
        given = parse(Revocation, {"reason": reason})
    except pydantic.ValidationError:
        raise InvalidInput("The reason is too long.", hint="Use at most 2000 characters.") from None
    await standing_approvals.revoke(visit.db, visit.actor, id, given)
    return RedirectResponse("/standing", 303, pages.HEADERS)


router.add("/standing", signed_in(list_standing), "GET")
router.add("/standing/{standing_id}/revoke", signed_in(revoke), "POST")
