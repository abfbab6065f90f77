"""Connections, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from cortex_plane.client.nouns import Noun
from cortex_plane.notify.model.webhooks import Ping
from cortex_plane.sessions.model.sessions import InboundMessage, IngestedMessage
from cortex_plane.tenancy.model.identities import (
    Connection,
    ConnectionChange,
    ConnectionDraft,
    Mapping,
    MappingDraft,
    NewConnection,
    NewSecret,
)


class Connections(Noun):
    async def create(self, draft: ConnectionDraft, *, idempotency_key: str | None = None) -> NewConnection:
        """A webhook's secret is in the answer, once."""
        return await self._transport.one(
            NewConnection, "POST", "/v1/connections", body=draft, idempotency_key=idempotency_key
        )

    async def get(self, id: UUID) -> Connection:
        return await self._transport.one(Connection, "GET", f"/v1/connections/{id}")

    def list(self, limit: int | None = None) -> AsyncIterator[Connection]:
        return self._transport.pages(Connection, "/v1/connections", limit=limit)

    async def update(self, id: UUID, change: ConnectionChange, *, revision: int | None = None) -> Connection:
        return await self._transport.one(
            Connection, "PATCH", f"/v1/connections/{id}", body=change, revision=revision
        )

    async def rotate_secret(self, id: UUID) -> NewSecret:
        """A new secret for a webhook, told once; the one before it counts for a day."""
        return await self._transport.one(NewSecret, "POST", f"/v1/connections/{id}/rotate-secret")

    async def test(self, id: UUID) -> Ping:
        """Let the plane send a signed `ping` to a webhook, and say what came back."""
        return await self._transport.one(Ping, "POST", f"/v1/connections/{id}/test")

    async def map(self, id: UUID, draft: MappingDraft) -> Mapping:
        """Say whose a name in the system behind a webhook is."""
        return await self._transport.one(Mapping, "POST", f"/v1/connections/{id}/mappings", body=draft)

    async def ingest(
        self, id: UUID, message: InboundMessage, *, idempotency_key: str | None = None
    ) -> IngestedMessage:
        """Hand over a person's message. Needs a service key."""
        return await self._transport.one(
            IngestedMessage,
            "POST",
            f"/v1/connections/{id}/messages",
            body=message,
            idempotency_key=idempotency_key,
        )
