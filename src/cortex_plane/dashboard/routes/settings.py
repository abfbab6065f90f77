"""What stewards and admins look after: standing approvals, deliveries and atlases."""

from __future__ import annotations

import re
from uuid import UUID

import pydantic
from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from cortex_plane.approvals.model.approvals import Revocation
from cortex_plane.approvals.rules.standing_match import may_revoke
from cortex_plane.approvals.verbs import standing_approvals
from cortex_plane.dashboard import pages
from cortex_plane.dashboard.visits import Visit, signed_in
from cortex_plane.gates.verbs import atlases
from cortex_plane.kernel.errors import InvalidInput, NotFound
from cortex_plane.kernel.fields import ATLAS_ID_PATTERN, ATLAS_VERSION_PATTERN, parse
from cortex_plane.kernel.pages import decode_position, encode_position
from cortex_plane.notify.verbs import deliveries
from cortex_plane.tenancy.model.access import Permission
from cortex_plane.tenancy.model.identities import DeliveryStatus

router = APIRouter()

ATLASES_PAGE = 50
ATLAS_VERSIONS = 100
ATLAS_GATES = 200
"""So many of each are shown; a file with more is read in full with `cortex atlas get --source`."""


def _atlas_id(visit: Visit) -> str:
    given: str = visit.request.path_params["atlas_id"]
    if re.fullmatch(ATLAS_ID_PATTERN, given) is None:
        raise NotFound("There is no such atlas.", code="atlas_not_found")
    return given


def _atlas_version(given: str) -> str:
    if re.fullmatch(ATLAS_VERSION_PATTERN, given) is None:
        raise NotFound("There is no such version of this atlas.", code="atlas_version_not_found")
    return given


async def list_atlases(visit: Visit) -> Response:
    above = visit.request.query_params.get("above") or None
    if above is not None and re.fullmatch(ATLAS_ID_PATTERN, above) is None:
        raise InvalidInput("There is no such page.", hint="Begin at the first one: /atlases.")
    found = await atlases.list_atlases(visit.db, visit.actor, above, ATLASES_PAGE + 1)
    more = found[ATLASES_PAGE - 1].atlas_id if len(found) > ATLASES_PAGE else None
    return visit.page("atlases.html", items=found[:ATLASES_PAGE], above=more)


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


router.add_api_route("/atlases", signed_in(list_atlases), methods=["GET"])
router.add_api_route("/atlases/{atlas_id}", signed_in(show_atlas), methods=["GET"])
router.add_api_route("/atlases/{atlas_id}/diff", signed_in(show_atlas_diff), methods=["GET"])


STANDING_PAGE = 50


async def list_standing(visit: Visit) -> Response:
    query = visit.request.query_params
    every = query.get("all") == "yes"
    position = decode_position("standing", query.get("cursor") or None)
    found = await standing_approvals.list_page(
        visit.db, visit.actor, position, STANDING_PAGE, active=not every
    )
    return visit.page(
        "standing.html",
        items=found.items,
        revocable={each.id for each in found.items if may_revoke(each, visit.actor) is None},
        every=every,
        next_cursor=encode_position("standing", found.next),
    )


async def revoke_standing(visit: Visit) -> Response:
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


router.add_api_route("/standing", signed_in(list_standing), methods=["GET"])
router.add_api_route("/standing/{standing_id}/revoke", signed_in(revoke_standing), methods=["POST"])


DELIVERIES_PAGE = 50
DELIVERY_FILTERS = {
    "dead": DeliveryStatus.DEAD,
    "pending": DeliveryStatus.PENDING,
    "delivered": DeliveryStatus.DELIVERED,
}


async def list_deliveries(visit: Visit) -> Response:
    query = visit.request.query_params
    chosen = query.get("status") or "dead"
    if chosen not in DELIVERY_FILTERS:
        raise InvalidInput("There is no such filter.", hint=f"Choose one of: {', '.join(DELIVERY_FILTERS)}.")
    position = decode_position("deliveries", query.get("cursor") or None)
    found = await deliveries.list_deliveries(
        visit.db, visit.actor, position, DELIVERIES_PAGE, status=DELIVERY_FILTERS[chosen]
    )
    return visit.page(
        "deliveries.html",
        items=found.items,
        chosen=chosen,
        may_resend=visit.actor.may(Permission.DELIVERY_WRITE),
        next_cursor=encode_position("deliveries", found.next),
    )


async def resend_delivery(visit: Visit) -> Response:
    id = _id(visit.request.path_params["delivery_id"], "delivery")
    await deliveries.resend_delivery(visit.db, visit.actor, id)
    card = visit.form.get("approval")
    back = f"/approvals/{_id(card, 'approval')}" if card else "/deliveries"
    return RedirectResponse(back, 303, pages.HEADERS)


def _id(text: str, noun: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotFound(f"There is no such {noun}.", code=f"{noun}_not_found") from None


router.add_api_route("/deliveries", signed_in(list_deliveries), methods=["GET"])
router.add_api_route("/deliveries/{delivery_id}/resend", signed_in(resend_delivery), methods=["POST"])
