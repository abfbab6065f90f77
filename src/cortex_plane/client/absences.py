"""Absences and delegates, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from uuid import UUID

from cortex_plane.approvals.model.approvals import Delegate
from cortex_plane.client.transport import Transport
from cortex_plane.kernel.fields import parse
from cortex_plane.tenancy.model.orgs import Absence, AbsenceDraft


class Absences:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def create(self, draft: AbsenceDraft, *, idempotency_key: str | None = None) -> Absence:
        return await self._transport.one(
            Absence, "POST", "/v1/absences", body=draft, idempotency_key=idempotency_key
        )

    async def get(self, id: UUID) -> Absence:
        return await self._transport.one(Absence, "GET", f"/v1/absences/{id}")

    def list(
        self, limit: int | None = None, *, member_id: UUID | None = None, only_open: bool = False
    ) -> AsyncIterator[Absence]:
        """Newest first; ``only_open`` leaves out what is over or cancelled."""
        return self._transport.pages(
            Absence, "/v1/absences", limit=limit, member_id=member_id, only_open=only_open
        )

    async def cancel(self, id: UUID) -> Absence:
        return await self._transport.one(Absence, "POST", f"/v1/absences/{id}/cancel")

    async def delegates(
        self, *, approval_id: UUID | None = None, name: str | None = None
    ) -> Sequence[Delegate]:
        """Colleagues to whom you may hand your part; with an approval, those who could take it there."""
        query = {"approval_id": approval_id, "name": name}
        page = await self._transport.send("GET", "/v1/delegates", query=query)
        return [parse(Delegate, item) for item in page["items"]]
