"""Policies over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator

from cortex_plane.client.transport import Transport
from cortex_plane.policies.model.versions import (
    Applied,
    Explained,
    ExplainRequest,
    PolicyFile,
    PolicyVersion,
    PolicyVersionDetails,
    Simulation,
    SimulationRequest,
)


class Policies:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def apply(self, file: PolicyFile, *, idempotency_key: str | None = None) -> Applied:
        """The org's rows become those of the file; with ``dry_run`` nothing is changed."""
        return await self._transport.one(
            Applied, "POST", "/v1/policies", body=file, idempotency_key=idempotency_key
        )

    async def get(self, version: int | None = None) -> PolicyVersionDetails:
        """One version; without a number, the one that holds now."""
        path = "/v1/policies" if version is None else f"/v1/policies/versions/{version}"
        return await self._transport.one(PolicyVersionDetails, "GET", path)

    def versions(self, limit: int | None = None) -> AsyncIterator[PolicyVersion]:
        return self._transport.pages(PolicyVersion, "/v1/policies/versions", limit=limit)

    async def explain(self, asked: ExplainRequest) -> Explained:
        return await self._transport.one(Explained, "POST", "/v1/policies/explain", body=asked)

    async def simulate(self, asked: SimulationRequest) -> Simulation:
        """What a file would change about the calls of a time span. Nothing is applied."""
        return await self._transport.one(Simulation, "POST", "/v1/policies/simulate", body=asked)
