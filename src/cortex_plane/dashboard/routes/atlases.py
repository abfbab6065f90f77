"""Atlases, for stewards: which there are, what is in each version, and what changed from one to another."""

from __future__ import annotations

import re

from starlette.responses import Response

from cortex_plane.dashboard.visits import PageRouter, Visit, signed_in
from cortex_plane.gates.verbs import atlases
from cortex_plane.kernel.errors import InvalidInput, NotFound
from cortex_plane.kernel.fields import ATLAS_ID_PATTERN, ATLAS_VERSION_PATTERN

router = PageRouter()

PAGE = 50
VERSIONS = 100
GATES = 200
"""So many of each are shown; a file with more is read in full with `cortex atlas get --source`."""


def _atlas_id(visit: Visit) -> str:
    given: str = visit.request.path_params["atlas_id"]
    if re.fullmatch(ATLAS_ID_PATTERN, given) is None:
        raise NotFound("There is no such atlas.", code="atlas_not_found")
    return given


def _version(given: str) -> str:
    if re.fullmatch(ATLAS_VERSION_PATTERN, given) is None:
        raise NotFound("There is no such version of this atlas.", code="atlas_version_not_found")
    return given


async def list_atlases(visit: Visit) -> Response:
    above = visit.request.query_params.get("above") or None
    if above is not None and re.fullmatch(ATLAS_ID_PATTERN, above) is None:
        raise InvalidInput("There is no such page.", hint="Begin at the first one: /atlases.")
    found = await atlases.list_atlases(visit.db, visit.actor, above, PAGE + 1)
    more = found[PAGE - 1].atlas_id if len(found) > PAGE else None
    return visit.page("atlases.html", items=found[:PAGE], above=more)


async def show_atlas(visit: Visit) -> Response:
    """The version that new sessions are bound to, unless another one is asked for."""
    id = _atlas_id(visit)
    summary = await atlases.get_atlas(visit.db, visit.actor, id)
    chosen = _version(visit.request.query_params.get("version") or summary.holds or summary.newest)
    version = await atlases.get_atlas_version(visit.db, visit.actor, id, chosen)
    versions = await atlases.list_atlas_versions(visit.db, visit.actor, id, None, VERSIONS)
    atlas = await atlases.atlas_contents(visit.db, visit.actor, id, chosen)
    return visit.page(
        "atlas.html", summary=summary, version=version, versions=versions, atlas=atlas, at_most=GATES
    )


async def show_diff(visit: Visit) -> Response:
    id, query = _atlas_id(visit), visit.request.query_params
    summary = await atlases.get_atlas(visit.db, visit.actor, id)
    before, after = _version(query.get("from", "")), _version(query.get("to", ""))
    diff = await atlases.diff_atlases(visit.db, visit.actor, id, before, after)
    versions = await atlases.list_atlas_versions(visit.db, visit.actor, id, None, VERSIONS)
    return visit.page("atlas_diff.html", summary=summary, diff=diff, versions=versions)


router.add("/atlases", signed_in(list_atlases), "GET")
router.add("/atlases/{atlas_id}", signed_in(show_atlas), "GET")
router.add("/atlases/{atlas_id}/diff", signed_in(show_diff), "GET")
