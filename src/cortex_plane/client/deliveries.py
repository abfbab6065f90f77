"""Deliveries, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from cortex_plane.client.transport import Transport
from cortex_plane.tenancy.model.identities import Delivery, DeliveryStatus


class Deliveries:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, id: UUID) -> Delivery:
        return await self._transport.one(Delivery, "GET", f"/v1/deliveries/{id}")

    def list(
        self,
        limit: int | None = None,
        *,
        status: DeliveryStatus | None = None,
        approval_id: UUID | None = None,
    ) -> AsyncIterator[Delivery]:
        """What was sent to whom, newest first."""
        return self._transport.pages(
            Delivery, "/v1/deliveries", limit=limit, status=status, approval_id=approval_id
        )

    async def resend(self, id: UUID) -> Delivery:
        """What was given up is tried again, at once."""
        return await self._transport.one(Delivery, "POST", f"/v1/deliveries/{id}/resend")
