"""The audit trail, its signed roots and keys."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from uuid import UUID

from cortex_plane.client.transport import Noun
from cortex_plane.proof import routes
from cortex_plane.proof.model import AuditRecord, AuditRoot, RootMade, SigningKey, Verification


class Audit(Noun):
    def list(self, session_id: UUID | None = None, limit: int | None = None) -> AsyncIterator[AuditRecord]:
        return self._plane.pages(routes.LIST_AUDIT, limit=limit, session_id=session_id)

    def export(self, session_id: UUID | None = None) -> AsyncGenerator[bytes, None]:
        """The whole trail, or a session's chain, as it comes: nothing is kept. docs/reference/audit.md describes the lines."""
        return self._plane.download(routes.EXPORT_AUDIT, session_id=session_id)

    async def verify(self) -> Verification:
        return await self._plane.call(routes.VERIFY_AUDIT)

    def roots(self, limit: int | None = None) -> AsyncIterator[AuditRoot]:
        """Signed roots over all chains, newest first."""
        return self._plane.pages(routes.LIST_ROOTS, limit=limit)

    async def make_root(self) -> RootMade:
        """A root over everything so far, at once."""
        return await self._plane.call(routes.MAKE_ROOT)

    async def keys(self) -> Sequence[SigningKey]:
        """The public keys that receipts and roots are signed with, oldest first."""
        return await self._plane.all(routes.LIST_SIGNING_KEYS)

    async def rotate_key(self) -> SigningKey:
        """A new key signs from now on; what the old one signed stays valid."""
        return await self._plane.call(routes.ROTATE_SIGNING_KEY)
