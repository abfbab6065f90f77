"""What models took, and the org's own keys for them, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from uuid import UUID

from cortex_plane.client.transport import Transport
from cortex_plane.jobs.model.usage import Grouping, UsageRow, UsageTotals
from cortex_plane.tenancy.model.credentials import ModelKey, ModelKeyDraft, Provider


class Usage:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self,
        by: Grouping = Grouping.DAY,
        limit: int | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        agent: str | None = None,
        job_id: UUID | None = None,
    ) -> AsyncIterator[UsageRow]:
        """Tokens and cost by day of UTC, agent, job or model."""
        return self._transport.pages(
            UsageRow, "/v1/usage", limit=limit, by=by, since=since, until=until, agent=agent, job_id=job_id
        )

    async def of_job(self, job_id: UUID) -> UsageTotals:
        return await self._transport.one(UsageTotals, "GET", f"/v1/jobs/{job_id}/usage")


class ModelKeys:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def list(self) -> Sequence[ModelKey]:
        return await self._transport.all(ModelKey, "/v1/model-keys")

    async def get(self, provider: Provider) -> ModelKey:
        return await self._transport.one(ModelKey, "GET", f"/v1/model-keys/{provider}")

    async def set(self, provider: Provider, key: str) -> ModelKey:
        """The org's own key, in the place of the one before."""
        return await self._transport.one(
            ModelKey, "PUT", f"/v1/model-keys/{provider}", body=ModelKeyDraft(key=key)
        )

    async def remove(self, provider: Provider) -> None:
        await self._transport.send("DELETE", f"/v1/model-keys/{provider}")
