"""Policies and atlases."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cortex_plane.client.transport import Noun
from cortex_plane.gates import routes as gate_routes
from cortex_plane.gates.model import atlases
from cortex_plane.policies import routes
from cortex_plane.policies.model import versions as model


class Policies(Noun):
    async def apply(self, file: model.PolicyFile, *, idempotency_key: str | None = None) -> model.Applied:
        """The org's rows become those of the file; with ``dry_run`` nothing is changed."""
        return await self._plane.call(routes.APPLY_POLICIES, body=file, idempotency_key=idempotency_key)

    async def get(self, version: int | None = None) -> model.PolicyVersionDetails:
        """One version; without a number, the one that holds now."""
        if version is None:
            return await self._plane.call(routes.GET_POLICIES)
        return await self._plane.call(routes.GET_POLICY_VERSION, version)

    def versions(self, limit: int | None = None) -> AsyncIterator[model.PolicyVersion]:
        return self._plane.pages(routes.LIST_POLICY_VERSIONS, limit=limit)

    async def explain(self, asked: model.ExplainRequest) -> model.Explained:
        return await self._plane.call(routes.EXPLAIN_POLICIES, body=asked)

    async def simulate(self, asked: model.SimulationRequest) -> model.Simulation:
        """What a file would change about the calls of a time span. Nothing is applied."""
        return await self._plane.call(routes.SIMULATE_POLICIES, body=asked)


class Atlases(Noun):
    async def publish(self, file: atlases.AtlasFile) -> atlases.Published:
        """A new version; the same content again changes nothing."""
        return await self._plane.call(gate_routes.PUBLISH_ATLAS, body=file)

    def list(self, limit: int | None = None) -> AsyncIterator[atlases.AtlasSummary]:
        return self._plane.pages(gate_routes.LIST_ATLASES, limit=limit)

    async def get(self, atlas_id: str) -> atlases.AtlasSummary:
        return await self._plane.call(gate_routes.GET_ATLAS, atlas_id)

    def versions(self, atlas_id: str, limit: int | None = None) -> AsyncIterator[atlases.NumberedVersion]:
        """Newest first."""
        return self._plane.pages(gate_routes.LIST_ATLAS_VERSIONS, atlas_id, limit=limit)

    async def get_version(self, atlas_id: str, version: str, *, source: bool = False) -> atlases.AtlasVersionDetails:
        """With ``source`` the file as it was published."""
        query = {"source": "true"} if source else {}
        return await self._plane.call(gate_routes.GET_ATLAS_VERSION, atlas_id, version, query=query)

    async def diff(self, atlas_id: str, before: str, after: str) -> atlases.AtlasDiff:
        query = {"from": before, "to": after}
        return await self._plane.call(gate_routes.DIFF_ATLAS, atlas_id, query=query)

    async def retire(self, atlas_id: str, version: str) -> atlases.Retired:
        """New sessions are not bound to it any more."""
        return await self._plane.call(gate_routes.RETIRE_ATLAS_VERSION, atlas_id, version)
