from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from cortex_plane.gates.model.atlases import (
    MAX_ATLAS_BYTES,
    AtlasDiff,
    AtlasFile,
    AtlasSummary,
    AtlasVersionDetails,
    NumberedVersion,
    Published,
    Retired,
)
from cortex_plane.gates.verbs import atlases
from cortex_plane.http.exchange import (
    Caller,
    Db,
    Listing,
    ListQuery,
    reply,
    reply_keyed,
    reply_numbered,
    route,
)
from cortex_plane.kernel.fields import AtlasId, AtlasVersionName
from cortex_plane.kernel.pages import decode_number, decode_text

router = APIRouter(tags=["atlases"])

AtlasPath = Annotated[AtlasId, Path(description="As its manifest names it.")]
VersionPath = Annotated[AtlasVersionName, Path(description="As its manifest names it.")]


class VersionQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    source: bool = False
    """Also the file as it was published."""


class DiffQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    before: Annotated[AtlasVersionName, Field(alias="from")]
    after: Annotated[AtlasVersionName, Field(alias="to")]


async def publish_atlas(db: Db, actor: Caller, file: AtlasFile) -> Response:
    """A manifest becomes a version, which new sessions are bound to. The same version with the same content again is
    answered with 200 and changes nothing; with other content it is refused."""
    published = await atlases.publish_atlas(db, actor, file)
    return reply(published, 201 if published.created else 200)


# A whole file in a string of JSON, in which some characters are two.
_PUBLISHING = route(atlases.publish_atlas, body=MAX_ATLAS_BYTES * 3 // 2)
_PUBLISHING["responses"] |= {200: {"model": Published, "description": "It was published before, as it is."}}

router.add_api_route(
    "/atlases",
    publish_atlas,
    methods=["POST"],
    response_model=Published,
    status_code=201,
    **_PUBLISHING,
)


@router.get("/atlases", response_model=Listing[AtlasSummary], **route(atlases.list_atlases))
async def list_atlases(db: Db, actor: Caller, query: Annotated[ListQuery, Query()]) -> Response:
    """By id, one entry for each."""
    above = decode_text("atlases", query.cursor)
    found = await atlases.list_atlases(db, actor, above, query.limit + 1)
    return reply_keyed("atlases", found, query.limit, lambda atlas: atlas.atlas_id)


@router.get("/atlases/{atlas_id}", response_model=AtlasSummary, **route(atlases.get_atlas))
async def get_atlas(db: Db, actor: Caller, atlas_id: AtlasPath) -> Response:
    return reply(await atlases.get_atlas(db, actor, atlas_id))


@router.get(
    "/atlases/{atlas_id}/versions",
    response_model=Listing[NumberedVersion],
    **route(atlases.list_atlas_versions),
)
async def list_atlas_versions(
    db: Db, actor: Caller, atlas_id: AtlasPath, query: Annotated[ListQuery, Query()]
) -> Response:
    """Newest first."""
    below = decode_number("atlas versions", query.cursor)
    found = await atlases.list_atlas_versions(db, actor, atlas_id, below, query.limit + 1)
    return reply_numbered("atlas versions", found, query.limit, lambda version: version.number)


@router.get(
    "/atlases/{atlas_id}/versions/{version}",
    response_model=AtlasVersionDetails,
    **route(atlases.get_atlas_version),
)
async def get_atlas_version(
    db: Db, actor: Caller, atlas_id: AtlasPath, version: VersionPath, query: Annotated[VersionQuery, Query()]
) -> Response:
    return reply(await atlases.get_atlas_version(db, actor, atlas_id, version, source=query.source))


@router.get("/atlases/{atlas_id}/diff", response_model=AtlasDiff, **route(atlases.diff_atlases))
async def diff_atlas(
    db: Db, actor: Caller, atlas_id: AtlasPath, query: Annotated[DiffQuery, Query()]
) -> Response:
    """What version `to` has otherwise than version `from`."""
    return reply(await atlases.diff_atlases(db, actor, atlas_id, query.before, query.after))


@router.post(
    "/atlases/{atlas_id}/versions/{version}/retire", response_model=Retired, **route(atlases.retire_atlas)
)
async def retire_atlas_version(db: Db, actor: Caller, atlas_id: AtlasPath, version: VersionPath) -> Response:
    """New sessions are bound to the newest version that is left; those that are bound to this one go on with it."""
    return reply(await atlases.retire_atlas(db, actor, atlas_id, version))
