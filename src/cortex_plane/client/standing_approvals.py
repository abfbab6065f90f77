"""Standing approvals, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from cortex_plane.approvals.model.approvals import Revocation, StandingApproval
from cortex_plane.client.transport import Transport


class StandingApprovals:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def list(
        self, limit: int | None = None, *, session_id: UUID | None = None, active: bool = False
    ) -> AsyncIterator[StandingApproval]:
        """Newest first; ``active`` leaves out what is revoked, over or used up."""
        return self._transport.pages(
            StandingApproval, "/v1/standing-approvals", limit=limit, session_id=session_id, active=active
        )

    async def get(self, id: UUID) -> StandingApproval:
        return await self._transport.one(StandingApproval, "GET", f"/v1/standing-approvals/{id}")

    async def revoke(self, id: UUID, *, reason: str | None = None) -> StandingApproval:
        """From now on it covers nothing."""
        return await self._transport.one(
            StandingApproval, "POST", f"/v1/standing-approvals/{id}/revoke", body=Revocation(reason=reason)
        )
