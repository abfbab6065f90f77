"""Routes of gates."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cortex_plane.gates.model import atlases
from cortex_plane.kernel.fields import AtlasVersionName
from cortex_plane.kernel.routes import ListRoute, Query, Route

VersionPath = Annotated[AtlasVersionName, Field(description="As its manifest names it.")]


class AtlasVersionQuery(Query):
    source: bool = False
    """Also the file as it was published."""


class DiffQuery(Query):
    before: Annotated[AtlasVersionName, Field(alias="from", description="The version to compare from.")]
    after: Annotated[AtlasVersionName, Field(alias="to", description="The version to compare with.")]


class AtlasRulesQuery(Query):
    action: Annotated[str | None, Field(max_length=64, pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$")] = None
    """The name of a tool."""
    capability: Annotated[str | None, Field(max_length=100, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = None
    """Its id in the atlas."""


PUBLISH_ATLAS = Route(
    "POST /v1/atlases",
    atlases.Published,
    body=atlases.AtlasFile,
    status=201,
    status_again="It was published before, as it is.",
    status_waits="The atlas belongs to somebody else: it waits for a person.",
    max_body=atlases.MAX_ATLAS_BYTES * 3 // 2,  # a whole file in a JSON string, in which some characters are two,
)
"""A manifest becomes a version, which new sessions are bound to. The same version with the same content again is
answered with 200 and changes nothing; with other content it is refused.

A version of somebody else's atlas is answered with 202: `waits` names the approval that its owner or an admin decides, and
until they approve it nothing changes."""
LIST_ATLASES = ListRoute(
    "GET /v1/atlases", atlases.AtlasSummary, columns="atlas_id name holds newest versions owner team published_at"
)
"""By id, one entry for each."""
GET_ATLAS = Route("GET /v1/atlases/{atlas_id}", atlases.AtlasSummary)
LIST_ATLAS_VERSIONS = ListRoute(
    "GET /v1/atlases/{atlas_id}/versions",
    atlases.NumberedVersion,
    columns="version holds gates published_by published_at retired_at digest",
)
"""Newest first."""
GET_ATLAS_VERSION = Route(
    "GET /v1/atlases/{atlas_id}/versions/{version}",
    atlases.AtlasVersionDetails,
    query=AtlasVersionQuery,
    path_types={"version": VersionPath},
)
DIFF_ATLAS = Route("GET /v1/atlases/{atlas_id}/diff", atlases.AtlasDiff, query=DiffQuery)
"""What version `to` has otherwise than version `from`."""
QUERY_ATLAS = Route(
    "GET /v1/atlases/{atlas_id}/versions/{version}/rules",
    atlases.AtlasRules,
    query=AtlasRulesQuery,
    path_types={"version": VersionPath},
)
"""Which gates, capabilities and policies concern one action, or one capability."""
HAND_OVER_ATLAS = Route("POST /v1/atlases/{atlas_id}/owner", atlases.AtlasSummary, body=atlases.AtlasHandover)
"""From now on it belongs to another member or team. For its owner and admins; what waits for the owner before is cancelled."""
RETIRE_ATLAS_VERSION = Route(
    "POST /v1/atlases/{atlas_id}/versions/{version}/retire", atlases.Retired, path_types={"version": VersionPath}
)
"""New sessions are bound to the newest version that is left; those that are bound to this one go on with it."""
