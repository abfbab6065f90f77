"""Atlases over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import quote

from cortex_plane.client.transport import Transport
from cortex_plane.gates.model.atlases import (
    AtlasDiff,
    AtlasFile,
    AtlasSummary,
    AtlasVersionDetails,
    NumberedVersion,
    Published,
    Retired,
)


class Atlases:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def publish(self, file: AtlasFile) -> Published:
        """A new version; the same content again changes nothing."""
        return await self._transport.one(Published, "POST", "/v1/atlases", body=file)

    def list(self, limit: int | None = None) -> AsyncIterator[AtlasSummary]:
        return self._transport.pages(AtlasSummary, "/v1/atlases", limit=limit)

    async def get(self, atlas_id: str) -> AtlasSummary:
        return await self._transport.one(AtlasSummary, "GET", _path(atlas_id))

    def versions(self, atlas_id: str, limit: int | None = None) -> AsyncIterator[NumberedVersion]:
        """Newest first."""
        return self._transport.pages(NumberedVersion, f"{_path(atlas_id)}/versions", limit=limit)

    async def get_version(self, atlas_id: str, version: str, *, source: bool = False) -> AtlasVersionDetails:
        """With ``source`` the file as it was published."""
        query = {"source": "true"} if source else {}
        return await self._transport.one(
            AtlasVersionDetails, "GET", _path(atlas_id, "versions", version), query=query
        )

    async def diff(self, atlas_id: str, before: str, after: str) -> AtlasDiff:
        query = {"from": before, "to": after}
        return await self._transport.one(AtlasDiff, "GET", _path(atlas_id, "diff"), query=query)

    async def retire(self, atlas_id: str, version: str) -> Retired:
        """New sessions are not bound to it any more."""
        return await self._transport.one(Retired, "POST", _path(atlas_id, "versions", version, "retire"))


def _path(*parts: str) -> str:
    return "/v1/atlases/" + "/".join(quote(part, safe="") for part in parts)
