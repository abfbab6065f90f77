"""Where people are reached: invitations, addresses and linked channels."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import UUID

from cortex_plane.client.transport import Transport
from cortex_plane.tenancy.model.identities import (
    AddressDraft,
    InvitationDraft,
    Invited,
    LinkCode,
    LinkDraft,
    Mapping,
)


class Identities:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def invite(self, draft: InvitationDraft, *, idempotency_key: str | None = None) -> Invited:
        """Add a member by mail. For an address that was not confirmed yet, the mail is sent again."""
        return await self._transport.one(
            Invited, "POST", "/v1/members/invite", body=draft, idempotency_key=idempotency_key
        )

    async def unlink_member(self, member_id: UUID, mapping_id: UUID) -> None:
        await self._transport.send("DELETE", f"/v1/members/{member_id}/mappings/{mapping_id}")

    def mappings(self, limit: int | None = None) -> AsyncIterator[Mapping]:
        """Your own."""
        return self._transport.pages(Mapping, "/v1/me/mappings", limit=limit)

    async def unlink(self, mapping_id: UUID) -> None:
        """Give up one of your own."""
        await self._transport.send("DELETE", f"/v1/me/mappings/{mapping_id}")

    async def add_address(self, draft: AddressDraft) -> Mapping:
        """An address of your own; it counts once you have confirmed it."""
        return await self._transport.one(Mapping, "POST", "/v1/me/addresses", body=draft)

    async def link_code(self) -> LinkCode:
        """A code to type on another channel."""
        return await self._transport.one(LinkCode, "POST", "/v1/me/link-codes")

    async def redeem(self, connection_id: UUID, draft: LinkDraft) -> Mapping:
        """For a channel's program: somebody typed a code. Needs a service key."""
        return await self._transport.one(Mapping, "POST", f"/v1/connections/{connection_id}/link", body=draft)
