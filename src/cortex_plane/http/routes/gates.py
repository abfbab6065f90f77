"""The routes of gates, bound to their verbs."""

from __future__ import annotations

from starlette.responses import Response

from cortex_plane.gates import routes
from cortex_plane.gates.model.atlases import AtlasFile
from cortex_plane.gates.verbs import atlases
from cortex_plane.http.exchange import Binding, Exchange, answer, handle, ordered, reply
from cortex_plane.kernel.pages import decode_text


async def publish_atlas(exchange: Exchange, file: AtlasFile) -> Response:
    version = await atlases.publish_atlas(exchange.db, exchange.actor, file)
    return reply(version, 201 if version.created else 200)


BINDINGS: tuple[Binding, ...] = (
    handle(routes.PUBLISH_ATLAS, atlases.publish_atlas, publish_atlas),
    ordered(
        routes.LIST_ATLASES, atlases.list_atlases, "atlases", "above", lambda atlas: atlas.atlas_id, decode=decode_text
    ),
    answer(routes.GET_ATLAS, atlases.get_atlas),
    ordered(
        routes.LIST_ATLAS_VERSIONS,
        atlases.list_atlas_versions,
        "atlas versions",
        "below",
        lambda version: version.number,
    ),
    answer(routes.GET_ATLAS_VERSION, atlases.get_atlas_version),
    answer(routes.DIFF_ATLAS, atlases.diff_atlases),
    answer(routes.RETIRE_ATLAS_VERSION, atlases.retire_atlas),
)
