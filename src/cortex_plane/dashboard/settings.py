"""What stewards and admins look after: standing approvals, deliveries and atlases."""

from __future__ import annotations

import re

from starlette.responses import Response

from cortex_plane.approvals.model.approvals import Revocation
from cortex_plane.approvals.rules.standing_match import may_revoke
from cortex_plane.approvals.verbs import standing_approvals
from cortex_plane.dashboard import pages
from cortex_plane.dashboard.visits import Visit, parse_filter, parse_form, parse_id, signed_in
from cortex_plane.gates.verbs import atlases
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
    atlas = await atlases.atlas_contents(visit.db, visit.actor, id, chosen)
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
    position = visit.position("standing")
    page = await standing_approvals.list_page(visit.db, visit.actor, position, PAGE, active=not every)
    return visit.page(
        "standing.html",
        items=page.items,
        revocable={item.id for item in page.items if may_revoke(item, visit.actor) is None},
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
    position = visit.position("deliveries")
    page = await deliveries.list_deliveries(visit.db, visit.actor, position, PAGE, status=status)
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
